"""Many at once: every operation is decided, and every one that fails is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentstate.store.commands import Batch, BatchDone, Check, Checked, Command, Result
from agentstate.store.errors import BatchRefused, Refusal
from agentstate.store.rules import runs
from agentstate.store.rules.deciding.desk import Deciding
from agentstate.store.rules.expect import check_expect

type Decide = Callable[[Command[Any], Deciding], Result]


def check(ask: Check, on: Deciding) -> Checked:
    run = on.draft.run(ask.run)
    if ask.fence is not None:
        runs.check_fence(run, ask.fence, on.by)
    runs.check_version(run, ask.if_match)
    runs.check_seq(run, ask.expected_seq)
    check_expect(run, ask.expect)
    return Checked(run=run.key, version=run.version, last_seq=run.last_seq)


def batch(ask: Batch, on: Deciding, *, decide: Decide) -> BatchDone:
    """Each operation on a fork that is adopted when it succeeds, so a failed one spoils no other.

    The batch's own draft is thrown away as a whole when any has failed.
    """
    results: list[Result] = []
    failed: list[dict[str, Any]] = []
    for index, operation in enumerate(ask.operations):
        fork = on.draft.fork()
        try:
            results.append(decide(operation, on.with_draft(fork)))
        except Refusal as refusal:
            failed.append(_told(index, refusal))
        else:
            on.draft.adopt(fork)
    if failed:
        raise BatchRefused(
            f"{len(failed)} of {len(ask.operations)} operations are refused; nothing was written",
            operations=failed,
        )
    return BatchDone(results=tuple(results), at=on.draft.now)


def _told(index: int, refusal: Refusal) -> dict[str, Any]:
    told = {
        "index": index,
        "code": refusal.code,
        "retry": str(refusal.retry),
        "detail": refusal.detail,
    }
    return told | {"current": refusal.current} | refusal.facts
