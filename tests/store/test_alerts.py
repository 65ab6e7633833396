"""Alerts as they are kept: real figures, two evaluators at once, history, acknowledgement."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from agentstate import store as the_store
from agentstate.store import alerts, feed, minutes, recount, upkeep
from agentstate.store.alerting import RULES
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AcknowledgeAlert, AlertAcknowledged, NewBudget
from agentstate.store.errors import Invalid, NotAllowed, NotFound, Refusal, VersionConflict
from agentstate.store.keys import create_key
from agentstate.store.minutes import LATENCY_MS, TALLY
from tests.store.asking import ANA, VIEWER, at_once, results, rows
from tests.store.test_rates import count


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db):
    TALLY.forget()


def look():
    TALLY.write()
    return alerts.evaluate_all()


def stands(rule):
    return next(s for r, s in alerts.read().standings if r.name == rule)


def state_of(rule):
    look()
    standing = stands(rule)
    return str(standing.state), standing.message


def calls(clock, outcome="ok", times=1, **more):
    count(clock.now, outcome=outcome, times=times, **more)


def test_every_rule_has_its_figure():
    assert set(alerts.FIGURES) == set(RULES)


def test_in_an_empty_store_nothing_fires_and_what_cannot_be_known_says_so(clock):
    assert look() == []
    found = {rule.name: (str(s.state), s.message) for rule, s in alerts.read().standings}
    assert {n for n, (state, _) in found.items() if state == "no-data"} == {
        "conflict-share", "retries-per-success", "fenced", "refused-charges", "slow-writes",
        "silent-jobs", "jobs-behind", "no-conflict-data",
    }  # fmt: skip
    assert found["conflict-share"][1] == alerts.NO_WRITES
    assert {state for state, _ in found.values()} == {"ok", "no-data"}


def test_conflicts_are_judged_by_their_share_once_there_are_enough_writes(clock):
    calls(clock, times=10)
    calls(clock, "version-conflict", times=9)
    assert state_of("conflict-share")[0] == "ok"
    calls(clock, times=1)
    assert state_of("conflict-share") == (
        "alert", "45.0 % of 20 writes in 5 min met another writer first")  # fmt: skip
    facts = {"writes": 20, "conflicts": 9, "gave_up": 0, "runs": ["42"]}
    assert stands("conflict-share").facts == facts


def test_retries_fences_and_refused_charges_are_counted(clock):
    calls(clock, times=20)
    assert state_of("fenced") == ("ok", "no call of an overtaken worker in 5 min")
    calls(clock, "stale-fence", attempt=2, times=11)
    calls(clock, "budget-exhausted")
    assert state_of("fenced")[0] == "alert"
    assert state_of("retries-per-success")[0] == "warn"
    assert state_of("refused-charges") == (
        "warn", "charges refused in 5 min because of their cap: 1")  # fmt: skip


def test_slow_writes_are_told_by_their_95th_percentile(clock):
    calls(clock, latency_ms=40, times=19)
    calls(clock, latency_ms=LATENCY_MS[-1] + 1)
    assert state_of("slow-writes") == (
        "ok", "95th percentile of 20 writes in 5 min: at most 50 ms")  # fmt: skip
    calls(clock, latency_ms=LATENCY_MS[-1] + 1)
    assert state_of("slow-writes")[0] == "alert"
    assert stands("slow-writes").message.endswith("more than 2000 ms")


def test_a_lapsed_lease_that_nobody_takes_is_told_of_after_a_minute(store, clock):
    store.create("42")
    store.hold("42", ttl_seconds=10)
    clock.advance(seconds=69, milliseconds=999)
    assert state_of("lapsed-unclaimed")[0] == "ok"
    clock.advance(milliseconds=1)
    assert state_of("lapsed-unclaimed") == (
        "warn", "lapsed and taken by nobody: 1, the oldest for 60 s")  # fmt: skip
    assert stands("lapsed-unclaimed").facts["units"] == ["run:42"]
    store.hold("42", "w-2", ttl_seconds=600)
    clock.advance(seconds=60)
    assert state_of("lapsed-unclaimed") == ("ok", "no lapsed lease waits")


def test_budgets_of_runs_that_go_on_and_shared_ones_are_looked_at(store, clock):
    for key in ("42", "ended"):
        store.create(key, budgets=(NewBudget(name="tokens", cap=100),))
        store.spend(key, 79, budget="tokens")
    assert state_of("budget-nearly-used") == ("ok", "no budget in use is at 80 %")
    store.spend("ended", 20, budget="tokens")
    store.move("ended", "cancelled")
    assert state_of("budget-nearly-used")[0] == "ok"
    store.spend("42", 1, budget="tokens")
    assert state_of("budget-nearly-used") == (
        "warn", "budgets in use at 80 % or more: 1, the fullest at 80 %")  # fmt: skip
    assert stands("budget-nearly-used").facts["budgets"] == ["42/tokens"]


def test_overdue_runs_alert_until_they_end(store, clock):
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    assert state_of("overdue-runs")[0] == "ok"
    clock.advance(seconds=10)
    assert state_of("overdue-runs") == ("alert", "past their deadline and not ended: 1")
    assert stands("overdue-runs").facts["runs"] == ["late"]
    store.move("late", "cancelled")
    clock.advance(seconds=60)
    assert state_of("overdue-runs") == ("ok", "no run is past its deadline")


def test_a_job_that_does_not_come_is_told_of(clock):
    for name in upkeep.JOBS:
        with upkeep.beat(name):
            pass
    assert state_of("silent-jobs") == ("ok", "all periodic jobs run")
    clock.advance(seconds=30)
    state, message = state_of("silent-jobs")
    assert state == "alert"
    assert "note lapsed leases" in message
    assert "make partitions" not in message
    assert alerts.JOB not in message


def test_a_key_is_told_of_before_and_just_after_it_ends(clock):
    assert state_of("key-expires") == ("ok", "no key in use has an end")
    ends = clock.now + timedelta(days=8)
    create_key(name="fleet", scopes=("read",), by=SYSTEM, expires_at=ends)
    create_key(name="for-ever", scopes=("read",), by=SYSTEM)
    found = []
    for days in (0, 1, 6, 1, 1):
        clock.advance(days=days)
        found.append(state_of("key-expires")[0])
    assert found == ["ok", "warn", "alert", "alert", "ok"]


def test_a_figure_that_takes_too_long_is_missing_and_the_others_are_not(clock, monkeypatch):
    def slow(now):
        rows("SELECT pg_sleep(60)")

    monkeypatch.setitem(alerts.FIGURES, "overdue-runs", slow)
    monkeypatch.setattr(alerts, "FIGURE_TIMEOUT_MS", 50)
    assert state_of("overdue-runs") == ("no-data", alerts.SLOW)
    assert str(stands("lapsed-unclaimed").state) == "ok"


def changes():
    return [(c.rule, str(c.before), str(c.after)) for c in alerts.changes()]


def test_each_change_of_state_is_kept_newest_first(store, clock):
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    look()
    clock.advance(seconds=10)
    for _ in range(3):
        look()
    store.move("late", "cancelled")
    for _ in range(10):
        clock.advance(seconds=15)
        look()
    of_runs = [change for change in changes() if change[0] == "overdue-runs"]
    assert of_runs == [("overdue-runs", "alert", "ok"), ("overdue-runs", "ok", "alert")]


def test_two_evaluators_have_the_effect_of_one(store, clock):
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    look()
    clock.advance(seconds=10)

    outcomes = at_once(6, lambda n: alerts.evaluate_all())

    assert [o for o in outcomes if isinstance(o, Exception)] == []
    found = [c.rule for changed in outcomes for c in changed or ()]
    assert found.count("overdue-runs") == 1
    assert changes().count(("overdue-runs", "ok", "alert")) == 1
    assert rows("SELECT count(*), count(DISTINCT checked_at) FROM agentstate_alert") == [
        (len(RULES), 1)
    ]


def test_one_that_is_at_it_lets_no_other_in(clock):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [alerts.ADVISORY_LOCK])
        assert at_once(1, lambda n: alerts.evaluate_all()) == [None]
    assert alerts.evaluate_all() == []


def test_minutes_that_are_counted_again_hold_up_no_evaluation(clock):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [recount.ADVISORY_LOCK])
        assert at_once(1, lambda n: alerts.evaluate_all()) == [[]]


def test_the_board_says_when_nobody_evaluates_any_more(clock):
    assert alerts.read().silent
    assert alerts.read().checked_at is None
    look()
    assert not alerts.read().silent
    clock.advance(seconds=46)
    assert alerts.read().silent


# --- acknowledgement -----------------------------------------------------------------------------


@pytest.fixture
def overdue(store, clock):
    """An alert that fires."""
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    clock.advance(seconds=10)
    look()
    return stands("overdue-runs")


def acknowledge(version, *, by=ANA, rule="overdue-runs", reason="asking the owner"):
    command = AcknowledgeAlert(rule=rule, version=version, reason=reason)
    return the_store.execute(command, by=by)


def test_an_operator_acknowledges_and_it_is_written_down(overdue, clock):
    assert alerts.count_firing() == 1
    done = acknowledge(overdue.version)
    assert (done.rule, done.state, done.by) == ("overdue-runs", "alert", "person:ana")
    look()
    found = stands("overdue-runs")
    assert (found.acknowledged_by, found.acknowledged_why, found.acknowledged_at) == (
        "person:ana", "asking the owner", clock.now)  # fmt: skip
    assert alerts.count_firing() == 0
    assert rows("SELECT actor, action, object, reason FROM agentstate_operatoraction") == [
        ("person:ana", "alert.acknowledged", "overdue-runs", "asking the owner")
    ]


def test_it_is_about_what_the_operator_saw(overdue, store, clock):
    with pytest.raises(VersionConflict) as refused:
        acknowledge(overdue.version + 1)
    assert refused.value.current == {
        "rule": "overdue-runs", "state": "alert", "version": overdue.version}  # fmt: skip
    store.move("late", "cancelled")
    clock.advance(seconds=60)
    look()
    for version in (overdue.version, stands("overdue-runs").version):
        with pytest.raises(VersionConflict):
            acknowledge(version)
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(0,)]


def test_who_may_not_and_what_is_not_there_is_refused(overdue):
    with pytest.raises(NotAllowed):
        acknowledge(overdue.version, by=VIEWER)
    with pytest.raises(NotFound):
        acknowledge(1, rule="no-such-rule")
    with pytest.raises(Invalid):
        acknowledge(1, reason="")


def test_an_acknowledgement_and_evaluations_at_once_lose_neither(overdue):
    def ask(number):
        return alerts.evaluate_all() if number % 2 else acknowledge(overdue.version)

    outcomes = at_once(6, ask)

    assert not [o for o in outcomes if isinstance(o, Refusal)]
    assert len(results(outcomes, AlertAcknowledged)) == 3
    assert stands("overdue-runs").acknowledged_by == "person:ana"
    assert str(stands("overdue-runs").state) == "alert"


def test_the_history_goes_after_ninety_days(overdue, clock):
    from agentstate.store import retention

    clock.advance(days=91)
    assert retention.purge("changes of alerts") == 1
    assert alerts.changes() == []


# --- watching the watchers -----------------------------------------------------------------------


@pytest.fixture
def uncounted(monkeypatch):
    """Nothing writes by itself what this process has counted."""
    monkeypatch.setattr(minutes.Tally, "due", False)


@pytest.mark.usefixtures("uncounted")
def test_writes_that_nobody_counts_are_told_of_and_a_quiet_fleet_is_not(store, clock):
    """The process that counts is broken: runs go on, and every figure of theirs is blind."""

    def write_for(minutes):
        for _ in range(minutes):
            clock.advance(minutes=1)
            store.append("42")
            feed.move()
            TALLY.forget()
        return alerts.evaluate_all()

    store.create("42")
    feed.move()
    TALLY.write()
    write_for(1)
    assert str(stands("no-conflict-data").state) == "ok"
    write_for(2)
    assert (str(stands("no-conflict-data").state), stands("no-conflict-data").message) == (
        "warn", "runs were written to for 120 s, and no write was counted in that time",
    )  # fmt: skip
    write_for(2)
    assert str(stands("no-conflict-data").state) == "alert"
    clock.advance(minutes=6)
    look()
    assert stands("no-conflict-data").message == "no run was written to in these 5 min"
    clock.advance(minutes=1)
    store.append("42")
    feed.move()
    assert state_of("no-conflict-data")[0] != "warn"


@pytest.mark.usefixtures("uncounted")
def test_our_own_sweeps_do_not_pass_for_writes_that_were_counted(store, clock):
    store.create("42")
    for _ in range(5):
        clock.advance(minutes=1)
        store.append("42")
        feed.move()
        TALLY.forget()
        store.sweep()
        TALLY.write()
    assert state_of("no-conflict-data")[0] == "alert"


@pytest.mark.usefixtures("uncounted")
def test_the_first_change_of_the_window_is_found_in_a_long_feed(store, clock):
    store.create("42")
    for _ in range(40):
        clock.advance(seconds=20)
        store.append("42")
        feed.move()
        TALLY.forget()
    alerts.evaluate_all()
    assert stands("no-conflict-data").value == 300


def test_an_hour_in_which_nobody_judged_is_told_of_afterwards(clock):
    assert state_of("evaluator-silent") == ("ok", "this is the first time")
    clock.advance(seconds=15)
    assert state_of("evaluator-silent") == ("ok", "they are judged every 15 s")
    clock.advance(hours=1)
    state, message = state_of("evaluator-silent")
    assert (state, message) == (
        "alert", f"nobody judged the alerts for 3600 s, until {clock.now:%Y-%m-%d %H:%M:%S} UTC:"
        " what was then is unknown")  # fmt: skip
    for _ in range(21):
        clock.advance(seconds=15)
        look()
    assert str(stands("evaluator-silent").state) == "ok"


def test_while_nobody_judges_whoever_looks_finds_it_out(clock):
    look()
    clock.advance(seconds=46)
    found = stands("evaluator-silent")
    assert (str(found.state), found.derived, found.value) == ("alert", True, 46)
    assert found.message == "nobody has judged the alerts for 46 s"
    assert alerts.count_firing() == 1
    assert rows("SELECT state FROM agentstate_alert WHERE rule = 'evaluator-silent'") == [("ok",)]


def test_a_rule_that_came_with_a_release_is_no_silence(clock):
    look()
    rows("DELETE FROM agentstate_alert WHERE rule = 'failing-targets'")
    assert not alerts.read().silent
    assert stands("failing-targets") is None
