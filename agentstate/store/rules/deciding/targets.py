"""Targets of alerts: where they are told, and sending a message anew."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from agentstate.store.alerting import What
from agentstate.store.commands import (
    ChangeTarget,
    CreateTarget,
    DeleteTarget,
    DeliveryQueued,
    QuietSet,
    ResendDelivery,
    RotateSecret,
    SecretRotated,
    SetQuiet,
    TargetChanged,
    TargetCreated,
    TargetDeleted,
    TryTarget,
)
from agentstate.store.delivering import ATTEMPTS, TARGETS_MAX, WEBHOOK, TargetRow, id_told
from agentstate.store.errors import Exists, Invalid, NotAllowed, NotFound, VersionConflict
from agentstate.store.payloads import moment
from agentstate.store.quiet import PERSON, TARGET
from agentstate.store.rules.deciding.desk import Deciding

OFF_BY_HAND = "switched off by {by}: {reason}"


def create_target(ask: CreateTarget, on: Deciding) -> TargetCreated:
    on.by.need("admin")
    if ask.name in on.draft.facts.targets:
        raise Exists(f"there is a target {ask.name} already")
    if on.draft.facts.target_count >= TARGETS_MAX:
        raise Invalid("name", f"there are {TARGETS_MAX} targets, and no room for more")
    on.draft.writes.other.append(("target", {"ask": ask, "by": on.by.principal}))
    told = {"kind": ask.kind, "hint": ask.hint, "least": ask.least, "rules": list(ask.rules)}
    on.act("target.created", ask.name, reason=ask.reason, after=told)
    return TargetCreated(name=ask.name, kind=ask.kind, hint=ask.hint, version=1, at=on.draft.now)


def change_target(ask: ChangeTarget, on: Deciding) -> TargetChanged:
    on.by.need("admin")
    target = _as_seen(ask.name, ask.version, on)
    changed = replace(
        target,
        enabled=target.enabled if ask.enabled is None else ask.enabled,
        least=target.least if ask.least is None else ask.least,
        rules=target.rules if ask.rules is None else ask.rules,
        person=target.person if ask.person is None else ask.person,
        version=target.version + 1,
    )
    off_why = OFF_BY_HAND.format(by=on.by.principal, reason=ask.reason)
    on.draft.writes.other.append(
        ("target-change", {"target": changed, "off_why": None if changed.enabled else off_why})
    )
    on.act(
        "target.changed",
        ask.name,
        reason=ask.reason,
        before=target.facts(),
        after=changed.facts(),
        expected={"version": ask.version},
    )
    return TargetChanged(
        name=changed.name,
        enabled=changed.enabled,
        least=changed.least,
        rules=changed.rules,
        version=changed.version,
        at=on.draft.now,
    )


def rotate_secret(ask: RotateSecret, on: Deciding) -> SecretRotated:
    on.by.need("admin")
    target = _as_seen(ask.name, ask.version, on)
    if target.kind != WEBHOOK:
        raise Invalid("name", f"{ask.name} signs nothing: only webhooks have a secret")
    version = target.version + 1
    values = {"id": target.id, "secret": ask.secret, "version": version}
    on.draft.writes.other.append(("rotate-secret", values))
    on.act(
        "target.secret-rotated",
        ask.name,
        reason=ask.reason,
        after={"old_until": moment(ask.old_until)},
        expected={"version": ask.version},
    )
    return SecretRotated(name=ask.name, version=version, old_until=ask.old_until, at=on.draft.now)


def delete_target(ask: DeleteTarget, on: Deciding) -> TargetDeleted:
    on.by.need("admin")
    target = _as_seen(ask.name, ask.version, on)
    on.draft.writes.other.append(("target-delete", {"target": target}))
    on.act(
        "target.deleted",
        ask.name,
        reason=ask.reason,
        before=target.facts() | {"kind": target.kind, "hint": target.hint},
        expected={"version": ask.version},
    )
    return TargetDeleted(name=ask.name, at=on.draft.now)


def set_quiet(ask: SetQuiet, on: Deciding) -> QuietSet:
    """One's own, or as an admin a target's."""
    if ask.whose.startswith(PERSON):
        on.by.need("read")
        if ask.whose != on.by.principal:
            raise NotAllowed("quiet hours of a person are that person's to set")
    else:
        on.by.need("admin")
        _target(ask.whose.removeprefix(TARGET), on)
    kept = on.draft.facts.quiet
    version = kept.version if kept else 0
    before = kept.quiet if kept else None
    if version != ask.version:
        raise VersionConflict(
            f"they are at version {version} now",
            current={"quiet": before.facts() if before else None, "version": version},
        )
    values = {"whose": ask.whose, "quiet": ask.quiet, "version": version + 1}
    on.draft.writes.other.append(("quiet", values | {"by": on.by.principal}))
    on.act(
        "quiet-hours.set" if ask.quiet else "quiet-hours.ended",
        ask.whose,
        reason=ask.reason,
        before=before.facts() if before else {},
        after=ask.quiet.facts() if ask.quiet else {},
        expected={"version": ask.version},
    )
    return QuietSet(whose=ask.whose, version=version + 1, at=on.draft.now)


def try_target(ask: TryTarget, on: Deciding) -> DeliveryQueued:
    on.by.need("admin")
    target = _target(ask.name, on)
    if target.testing is not None:
        return _queued(target.testing, target.name, on)
    new_id = on.draft.facts.new_id(on.draft.now)
    by = on.by.principal
    on.draft.writes.other.append(("test", {"target": target, "id": new_id, "by": by}))
    on.act("target.tested", ask.name, after={"delivery": id_told(new_id)})
    return _queued(new_id, target.name, on)


def resend_delivery(ask: ResendDelivery, on: Deciding) -> DeliveryQueued:
    on.by.need("admin")
    found = on.draft.facts.deliveries.get(ask.delivery)
    target = on.draft.facts.targets.get(found[0]) if found else None
    if found is None or target is None:
        raise NotFound("no such delivery, or its target was deleted")
    is_test = found[1] == What.TEST
    if not target.enabled and not is_test:
        raise Invalid("target", f"{target.name} is off: switch it on first")
    more = 1 if is_test else ATTEMPTS
    on.draft.writes.other.append(("resend", {"id": ask.delivery, "more": more}))
    on.act("delivery.resent", target.name, after={"delivery": id_told(ask.delivery)})
    return _queued(ask.delivery, target.name, on)


def _queued(delivery: UUID, target: str, on: Deciding) -> DeliveryQueued:
    return DeliveryQueued(delivery=id_told(delivery), target=target, at=on.draft.now)


def _target(name: str, on: Deciding) -> TargetRow:
    target = on.draft.facts.targets.get(name)
    if target is None:
        raise NotFound(f"no target {name}")
    return target


def _as_seen(name: str, version: int, on: Deciding) -> TargetRow:
    """Raises NotFound, and VersionConflict when it is not what the admin saw."""
    target = _target(name, on)
    if target.version != version:
        raise VersionConflict(f"{name} is at version {target.version} now", current=target.facts())
    return target
