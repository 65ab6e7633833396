"""What Now is made of: what needs somebody, read check by check, each within its own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from agentstate.store import collisions, proposed, rates, reads, targets
from agentstate.store.bulking import NAMED
from agentstate.store.models import Lease, OperatorAction
from agentstate.store.rates import Figures, Group
from agentstate.store.reads import HeartbeatView
from agentstate.store.targets import Target
from dashboard.queries import alerts, budgets, refused, workers
from dashboard.queries.alerts import Board
from dashboard.queries.budgets import Line
from dashboard.queries.contention import Clashes, is_hot
from dashboard.queries.leases import held
from dashboard.queries.panels import Panel, read_panels
from dashboard.queries.refused import RefusedCharge
from dashboard.queries.workers import Overtaken

# A lease that ran out is usually taken within seconds; then nobody needs to be told.
LAPSED_AFTER = timedelta(seconds=15)
LAPSED_READ = 100
OVERTAKEN_WITHIN = timedelta(minutes=10)
REFUSED_WITHIN = timedelta(minutes=15)
HOT_WITHIN = timedelta(minutes=5)
HOT_READ = 5
TILES_OF = timedelta(hours=1)
# So that at its very beginning the running minute is in it, too.
JUST_AFTER = timedelta(microseconds=1)
ACTIONS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRun:
    """A run whose writers meet. workers: those with the most conflicts, with how many. columns:
    what its conflicts were about, with how many of `columns_of`.
    """

    key: str
    figures: Figures
    workers: list[tuple[str, int]]
    columns: list[tuple[str, int]]
    columns_of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Everything that was looked at. A panel that failed is a check that nobody can rely on."""

    now: datetime
    panels: dict[str, Panel[Any]] = field(default_factory=dict)


def read_checks(*, now: datetime) -> Checked:
    reads_by_name: dict[str, Callable[[], Any]] = {
        "proposals": proposed.read_open,
        "lapsed": lambda: read_lapsed(now=now),
        "overtaken": lambda: read_overtaken(now=now),
        "hot": lambda: read_hot(now=now),
        "dry": lambda: read_dry(now=now),
        "refused": lambda: read_refused(now=now),
        "targets": read_failing_targets,
        "jobs": read_silent_jobs,
        "alerts": read_alerts,
    }
    return Checked(now=now, panels=read_panels(reads_by_name))


def read_lapsed(*, now: datetime) -> list[Lease]:
    """Units that nobody has taken, the longest ago first; the first hundred."""
    found = held().select_related("run").filter(expires_at__lte=now - LAPSED_AFTER)
    return list(found.order_by("expires_at", "unit")[:LAPSED_READ])


def read_overtaken(*, now: datetime) -> list[Overtaken]:
    """Workers that were fenced in the last minutes, the last try first."""
    since = now - OVERTAKEN_WITHIN
    return [one for one in workers.read_overtaken(now=now) if one.last_at >= since]


def read_hot(*, now: datetime) -> list[HotRun]:
    """The runs whose writers met most in the last minutes, by the minute table."""
    asked: dict[str, Any] = {"since": now - HOT_WITHIN, "until": now + JUST_AFTER}
    found = rates.read(**asked, by=("run",), limit=HOT_READ).groups
    return [_hot_run(g, asked) for g in found if g.keys["run"] and is_hot(g.figures)]


def _hot_run(group: Group, asked: dict[str, Any]) -> HotRun:
    key = group.keys["run"]
    of_workers = rates.read(**asked, by=("worker",), runs=[key], limit=HOT_READ).groups
    names = [
        (one.keys["worker"], one.figures.conflicts)
        for one in of_workers
        if one.keys["worker"] and one.figures.conflicts
    ]
    since, until = rates.window(**asked, now=asked["until"])
    clashes = Clashes(collisions.read(since=since, until=until, runs=[key]).pairs)
    return HotRun(
        key=key,
        figures=group.figures,
        # Who writes without a lease names no worker: then it is the key.
        workers=names or clashes.losers,
        columns=clashes.columns,
        columns_of=clashes.conflicts,
    )


def read_dry(*, now: datetime) -> list[Line]:
    """Budgets of runs that go on, of which most is used, with what went in the last minutes."""
    return budgets.read_near(now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOf:
    """What one budget of one run refused. least: the smallest charge, None: no amount is told."""

    run: str | None
    budget: str
    charges: list[RefusedCharge]

    @property
    def least(self) -> int | None:
        return min((one.amount for one in self.charges if one.amount is not None), default=None)


def read_refused(*, now: datetime) -> list[RefusedOf]:
    """By budget, the newest first."""
    by_budget: dict[tuple[str | None, str], list[RefusedCharge]] = {}
    for one in refused.read_newest(since=now - REFUSED_WITHIN):
        by_budget.setdefault((one.run, one.budget), []).append(one)
    return [
        RefusedOf(run=run, budget=budget, charges=found)
        for (run, budget), found in by_budget.items()
    ]


def read_failing_targets() -> list[Target]:
    """Those that do not answer, or were switched off because of that."""
    return [one for one in targets.read() if one.failing_since or one.off_why]


def read_silent_jobs() -> list[HeartbeatView]:
    return [job for job in reads.heartbeats() if job.silent]


def read_alerts() -> Board:
    return alerts.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The last hour by minutes, the oldest first, the running one last. Minutes without a write are
    there, with zeros.
    """

    since: datetime
    until: datetime
    total: Figures
    minutes: list[Figures]


def read_hour(*, now: datetime) -> Hour:
    found = rates.read(since=now - TILES_OF, until=now + JUST_AFTER, by=("minute",), limit=200)
    by_minute = {group.keys["minute"]: group.figures for group in found.groups}
    count = (found.until - found.since) // rates.MINUTE
    return Hour(
        since=found.since,
        until=found.until,
        total=found.total,
        minutes=[by_minute.get(found.since + n * rates.MINUTE, Figures()) for n in range(count)],
    )


def read_actions() -> Sequence[OperatorAction]:
    """The newest. Of a bulk it is the bulk, not each of its runs."""
    newest = OperatorAction.objects.select_related("run").filter(actor__startswith="person:")
    newest = newest.exclude(request_id__startswith=NAMED)
    return list(newest.order_by("-at", "-id")[:ACTIONS_SHOWN])
