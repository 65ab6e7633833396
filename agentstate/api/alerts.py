"""Alerts: how every rule stands, that somebody is at it, and that nobody is to be told."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field

from agentstate import store
from agentstate.api import fields
from agentstate.api.access import OPERATE, READ, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, reply_result
from agentstate.api.schemas import Asked, Told
from agentstate.store import alerts, bounds
from agentstate.store.alerting import FIRING, Foreseen, Rule, Standing, State
from agentstate.store.commands import AcknowledgeAlert, ChangeRule, SnoozeAlert
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


class RuleTold(Told):
    """A rule with the bounds that count. own_warn, own_alert: those that it came with. version: of
    the bounds, 0 while nobody changed them.
    """

    rule: str
    title: str
    unit: str
    falling: bool
    window_seconds: int
    hold_seconds: int
    warn: float | None
    alert: float | None
    own_warn: float | None
    own_alert: float | None
    version: int
    changed_at: fields.Moment | None
    changed_by: str | None
    changed_why: str | None


class RulesTold(Told):
    items: list[RuleTold]


class RuleAsked(Asked):
    """From where it warns and alerts, in the rule's unit; null: never. What is left out stays."""

    version: fields.BoundsVersion = Field(description="of the bounds, as they were seen")
    warn: fields.Bound | None = None
    alert: fields.Bound | None = None
    reason: fields.Reason


class RuleChangedTold(Told):
    """A bound that is missing: never."""

    rule: str
    warn: float | None = None
    alert: float | None = None
    version: int
    by: str
    at: fields.Moment


class PreviewWanted(BaseModel):
    """Bounds in the rule's unit. One that is left out: never."""

    warn: fields.BoundWanted | None = None
    alert: fields.BoundWanted | None = None


class DayTold(Told):
    """began: how often it began to fire; alerted: how often it was at alert. last_at: when it last
    fired.
    """

    warn: float | None
    alert: float | None
    began: int
    alerted: int
    firing_minutes: int
    alert_minutes: int
    last_at: fields.Moment | None


class PreviewTold(Told):
    """The last day with the bounds that count now, and with those that were asked for. minutes: how
    many of it have a figure. worst: the worst one; null: nothing was bad at all.
    """

    rule: str
    unit: str
    since: fields.Moment
    until: fields.Moment
    minutes: int
    worst: float | None
    now: DayTold
    then: DayTold


@router.get("/rules", **contract("list_alert_rules", answers=RulesTold, access=READ))
def list_alert_rules(request: WorkerRequest) -> HttpResponse:
    """Every rule: what it looks at, from where it warns and alerts, and who changed that."""
    return reply({"items": [rule_members(found) for found in bounds.read()]})


def rule_members(found: bounds.Told) -> dict[str, Any]:
    rule, kept = found.rule, found.bounds
    return {
        "rule": rule.name,
        "title": rule.title,
        "unit": rule.unit,
        "falling": rule.falling,
        "window_seconds": rule.window_seconds,
        "hold_seconds": rule.hold_seconds,
        "warn": rule.warn,
        "alert": rule.alert,
        "own_warn": found.own.warn,
        "own_alert": found.own.alert,
        "version": kept.version,
        "changed_at": kept.changed_at,
        "changed_by": kept.changed_by,
        "changed_why": kept.changed_why,
    }


@router.patch(
    "/rules/{rule}",
    **contract(
        "change_alert_rule",
        answers=RuleChangedTold,
        access=OPERATE,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def change_alert_rule(
    request: WorkerRequest, rule: fields.BudgetName, ask: Sent[RuleAsked]
) -> HttpResponse:
    """Change from where a rule warns and alerts. Counts from the next evaluation on.

    412 version-conflict when somebody else has changed them since they were seen.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    command = ChangeRule(rule=rule, version=ask.version, reason=ask.reason, **bounds_of(ask))
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))


def bounds_of(ask: RuleAsked) -> dict[str, Any]:
    """Those that were sent: null is never, and what is not there stays."""
    return {n: getattr(ask, n) for n in ("warn", "alert") if n in ask.model_fields_set}


@router.get(
    "/rules/{rule}/preview",
    **contract("preview_alert_rule", answers=PreviewTold, access=READ, refuses=(NotFound,)),
)
def preview_alert_rule(
    request: WorkerRequest, rule: fields.BudgetName, wanted: Query[PreviewWanted]
) -> HttpResponse:
    """What these bounds would have said of the last day."""
    seen = bounds.preview(rule, warn=wanted.warn, alert=wanted.alert)
    return reply(
        {
            "rule": rule,
            "unit": seen.rule.unit,
            "since": seen.since,
            "until": seen.until,
            "minutes": seen.minutes,
            "worst": seen.worst,
            "now": day_members(seen.rule, seen.now),
            "then": day_members(seen.asked, seen.then),
        }
    )


def day_members(rule: Rule, day: Foreseen) -> dict[str, Any]:
    found = {name: value for name, value in asdict(day).items() if name != "fired"}
    return {"warn": rule.warn, "alert": rule.alert, **found}


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
