"""Rules of alerts: what is looked at, from where it is bad, and when it is good again. Pure.

A figure is bad at once and good only after a while: a state that is worse counts in the moment that
its figure says so, a better one when for `hold_seconds` no figure was as bad as the state. So a
figure that swings around its threshold is one alert, not twenty. Why the thresholds are what they
are: docs/decisions/0012-rates-and-alerts.md. What is told to people outside, and how often, is here
as well (`news`); how it gets there: docs/decisions/0019-deliveries.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from agentstate.store.errors import Invalid

EVERY_SECONDS = 15
# Three passes that did not come.
SILENT_SECONDS = 3 * EVERY_SECONDS
# Fewer writes say nothing about a share of them.
WRITES_MIN = 20
SNOOZE_SECONDS_MIN, SNOOZE_SECONDS_MAX = 60, 30 * 86_400
# A worker renews at a third of its lease; past this part without a renewal it is late.
LATE_PART = 0.55
# Of what is shown, not of what is judged: a snoozed alert goes on being judged.
SNOOZED = "snoozed"


class State(StrEnum):
    NO_DATA = "no-data"
    OK = "ok"
    WARN = "warn"
    ALERT = "alert"


RANK = {State.NO_DATA: 0, State.OK: 0, State.WARN: 1, State.ALERT: 2}
FIRING = (State.WARN, State.ALERT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one alert looks at.

    warn, alert: from which value on, None: never. falling: the lower the worse.
    window_seconds: how far back the figure looks; 0: what stands now.
    again_seconds: told again no sooner, whatever the site's own time for it is.
    no_data: what counts while there is nothing to judge by. made: by people (made.py), and then
    `again_seconds` is what they want, 0: as the site does.
    unit: of the value: share, ratio, count, seconds, ms, percent, hours.
    message: said of a value that is known, with the figure's facts. advice: what to do next.
    """

    name: str
    title: str
    unit: str
    warn: float | None
    alert: float | None
    message: str
    advice: str
    window_seconds: int = 0
    hold_seconds: int = 60
    falling: bool = False
    again_seconds: int = 0
    no_data: State = State.NO_DATA
    made: bool = False

    def level(self, value: float) -> State:
        """The state that a value alone is worth."""
        for state, bound in ((State.ALERT, self.alert), (State.WARN, self.warn)):
            if bound is not None and (value <= bound if self.falling else value >= bound):
                return state
        return State.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What a rule is judged by. missing: why there is nothing to judge by (then value is None).

    fine: said instead of the rule's message when there is nothing at all that could be bad.
    """

    value: float | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    fine: str = ""

    def level(self, rule: Rule) -> State:
        if self.missing:
            return rule.no_data
        return State.OK if self.fine or self.value is None else rule.level(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a rule stands. since: the beginning of what lasts (warn and alert are one episode).

    held_at: when the figure was last as bad as the state. version counts the changes of state.
    snoozed_until: nobody is told until then. told_state, told_at: what people outside were told
    last, and when. derived: not kept so, but found by whoever looks.
    """

    rule: str
    state: State
    value: float | None
    message: str
    facts: Mapping[str, Any]
    since: datetime
    changed_at: datetime
    held_at: datetime
    checked_at: datetime
    version: int = 1
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    acknowledged_why: str | None = None
    snoozed_until: datetime | None = None
    snoozed_by: str | None = None
    snoozed_why: str | None = None
    told_state: str | None = None
    told_at: datetime | None = None
    derived: bool = False

    @property
    def firing(self) -> bool:
        return self.state in FIRING

    def is_snoozed(self, now: datetime) -> bool:
        return self.snoozed_until is not None and self.snoozed_until > now

    def shown(self, now: datetime) -> str:
        """The state in one word: `snoozed` for one that fires while nobody wants to hear it."""
        return SNOOZED if self.firing and self.is_snoozed(now) else str(self.state)


