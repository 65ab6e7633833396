"""Bounds of rules: an operator changes them, seeing what they would have said of the last day."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agentstate import store as the_store
from agentstate.store import alerts, bounds, retention
from agentstate.store.alerting import RULES, Foreseen, check_bounds, foresee
from agentstate.store.commands import ChangeRule, NewBudget
from agentstate.store.errors import Invalid, NotAllowed, NotFound, VersionConflict
from agentstate.store.minutes import TALLY
from tests.store.asking import ANA, VIEWER, at_once, rows
from tests.store.test_alerts import stands, state_of

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
FENCED = RULES["fenced"]


@pytest.fixture(autouse=True)
def _nothing_counted_yet(request):
    if "clock" in request.fixturenames:
        request.getfixturevalue("transactional_db")
        TALLY.forget()


def change(rule="overdue-runs", *, version=0, by=ANA, **more):
    ask = ChangeRule(rule=rule, version=version, reason="too many at night", **more)
    return the_store.execute(ask, by=by)


# --- which bounds there may be -------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_comes_with_bounds_that_may_be(rule):
    check_bounds(rule)


@pytest.mark.parametrize(
    ("rule", "warn", "alert", "field"),
    [
        ("fenced", 5, 5, "alert"), ("fenced", 6, 5, "alert"), ("fenced", None, None, "alert"),
        ("fenced", 0, 5, "warn"), ("fenced", -1, 5, "warn"), ("fenced", 1, float("nan"), "alert"),
        ("fenced", 1, float("inf"), "alert"), ("conflict-share", 0.5, 1.5, "alert"),
        ("key-expires", 24, 168, "alert"),
    ],
)  # fmt: skip
def test_bounds_that_nothing_can_be_judged_by_are_refused(rule, warn, alert, field):
    with pytest.raises(Invalid) as refused:
        check_bounds(replace(RULES[rule], warn=warn, alert=alert))
    assert refused.value.field == field


def test_one_of_the_two_may_be_never():
    check_bounds(replace(FENCED, warn=None, alert=1))
    check_bounds(replace(FENCED, warn=1, alert=None))


# --- changed -------------------------------------------------------------------------------------


def overdue(store, clock, count=1):
    for n in range(count):
        store.create(f"late-{n}", deadline_at=clock.now + timedelta(seconds=10))
    clock.advance(seconds=10)


def test_an_operator_changes_bounds_and_the_next_evaluation_goes_by_them(store, clock):
    overdue(store, clock, 2)
    assert state_of("overdue-runs")[0] == "alert"
    done = change(warn=1, alert=3)
    assert (done.warn, done.alert, done.version, done.by) == (1, 3, 1, "person:ana")
    clock.advance(seconds=60)
    assert state_of("overdue-runs")[0] == "warn"
    rule = next(r for r, _ in alerts.read().standings if r.name == "overdue-runs")
    assert (rule.warn, rule.alert) == (1, 3)
    assert rows("SELECT actor, action, object, reason FROM agentstate_operatoraction") == [
        ("person:ana", "alert-rule.changed", "overdue-runs", "too many at night")
    ]


def test_what_is_not_named_stays_and_null_is_never(store, clock):
    change("fenced", alert=50)
    assert (bounds.rule("fenced").warn, bounds.rule("fenced").alert) == (1, 50)
    change("fenced", version=1, warn=None)
    found = bounds.find("fenced")
    assert (found.rule.warn, found.rule.alert, found.bounds.version) == (None, 50, 2)
    assert (found.own.warn, found.own.alert) == (1, 10)
    assert (found.bounds.changed_by, found.bounds.changed_at) == ("person:ana", clock.now)


def test_what_somebody_else_changed_meanwhile_is_not_written_over(store, clock):
    change(alert=3)
    with pytest.raises(VersionConflict) as refused:
        change(alert=9)
    assert refused.value.current == {
        "rule": "overdue-runs", "warn": None, "alert": 3, "version": 1}  # fmt: skip
    assert bounds.rule("overdue-runs").alert == 3


def test_of_two_who_change_the_same_bounds_at_once_one_wins(store, clock):
    outcomes = at_once(6, lambda n: change(alert=2 + n))
    assert sum(isinstance(o, VersionConflict) for o in outcomes) == 5
    assert bounds.find("overdue-runs").bounds.version == 1
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(1,)]


def test_who_may_not_and_what_is_not_there_is_refused_and_leaves_no_row(store, clock):
    with pytest.raises(NotAllowed):
        change(alert=3, by=VIEWER)
    with pytest.raises(NotFound):
        change("no-such-rule", alert=3)
    with pytest.raises(NotFound):
        bounds.find("no-such-rule")
    with pytest.raises(Invalid):
        change(warn=3, alert=2)
    assert bounds.find("overdue-runs").bounds.version == 0
    assert rows("SELECT count(*) FROM agentstate_alertrule WHERE version > 0") == [(0,)]


def test_budgets_are_named_from_the_lowest_bound_on(store, clock):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    store.spend("42", 55, budget="tokens")
    change("budget-nearly-used", warn=50, alert=60)
    assert state_of("budget-nearly-used") == (
        "warn", "budgets in use at 50 % or more: 1, the fullest at 55 %")  # fmt: skip
    assert stands("budget-nearly-used").facts["budgets"] == ["42/tokens"]
    change("budget-nearly-used", version=1, warn=56)
    clock.advance(seconds=60)
    assert state_of("budget-nearly-used") == ("ok", "no budget in use is at 56 %")


# --- the last day --------------------------------------------------------------------------------


def minutes(*values):
    """Values of minutes from START on; "-": nobody judged."""
    at = {START + timedelta(minutes=n): value for n, value in enumerate(values)}
    return {minute: value for minute, value in at.items() if value != "-"}


def foreseen(*values, rule=FENCED):
    last = START + timedelta(minutes=len(values) - 1)
    return foresee(rule, minutes(*values), since=START, until=last)


def test_a_day_without_anything_bad_is_empty():
    assert foreseen(0, None, 0, "-", 0) == Foreseen()


def test_episodes_are_counted_as_they_would_have_been_told():
    day = foreseen(0, 1, 12, 12, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0)
    assert (day.began, day.alerted) == (2, 1)
    # Each lasts a minute longer than its figure: better counts only when for a while.
    assert day.firing_minutes == 4 + 2
    assert day.alert_minutes == 3
    assert day.last_at == START + timedelta(minutes=11)


def test_a_figure_that_swings_is_one_episode():
    assert foreseen(*[1, 0] * 10).began == 1


def test_a_rule_that_is_bad_when_it_falls():
    day = foreseen(200, 100, 20, 200, 200, rule=RULES["key-expires"])
    assert (day.began, day.alerted) == (1, 1)


def test_the_worst_figure_of_each_minute_is_kept_for_two_days(store, clock):
    clock.set(clock.now.replace(second=0, microsecond=0))
    overdue(store, clock, 2)
    alerts.evaluate_all()
    store.move("late-0", "cancelled")
    store.move("late-1", "cancelled")
    clock.advance(seconds=15)
    alerts.evaluate_all()
    kept = "SELECT value FROM agentstate_alertfigure WHERE rule = 'overdue-runs'"
    assert rows(kept) == [(2,)]
    clock.advance(hours=47)
    assert retention.purge("figures of alerts") == 0
    clock.advance(hours=2)
    assert retention.purge("figures of alerts") > 0
    assert rows(kept) == []


def test_the_smallest_is_the_worst_of_what_falls(clock):
    from agentstate.store.callers import SYSTEM
    from agentstate.store.keys import create_key

    clock.set(clock.now.replace(second=0, microsecond=0))
    for hours in (30, 20):
        ends = clock.now + timedelta(hours=hours)
        create_key(name=f"k-{hours}", scopes=("read",), by=SYSTEM, expires_at=ends)
        alerts.evaluate_all()
    kept = "SELECT value FROM agentstate_alertfigure WHERE rule = 'key-expires'"
    assert rows(kept) == [(20,)]


def test_what_there_is_nothing_to_judge_by_leaves_no_figure(clock):
    alerts.evaluate_all()
    found = {name for (name,) in rows("SELECT rule FROM agentstate_alertfigure")}
    assert "conflict-share" not in found
    assert "overdue-runs" in found


def test_a_preview_says_what_the_last_day_would_have_been(store, clock):
    overdue(store, clock, 2)
    for _ in range(5):
        clock.advance(minutes=1)
        alerts.evaluate_all()
    seen = bounds.preview("overdue-runs", warn=1, alert=3)
    assert (seen.minutes, seen.worst) == (5, 2)
    assert (seen.now.began, seen.now.alerted, seen.now.alert_minutes) == (1, 1, 5)
    assert (seen.then.began, seen.then.alerted, seen.then.firing_minutes) == (1, 0, 5)
    assert bounds.find("overdue-runs").bounds.version == 0
    with pytest.raises(Invalid):
        bounds.preview("overdue-runs", warn=None, alert=None)
    clock.advance(days=1, minutes=1)
    assert bounds.preview("overdue-runs", warn=1, alert=3).minutes == 0
