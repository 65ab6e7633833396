"""Alerts: an operator says that somebody is at it, or that nobody is to be told for a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from agentstate.store.alerting import FIRING, RULES, Rule, check_bounds
from agentstate.store.commands import (
    AcknowledgeAlert,
    AlertAcknowledged,
    AlertSnoozed,
    ChangeRule,
    RuleChanged,
    SnoozeAlert,
    Unseen,
)
from agentstate.store.errors import NotFound, VersionConflict
from agentstate.store.payloads import moment
from agentstate.store.rules.deciding.desk import Deciding


def acknowledge_alert(ask: AcknowledgeAlert, on: Deciding) -> AlertAcknowledged:
    on.by.need("operate")
    state = _state_as_seen(ask.rule, ask.version, on)
    if state not in FIRING:
        raise _moved_on(ask.rule, state, ask.version)
    by = on.by.principal
    on.draft.writes.other.append(("acknowledge", {"ask": ask, "by": by}))
    on.act(
        "alert.acknowledged",
        ask.rule,
        reason=ask.reason,
        after={"state": state},
        expected={"version": ask.version},
    )
    return AlertAcknowledged(
        rule=ask.rule, state=state, version=ask.version, by=by, at=on.draft.now
    )


def snooze_alert(ask: SnoozeAlert, on: Deciding) -> AlertSnoozed:
    on.by.need("operate")
    state = _state_as_seen(ask.rule, ask.version, on)
    now, by = on.draft.now, on.by.principal
    until = None if ask.seconds is None else now + timedelta(seconds=ask.seconds)
    on.draft.writes.other.append(("snooze", {"ask": ask, "by": by, "until": until}))
    on.act(
        "alert.snoozed" if until else "alert.woken",
        ask.rule,
        reason=ask.reason,
        after={"state": state} | ({"until": moment(until)} if until else {}),
        expected={"version": ask.version},
    )
    return AlertSnoozed(rule=ask.rule, state=state, version=ask.version, until=until, by=by, at=now)


def change_rule(ask: ChangeRule, on: Deciding) -> RuleChanged:
    on.by.need("operate")
    found = on.draft.facts.alert_rules.get(ask.rule)
    if found is None:
        raise NotFound(f"there is no rule {ask.rule}")
    warn, alert, version = found
    own = RULES[ask.rule]
    before = replace(own, warn=warn, alert=alert) if version else own
    if version != ask.version:
        raise VersionConflict(
            f"the bounds of {ask.rule} are at version {version} now",
            current={"rule": ask.rule, **_bounds(before), "version": version},
        )
    after = replace(
        before,
        warn=before.warn if isinstance(ask.warn, Unseen) else ask.warn,
        alert=before.alert if isinstance(ask.alert, Unseen) else ask.alert,
    )
    check_bounds(after)
    by = on.by.principal
    values = {"rule": ask.rule, **_bounds(after), "version": version + 1, "by": by}
    on.draft.writes.other.append(("rule", values | {"why": ask.reason}))
    on.act(
        "alert-rule.changed",
        ask.rule,
        reason=ask.reason,
        before=_bounds(before),
        after=_bounds(after),
        expected={"version": ask.version},
    )
    return RuleChanged(
        rule=ask.rule,
        warn=after.warn,
        alert=after.alert,
        version=version + 1,
        by=by,
        at=on.draft.now,
    )


def _bounds(rule: Rule) -> dict[str, float | None]:
    return {"warn": rule.warn, "alert": rule.alert}


def _state_as_seen(rule: str, version: int, on: Deciding) -> str:
    """Raises NotFound, and VersionConflict when it is not what the operator saw."""
    found = on.draft.facts.alerts.get(rule)
    if found is None:
        raise NotFound(f"no alert {rule}")
    state, is_at = found
    if is_at != version:
        raise _moved_on(rule, state, is_at)
    return state


def _moved_on(rule: str, state: str, version: int) -> VersionConflict:
    return VersionConflict(
        f"{rule} is at {state} now, version {version}",
        current={"rule": rule, "state": state, "version": version},
    )
