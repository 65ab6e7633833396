"""`./run doctor` on a distributed store: each thing that it finds. On real workers: tests/citus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection

from agentstate.doctor import Level, distribution
from agentstate.doctor.distribution import Facts, Worker
from agentstate.store import distributed_sql, distributing

WORKER = Worker(name="b:5432", citus="14.0", prepared_max=300)
FINE = Facts(
    citus="14.0", recover_seconds=5.0, connect_seconds=3.0, connections_max=300, inactive=(),
    local_weeks=(), left=(), workers=(WORKER, replace(WORKER, name="c:5432")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "level", "word", "mend"),
    [
        ({"left": (distributing.KNOWN,)}, Level.PROBLEM, "know of no worker", "distribute"),
        ({"left": ("the log has left the coordinator",)}, Level.PROBLEM, "left the", "distribute"),
        ({"local_weeks": ("week_1",)}, Level.PROBLEM, "week_1", "attach"),
        ({"inactive": ("d:5432",)}, Level.PROBLEM, "d:5432", "citus_activate_node"),
        ({"recover_seconds": -0.001}, Level.PROBLEM, "never", "recover_2pc_interval"),
        ({"recover_seconds": 60.0}, Level.WARNING, "60 s", "recover_2pc_interval"),
        ({"connect_seconds": 30.0}, Level.WARNING, "30 s", "node_connection_timeout"),
        ({"worker": {"refused": "no route"}}, Level.PROBLEM, "no route", "citus_update_node"),
        ({"worker": {"citus": "13.0"}}, Level.PROBLEM, "has Citus 13.0", "EXTENSION citus UPDATE"),
        ({"worker": {"prepared_max": 0}}, Level.PROBLEM, "prepare 0", "max_prepared"),
        ({"worker": {"prepared_max": 100}}, Level.WARNING, "prepare 100", "max_prepared"),
        ({"worker": {"off": ("fsync",)}}, Level.PROBLEM, "fsync is off on worker b", "turn"),
        ({"worker": {"off": ("autovacuum",)}}, Level.PROBLEM, "autovacuum", "turn"),
        ({"worker": {"unfinished": 2}}, Level.PROBLEM, "2 transactions", "recover_prepared"),
    ],
)
def test_what_is_wrong_with_a_distribution(
    change: dict[str, Any], level: Level, word: str, mend: str
) -> None:
    worker = change.pop("worker", None)
    facts = replace(FINE, **change)
    if worker is not None:
        facts = replace(facts, workers=(replace(WORKER, **worker), *FINE.workers[1:]))
    (found,) = distribution.judge(facts)
    assert (found.level, found.about) == (level, "distribution")
    assert word in found.what
    assert mend in found.mend


def test_a_distribution_that_will_do_is_fine() -> None:
    assert list(distribution.judge(FINE)) == []


def test_of_a_worker_that_is_away_nothing_else_is_told() -> None:
    away = Worker(name="b:5432", refused="connection refused")
    facts = replace(FINE, workers=(away,), left=(distributing.BOUNDED,))
    (found,) = distribution.judge(facts)
    assert "connection refused" in found.what


def test_a_store_that_is_not_distributed_has_nothing_to_tell(db: None) -> None:
    assert list(distribution.look()) == []
    with connection.cursor() as cursor:
        for text in distributed_sql.FUNCTIONS.values():
            cursor.execute(text)
    (found,) = distribution.look()
    assert "the log is not there" in found.what
