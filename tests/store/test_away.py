"""A server that cannot be connected to is told as that, soon, and of everything that was asked."""

import time
from importlib import import_module

import pytest
from django.db import DatabaseError, connection
from psycopg import errors

from agentstate.django_postgres.turns import Away
from agentstate.store import outages
from agentstate.store.asks import Ask
from agentstate.store.commands import Append
from tests.store.asking import FLEET, event

execute = import_module("agentstate.store.execute")


@pytest.fixture
def nobody_there(store):
    store.create("42")
    connection.close()
    port, connection.settings_dict["PORT"] = connection.settings_dict["PORT"], "1"
    yield
    connection.settings_dict["PORT"] = port
    connection.close()


def asks(count):
    return [Ask(command=Append(run="42", events=(event(),)), by=FLEET) for _ in range(count)]


def test_all_of_a_batch_are_told_together(store, nobody_there, monkeypatch):
    monkeypatch.setattr(execute, "KNOCK_SECONDS", 0.0)
    outcomes = execute.execute_all(asks(5))
    assert [outcome.code for outcome in outcomes] == ["unavailable"] * 5


def test_it_is_tried_again_for_a_moment_only(store, nobody_there):
    began = time.monotonic()
    with pytest.raises(DatabaseError) as failed:
        connection.ensure_connection()
    assert isinstance(failed.value.__cause__, Away)
    (outcome,) = execute.execute_all(asks(1))
    assert outcome.code == "unavailable"
    assert (
        time.monotonic() - began < 30
    )  # four tries of a server that refuses, not of one that hangs


@pytest.mark.parametrize(
    ("cause", "is_one"),
    [(errors.ReadOnlySqlTransaction, True), (errors.DivisionByZero, False)],
)
def test_one_that_can_only_be_read_is_an_outage_and_a_fault_of_ours_is_none(cause, is_one):
    failed = DatabaseError("x")
    failed.__cause__ = cause("x")
    assert outages.is_one(failed) is is_one
