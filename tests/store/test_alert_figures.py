"""What workers do wrong, one rule for each: lost, late, killed by a run, of an older release."""

import pytest
from django.db import connection, transaction

from agentstate.store import alerts, upkeep
from agentstate.store.commands import AnnounceWorker, DrainWorker, NewBudget
from agentstate.store.minutes import TALLY
from tests.store.asking import ANA, SENIOR
from tests.store.test_alerts import stands, state_of


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db):
    TALLY.forget()


def names(rule, what):
    return stands(rule).facts[what]


def test_a_holder_that_is_lost_is_told_of_at_once_whether_or_not_another_takes_over(store, clock):
    store.create("42")
    store.hold("42", "w-1~a", ttl_seconds=60)
    assert state_of("lost-holders") == ("ok", "no held lease ran out in 5 min")
    clock.advance(seconds=60)
    said = "leases that ran out in 5 min while somebody held them: 1"
    assert state_of("lost-holders") == ("warn", said)
    store.hold("42", "w-2~a", ttl_seconds=900)
    assert state_of("lost-holders") == ("warn", said)
    assert names("lost-holders", "workers") == ["w-1~a"]
    clock.advance(minutes=5)
    for _ in range(9):
        clock.advance(seconds=15)
        assert state_of("lost-holders")[1] == "no held lease ran out in 5 min"
    assert state_of("lost-holders")[0] == "ok"


def test_a_lease_that_is_given_back_or_taken_back_is_no_lost_holder(store, clock):
    for key in ("given", "taken"):
        store.create(key)
    given, taken = store.hold("given"), store.hold("taken")
    store.release("run:given", given.token)
    store.as_caller(SENIOR).reclaim("run:taken", token=taken.token, force=True)
    clock.advance(seconds=90)
    assert state_of("lost-holders")[0] == "ok"


def test_ten_lost_at_once_are_an_alert(store, clock):
    for n in range(10):
        store.create(f"r-{n}")
        store.hold(f"r-{n}", f"w-{n}~a", ttl_seconds=10)
    clock.advance(seconds=10)
    assert state_of("lost-holders")[0] == "alert"
    assert len(names("lost-holders", "workers")) == alerts.NAMES_TOLD


def test_a_renewal_is_late_after_more_than_half_of_the_lease_until_it_comes(store, clock):
    store.create("42")
    lease = store.hold("42", ttl_seconds=100)
    clock.advance(seconds=55)
    assert state_of("late-renewals") == ("ok", "every holder renews in time")
    clock.advance(milliseconds=1)
    assert state_of("late-renewals") == (
        "warn", "held, and not renewed for more than half of the lease: 1")  # fmt: skip
    assert names("late-renewals", "units") == ["run:42"]
    store.renew("run:42", lease.token, ttl_seconds=600)
    clock.advance(seconds=59)
    assert state_of("late-renewals")[0] == "warn"
    clock.advance(seconds=1)
    assert state_of("late-renewals")[0] == "ok"


def test_one_that_ran_out_is_lost_and_not_late(store, clock):
    store.create("42")
    store.hold("42", ttl_seconds=10)
    clock.advance(seconds=10)
    assert state_of("late-renewals")[0] == "ok"
    assert stands("lost-holders").state == "warn"


def poison(store, clock, key, attempts=2):
    """A run that is lost with every worker that takes it, until nobody gets it any more."""
    store.create(key, max_attempts=attempts)
    for n in range(attempts + 1):
        assert len(store.claim(f"w-{n}", ttl_seconds=10).items) == (n < attempts)
        clock.advance(seconds=10)


def test_a_run_that_used_up_its_workers_is_told_of_for_a_quarter_of_an_hour(store, clock):
    assert state_of("poison-runs") == ("ok", "no run used up its attempts in 15 min")
    poison(store, clock, "42")
    assert store.run("42").status == "failed"
    assert state_of("poison-runs") == (
        "warn", "failed in 15 min with no attempt left, whoever took them: 1")  # fmt: skip
    assert names("poison-runs", "runs") == ["42"]
    clock.advance(minutes=15)
    state_of("poison-runs")
    clock.advance(minutes=2)
    assert state_of("poison-runs")[0] == "ok"