class What(StrEnum):
    """What a message to people outside says."""

    FIRING = "firing"  # it began, or got worse
    EASED = "eased"
    AGAIN = "again"  # it still stands
    OVER = "over"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message that is due. severity: the worse of what was told last and what is told now."""

    what: What
    severity: State
    standing: Standing


def evaluate(rule: Rule, figure: Figure, before: Standing | None, now: datetime) -> Standing:
    """How the rule stands now, from its figure and from how it stood before."""
    level = figure.level(rule)
    if before is None:
        return _first(rule, figure, level, now)
    seen = replace(
        before,
        value=figure.value,
        message=say(rule, figure),
        facts=figure.facts,
        checked_at=now,
        # Later than now: the clock was set back. The while counts from now on.
        held_at=min(before.held_at, now),
    )
    if seen.snoozed_until is not None and not seen.is_snoozed(now):
        seen = replace(seen, snoozed_until=None, snoozed_by=None, snoozed_why=None)
    if RANK[level] < RANK[before.state]:
        waited = now - seen.held_at >= timedelta(seconds=rule.hold_seconds)
        return _moved(replace(seen, held_at=now), level, now) if waited else seen
    held = replace(seen, held_at=now)
    return held if level == before.state else _moved(held, level, now)


def _first(rule: Rule, figure: Figure, level: State, now: datetime) -> Standing:
    return Standing(
        rule=rule.name,
        state=level,
        value=figure.value,
        message=say(rule, figure),
        facts=figure.facts,
        since=now,
        changed_at=now,
        held_at=now,
        checked_at=now,
    )


def _moved(standing: Standing, state: State, now: datetime) -> Standing:
    """In another state. Whoever acknowledged a warning has not seen the alert that follows."""
    goes_on = standing.firing and state in FIRING
    eased = RANK[state] < RANK[standing.state]
    keeps = goes_on and eased
    return replace(
        standing,
        state=state,
        since=standing.since if goes_on else now,
        changed_at=now,
        version=standing.version + 1,
        acknowledged_at=standing.acknowledged_at if keeps else None,
        acknowledged_by=standing.acknowledged_by if keeps else None,
        acknowledged_why=standing.acknowledged_why if keeps else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What a rule would have said of a time: how often it began to fire, how often it was at alert
    (also one that had warned before), and for how many minutes each. last_at: when it last fired.
    fired: when it began or got worse, and to what.
    """

    began: int = 0
    alerted: int = 0
    firing_minutes: int = 0
    alert_minutes: int = 0
    last_at: datetime | None = None
    fired: tuple[tuple[datetime, State], ...] = ()


def foresee(
    rule: Rule, values: Mapping[datetime, float | None], *, since: datetime, until: datetime
) -> Foreseen:
    """Judge the worst figure of each minute as it would have been judged. values: by minute; None:
    nothing that could be bad. A minute that is missing is one without a figure.
    """
    figures = {
        minute: Figure(value=value, fine="" if value is not None else "nothing")
        for minute, value in values.items()
    }
    return foresee_figures(rule, figures, since=since, until=until)


def foresee_figures(
    rule: Rule, figures: Mapping[datetime, Figure], *, since: datetime, until: datetime
) -> Foreseen:
    """The same, of whole figures."""
    nobody = Figure(value=None, missing="nobody judged")
    found, before, minute = Foreseen(), None, since
    while minute <= until:
        figure = figures.get(minute, nobody)
        after = _judged(rule, figure, before, minute)
        if after.firing:
            found = _with_minute(found, before, after, minute)
        before, minute = after, minute + timedelta(minutes=1)
    return found


def _judged(rule: Rule, figure: Figure, before: Standing | None, now: datetime) -> Standing:
    """As `evaluate`, for a rule whose message needs facts that nobody kept."""
    return evaluate(replace(rule, message=""), figure, before, now)


def _with_minute(
    found: Foreseen, before: Standing | None, after: Standing, minute: datetime
) -> Foreseen:
    at_alert = after.state is State.ALERT
    was_alert = before is not None and before.state is State.ALERT
    worse = before is None or RANK[after.state] > RANK[before.state]
    return Foreseen(
        began=found.began + (before is None or not before.firing),
        alerted=found.alerted + (at_alert and not was_alert),
        firing_minutes=found.firing_minutes + 1,
        alert_minutes=found.alert_minutes + at_alert,
        last_at=minute,
        fired=found.fired + (((minute, after.state),) if worse else ()),
    )


