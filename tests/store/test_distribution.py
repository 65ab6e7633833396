"""What a store without Citus has of distribution: a written refusal, and nothing else."""

from __future__ import annotations

import re

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from agentstate.store import distributed_sql, distributing, distribution, workers_away


def test_without_the_extension_it_says_what_to_do(db: None) -> None:
    with pytest.raises(CommandError, match="CREATE EXTENSION citus"):
        call_command("distribute")
    with pytest.raises(CommandError, match="1 to 4096"):
        call_command("distribute", shards=0)
    assert not distribution.is_distributed()


def test_every_table_of_the_store_has_its_place() -> None:
    kinds = {table.name: table.kind for table in distributing.tables()}
    assert kinds.pop(distributing.LOG) == distributing.DISTRIBUTED
    assert set(kinds.values()) == {distributing.LOCAL}
    assert set(distributing._WHY_LOCAL) <= set(kinds)


def test_only_one_function_writes_the_distributed_log() -> None:
    writing = [
        name for name, text in distributed_sql.FUNCTIONS.items()
        if "INSERT INTO agentstate_event" in text
    ]  # fmt: skip
    assert writing == ["agentstate_log_events"]
    assert all(distributed_sql.MARK in text for text in distributed_sql.FUNCTIONS.values())


def test_what_chooses_runs_can_pass_some_by() -> None:
    # Each choice in a statement has the words behind which the condition is put.
    for statement, (words, _) in workers_away._CHOOSING.items():
        assert statement.count(words) == len(
            re.findall(r"FROM agentstate_(?:run|lease)", statement)
        )


@pytest.mark.parametrize(
    ("code", "said", "worker"),
    [
        (
            "08006",
            "connection to the remote node me@10.0.0.7:5432 failed: refused",
            "10.0.0.7:5432",
        ),
        ("08006", "connection to the remote node b:5433 failed: refused", "b:5433"),
        ("08006", "could not connect to somewhere", ""),
        ("40001", "connection to the remote node b:5433 failed: refused", ""),
    ],
)
def test_an_error_that_tells_of_a_worker(db: None, code: str, said: str, worker: str) -> None:
    with (
        pytest.raises(DatabaseError) as failed,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION '{said}' USING ERRCODE = '{code}'; END $$")
    try:
        assert failed.value.__cause__ is not None
        assert workers_away.told_by(failed.value.__cause__) == worker
        assert workers_away.note(failed.value.__cause__) == bool(worker)
        assert workers_away.known() == ([worker] if worker else [])
    finally:
        workers_away.forget()


def test_a_session_of_ours_that_ends_tells_of_no_worker() -> None:
    class Diag:
        severity_nonlocalized = "FATAL"
        message_primary = "connection to the remote node b:5433 failed"
        context = None

    class Ended(psycopg.errors.ConnectionFailure):
        diag = Diag()  # type: ignore[assignment]

    assert workers_away.told_by(Ended()) == ""
