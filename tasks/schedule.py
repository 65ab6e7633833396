"""What beat starts, and how often; the modules in which the tasks are, and their queues.

A start that no worker took before the next one was due is dropped (`expires`): after an hour
without workers there is one sweep to do, not seven hundred.
"""

from __future__ import annotations

from typing import Any

MODULES: tuple[str, ...] = ("tasks.upkeep", "tasks.fleet")
# Shifts of the fleet take minutes and are worked on by workers of their own.
ROUTES: dict[str, dict[str, str]] = {"agentstate.work_shift": {"queue": "fleet"}}


def _every(seconds: float, task: str) -> dict[str, Any]:
    return {
        "task": f"agentstate.{task}",
        "schedule": seconds,
        "options": {"expires": max(seconds, 5.0)},
    }


SCHEDULE: dict[str, dict[str, Any]] = {
    "note-lapsed-leases": _every(5, "note_lapsed_leases"),
    "carry-out-deadlines": _every(5, "carry_out_deadlines"),
    "drop-dead-holds": _every(10, "drop_dead_holds"),
    "move-feed": _every(1, "move_feed"),
    "make-partitions": _every(3_600, "make_partitions"),
    "purge-idempotency": _every(3_600, "purge_idempotency"),
}