# The greatest value of a unit that can be meant.
BOUND_MAX = {
    "share": 1.0, "ratio": 1e3, "count": 1e9, "seconds": 1e8, "ms": 1e8, "percent": 1e3,
    "hours": 1e5,
}  # fmt: skip


def check_bounds(rule: Rule) -> None:
    """Whether a rule can be judged by its bounds. Raises Invalid."""
    most = BOUND_MAX[rule.unit]
    for name in ("warn", "alert"):
        bound = getattr(rule, name)
        if bound is not None and not 0 <= bound <= most:  # NaN is in no range
            raise Invalid(name, f"a number from 0 to {most:g}, or null for never")
        if bound == 0 and not rule.falling:
            raise Invalid(name, "more than 0: it would never be fine")
    if rule.warn is None and rule.alert is None:
        raise Invalid(
            "alert", "one of warn and alert; to hear nothing of it for a while, snooze it"
        )
    if rule.warn is not None and rule.alert is not None:
        out_of_order = rule.warn < rule.alert if rule.falling else rule.warn > rule.alert
        if out_of_order or rule.warn == rule.alert:
            side = "below" if rule.falling else "above"
            raise Invalid("alert", f"{side} warn, because an alert is the worse of the two")


def news(
    rule: Rule, before: Standing | None, after: Standing, now: datetime, *, again_seconds: int
) -> Notice | None:
    """What people outside are due to be told now, if anything; `told_of` then keeps that they were.

    again_seconds: after which what still stands is told again, 0: never. One that somebody is at
    is not told again; one that is snoozed is told of only to say that it is over.
    """
    was = State(after.told_state) if after.told_state else State.OK
    if not after.firing:
        return Notice(what=What.OVER, severity=was, standing=after) if RANK[was] else None
    if after.is_snoozed(now):
        return None
    if was != after.state:
        what = What.FIRING if RANK[after.state] > RANK[was] else What.EASED
        return Notice(
            what=what, severity=max(was, after.state, key=RANK.__getitem__), standing=after
        )
    woke = before is not None and before.snoozed_until is not None and not after.snoozed_until
    if after.acknowledged_at is not None and not woke:
        return None
    least = max(again_seconds, rule.again_seconds) if again_seconds else 0
    late = after.told_at is not None and least and now - after.told_at >= timedelta(seconds=least)
    return Notice(what=What.AGAIN, severity=after.state, standing=after) if woke or late else None


def told_of(notice: Notice, now: datetime) -> Standing:
    """The standing, with what was told about it."""
    firing = notice.standing.firing
    return replace(
        notice.standing,
        told_state=str(notice.standing.state) if firing else None,
        told_at=now if firing else None,
    )


def is_silent(checked_at: datetime | None, now: datetime) -> bool:
    """Whether nobody evaluates any more, so that what stands is old news."""
    return checked_at is None or now - checked_at > timedelta(seconds=SILENT_SECONDS)


def say(rule: Rule, figure: Figure) -> str:
    """The figure as a sentence."""
    if said := figure.missing or figure.fine:
        return said
    value = "" if figure.value is None else told(rule.unit, figure.value)
    return rule.message.format(value=value, **figure.facts)


