"""The cards of Now: what each check found in words, how much harm it does, and its one next step.

A check that could not be run is a card as well: what nobody could look at is not in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.urls import reverse

from agentstate.store.alerting import State
from agentstate.store.models import Lease
from agentstate.store.proposed import OpenProposal
from agentstate.store.reads import HeartbeatView
from agentstate.store.rows import run_key_of
from agentstate.store.targets import Target
from dashboard import diagnosis, forecast, sentences
from dashboard.families import BY_NAME
from dashboard.queries.alerts import Board
from dashboard.queries.alerts import Line as AlertLine
from dashboard.queries.budgets import Line
from dashboard.queries.now import Checked, HotRun, RefusedOf
from dashboard.queries.panels import Panel
from dashboard.queries.workers import Overtaken
from dashboard.templatetags.console import duration, number
from dashboard.templatetags.payload import actor

# Cards of one check; of more it is said how many, and where they are.
SHOWN = 3
REASON_SHOWN = 160
MOST_PART = diagnosis.MOST_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The one thing to do next: a link to a page that asks or shows."""

    label: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Something that needs somebody.

    harm: 0 to 100, the most first. said: run, worker and what happened; cause and cure: one
    sentence each. about: links to whom it is about. more: how many others of its kind there are.
    """

    check: str
    harm: int
    said: str
    cause: str = ""
    cure: str = ""
    step: Step
    about: tuple[Step, ...] = ()
    more: int = 0
    more_at: str = ""
    since: datetime | None = None

    @property
    def tone(self) -> str:
        return "alert" if self.harm >= 60 else "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """title: what is in order when it finds nothing. place: the page that shows all of it."""

    title: str
    place: str
    tell: Callable[[Any, datetime], list[Card]]


def run_link(key: str) -> Step:
    return Step(label=key, address=reverse("run", args=[key]))


def worker_link(name: str) -> Step:
    return Step(label=name, address=f"{reverse('runs')}?q=worker:{name}")


def _cut(cards: list[Card], place: str) -> list[Card]:
    """The first ones, the last of which says how many more there are."""
    if len(cards) <= SHOWN:
        return cards
    last = replace(cards[SHOWN - 1], more=len(cards) - SHOWN, more_at=reverse(place))
    return [*cards[: SHOWN - 1], last]


# --- the checks ----------------------------------------------------------------------------------


def lapsed(found: list[Lease], now: datetime) -> list[Card]:
    return [_lapsed(lease, now) for lease in found]


def _lapsed(lease: Lease, now: datetime) -> Card:
    ago = duration(now - lease.expires_at) if lease.expires_at else "a while"
    silent = duration(sentences.since_renewal_seconds(lease, now))
    name = lease.run.key if lease.run else lease.unit
    return Card(
        check="lapsed",
        harm=90,
        said=f"{name} stands still: {lease.owner} let its lease run out {ago} ago,"
        " and nobody took over",
        cause=f"{lease.owner} has not renewed for {silent}, of a lease of"
        f" {duration(lease.ttl_seconds)}: it died, froze or was cut off.",
        cure="Take it back, so that the next worker starts clean; if no worker claims, start one.",
        step=Step(label="Reclaim…", address=reverse("reclaim", args=[lease.unit])),
        about=((run_link(name),) if lease.run else ()) + (worker_link(lease.owner or ""),),
        since=lease.expires_at,
    )


def overtaken(found: list[Overtaken], now: datetime) -> list[Card]:
    return [_overtaken(one, now) for one in found]


def _overtaken(one: Overtaken, now: datetime) -> Card:
    thing = one.key or one.unit or "what it had lost"
    has_it = f" {one.holder} has it now." if one.holder else ""
    tries = "One write" if one.refused == 1 else f"{number(one.refused)} writes"
    return Card(
        check="overtaken",
        harm=60,
        said=f"{one.name} still writes to {thing} after it was overtaken",
        cause=f"{tries} came too late, the last one {duration(now - one.last_at)} ago, under"
        f" token {one.token}. Nothing of it was stored.{has_it}",
        cure="See why it was silent for longer than its lease; drain it if it goes on.",
        step=Step(label="Drain it…", address=reverse("worker-act", args=[one.name, "drain"]))
        if one.is_worker
        else Step(label="See Workers", address=reverse("workers")),
        about=((run_link(one.key),) if one.key else ())
        + ((worker_link(one.name),) if one.is_worker else ()),
        since=one.last_at,
    )


def hot(found: list[HotRun], now: datetime) -> list[Card]:
    return [_hot(one) for one in found]


def _hot(one: HotRun) -> Card:
    figures = one.figures
    share = round(100 * (figures.conflict_ratio or 0))
    column = one.columns[0] if one.columns else None
    is_clear = column is not None and column[1] >= MOST_PART * one.columns_of
    return Card(
        check="hot",
        harm=70,
        said=f"{one.key} is hot: {share} % of {number(figures.writes)} writes met another writer"
        " first in 5 min",
        cause=" ".join(filter(None, (_fought_over(one), _who_meets(one)))),
        cure=diagnosis.cure_of(column[0]) if column and is_clear else BY_NAME["conflict"].cure,
        step=Step(label="Put a brake on it…", address=reverse("run-brake", args=[one.key])),
        about=(
            run_link(one.key),
            Step(label="its refusals", address=f"{reverse('run', args=[one.key])}?tab=refused"),
        ),
    )


def _fought_over(one: HotRun) -> str:
    if not one.columns:
        return ""
    name, count = one.columns[0]
    return f"{100 * count // one.columns_of} % of the conflicts are about {name}."


def _who_meets(one: HotRun) -> str:
    names = [name for name, _ in one.workers[:2]]
    if len(names) < 2:
        return f"Most come from {names[0]}." if names else ""
    return f"{names[0]} and {names[1]} meet most often."


def dry(found: list[Line], now: datetime) -> list[Card]:
    return [_dry(line, now) for line in found]


def _dry(line: Line, now: datetime) -> Card:
    budget, ahead = line.budget, line.forecast
    part = 100 * budget.used // max(1, budget.cap)
    soon = f", {forecast.in_words(ahead, now)}" if ahead and ahead.dry_at else ""
    return Card(
        check="dry",
        harm=75 if budget.left <= 0 else 50,
        said=f"{budget.name} of {line.run} is used to {part} %{soon}",
        cause=f"{number(budget.spent)} spent and {number(budget.reserved)} reserved of"
        f" {number(budget.cap)} {budget.unit}{_went(line)}",
        cure="Raise the cap before it is met, or let the run end.",
        step=Step(
            label="Change the cap…", address=reverse("run-budget-cap", args=[line.run, budget.name])
        ),
        about=(run_link(line.run or ""),),
    )


def _went(line: Line) -> str:
    """How fast it goes, and why it is not told when it is dry where that is not known."""
    if line.burn is None or line.forecast is None:
        return "."
    went = f"; {number(line.burn.spent)} of it in the last {duration(line.burn.over)}."
    if line.forecast.dry_at or line.forecast.is_dry:
        return went
    return f"{went} When it is dry is not known: {line.forecast.why}."


def refused(found: list[RefusedOf], now: datetime) -> list[Card]:
    return [_refused(one, now) for one in found]


def _refused(one: RefusedOf, now: datetime) -> Card:
    count, last = len(one.charges), one.charges[0]
    charges = "A charge was" if count == 1 else f"{number(count)} charges were"
    whose = f" of {one.run}" if one.run else ""
    room = f" The smallest needs room for {number(one.least)}." if one.least is not None else ""
    return Card(
        check="refused",
        harm=80,
        said=f"{charges} refused: {one.budget}{whose} has no room",
        cause=f"The last one came from {last.who} {duration(now - last.at)} ago.{room}",
        cure="Raise the cap, or let the run end: its worker cannot go on as it is.",
        step=Step(label="Change the cap…", address=_cap_address(one)),
        about=(run_link(one.run),) if one.run else (),
        since=last.at,
    )


def _cap_address(one: RefusedOf) -> str:
    if one.run is None:
        return reverse("budget-cap", args=[one.budget])
    return reverse("run-budget-cap", args=[one.run, one.budget])


def targets(found: list[Target], now: datetime) -> list[Card]:
    return [
        Card(
            check="targets",
            harm=40,
            said=f"{one.name} does not answer: alerts do not reach whoever is behind it",
            cause=f"{number(one.failures)} tries failed, since {duration(now - one.failing_since)}."
            if one.failing_since
            else f"It was switched off: {one.off_why}.",
            cure="Send it a test; mend its address, or switch it on again.",
            step=Step(label="See its log", address=reverse("target", args=[one.name])),
            since=one.failing_since or one.off_at,
        )
        for one in found
    ]


def jobs(found: list[HeartbeatView], now: datetime) -> list[Card]:
    """One card, whichever of them are silent: the cause is the same."""
    if not found:
        return []
    names = [job.name for job in found]
    quiet = max((job.quiet_seconds or 0.0 for job in found), default=0.0)
    since = f", for {duration(quiet)}" if quiet else " and never ran"
    many = f"{len(names)} periodic jobs are" if len(names) > 1 else f"“{names[0]}” is"
    return [
        Card(
            check="jobs",
            harm=95,
            said=f"{many} silent{since}: nobody sweeps, counts or tells",
            cause=f"Celery's worker or beat does not run. Concerned: {', '.join(names[:6])}"
            + ("…" if len(names) > 6 else "."),
            cure="Start them again; workers are not harmed, and what is due is caught up with.",
            step=Step(label="See which", address=reverse("system")),
        )
    ]


# What has a check of its own needs no second card because its alert fires.
COVERED = frozenset(
    {
        "lapsed-unclaimed", "fenced", "conflict-share", "retries-per-success",
        "budget-nearly-used", "refused-charges", "failing-targets", "silent-jobs",
    }
)  # fmt: skip


def alerts(board: Board, now: datetime) -> list[Card]:
    """Whatever else fires and nobody is at, and that nobody judges."""
    cards = [_alert(line) for line in board.firing if _is_new(line)]
    if board.silent:
        cards.append(_nobody_judges(board, now))
    return sorted(cards, key=lambda card: -card.harm)


def _is_new(line: AlertLine) -> bool:
    at_it = line.standing is not None and line.standing.acknowledged_at is not None
    return line.rule.name not in COVERED and not line.snoozed and not at_it


def _alert(line: AlertLine) -> Card:
    standing = line.standing
    assert standing is not None
    message = standing.message
    return Card(
        check="alerts",
        harm=65 if standing.state is State.ALERT else 30,
        said=f"{line.rule.title}: {message}",
        cure=line.rule.advice,
        step=Step(label=f"See {line.place}", address=line.address),
        since=standing.since,
    )


def _nobody_judges(board: Board, now: datetime) -> Card:
    quiet = f"for {duration(now - board.checked_at)}" if board.checked_at else "yet"
    return Card(
        check="alerts",
        harm=96,
        said=f"Nobody has judged the alerts {quiet}: nobody outside is told anything",
        cause="Celery's worker or beat does not run.",
        cure="Start them again.",
        step=Step(label="See System", address=reverse("system")),
    )


def proposals(found: Sequence[OpenProposal], now: datetime) -> list[Card]:
    return [_proposal(one, now) for one in found]


def _proposal(one: OpenProposal, now: datetime) -> Card:
    row = one.row
    name = run_key_of(row.unit)
    live = " Its lease is live: only a senior can confirm it." if one.live else ""
    return Card(
        check="proposals",
        harm=92,
        said=f"{actor(row.by)} proposes to take {name or row.unit} from {row.owner}",
        cause=f"It wrote {duration(now - row.at)} ago: “{_in_short(row.reason)}”.{live}",
        cure="A program wrote that: look at the facts, then confirm it or decline it.",
        step=Step(
            label="Look at it…",
            address=f"{reverse('reclaim', args=[row.unit])}?proposal={row.id}",
        ),
        about=((run_link(name),) if name else ()) + (worker_link(row.owner),),
        since=row.at,
    )


def _in_short(reason: str) -> str:
    return reason if len(reason) <= REASON_SHOWN else f"{reason[: REASON_SHOWN - 1]}…"


CHECKS: dict[str, Check] = {
    "proposals": Check(title="Nothing is proposed", place="leases", tell=proposals),
    "lapsed": Check(title="No unit is left lapsed", place="leases", tell=lapsed),
    "overtaken": Check(title="No overtaken worker writes", place="workers", tell=overtaken),
    "hot": Check(title="No run is hot", place="contention", tell=hot),
    "dry": Check(title="No budget is nearly used up", place="budgets", tell=dry),
    "refused": Check(title="No charge was refused", place="budgets", tell=refused),
    "targets": Check(title="Every target of alerts answers", place="targets", tell=targets),
    "jobs": Check(title="Every periodic job runs", place="system", tell=jobs),
    "alerts": Check(title="No other alert fires, and they are judged", place="alerts", tell=alerts),
}
HARM_UNKNOWN = 94


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """cards: by harm. passed: titles of the checks that found nothing."""

    now: datetime
    cards: list[Card]
    passed: list[str]

    @property
    def is_clear(self) -> bool:
        return not self.cards


def judge(checked: Checked) -> Verdict:
    """The cards of all checks, the most harmful first, and what is in order."""
    cards: list[Card] = []
    passed: list[str] = []
    for name, check in CHECKS.items():
        told = _told(name, check, checked.panels[name], checked.now)
        cards.extend(_cut(told, check.place))
        if not told:
            passed.append(check.title)
    order = sorted(_once(cards), key=lambda card: (-card.harm, card.since or checked.now))
    return Verdict(now=checked.now, cards=order, passed=passed)


def _once(cards: list[Card]) -> list[Card]:
    """A budget that refuses needs no second card because it is nearly used up."""
    refusing = {card.step.address for card in cards if card.check == "refused"}
    return [card for card in cards if card.check != "dry" or card.step.address not in refusing]


def _told(name: str, check: Check, panel: Panel[Any], now: datetime) -> list[Card]:
    if not panel.failed:
        return check.tell(panel.found, now)
    return [
        Card(
            check=name,
            harm=HARM_UNKNOWN,
            said=f"Not known: “{check.title}” could not be checked",
            cause=panel.failed,
            cure="Look at its page; if that fails as well, the database is busy or away.",
            step=Step(label="See its page", address=reverse(check.place)),
        )
    ]
