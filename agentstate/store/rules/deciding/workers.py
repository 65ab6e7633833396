"""Workers: what they say of themselves, and that an operator wants one to stop taking work."""

from __future__ import annotations

from agentstate.store.commands import (
    AnnounceWorker,
    DrainWorker,
    SignalTold,
    WorkerDrained,
    WorkerSeen,
)
from agentstate.store.rules.deciding.desk import Deciding


def announce_worker(ask: AnnounceWorker, on: Deciding) -> WorkerSeen:
    on.draft.writes.other.append(("worker", {"ask": ask, "by": on.by.principal}))
    drains = on.draft.facts.drains
    wanted = drains.get(ask.worker) or drains.get(ask.worker.split("~")[0])
    signals = (SignalTold(signal="drain", **wanted),) if wanted else ()
    return WorkerSeen(worker=ask.worker, now=on.draft.now, signals=signals)


def drain_worker(ask: DrainWorker, on: Deciding) -> WorkerDrained:
    on.by.need("operate")
    on.draft.writes.other.append(("drain", {"ask": ask, "by": on.by.principal}))
    verb = "drained" if ask.draining else "undrained"
    on.act(f"worker.{verb}", ask.worker, reason=ask.reason)
    return WorkerDrained(worker=ask.worker, draining=ask.draining, at=on.draft.now)
