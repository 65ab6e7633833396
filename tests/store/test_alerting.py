"""The rules of alerts, without a database: bad at once, good only after a while."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.alerting import (
    FIRING,
    RANK,
    RULES,
    SILENT_SECONDS,
    Figure,
    Rule,
    State,
    evaluate,
    is_silent,
    say,
    told,
)

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
RULE = Rule(
    name="r", title="R", unit="count", warn=5, alert=10, message="{value} of them", advice="look",
    hold_seconds=60,
)  # fmt: skip


def run(values, *, rule=RULE, every_seconds=15):
    """How the rule stands after each of these figures (None: missing), 15 s apart."""
    stands, found, now = None, [], START
    for value in values:
        figure = Figure(value=value, missing="" if value is not None else "nothing counted")
        stands = evaluate(rule, figure, stands, now)
        found.append(stands)
        now += timedelta(seconds=every_seconds)
    return found


def states(values, **more):
    return [str(standing.state) for standing in run(values, **more)]


@pytest.mark.parametrize(
    ("value", "falling", "state"),
    [
        (4.9, False, "ok"), (5, False, "warn"), (9.9, False, "warn"), (10, False, "alert"),
        (10.1, True, "ok"), (10, True, "warn"), (5.1, True, "warn"), (5, True, "alert"),
    ],
)  # fmt: skip
def test_a_value_on_the_bound_counts(value, falling, state):
    bounds = {"warn": 10, "alert": 5} if falling else {"warn": 5, "alert": 10}
    rule = Rule(name="r", title="R", unit="count", message="", advice="", falling=falling, **bounds)
    assert rule.level(value) == state


def test_it_is_bad_at_once_and_good_after_a_while():
    assert states([0, 12, 0, 0, 0, 0, 0]) == ["ok", *["alert"] * 4, "ok", "ok"]


def test_a_clock_that_was_set_back_keeps_no_alert_up():
    bad = evaluate(RULE, Figure(value=12), None, START)
    earlier = START - timedelta(hours=1)
    good = evaluate(RULE, Figure(value=0), bad, earlier)
    assert good.state == State.ALERT
    assert evaluate(RULE, Figure(value=0), good, earlier + timedelta(seconds=60)).state == State.OK


def test_a_figure_that_swings_is_one_alert():
    found = run([12, 0, 0, 12, 0, 0, 12, 0, 0, 0, 0])
    assert [s.state for s in found] == ["alert"] * 10 + ["ok"]
    assert [s.version for s in found] == [1] * 10 + [2]


def test_a_warning_that_gets_worse_is_the_same_episode_and_one_that_eases_too():
    found = run([0, 6, 12, 6, 6, 6, 6, 0, 0, 0, 0])
    assert [s.state for s in found] == [
        "ok", "warn", "alert", "alert", "alert", "alert", "warn", "warn", "warn", "warn", "ok",
    ]  # fmt: skip
    assert {s.since for s in found[1:10]} == {START + timedelta(seconds=15)}
    assert found[6].changed_at == START + timedelta(seconds=90)


def test_a_figure_that_is_missing_does_not_end_an_alert_at_once():
    found = run([12, None, None, None, None, None])
    assert [s.state for s in found] == [*["alert"] * 4, "no-data", "no-data"]
    assert found[1].message == "nothing counted"
    assert states([None, 0, None, 12]) == ["no-data", "ok", "no-data", "alert"]


def acknowledged(standing):
    from dataclasses import replace

    return replace(
        standing, acknowledged_at=START, acknowledged_by="person:ana", acknowledged_why="at it"
    )


@pytest.mark.parametrize(
    ("before", "value", "after", "kept"),
    [(6, 12, "alert", False), (12, 12, "alert", True), (12, 6, "warn", True), (6, 0, "ok", False)],
)
def test_an_acknowledgement_lasts_until_it_is_over_or_worse(before, value, after, kept):
    standing = acknowledged(run([before])[0])
    later = evaluate(RULE, Figure(value=value), standing, START + timedelta(minutes=5))
    assert (later.state, later.acknowledged_by is not None) == (after, kept)


values = st.lists(st.one_of(st.none(), st.floats(0, 20)), min_size=1, max_size=40)


@given(values)
def test_it_is_never_better_than_its_figure(found):
    for value, standing in zip(found, run(found), strict=True):
        level = State.NO_DATA if value is None else RULE.level(value)
        assert RANK[standing.state] >= RANK[level]


@given(values)
def test_times_and_versions_only_grow_and_a_change_is_a_change(found):
    standings = run(found)
    for before, after in pairwise(standings):
        assert after.version - before.version == (before.state != after.state)
        assert (after.changed_at != before.changed_at) == (before.state != after.state)
        assert before.since <= after.since <= after.changed_at <= after.checked_at
        if before.state in FIRING and after.state in FIRING:
            assert before.since == after.since


@given(values)
def test_it_eases_only_after_the_whole_while(found):
    standings = run(found)
    for at, (before, after) in enumerate(pairwise(standings), start=1):
        if RANK[after.state] < RANK[before.state]:
            since_bad = [
                RANK[RULE.level(v) if v is not None else State.NO_DATA] for v in found[at - 3 : at]
            ]
            assert max(since_bad) < RANK[before.state]


def test_silence_is_three_passes_that_did_not_come():
    assert is_silent(None, START)
    assert not is_silent(START, START + timedelta(seconds=SILENT_SECONDS))
    assert is_silent(START, START + timedelta(seconds=SILENT_SECONDS, microseconds=1))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_has_sensible_bounds_and_a_message_that_can_be_said(rule):
    assert rule.warn is not None or rule.alert is not None
    if rule.warn is not None and rule.alert is not None:
        assert (rule.warn > rule.alert) == rule.falling
    facts = {
        "writes": 412, "accepted": 300, "count": 2, "names": "purge", "words": "at most 50 ms",
        "name": "fleet", "until": "03:12:07", "least": "80 %", "newest": "2.1.0",
    }  # fmt: skip
    assert say(rule, Figure(value=0.5, facts=facts))
    assert rule.advice.endswith((".", "?"))


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        ("share", 0.2341, "23.4 %"), ("ratio", 1.2, "1.20"), ("count", 3, "3"),
        ("seconds", 61.7, "62 s"), ("seconds", 1.25, "1.2 s"), ("ms", 250, "250 ms"),
        ("percent", 80.0, "80 %"), ("hours", 0.5, "0.5 h"), ("hours", 168, "7 days"),
    ],
)  # fmt: skip
def test_a_value_is_said_with_its_unit(unit, value, said):
    assert told(unit, value) == said
