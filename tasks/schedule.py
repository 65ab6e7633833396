"""What beat starts, and how often; the modules in which the tasks are, and their queues.

After three hours without workers there is one pass of each job to do, not thousands. A start says
`when_due`: whoever takes it asks the database whether the job began just now, and then leaves it.
Those that waited longer than five minutes, or than a period, are dropped unasked (`expires`). Not
sooner, because that is judged by the clocks of two hosts, which may differ.
"""

from __future__ import annotations

from typing import Any

from agentstate.store.upkeep import JOBS

MODULES: tuple[str, ...] = ("tasks.upkeep", "tasks.alerts", "tasks.bulks", "tasks.fleet")
# Shifts of the fleet take minutes and are worked on by workers of their own.
ROUTES: dict[str, dict[str, str]] = {"agentstate.work_shift": {"queue": "fleet"}}


EXPIRES_SECONDS_MIN = 300.0


def _every(seconds: float, task: str) -> dict[str, Any]:
    return {
        "task": f"agentstate.{task}",
        "schedule": seconds,
        "kwargs": {"when_due": True},
        "options": {"expires": max(seconds, EXPIRES_SECONDS_MIN)},
    }


def _job(name: str, task: str) -> dict[str, Any]:
    return _every(JOBS[name], task)


SCHEDULE: dict[str, dict[str, Any]] = {
    "note-lapsed-leases": _job("note lapsed leases", "note_lapsed_leases"),
    "carry-out-deadlines": _job("carry out deadlines", "carry_out_deadlines"),
    "drop-dead-holds": _job("drop dead holds", "drop_dead_holds"),
    "evaluate-alerts": _job("evaluate alerts", "evaluate_alerts"),
    "deliver-alerts": _job("deliver alerts", "deliver_alerts"),
    "work-bulks": _every(2, "work_bulks"),
    "move-feed": _every(1, "move_feed"),
    "end-quiet-traces": _job("end quiet traces", "end_quiet_traces"),
    "make-partitions": _job("make partitions", "make_partitions"),
    "purge": _job("purge what is past its age", "purge"),
    "drop-old-weeks": _job("drop weeks that are over", "drop_old_weeks"),
}
