"""Alerts: an operator says that somebody is at it, or that nobody is to be told for a while."""

from __future__ import annotations

from datetime import timedelta

from agentstate.store.alerting import FIRING
from agentstate.store.commands import (
    AcknowledgeAlert,
    AlertAcknowledged,
    AlertSnoozed,
    SnoozeAlert,
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
