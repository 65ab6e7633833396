"""What happened beside what a chart shows: operators acted, and a version was seen for the first
time. Both are marked on every time axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Q

from agentstate.store import versions
from agentstate.store.bulking import NAMED
from agentstate.store.callers import COMMAND_LINE
from agentstate.store.models import OperatorAction, SeenVersion
from dashboard.axes import Mark

# The newest of a part of the time; those that touch are drawn as one anyway.
ACTIONS_MAX = 300
VERSIONS_MAX = 100
REASON_CHARS = 80
WHAT = {versions.WORKERS: "workers", versions.SITE: "agentstate itself"}


def read_marks(
    *,
    since: datetime,
    until: datetime,
    objects: Sequence[str] | None = None,
    run: UUID | None = None,
) -> list[Mark]:
    """Marks of this time. objects, run: only what was done to these; neither: whatever was done."""
    actions = OperatorAction.objects.filter(at__gte=since, at__lt=until)
    if objects is not None or run is not None:
        of_run = Q(run=run) if run is not None else Q()
        actions = actions.filter(Q(object__in=list(objects or ())) | of_run)
    else:  # a bulk is one mark, not one for each of its runs; people and keys are no runs
        actions = actions.exclude(request_id__startswith=NAMED)
        actions = actions.exclude(actor=COMMAND_LINE.principal)
    newest = actions.order_by("-at", "-id")[:ACTIONS_MAX]
    return [_of_action(action) for action in newest] + read_deploys(since=since, until=until)


def read_deploys(*, since: datetime, until: datetime) -> list[Mark]:
    """When a version of the workers or of the site was first seen."""
    found = versions.first_seen(since=since, until=until, limit=VERSIONS_MAX)
    return [_of_version(seen.at, seen.what, seen.version) for seen in found]


def deploys_of(found: Sequence[SeenVersion], *, since: datetime, until: datetime) -> list[Mark]:
    """The same of rows that were read already."""
    return [
        _of_version(seen.first_seen_at, seen.what, seen.version)
        for seen in found
        if since <= seen.first_seen_at < until
    ]


def _of_version(at: datetime, what: str, version: str) -> Mark:
    return Mark(at=at, kind="deploy", title=f"{WHAT.get(what, what)} {version}")


def _of_action(action: OperatorAction) -> Mark:
    who = action.actor.removeprefix("person:")
    why = f" “{action.reason[:REASON_CHARS]}”" if action.reason else ""
    return Mark(at=action.at, kind="action", title=f"{who}: {action.action} {action.object}{why}")
