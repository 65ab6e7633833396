"""A connection that is kept is not asked at each request whether it works: one looks whether the
server has said anything."""

import time

import psycopg
import pytest
from django.conf import settings
from django.db import OperationalError, connection

from agentstate import postgres
from agentstate.django_postgres import base
from tests.store.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def outside(sql: str, *values):
    info = postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])
    with psycopg.connect(info, autocommit=True) as other:
        return other.execute(sql, values).fetchone()[0]


def test_a_connection_that_is_well_and_in_use_is_asked_nothing():
    assert connection.is_usable()  # before this test it may have rested
    own = backend()
    for _ in range(3):
        assert connection.is_usable()
    last = outside("SELECT query FROM pg_stat_activity WHERE pid = %s", own)
    assert last == "SELECT pg_backend_pid()"


def test_one_that_the_server_has_ended_is_not_used_again():
    own = backend()
    assert outside("SELECT pg_terminate_backend(%s, 5000)", own)
    wait_for(lambda: not connection.is_usable())
    connection.close()
    assert backend() != own


def test_one_that_has_rested_is_asked(monkeypatch):
    own = backend()
    monkeypatch.setattr(connection, "_used_at", time.monotonic() - base.RESTED_SECONDS)
    assert connection.is_usable()
    last = outside("SELECT query FROM pg_stat_activity WHERE pid = %s", own)
    assert last == "SELECT 1"


def test_nobody_waits_for_an_answer_for_ever():
    with connection.cursor() as cursor:
        connection.connection.answer_seconds = 0.05
        with pytest.raises(OperationalError, match="no answer in"):
            cursor.execute("SELECT pg_sleep(1)")
    assert not connection.is_usable()
    connection.close()
    assert backend()


def test_the_server_is_told_when_to_give_up_a_session():
    with connection.cursor() as cursor:
        for name in postgres.SERVER_TCP:
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone()[0]
        cursor.execute("SELECT source FROM pg_settings WHERE name = ANY(%s)",
                       [list(postgres.SERVER_TCP)])  # fmt: skip
        assert cursor.fetchall() == [("session",)] * len(postgres.SERVER_TCP)


def test_after_an_error_it_is_asked():
    own = backend()
    connection.errors_occurred = True
    assert connection.is_usable()
    last = outside("SELECT query FROM pg_stat_activity WHERE pid = %s", own)
    assert last == "SELECT 1"
    connection.errors_occurred = False
