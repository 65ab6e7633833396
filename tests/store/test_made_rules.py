"""Rules that people made: kept once, judged by the minute table, previewed by the same, deleted."""

from datetime import timedelta
from itertools import pairwise

import pytest

from agentstate import store as the_store
from agentstate.store import alerts, bounds, deliveries, targets
from agentstate.store.alerting import RULES, State
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import ChangeRule, DeleteRule, PutRule, SnoozeAlert
from agentstate.store.errors import Exists, Invalid, NotAllowed, NotFound, VersionConflict
from agentstate.store.made import MADE_MAX, METRICS, Definition
from agentstate.store.made_figures import VALUES
from agentstate.store.minutes import TALLY
from tests.store.asking import ANA, VIEWER, at_once, results, rows
from tests.store.test_alerts import stands, state_of
from tests.store.test_rates import count

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db):
    TALLY.forget()


def put(rule="own-w3", *, version=0, warn=5, alert=10, by=ANA, **more):
    definition = Definition(**{"title": "Fenced calls of w-3", "metric": "fenced"} | more)
    ask = PutRule(
        rule=rule,
        version=version,
        definition=definition,
        warn=warn,
        alert=alert,
        reason="w-3 again",
    )
    return the_store.execute(ask, by=by)


def calls(clock, outcome="ok", times=1, **more):
    count(clock.now, outcome=outcome, times=times, **more)


def test_every_metric_has_its_value():
    assert set(METRICS) == set(VALUES)


def test_one_is_judged_told_and_snoozed_as_those_of_ours(clock):
    targets.create_target(
        name="ops", kind="webhook", address="https://x.example.org/", hint="x", by=SYSTEM,
        rules=["own-w3"],
    )  # fmt: skip
    made = put(worker="w-3")
    calls(clock, "stale-fence", times=9, worker="w-3")
    calls(clock, "stale-fence", times=90, worker="w-4")

    assert made.version == 1
    assert state_of("own-w3") == ("warn", "9 fenced calls by worker w-3 in 5 min")
    assert stands("own-w3").facts["workers"] == ["w-3"]
    assert alerts.count_firing() == 1  # the rule of ours is at alert, and this one warns
    (told,) = deliveries.read()
    assert (told.rule, told.what) == ("own-w3", "firing")
    the_store.execute(
        SnoozeAlert(rule="own-w3", version=stands("own-w3").version, seconds=60, reason="known"),
        by=ANA,
    )
    assert stands("own-w3").snoozed_by == "person:ana"
    assert [r.name for r, _ in alerts.read().standings if r.made] == ["own-w3"]
    assert set(bounds.rules()) == set(RULES) | {"own-w3"}


@pytest.mark.parametrize(
    ("metric", "more", "state", "value"),
    [
        ("conflict-share", {"run": "a"}, "alert", 0.5), ("conflicts", {}, "alert", 20),
        ("refused", {}, "alert", 20), ("writes", {"run": "a"}, "alert", 40),
        ("few-writes", {"run": "a"}, "ok", 40),
        ("few-writes", {"run": "b"}, "alert", 0), ("writes", {"run": "b"}, "ok", 0),
        ("conflicts", {"run": "b"}, "no-data", None), ("failed", {}, "ok", 0),
        ("conflicts", {"run": "b", "no_data": "warn"}, "warn", None),
        ("conflicts", {"run": "b", "no_data": "ok"}, "ok", None),
        ("refused-charges", {}, "ok", 0), ("gave-up", {}, "ok", 0), ("fenced", {}, "ok", 0),
        ("retries-per-success", {}, "ok", 0),
        ("conflicts", {"operation": "spend"}, "no-data", None),
        ("conflicts", {"operation": "append"}, "alert", 20),
        ("conflict-share", {"worker": "w-9"}, "no-data", None),
    ],
)  # fmt: skip
def test_each_metric_is_what_the_minutes_say(clock, metric, more, state, value):
    calls(clock, times=20, run="a")
    calls(clock, "version-conflict", times=20, run="a")
    falling = METRICS[metric].falling
    warn, alert = (0.2, 0.4) if METRICS[metric].unit in ("share", "ratio") else (5, 10)
    put(warn=alert if falling else warn, alert=warn if falling else alert, metric=metric, **more)

    assert state_of("own-w3")[0] == state
    assert stands("own-w3").value == value


def test_how_often_it_is_told_again_is_what_its_maker_said(clock, settings):
    settings.ALERT_AGAIN_SECONDS = 3_600
    targets.create_target(
        name="ops", kind="webhook", address="https://x.example.org/", hint="x", by=SYSTEM,
        rules=["own-w3"],
    )  # fmt: skip
    put(again_seconds=120, window_seconds=600)
    calls(clock, "stale-fence", times=9)
    state_of("own-w3")
    for _ in range(3):
        clock.advance(seconds=60)
        state_of("own-w3")

    assert [d.what for d in deliveries.read()] == ["again", "firing"]


