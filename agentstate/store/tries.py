"""The audit beside commands. Refused tries: what people, and keys that act for them, wanted and did
not get. And what was done to people, roles and views, which are not the store's.

A try that a command decided is written in the transaction that refused it (`execute.py`). One that
never became a command, because a page or an endpoint turned it away by its role, is written by
`record_refused_action` in a transaction of its own. Both are bounded (`rowsql.INSERT_TRIES`):
nobody fills the table by trying.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError, connection, transaction

from agentstate.store import rowsql as sql
from agentstate.store.callers import PLAIN, Caller, Circumstances
from agentstate.store.commands import (
    AcknowledgeAlert,
    BrakeRun,
    ChangeAge,
    ChangeCap,
    ChangeRule,
    ChangeTarget,
    Command,
    CreateKey,
    CreateTarget,
    DeleteTarget,
    DrainWorker,
    NoteRefused,
    Patch,
    ReclaimLease,
    ResendDelivery,
    RevokeKey,
    RotateSecret,
    SignalRun,
    SnoozeAlert,
    SplitBudget,
    Transition,
    TryTarget,
)
from agentstate.store.errors import NotAllowed
from agentstate.store.plan import Plan
from agentstate.store.proposals import DECLINED, PROPOSED, DeclineProposal, ProposeReclaim
from agentstate.store.rows import ActionRow

REFUSED, FORBIDDEN = "refused", "forbidden"
# As long as the names that commands take; what a page was asked for may be anything.
TEXT_CHARS = 500
# What a worker's key may lack, and nobody has to look at: it is in `refusal`.
_OF_WORKERS = frozenset({"read", "payloads", "write"})
_BY_PEOPLE_ALONE = (Transition, Patch)

log = logging.getLogger(__name__)


def _budget(ask: ChangeCap | SplitBudget) -> str:
    run = getattr(ask, "run", None)
    return f"{run}/{ask.budget}" if run is not None else ask.budget


# (action, object) as they are called when it is done (`rules/deciding`).
_NAMES: dict[type[Command[Any]], Callable[[Any], tuple[str, str]]] = {
    Transition: lambda ask: (f"run.{ask.to}", ask.run),
    Patch: lambda ask: ("run.changed", ask.run),
    SignalRun: lambda ask: (f"run.signalled-{ask.signal}", ask.run),
    BrakeRun: lambda ask: ("run.braked" if ask.per_second else "run.brake-lifted", ask.run),
    ReclaimLease: lambda ask: ("lease.reclaimed", ask.unit),
    ProposeReclaim: lambda ask: (PROPOSED, ask.unit),
    DeclineProposal: lambda ask: (DECLINED, ask.unit),
    ChangeCap: lambda ask: ("budget.cap-changed", _budget(ask)),
    SplitBudget: lambda ask: ("budget.split", _budget(ask)),
    DrainWorker: lambda ask: (
        "worker.drained" if ask.draining else "worker.undrained",
        ask.worker,
    ),
    AcknowledgeAlert: lambda ask: ("alert.acknowledged", ask.rule),
    SnoozeAlert: lambda ask: ("alert.snoozed" if ask.seconds else "alert.woken", ask.rule),
    ChangeRule: lambda ask: ("alert-rule.changed", ask.rule),
    ChangeAge: lambda ask: ("retention.changed", ask.kind),
    CreateTarget: lambda ask: ("target.created", ask.name),
    ChangeTarget: lambda ask: ("target.changed", ask.name),
    RotateSecret: lambda ask: ("target.secret-rotated", ask.name),
    DeleteTarget: lambda ask: ("target.deleted", ask.name),
    TryTarget: lambda ask: ("target.tested", ask.name),
    ResendDelivery: lambda ask: ("delivery.resent", str(ask.delivery)),
    CreateKey: lambda ask: ("key.created", ask.name),
    RevokeKey: lambda ask: ("key.revoked", ask.name),
}


def named(command: Command[Any], plan: Plan, by: Caller) -> tuple[str, str] | None:
    """What a command would have been in the audit, and what of; None: of a worker's daily work.

    Whatever a person asks for counts; of a key, what operators do, and calls that need more than
    workers have.
    """
    if by.kind == "system":
        return None
    if isinstance(command, NoteRefused):
        needs_more = not _OF_WORKERS & set(command.scopes)
        return (command.operation, command.run or command.unit or "") if needs_more else None
    name = _NAMES.get(type(command))
    if by.kind == "key" and (name is None or isinstance(command, _BY_PEOPLE_ALONE)):
        return None
    return name(command) if name else (plan.operation, plan.run or plan.unit or "")


def row(
    *,
    at: datetime,
    by: Caller,
    action: str,
    thing: str,
    code: str,
    run_id: UUID | None = None,
    reason: str = "",
    expected: Mapping[str, Any] | None = None,
    found: Mapping[str, Any] | None = None,
    request_id: str | None = None,
) -> dict[str, Any]:
    """A row as `sql.INSERT_TRIES` takes it."""
    return {
        "at": at,
        "actor": by.principal,
        "action": action[:TEXT_CHARS],
        "object": thing[:TEXT_CHARS],
        "run_id": run_id,
        "outcome": FORBIDDEN if code == NotAllowed.code else REFUSED,
        "code": code,
        "reason": reason[:TEXT_CHARS],
        "expected": dict(expected or {}),
        "found": dict(found or {}),
        "request_id": request_id,
    }


def distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each try once, and no more than one actor may leave in a minute: the statement does not
    see the rows that it writes itself."""
    kept: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in rows:
        kept.setdefault(tuple(one[name] for name in ("actor", "action", "object", "code")), one)
    return list(kept.values())[: sql.TRIES_OF_ONE]