def test_five_are_an_alert_and_runs_that_failed_by_themselves_are_none(store, clock):
    store.create("own", status="running", max_attempts=1)
    lease = store.hold("own")
    store.move("own", "failed", fence=lease.token)
    assert state_of("poison-runs")[0] == "ok"
    for n in range(5):
        poison(store, clock, f"r-{n}", attempts=1)
    assert state_of("poison-runs")[0] == "alert"


def announce(store, name, version):
    store.ask(AnnounceWorker(worker=name, version=version))


def test_workers_of_an_older_release_are_told_of_while_a_newer_one_works_too(store, clock):
    assert state_of("old-workers") == ("ok", "no worker at work says its release")
    announce(store, "w-1~a", "0.9.4")
    assert state_of("old-workers") == ("ok", "all workers at work are of release 0.9.4")
    announce(store, "w-2~a", "2.10.0")
    announce(store, "w-3~a", "nightly")
    assert state_of("old-workers") == ("warn", "at work, and older than 2.10.0: 1")
    assert names("old-workers", "workers") == ["w-1~a"]
    clock.advance(minutes=5)
    announce(store, "w-2~a", "2.10.0")
    state_of("old-workers")
    clock.advance(minutes=1)
    assert state_of("old-workers")[0] == "ok"


def test_a_worker_that_only_an_operator_named_is_not_at_work(store, clock):
    announce(store, "w-1~a", "1.0")
    announce(store, "w-2~a", "2.0")
    clock.advance(minutes=6)
    announce(store, "w-2~a", "2.0")
    store.as_caller(ANA).ask(DrainWorker(worker="w-1~a", draining=True, reason="old"))
    assert state_of("old-workers")[0] == "ok"


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.9.4", "2.1.0"), ("2.9", "2.10"), ("v1", "1.0.1"), ("1.2.3-rc1", "1.3"), ("1.9999", "2")],
)
def test_releases_are_ordered_by_their_numbers(older, newer):
    assert () < alerts.order_of(older) < alerts.order_of(newer)


@pytest.mark.parametrize(("one", "same"), [("1", "1.0.0"), ("v2.1", "2.1.0"), ("", "nightly")])
def test_releases_that_are_the_same(one, same):
    assert alerts.order_of(one) == alerts.order_of(same)


def test_a_job_that_fails_or_leaves_something_is_told_of_until_it_does_not(clock):
    assert state_of("jobs-behind")[0] == "no-data"
    with upkeep.beat("note lapsed leases") as this:
        this.behind = 0
    assert state_of("jobs-behind") == ("ok", "no periodic job fails or is behind")
    with upkeep.beat("drop dead holds") as this:
        this.behind = 40
    with pytest.raises(ZeroDivisionError), upkeep.beat("note lapsed leases"):
        _ = 1 / 0
    assert state_of("jobs-behind") == (
        "warn", "failed, or left something for its next pass: note lapsed leases (failed),"
        " drop dead holds (40 left)")  # fmt: skip
    for name in ("drop dead holds", "note lapsed leases"):
        with upkeep.beat(name) as this:
            this.behind = 0
    clock.advance(minutes=1)
    assert state_of("jobs-behind")[0] == "ok"


def test_the_fullest_budget_is_known_below_the_bound_too(store, clock):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    store.spend("42", 30, budget="tokens")
    assert state_of("budget-nearly-used") == ("ok", "no budget in use is at 80 %")
    assert stands("budget-nearly-used").value == 30


def test_a_result_that_a_worker_wrote_breaks_no_figure(store, clock):
    store.create("42", status="running", max_attempts=1)
    lease = store.hold("42")
    store.move(
        "42", "failed", fence=lease.token, result={"code": "\u0001", "attempts-exhausted": 1}
    )
    assert state_of("poison-runs")[0] == "ok"


@pytest.mark.parametrize(
    ("statement", "index"),
    [("LOST", "term_lapsed_by_end"), ("POISON", "run_failed_by_end")],
)
def test_on_a_large_store_they_are_found_by_an_index(clock, statement, index):
    values = {"now": clock.now, "since": clock.now, "names": 5, "most": 5, "result": "x"}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {getattr(alerts, statement)}", values)
        assert index in str(cursor.fetchall())
