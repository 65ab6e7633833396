"""Runs whose trace has gone quiet come to their end.

A span is sent when it has ended, the one without a parent after the others of its process, and
those of other processes whenever they like. So a run is ended a while after the last span came, by
the database's clock: sooner when the span without a parent is there. One of which nothing of an
agent ever ended has failed: its process died, or never sent the rest.
"""

from __future__ import annotations

from agentstate import store
from agentstate.otlp.taking import KEY, TAG
from agentstate.store import traced
from agentstate.store.callers import SWEEP
from agentstate.store.commands import Transition
from agentstate.store.errors import Refusal
from agentstate.store.payloads import dump
from agentstate.store.states import Status

LIMIT = 200


def end_quiet(*, quiet_seconds: int, idle_seconds: int, limit: int = LIMIT) -> int:
    """End what has gone quiet; how many. A span that comes at the same moment goes first."""
    found = traced.quiet_runs(
        prefix=KEY, tag=TAG, quiet_seconds=quiet_seconds, idle_seconds=idle_seconds, limit=limit
    )
    return sum(_end(run) for run in found)


def _end(run: traced.QuietRun) -> bool:
    to, why = _ending(run)
    command = Transition(run=run.key, to=to, result=dump({"reason": why}), if_match=run.version)
    try:
        store.execute(command, by=SWEEP)
    except Refusal:
        return False  # a span came, or somebody ended it: the next pass looks again
    return True


def _ending(run: traced.QuietRun) -> tuple[Status, str]:
    if run.root is not None:
        failed = bool(run.root.get("failed"))
        return (Status.FAILED if failed else Status.COMPLETED), "its root span has ended"
    if run.last is not None:
        failed = run.last.endswith(".failed")
        return (
            Status.FAILED if failed else Status.COMPLETED,
            "no root span came; the last of an agent has ended",
        )
    return Status.FAILED, "neither a root span nor one of an agent came to its end"
