"""Alerts: how every rule stands, that somebody is at it, and that nobody is to be told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field

from agentstate import store
from agentstate.api import fields
from agentstate.api.access import OPERATE, READ, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, reply_result
from agentstate.api.schemas import Asked, Told
from agentstate.store import alerts
from agentstate.store.alerting import FIRING, Rule, Standing, State
from agentstate.store.commands import AcknowledgeAlert, SnoozeAlert
from agentstate.store.errors import NotFound, VersionConflict

NOT_YET = "not judged yet"
_ACKNOWLEDGED = ("acknowledged_at", "acknowledged_by", "acknowledged_why")
_TOLD = (*_ACKNOWLEDGED, "snoozed_until", "snoozed_by", "snoozed_why", "told_at")

router = Router(tags=["alerts"])


class AlertTold(Told):
    """A rule and how it stands. state: no-data, ok, warn, alert, or snoozed for one that fires and
    is told to nobody; judged: what it is all the same. since: the beginning of what lasts.
    version: for acknowledging and snoozing; null: not judged yet.
    """

    rule: str
    title: str
    state: str
    judged: str
    value: float | None
    unit: str
    warn: float | None
    alert: float | None
    message: str
    facts: dict[str, Any]
    advice: str
    since: fields.Moment | None
    changed_at: fields.Moment | None
    checked_at: fields.Moment | None
    version: int | None
    acknowledged_at: fields.Moment | None
    acknowledged_by: str | None
    acknowledged_why: str | None
    snoozed_until: fields.Moment | None
    snoozed_by: str | None
    snoozed_why: str | None
    told_at: fields.Moment | None


class AlertsTold(Told):
    """What fires first. silent: nobody judges any more, so what stands here is old."""

    items: list[AlertTold]
    firing: int
    silent: bool
    checked_at: fields.Moment | None
    as_of: fields.Moment


class AcknowledgeAsked(Asked):
    version: fields.RunVersion = Field(description="of the alert, as it was seen")
    reason: fields.Reason


class SnoozeAsked(Asked):
    """seconds: for how long, from now by the database's clock; null: wake it."""

    version: fields.RunVersion = Field(description="of the alert, as it was seen")
    seconds: fields.SnoozeSeconds | None
    reason: fields.Reason


class SnoozedTold(Told):
    """until: nobody is told before; missing: it was woken."""

    rule: str
    state: str
    version: int
    until: fields.Moment | None = None
    by: str
    at: fields.Moment


class AcknowledgedTold(Told):
    rule: str
    state: str
    version: int
    by: str
    at: fields.Moment


@router.get("", **contract("list_alerts", answers=AlertsTold, access=READ))
def list_alerts(request: WorkerRequest) -> HttpResponse:
    """Every rule and how it stands: firing ones first, the worst first."""
    board = alerts.read()
    items = [alert_members(rule, standing, board.now) for rule, standing in board.standings]
    return reply(
        {
            "items": items,
            "firing": sum(item["judged"] in FIRING for item in items),
            "silent": board.silent,
            "checked_at": board.checked_at,
            "as_of": board.now,
        }
    )


def alert_members(rule: Rule, standing: Standing | None, now: datetime) -> dict[str, Any]:
    told = {
        "rule": rule.name,
        "title": rule.title,
        "unit": rule.unit,
        "warn": rule.warn,
        "alert": rule.alert,
        "advice": rule.advice,
    }
    if standing is None:
        times = dict.fromkeys(("since", "changed_at", "checked_at", "version"))
        seen: dict[str, Any] = {
            "state": str(State.NO_DATA),
            "judged": str(State.NO_DATA),
            "value": None,
            "message": NOT_YET,
            "facts": {},
        }
        return told | seen | times | dict.fromkeys(_TOLD)
    return told | {
        "state": standing.shown(now),
        "judged": str(standing.state),
        "value": standing.value,
        "message": standing.message,
        "facts": dict(standing.facts),
        "since": standing.since,
        "changed_at": standing.changed_at,
        "checked_at": standing.checked_at,
        "version": standing.version,
        **{name: getattr(standing, name) for name in _TOLD},
    }


@router.post(
    "/{rule}/acknowledge",
    **contract(
        "acknowledge_alert",
        answers=AcknowledgedTold,
        access=OPERATE,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def acknowledge_alert(
    request: WorkerRequest, rule: fields.BudgetName, ask: Sent[AcknowledgeAsked]
) -> HttpResponse:
    """Say that somebody is at it. Lasts until the alert is over or gets worse.

    412 version-conflict when it has changed state since, or does not fire any more.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    command = AcknowledgeAlert(rule=rule, version=ask.version, reason=ask.reason)
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))


@router.post(
    "/{rule}/snooze",
    **contract(
        "snooze_alert",
        answers=SnoozedTold,
        access=OPERATE,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def snooze_alert(
    request: WorkerRequest, rule: fields.BudgetName, ask: Sent[SnoozeAsked]
) -> HttpResponse:
    """Let nobody be told of an alert for a time, or wake it. It goes on being judged.

    When the time is over and it still fires, that is told. 412 version-conflict when it has
    changed state since it was seen.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    command = SnoozeAlert(rule=rule, version=ask.version, seconds=ask.seconds, reason=ask.reason)
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))
