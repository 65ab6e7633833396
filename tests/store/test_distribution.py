"""What a store without Citus has of distribution: a written refusal, and nothing else."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from agentstate.store import distributed_sql, distributing, distribution


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