def told(unit: str, value: float) -> str:
    """A value with its unit: `23.4 %`, `1.20`, `3`, `90 s`, `250 ms`, `5 h`, `7 days`."""
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "ratio":
        return f"{value:.2f}"
    if unit == "hours" and value >= 48:
        return f"{value / 24:.0f} days"
    whole = f"{value:.0f}" if value == int(value) or value >= 10 else f"{value:.1f}"
    return whole + {"count": "", "seconds": " s", "ms": " ms", "percent": " %", "hours": " h"}[unit]


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            name="conflict-share",
            title="Conflicts",
            unit="share",
            warn=0.10,
            alert=0.20,
            message="{value} of {writes} writes in 5 min met another writer first",
            advice="See which run and which columns; add instead of setting, or let one write.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="retries-per-success",
            title="Retries per success",
            unit="ratio",
            warn=0.5,
            alert=1.0,
            message="{value} retries for each of {accepted} accepted writes in 5 min",
            advice="See who retries what: the work is done twice before it counts once.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="fenced",
            title="Fenced writes",
            unit="count",
            warn=1,
            alert=10,
            message="turned away in 5 min, from workers that hold nothing any more: {value}",
            advice="A worker was overtaken and does not know it: see who, and why it was silent.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="lapsed-unclaimed",
            title="Lapsed and unclaimed",
            unit="seconds",
            warn=60,
            alert=300,
            message="lapsed and taken by nobody: {count}, the oldest for {value}",
            advice="Are there workers that claim? Else reclaim, so that the next one starts clean.",
        ),
        Rule(
            name="lost-holders",
            title="Holders that were lost",
            unit="count",
            warn=1,
            alert=10,
            message="leases that ran out in 5 min while somebody held them: {value}",
            advice="A crash, or a worker cut off: see who they were, and their logs.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="late-renewals",
            title="Late renewals",
            unit="count",
            warn=1,
            alert=20,
            message="held, and not renewed for more than half of the lease: {value}",
            advice="They lose their runs soon: see what keeps these workers busy, or the network.",
        ),
        Rule(
            name="poison-runs",
            title="Runs that use up their workers",
            unit="count",
            warn=1,
            alert=5,
            message="failed in 15 min with no attempt left, whoever took them: {value}",
            advice="See what the last holders did; mend the run or its input, then start it anew.",
            window_seconds=900,
            hold_seconds=120,
        ),
        Rule(
            name="old-workers",
            title="Workers of an older release",
            unit="count",
            warn=1,
            alert=None,
            message="at work, and older than {newest}: {value}",
            advice="Unless a release is under way: drain them. They may write what nobody knows.",
        ),
        Rule(
            name="budget-nearly-used",
            title="Budgets nearly used up",
            unit="percent",
            warn=80,
            alert=95,
            message="budgets in use at {least} or more: {count}, the fullest at {value}",
            advice="Raise the cap before it is met, or let the run end.",
        ),
        Rule(
            name="refused-charges",
            title="Refused charges",
            unit="count",
            warn=1,
            alert=20,
            message="charges refused in 5 min because of their cap: {value}",
            advice="See which runs stand still for want of budget.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="overdue-runs",
            title="Overdue runs",
            unit="count",
            warn=None,
            alert=1,
            message="past their deadline and not ended: {value}",
            advice="Ask who holds them; cancel what is of no use any more.",
        ),
        Rule(
            name="silent-jobs",
            title="Silent jobs of our own",
            unit="count",
            warn=None,
            alert=1,
            message="silent for three periods: {names}",
            advice="Are Celery's worker and beat running? Nothing sweeps while they are not.",
            hold_seconds=30,
        ),
        Rule(
            name="jobs-behind",
            title="Jobs of our own that fail or fall behind",
            unit="count",
            warn=1,
            alert=None,
            message="failed, or left something for its next pass: {names}",
            advice="See why on System. It goes on by itself, unless it fails again and again.",
        ),
        Rule(
            name="slow-writes",
            title="Waits for the store",
            unit="ms",
            warn=200,
            alert=1_000,
            message="95th percentile of {writes} writes in 5 min: {words}",
            advice="Look for a run that many write to, and for long transactions in the database.",
            window_seconds=300,
            hold_seconds=120,
        ),
        Rule(
            name="key-expires",
            title="Keys about to expire",
            unit="hours",
            warn=7 * 24,
            alert=24,
            falling=True,
            message="the key {name} ends in {value}",
            advice="Make another key and give it to those who use this one.",
            again_seconds=86_400,
        ),
        Rule(
            name="no-conflict-data",
            title="Writes that nobody counts",
            unit="seconds",
            warn=120,
            alert=240,
            message="runs were written to for {value}, and no write was counted in that time",
            advice="The rates and half of these rules are blind: see the log of the web processes.",
            window_seconds=300,
        ),
        Rule(
            name="evaluator-silent",
            title="Nobody judged the alerts",
            unit="seconds",
            warn=120,
            alert=600,
            message="nobody judged the alerts for {value}, until {until}: what was then is unknown",
            advice="Are Celery's worker and beat running? See what happened meanwhile.",
            hold_seconds=300,
        ),
        Rule(
            name="failing-targets",
            title="Alerts that do not arrive",
            unit="count",
            warn=1,
            alert=None,
            message="targets that cannot be reached: {names}",
            advice="See what they answer; mend the address and send a test.",
        ),
    )
}
