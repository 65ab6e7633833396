"""Statements that go to PostgreSQL together, on a real connection."""

from __future__ import annotations

from importlib import import_module

import psycopg
import pytest
from django.db import DataError, OperationalError, ProgrammingError, connection, transaction
from django.test import override_settings

from agentstate.store import flights, spent

execute = import_module("agentstate.store.execute")

ECHO = "SELECT %s::text, %s::bigint"
NAMED = "SELECT %(a)s::text || %(b)s::text || %(a)s::text, 7 %% 4"
FAILS = "SELECT 1 / %s::int"
MAKE = "INSERT INTO flights_test VALUES (%s)"
ALL = frozenset({ECHO, NAMED, FAILS, MAKE})


@pytest.fixture(autouse=True)
def _table(transactional_db):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE IF NOT EXISTS flights_test (n int)")
        cursor.execute("TRUNCATE flights_test")


def carry_out(*asked):
    """Statements with their params in one transaction; the rows of the last one."""
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        for statement, *params in asked:
            cursor.execute(statement, params)
        return cursor.fetchall()


def stored():
    with connection.cursor() as cursor:
        cursor.execute("SELECT n FROM flights_test ORDER BY n")
        return [n for (n,) in cursor.fetchall()]


def prepared():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT statement FROM pg_prepared_statements WHERE name LIKE 'agentstate%%'"
        )
        return sorted(statement for (statement,) in cursor.fetchall())


def test_several_wait_for_each_other_and_go_together():
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        first, second = cursor.later(ECHO, ["a'\"\\", 2**53]), cursor.later(ECHO, [None, None])
        cursor.execute(MAKE, [1])
        assert second.rows() == [(None, None)]
        assert first.rows() == [("a'\"\\", 2**53)]
        cursor.execute(MAKE, [2])
    assert stored() == [1, 2]


def test_names_stand_for_what_is_given_under_them():
    assert flights.in_protocol(NAMED) == (
        b"SELECT $1::text || $2::text || $1::text, 7 % 4",
        ("a", "b"),
    )
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(NAMED, {"b": "-", "a": "x"})
        assert cursor.fetchone() == ("x-x", 3)
        assert cursor.fetchone() is None


def test_djangos_cursor_comes_after_what_waits():
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(MAKE, [1])
        cursor.execute("SELECT count(*) FROM flights_test")
        assert cursor.fetchall() == [(1,)]
        cursor.execute(ECHO, ["b", 1])
        assert cursor.fetchall() == [("b", 1)]


def test_a_failure_takes_the_whole_transaction_and_the_connection_goes_on():
    with pytest.raises(DataError, match="division by zero") as failed:
        carry_out((MAKE, 1), (FAILS, 0), (ECHO, "never prepared", 1))
    assert isinstance(failed.value.__cause__, psycopg.errors.DivisionByZero)
    assert stored() == []
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(ECHO, ["again", 1])
        assert cursor.fetchall() == [("again", 1)]
        cursor.execute(MAKE, [3])
    assert stored() == [3]


def test_what_fails_at_the_end_fails_before_commit():
    def not_fetched():
        with transaction.atomic(), flights.cursor(ALL) as cursor:
            cursor.execute(MAKE, [1])
            cursor.execute(FAILS, [0])

    with pytest.raises(DataError):
        not_fetched()
    assert stored() == []


def test_a_statement_is_prepared_once_for_a_connection():
    for _ in range(3):
        with transaction.atomic(), flights.cursor(ALL) as cursor:
            cursor.execute(ECHO, ["a", 1])
    assert prepared().count(flights.in_protocol(ECHO)[0].decode()) == 1


@override_settings(PREPARED_STATEMENTS=False)
def test_behind_a_pooler_nothing_is_prepared():
    """Case O-43 (docs/cases.md)."""
    before = prepared()
    with transaction.atomic(), flights.cursor(frozenset({"SELECT %s::text"})) as cursor:
        cursor.execute("SELECT %s::text", ["a"])
        assert cursor.fetchall() == [("a",)]
    assert prepared() == before


def test_one_that_is_gone_is_not_tried_by_its_name_again(monkeypatch):
    """As behind a pooler in transaction mode: the session is another one, without the name."""
    monkeypatch.setattr(flights, "_POOLED", type(flights._POOLED)())
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(ECHO, ["a", 1])
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    with pytest.raises(ProgrammingError) as gone:
        carry_out((ECHO, "a", 1))
    assert gone.value.__cause__.sqlstate in execute._TRY_AGAIN
    with transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(ECHO, ["b", 1])
        assert cursor.fetchall() == [("b", 1)]


def test_a_single_statement_whose_name_is_gone_is_asked_without(monkeypatch):
    monkeypatch.setattr(flights, "_POOLED", type(flights._POOLED)())
    before = prepared()
    for _ in range(3):
        assert flights.fetch(ECHO, ["a", 1]) == [("a", 1)]
    assert len(prepared()) == len(before) + 1
    assert connection.connection.info.transaction_status.name == "IDLE"
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert flights.fetch(ECHO, ["b", 2]) == [("b", 2)]
    assert flights._POOLED.is_set()
    assert flights.fetch(ECHO, ["c", 3]) == [("c", 3)]


def test_a_connection_that_is_cut_is_told_so():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()

    def cut_amid():
        with transaction.atomic(), flights.cursor(ALL) as cursor:
            cursor.execute(ECHO, ["a", 1])
            cursor.flush()
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            cursor.execute(ECHO, ["b", 1])
            cursor.fetchall()

    with (
        psycopg.connect(connection.connection.info.dsn, autocommit=True) as other,
        pytest.raises(OperationalError),
    ):
        cut_amid()
    connection.close()
    assert carry_out((ECHO, "b", 1)) == [("b", 1)]


def test_its_time_is_counted_where_requests_look():
    with spent.kept(record := spent.Spent()), transaction.atomic(), flights.cursor(ALL) as cursor:
        cursor.execute(ECHO, ["a", 1])
        cursor.fetchall()
    assert record.db > 0
    assert record.lock == 0
