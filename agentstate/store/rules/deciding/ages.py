"""How long things are kept: an admin says otherwise than the code does, within what is promised."""

from __future__ import annotations

from typing import Any

from agentstate.store.ages import KeptAge, check_days, settable
from agentstate.store.commands import AgeChanged, ChangeAge
from agentstate.store.errors import VersionConflict
from agentstate.store.rules.deciding.desk import Deciding


def change_age(ask: ChangeAge, on: Deciding) -> AgeChanged:
    on.by.need("admin")
    age = settable(ask.kind)
    kept = on.draft.facts.ages.get(ask.kind, KeptAge(kind=ask.kind))
    if kept.version != ask.version:
        raise VersionConflict(
            f"{ask.kind}: at version {kept.version} now, kept for {kept.keep.days} days",
            current={"kind": ask.kind, **_told(kept), "version": kept.version},
        )
    # The default as well: another kind may have been made to last longer meanwhile.
    check_days(ask.kind, age.keep.days if ask.days is None else ask.days, on.draft.facts.ages)
    changed = KeptAge(
        kind=ask.kind,
        days=ask.days,
        version=kept.version + 1,
        whole_from=kept.whole_if_changed(on.draft.now),
        changed_at=on.draft.now,
        changed_by=on.by.principal,
        changed_why=ask.reason,
    )
    on.draft.writes.other.append(("age", {"kept": changed}))
    on.act(
        "retention.changed",
        ask.kind,
        reason=ask.reason,
        before=_told(kept),
        after=_told(changed),
        expected={"version": ask.version},
    )
    return AgeChanged(kind=ask.kind, days=ask.days, version=changed.version, at=on.draft.now)


def _told(kept: KeptAge) -> dict[str, Any]:
    return {"days": kept.keep.days, "default": kept.days is None}