def test_the_preview_says_what_the_evaluation_then_says(clock):
    definition = Definition(title="t", metric="fenced", window_seconds=120, hold_seconds=60)
    put(**definition.members())
    first, states = clock.now, []
    for minute in range(13):
        if minute in (2, 3, 9):
            calls(clock, "stale-fence", times=12 if minute == 9 else 6)
        else:
            calls(clock)
        states.append(state_of("own-w3")[0])
        clock.advance(seconds=60)

    seen = bounds.preview_made(bounds.rule("own-w3"), definition)

    rank = ["no-data", "ok", "warn", "alert"].index
    worse = [
        (n, state)
        for n, (was, state) in enumerate(pairwise(["ok", *states]))
        if rank(state) > max(rank(was), 1)
    ]
    start = first.replace(second=0, microsecond=0)
    assert [((at - start) // MINUTE, str(state)) for at, state in seen.now.fired] == worse
    assert worse[:2] == [(2, "warn"), (3, "alert")]
    assert seen.worst == 12
    assert seen.now.began == 2


def test_two_who_make_the_same_make_one_and_two_who_change_it_change_it_once(clock):
    made = at_once(6, lambda n: put(warn=n + 1, alert=None))
    assert len(results(made, Exists)) == 5
    assert rows("SELECT count(*) FROM agentstate_alertrule WHERE definition IS NOT NULL") == [(1,)]

    changed = at_once(4, lambda n: put(version=1, title=f"by {n}"))
    assert len(results(changed, VersionConflict)) == 3
    assert bounds.find("own-w3").bounds.version == 2
    actions = rows(
        "SELECT action, before ->> 'version' FROM agentstate_operatoraction ORDER BY at, id"
    )
    assert [a for a, _ in actions] == ["alert-rule.made", "alert-rule.edited"]


def test_its_bounds_alone_can_be_changed_and_it_keeps_what_it_looks_at(clock):
    put(worker="w-3")
    the_store.execute(ChangeRule(rule="own-w3", version=1, warn=7, reason="less"), by=ANA)

    found = bounds.find("own-w3")
    assert (found.rule.warn, found.rule.alert, found.bounds.version) == (7, 10, 2)
    assert found.bounds.definition.worker == "w-3"


def test_deleted_it_stands_no_more_and_what_it_changed_stays(clock):
    put()
    calls(clock, "stale-fence", times=12)
    state_of("own-w3")
    ask = DeleteRule(rule="own-w3", version=1, reason="over")
    the_store.execute(ask, by=ANA)

    assert "own-w3" not in {rule.name for rule, _ in alerts.read().standings}
    assert rows("SELECT count(*) FROM agentstate_alert WHERE rule = 'own-w3'") == [(0,)]
    assert "own-w3" in {change.rule for change in alerts.changes()}
    assert alerts.evaluate_all() is not None
    with pytest.raises(NotFound):
        the_store.execute(ask, by=ANA)
    with pytest.raises(NotFound):
        the_store.execute(DeleteRule(rule="fenced", version=1, reason="no"), by=ANA)
    assert put().version == 1


def test_who_may_and_what_may_be_made(clock):
    with pytest.raises(NotAllowed):
        put(by=VIEWER)
    for field, wrong in (
        ("rule", {"rule": "fenced"}), ("metric", {"metric": "moons"}),
        ("window_seconds", {"window_seconds": 90}), ("window_seconds", {"window_seconds": 7_200}),
        ("no_data", {"no_data": "maybe"}), ("again_seconds", {"again_seconds": 5}),
        ("title", {"title": ""}), ("alert", {"warn": None, "alert": None}),
        ("alert", {"metric": "few-writes", "warn": 1, "alert": 2}), ("run", {"run": "a\nb"}),
    ):  # fmt: skip
        with pytest.raises(Invalid) as refused:
            put(**wrong)
        assert refused.value.field == field
    with pytest.raises(NotFound):
        put(version=3)
    for number in range(MADE_MAX):
        put(f"own-{number}")
    with pytest.raises(Invalid, match="no room"):
        put("own-too-many")


def test_what_a_newer_release_made_is_left_alone(clock):
    put()
    rows('UPDATE agentstate_alertrule SET definition = \'{"metric": "moons"}\' RETURNING 1')

    assert set(bounds.rules()) == set(RULES)
    assert alerts.evaluate_all() is not None
    assert State.NO_DATA == "no-data"
