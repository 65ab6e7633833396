"""Alerts as the page shows them: each rule, how it stands, its bounds in words, where to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from agentstate.store import alerts, targets
from agentstate.store.alerting import Rule, Standing, State, told
from agentstate.store.alerts import Change
from dashboard import moments, past_pages
from dashboard.queries.bounds import in_words

CHANGES = 50
# Rule → the page that shows what it is about, with its query string.
PLACES = {
    "conflict-share": ("contention", {}),
    "retries-per-success": ("contention", {}),
    "fenced": ("contention", {}),
    "slow-writes": ("contention", {}),
    "lapsed-unclaimed": ("leases", {}),
    "lost-holders": ("workers", {}),
    "late-renewals": ("leases", {}),
    "poison-runs": ("failed-runs", {"q": "status:failed"}),
    "old-workers": ("workers", {}),
    "budget-nearly-used": ("budgets", {}),
    "refused-charges": ("budgets", {}),
    "overdue-runs": ("runs", {"q": "overdue:yes"}),
    "silent-jobs": ("system", {}),
    "jobs-behind": ("system", {}),
    "key-expires": ("audit", {"text": "key."}),
    "no-conflict-data": ("contention", {}),
    "evaluator-silent": ("system", {}),
    "failing-targets": ("targets", {}),
}
NAMES = {
    "contention": "Contention",
    "leases": "Leases",
    "workers": "Workers",
    "failed-runs": "Failed runs",
    "budgets": "Budgets",
    "runs": "Overdue runs",
    "system": "System",
    "audit": "Audit of keys",
    "targets": "Targets",
}
# Places that are a page under another name.
PAGES = {"failed-runs": "runs"}
# Facts that are lists of names, with what they name.
NAMED = ("units", "budgets", "runs", "workers", "jobs", "name", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Whom an alert is about. address: its page as of then; "": there is none of its kind."""

    name: str
    address: str


def named(facts: Mapping[str, Any], at: datetime) -> list[Named]:
    found: list[Named] = []
    for kind in NAMED:
        told = facts.get(kind) or []
        for name in told if isinstance(told, list) else [told]:
            page = past_pages.of_thing(kind, str(name))
            address = moments.address(page, moments.of_time(at)) if page else ""
            found.append(Named(name=str(name), address=address))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A rule on the page. standing None: it was not judged yet. address: where to look."""

    rule: Rule
    standing: Standing | None
    address: str
    place: str

    @property
    def state(self) -> str:
        return str(self.standing.state if self.standing else State.NO_DATA)

    @property
    def snoozed(self) -> bool:
        """The evaluation takes it back when its time is over, so what is there stands."""
        return bool(self.standing and self.standing.snoozed_until)

    @property
    def bounds(self) -> str:
        """`warns from 80 %, alerts from 95 %`."""
        return in_words(self.rule)

    @property
    def value(self) -> str:
        standing = self.standing
        if standing is None or standing.value is None:
            return ""
        return told(self.rule.unit, standing.value)

    @property
    def names(self) -> list[Named]:
        """Whom it is about, as far as the figure names them; as they were when it was judged."""
        return named(self.standing.facts, self.standing.checked_at) if self.standing else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A change of state, with the title of its rule; a rule of an older release keeps its name."""

    change: Change
    title: str

    @property
    def names(self) -> list[Named]:
        return named(self.change.facts, self.change.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """firing: warn and alert. silent: nobody judges any more, so all of it is old. targets: how
    many there are to be told, and how many of them are on.
    """

    now: datetime
    firing: list[Line]
    quiet: list[Line]
    checked_at: datetime | None
    silent: bool
    changes: list[Past]
    targets: int
    targets_on: int

    @property
    def unseen(self) -> int:
        """How many fire that nobody has acknowledged."""
        return sum(
            1
            for line in self.firing
            if line.standing and not line.standing.acknowledged_at and not line.snoozed
        )


def read() -> Board:
    found = alerts.read()
    told = targets.read()
    lines = [read_line(rule, standing) for rule, standing in found.standings]
    titles = {rule.name: rule.title for rule, _ in found.standings}
    return Board(
        now=found.now,
        firing=[line for line in lines if line.standing and line.standing.firing],
        quiet=[line for line in lines if not (line.standing and line.standing.firing)],
        checked_at=found.checked_at,
        silent=found.silent,
        changes=[
            Past(change=change, title=titles.get(change.rule, change.rule))
            for change in alerts.changes(limit=CHANGES)
        ],
        targets=len(told),
        targets_on=sum(target.enabled for target in told),
    )


def read_line(rule: Rule, standing: Standing | None) -> Line:
    name, query = PLACES.get(rule.name, ("contention", {}))  # what people made counts writes
    asked: dict[str, Any] = {"query": query} if query else {}
    address = reverse(PAGES.get(name, name), **asked)
    return Line(rule=rule, standing=standing, address=address, place=NAMES[name])


def find(name: str) -> Line | None:
    """One rule's line; None for one that there is not."""
    board = alerts.read()
    return next((read_line(r, s) for r, s in board.standings if r.name == name), None)
