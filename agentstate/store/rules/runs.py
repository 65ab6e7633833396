"""Runs: who may write, in which order, and which moves are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import NewEvent
from agentstate.store.effects import effect_of
from agentstate.store.errors import (
    AlreadyTerminal,
    EventIdReuse,
    FenceRequired,
    IllegalTransition,
    PartialDuplicate,
    SeqConflict,
    StaleFence,
    VersionConflict,
)
from agentstate.store.payloads import canonical
from agentstate.store.rows import EventRow, RunRow, replace
from agentstate.store.states import OPERATOR_MOVES, TERMINAL, Status, allowed_moves


def check_fence(run: RunRow, token: int | None, by: Caller, *, without_token: bool = False) -> None:
    """Let pass only the current holder, or anybody on a run that was never leased.

    A token that is sent is always compared, and counts only with the principal it was given to.
    without_token: an operator may do this one without a token.
    Raises StaleFence or FenceRequired. Why: docs/decisions/0004-fencing.md.
    """
    if token is not None:
        if run.token != token or run.holder != by.principal:
            raise StaleFence(_stale(run, token), current=run.facts(), token=token)
        return
    if run.ever_leased and not (without_token and by.may("operate")):
        raise FenceRequired(
            "this run was leased: send the holder's token as Agentstate-Fence",
            current=run.facts(),
        )


def _stale(run: RunRow, token: int) -> str:
    if run.token is None:
        return f"token {token} is not current: nobody holds this run"
    if run.token == token:
        return f"token {token} was given to another key"
    if token > run.token:
        return f"token {token} is not current: {run.token} is"
    return f"token {token} was superseded by {run.token}"


def check_open(run: RunRow) -> None:
    """Raises AlreadyTerminal: a run that has ended takes nothing more."""
    if run.terminal:
        raise AlreadyTerminal(f"the run is {run.status}", current=run.facts())


def check_version(run: RunRow, if_match: int | None) -> None:
    """Raises VersionConflict when the caller has read another version."""
    if if_match is not None and if_match != run.version:
        raise VersionConflict(
            f"expected v{if_match}, found v{run.version}",
            current=run.facts(),
            expected=if_match,
            found=run.version,
        )


def check_seq(run: RunRow, expected_seq: int | None) -> None:
    """Raises SeqConflict unless the last number is the one that the caller has seen."""
    if expected_seq is not None and expected_seq != run.last_seq:
        raise SeqConflict(
            f"expected last seq {expected_seq}, found {run.last_seq}",
            current=run.facts(),
            expected=expected_seq,
            last_seq=run.last_seq,
        )


def check_ids(
    asked: Sequence[NewEvent], stored: dict[str, EventRow], run: RunRow
) -> list[EventRow] | None:
    """What is known of the ids in a batch: None when nothing is, all the events when all are.

    Raises EventIdReuse for an id stored with other content, PartialDuplicate for a mixture (an
    event without an id among known ones is a mixture too).
    """
    ids = [event.stored_id for event in asked]
    known = [stored[event_id] for event_id in ids if event_id is not None and event_id in stored]
    if not known:
        return None
    for event, event_id in zip(asked, ids, strict=True):
        if event_id in stored and not _same(event, stored[event_id]):
            raise EventIdReuse(
                f"{_called(event)} is stored with other content",
                current=run.facts(),
                **_named(event_id),
                seq=stored[event_id].seq,
            )
    in_order = all(b.seq == a.seq + 1 for a, b in pairwise(known))
    if len(known) < len(asked) or not in_order:
        raise PartialDuplicate(
            "some of these event ids are stored already",
            current=run.facts(),
            known=[{**_named(e.event_id), "seq": e.seq} for e in known],
        )
    return known


def _named(event_id: str | None) -> dict[str, Any]:
    """An event's id as its caller knows it."""
    effect = effect_of(event_id)
    return {"id": event_id} if effect is None else {"effect": asdict(effect)}


def _called(event: NewEvent) -> str:
    if event.effect is None:
        return f"event id {event.id}"
    return f"that effect {event.effect.key} has {event.effect.state}"


def _same(asked: NewEvent, stored: EventRow) -> bool:
    return asked.type == stored.type and (
        asked.data.text == stored.data or canonical(asked.data.text) == canonical(stored.data)
    )


def is_own(
    actor: str, stored_token: int | None, run: RunRow, token: int | None, by: Caller
) -> bool:
    """Own replay of what `actor` stored: the caller is current, or wrote it under this very token.

    On a run that was never leased everybody who may write is current. An overtaken worker whose
    write is unknown to be its own gets the fence's answer instead.
    """
    if token is not None and token == run.token and run.holder == by.principal:
        return True
    if token is None and not run.ever_leased:
        return True
    return actor == by.principal and token == stored_token


def check_move(run: RunRow, to: str, *, from_status: str | None = None) -> None:
    """Raises AlreadyTerminal, or IllegalTransition with the moves that are allowed."""
    check_open(run)
    allowed = allowed_moves(run.status)
    if to not in allowed or (from_status is not None and from_status != run.status):
        raise IllegalTransition(
            f"from {run.status} to {to} is no legal move"
            if to not in allowed
            else f"the run is {run.status}, not {from_status}",
            current=run.facts(),
            allowed=list(allowed),
        )


def is_move(run: RunRow, to: str) -> bool:
    """Whether a run may go from its status to this one at all."""
    return to in allowed_moves(run.status)


def operator_may_move(run: RunRow, to: str) -> bool:
    """Cancel, pause and resume need no token of an operator; everything else does."""
    return (run.status, to) in OPERATOR_MOVES


def move(run: RunRow, to: str, *, now: datetime, result: str | None) -> RunRow:
    """The run in its new status. A terminal one keeps no owner and no current token."""
    if to not in TERMINAL:
        return replace(run, status=str(Status(to)))
    return replace(
        run,
        status=str(Status(to)),
        result=result,
        owner=None,
        token=None,
        holder=None,
        ended_token=run.token,
        ended_at=now,
        expires_at=expiry(now, run.retain_seconds),
    )


def expiry(ended_at: datetime | None, retain_seconds: int | None) -> datetime | None:
    """When a run goes: its retention counts from its end; a live run never goes."""
    if ended_at is None or retain_seconds is None:
        return None
    return ended_at + timedelta(seconds=retain_seconds)
