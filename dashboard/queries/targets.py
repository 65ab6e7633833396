"""Where alerts are told, as the pages show it: targets in words, and lines of the log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agentstate.store import bounds, deliveries, targets
from agentstate.store.deliveries import Delivery
from agentstate.store.errors import Invalid
from agentstate.store.targets import Target
from dashboard.queries.clock import database_now

LOG_ROWS = 50
WHAT = {
    "firing": "began, or got worse",
    "eased": "eased",
    "again": "still stands",
    "over": "over",
    "test": "test",
}
LEAST = {"warn": "warnings and alerts", "alert": "alerts only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A delivery on the page; title: of its rule, or the name of one of another release."""

    delivery: Delivery
    title: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """older: the id to read on from, if there are more. damaged: what was asked for is no id."""

    lines: list[Line]
    older: str | None
    damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    now: datetime
    targets: list[Target]
    log: Log


def read(*, before: str | None = None) -> Board:
    return Board(now=database_now(), targets=targets.read(), log=read_log(before=before))


def read_log(*, target: str | None = None, before: str | None = None) -> Log:
    damaged = False
    try:
        found = deliveries.read(target=target, before=before, limit=LOG_ROWS + 1)
    except Invalid:
        found, damaged = deliveries.read(target=target, limit=LOG_ROWS + 1), True
    shown = found[:LOG_ROWS]
    older = shown[-1].id if len(found) > LOG_ROWS else None
    known = titles()
    lines = [read_line(delivery, known) for delivery in shown]
    return Log(lines=lines, older=older, damaged=damaged)


def titles() -> dict[str, str]:
    """Of every rule, those that people made as well."""
    return {name: rule.title for name, rule in bounds.rules().items()}


def read_line(delivery: Delivery, titles_of: dict[str, str] | None = None) -> Line:
    title = (titles() if titles_of is None else titles_of).get(delivery.rule)
    return Line(
        delivery=delivery,
        title=title or delivery.rule or "Test",
        what=WHAT.get(delivery.what, delivery.what),
    )


def wants(target: Target) -> str:
    """`warnings and alerts, of all rules`, `alerts only, of Fenced writes, Overdue runs`."""
    if not target.rules:
        return f"{LEAST[target.least]}, of all rules"
    known = titles()
    named = ", ".join(known.get(name, name) for name in target.rules)
    return f"{LEAST[target.least]}, of {named}"
