"""Bulks: one thing to many runs is begun, or stopped. How it goes on: `bulks.py`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from agentstate.store import bulking, filters
from agentstate.store.commands import BulkCreated, BulkStopped, CreateBulk, StopBulk
from agentstate.store.errors import Invalid, NotFound
from agentstate.store.payloads import moment
from agentstate.store.rules.deciding.desk import Deciding


def create_bulk(ask: CreateBulk, on: Deciding) -> BulkCreated:
    on.by.need("operate")
    # Of those that were picked, each one is tried, whatever the form says of them.
    if bulking.asks_for_more(max(ask.shown, len(ask.picked)), is_all=ask.is_all):
        on.by.need("override")
    wanted = filters.parse(ask.filter) if ask.filter is not None else None
    if wanted is not None and any(clause.attr for clause in wanted.clauses):
        on.by.need("payloads")
    now = on.draft.now
    if not now - timedelta(seconds=bulking.SEEN_SECONDS_MAX) <= ask.seen_at <= now:
        raise Invalid("seen_at", "what you saw is too old: look again")
    bulk = on.draft.facts.new_id(now)
    asked = filters.frozen(wanted, ask.seen_at).text if wanted is not None else None
    values = {"id": bulk, "ask": ask, "filter": asked, "by": on.by}
    on.draft.writes.other.append(("bulk", values))
    on.act(f"bulk.{ask.kind}", bulking.name_of(bulk), reason=ask.reason, after=_told(ask, asked))
    return BulkCreated(bulk=bulk, kind=ask.kind, at=now)


def _told(ask: CreateBulk, asked: str | None) -> dict[str, Any]:
    """What the audit keeps of it. Each effect is in its run's history, under the bulk's name."""
    told: dict[str, Any] = {"seen_at": moment(ask.seen_at), "shown": ask.shown}
    told |= {"filter": asked} if asked is not None else {"picked": len(ask.picked)}
    if not ask.is_all:
        told["is_all"] = False
    if ask.tags:
        told["tags"] = list(ask.tags)
    if ask.hold_off_seconds:
        told["hold_off_seconds"] = ask.hold_off_seconds
    return told


def stop_bulk(ask: StopBulk, on: Deciding) -> BulkStopped:
    on.by.need("operate")
    state = on.draft.facts.bulks.get(ask.bulk)
    if state is None:
        raise NotFound("no such bulk")
    if state not in bulking.AT_WORK:
        return BulkStopped(bulk=ask.bulk, state=state, at=on.draft.now, already=True)
    values = {"id": ask.bulk, "by": on.by.principal, "why": ask.reason}
    on.draft.writes.other.append(("bulk-stop", values))
    on.draft.facts.bulks[ask.bulk] = bulking.STOPPED
    on.act(
        "bulk.stopped",
        bulking.name_of(ask.bulk),
        reason=ask.reason,
        before={"state": state},
        after={"state": bulking.STOPPED},
    )
    return BulkStopped(bulk=ask.bulk, state=bulking.STOPPED, at=on.draft.now)