def record_refused_action(
    *,
    by: Caller,
    action: str,
    thing: str,
    code: str = NotAllowed.code,
    run: str | None = None,
    reason: str = "",
    expected: Mapping[str, Any] | None = None,
    under: Circumstances = PLAIN,
) -> bool:
    """Write down that somebody was turned away before there was a command; whether it was written.

    For pages and endpoints that refuse by role: `action` and `thing` are what the audit calls them
    when they are done, such as `budget.cap-changed` and `42/tokens`; `code` is `not-allowed` for
    what the role lacks (shown as *forbidden*), or the code of another refusal (*refused*). `run` is
    its key, when the thing is of a run. Not inside a transaction that is going to be rolled back.

    Never raises for the database's sake: a page that says no goes on saying it. False when it was
    one too many, or could not be written; the log says the latter.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT agentstate_now(), (SELECT id FROM agentstate_run WHERE key = %s)", [run]
            )
            now, run_id = cursor.fetchone()
            values = row(
                at=now,
                by=by,
                action=_storable(action),
                thing=_storable(thing),
                run_id=run_id,
                code=code,
                reason=_storable(reason),
                expected=expected,
                request_id=under.request_id,
            )
            cursor.execute(sql.INSERT_TRIES, [sql.records([values])])
            return bool(cursor.rowcount)
    except DatabaseError as lost:
        first = next(iter(str(lost).strip().splitlines()), "?")
        log.warning("a refused try was not written: %s", first)
        return False


def record_action(
    *,
    by: Caller,
    action: str,
    thing: str,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    under: Circumstances = PLAIN,
) -> None:
    """Write down what somebody did to what is not the store's: people, roles, views.

    In the transaction of the effect, so that they commit together or not at all. Whether `by` may
    is decided by who calls. Commands write theirs themselves.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("an action is written in the transaction of its effect")
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        done = ActionRow(
            actor=by.principal,
            action=action,
            object=_storable(thing),
            reason=_storable(reason),
            before=dict(before or {}),
            after=dict(after or {}),
            request_id=under.request_id,
            at=cursor.fetchone()[0],
        )
        cursor.execute(sql.INSERT_ACTIONS, [sql.records([done])])


def _storable(text: str) -> str:
    """Without what PostgreSQL cannot hold: an address may have anything in it."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()
