"""Alerts: an operator says that somebody is at it, or that nobody is to be told for a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agentstate.store.alerting import FIRING, RULES, Rule, check_bounds
from agentstate.store.commands import (
    AcknowledgeAlert,
    AlertAcknowledged,
    AlertSnoozed,
    ChangeRule,
    DeleteRule,
    PutRule,
    RuleChanged,
    RuleDeleted,
    SnoozeAlert,
    Unseen,
)
from agentstate.store.errors import Exists, Invalid, NotFound, VersionConflict
from agentstate.store.made import MADE_MAX, KeptRule, is_made, rule_of
from agentstate.store.payloads import moment, write
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
    kept = _kept_as_seen(ask.rule, ask.version, on)
    before = _rule_of(ask.rule, kept)
    after = replace(
        before,
        warn=before.warn if isinstance(ask.warn, Unseen) else ask.warn,
        alert=before.alert if isinstance(ask.alert, Unseen) else ask.alert,
    )
    check_bounds(after)
    by, version = on.by.principal, kept.version + 1
    values = {"rule": ask.rule, **_bounds(after), "version": version, "by": by}
    on.draft.writes.other.append(("rule", values | {"why": ask.reason}))
    on.act(
        "alert-rule.changed",
        ask.rule,
        reason=ask.reason,
        before=_bounds(before),
        after=_bounds(after),
        expected={"version": ask.version},
    )
    return _changed(after, version, on)


def put_rule(ask: PutRule, on: Deciding) -> RuleChanged:
    on.by.need("operate")
    before: dict[str, Any] = {}
    if ask.version:
        kept = _kept_as_seen(ask.rule, ask.version, on)
        before = _told(kept)
    elif ask.rule in on.draft.facts.alert_rules:
        raise Exists(f"there is a rule {ask.rule} already")
    elif on.draft.facts.made_rules >= MADE_MAX:
        raise Invalid("rule", f"people have made {MADE_MAX}, and there is no room for more")
    version, by = ask.version + 1, on.by.principal
    rule = rule_of(ask.rule, ask.definition, warn=ask.warn, alert=ask.alert)
    after = KeptRule(warn=ask.warn, alert=ask.alert, version=version, definition=ask.definition)
    values = {"rule": ask.rule, **_bounds(rule), "version": version, "by": by, "why": ask.reason}
    kept_as = write(ask.definition.members())
    on.draft.writes.other.append(("rule-put", values | {"definition": kept_as}))
    on.act(
        "alert-rule.edited" if ask.version else "alert-rule.made",
        ask.rule,
        reason=ask.reason,
        before=before,
        after=_told(after),
        expected={"version": ask.version},
    )
    return _changed(rule, version, on)


def delete_rule(ask: DeleteRule, on: Deciding) -> RuleDeleted:
    on.by.need("operate")
    if not is_made(ask.rule):
        raise NotFound(f"{ask.rule} is no rule that somebody made")
    kept = _kept_as_seen(ask.rule, ask.version, on)
    on.draft.writes.other.append(("rule-delete", {"rule": ask.rule}))
    on.act(
        "alert-rule.deleted",
        ask.rule,
        reason=ask.reason,
        before=_told(kept),
        expected={"version": ask.version},
    )
    return RuleDeleted(rule=ask.rule, at=on.draft.now)


def _kept_as_seen(rule: str, version: int, on: Deciding) -> KeptRule:
    """Raises NotFound, and VersionConflict when it is not what the operator saw."""
    kept = on.draft.facts.alert_rules.get(rule)
    if kept is None:
        raise NotFound(f"there is no rule {rule}")
    if kept.version != version:
        raise VersionConflict(
            f"{rule} is at version {kept.version} now",
            current={"rule": rule, **_bounds(_rule_of(rule, kept)), "version": kept.version},
        )
    return kept


def _rule_of(name: str, kept: KeptRule) -> Rule:
    if kept.definition is not None:
        return rule_of(name, kept.definition, warn=kept.warn, alert=kept.alert)
    own = RULES[name]
    return replace(own, warn=kept.warn, alert=kept.alert) if kept.version else own


def _told(kept: KeptRule) -> dict[str, Any]:
    """What the audit says of a rule that was made."""
    members = kept.definition.members() if kept.definition else {}
    members = {name: value for name, value in members.items() if value}
    return members | {"warn": kept.warn, "alert": kept.alert, "version": kept.version}


def _changed(rule: Rule, version: int, on: Deciding) -> RuleChanged:
    return RuleChanged(
        rule=rule.name,
        warn=rule.warn,
        alert=rule.alert,
        version=version,
        by=on.by.principal,
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
