"""Alerts: an operator says that somebody is at it."""

from __future__ import annotations

from agentstate.store.alerting import FIRING
from agentstate.store.commands import AcknowledgeAlert, AlertAcknowledged
from agentstate.store.errors import NotFound, VersionConflict
from agentstate.store.rules.deciding.desk import Deciding


def acknowledge_alert(ask: AcknowledgeAlert, on: Deciding) -> AlertAcknowledged:
    on.by.need("operate")
    found = on.draft.facts.alerts.get(ask.rule)
    if found is None:
        raise NotFound(f"no alert {ask.rule}")
    state, version = found
    if version != ask.version or state not in FIRING:
        raise VersionConflict(
            f"{ask.rule} is at {state} now, version {version}",
            current={"rule": ask.rule, "state": state, "version": version},
        )
    by = on.by.principal
    on.draft.writes.other.append(("acknowledge", {"ask": ask, "by": by}))
    on.act(
        "alert.acknowledged",
        ask.rule,
        reason=ask.reason,
        after={"state": state},
        expected={"version": ask.version},
    )
    return AlertAcknowledged(rule=ask.rule, state=state, version=version, by=by, at=on.draft.now)
