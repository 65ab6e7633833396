"""Counters, tags, attrs, reservations and receipts through the client, on the real server."""

from __future__ import annotations

import pytest
from agentstate_client import (
    BudgetExhausted,
    Event,
    LeaseLost,
    NewBudget,
    ReservationSettled,
    StaleFence,
    Unreachable,
    Unsendable,
    VersionConflict,
)

from tests.store.asking import at_once, rows


def test_counters_are_added_to_by_many_and_lose_nothing(worker):
    client = worker()
    run = client.create(task="t", key="42")
    assert run.add(steps_done=2).version == 2
    run.add({"tokens:gpt-x": 10}, steps_done=1)
    at_once(6, lambda n: client.run("42").add(steps_done=1))
    assert run.read().counters == {"steps_done": 9, "tokens:gpt-x": 10}


def test_tags_join_and_leave(worker):
    run = worker().create(task="t", key="42", tags=["a"])
    run.tag("b", "c", "a")
    assert run.untag("a", "never").last_seq == 3
    assert sorted(run.read().tags) == ["b", "c"]


def test_attrs_are_set_by_their_paths_and_what_is_read_is_a_copy(worker):
    run = worker().create(task="t", key="42", attrs={"step": {"n": 1, "of": 9}})
    run.set({"step.n": 2, "stage": "think"}, notes="half way")
    record = run.read()
    record.attrs["step"]["n"] = 99
    record.document()["attrs"].clear()
    assert record.attrs == {"step": {"n": 2, "of": 9}, "stage": "think"}
    assert record.document()["notes"] == "half way"
    run.set(attrs={"all": "new"})
    assert run.read().attrs == {"all": "new"}


def test_a_set_is_guarded_by_what_was_read_unless_forced(worker):
    client, other = worker("a"), worker("b")
    client.create(task="t", key="42", attrs={"n": 1})
    run = client.run("42")
    run.set({"n": 2})  # has read nothing, so it reads first
    other.run("42").set({"n": 3})
    for _ in range(2):
        with pytest.raises(VersionConflict) as conflict:
            run.set({"n": 4})
        assert conflict.value.current["version"] == 3
    run.read()
    run.set({"n": 5})
    other.run("42").set({"n": 6})
    run.set({"n": 7}, force=True)
    assert run.read().attrs == {"n": 7}


def test_its_own_writes_are_no_conflict_and_do_not_hide_somebody_elses(worker):
    client, other = worker("a"), worker("b")
    run = client.create(task="t", key="42", status="running")
    run.append(Event("a"))
    run.add(n=1)
    run.append(Event("b"), to="paused")
    run.transition("running")
    client.cas(run, lambda record: {"x": 1})
    run.set({"x": 2})
    other.run("42").tag("seen")
    run.append(Event("c"))  # is told the newest version by this, and still has not read it
    with pytest.raises(VersionConflict):
        run.set({"x": 3})
    assert run.read().attrs == {"x": 2}


def test_a_claimed_run_is_set_without_reading_it(worker, proxy):
    client = worker(url=proxy.url)
    client.create(task="t", key="42")
    (run,) = client.claim()
    run.append(Event("a"))
    assert run.set({"x": 1}).version == run.version
    client.create(task="t", key="43")
    taken = client.run("43").acquire()
    taken.start()
    taken.set({"x": 1})
    assert rows("SELECT count(*) FROM agentstate_refusal") == [(0,)]


# --- reservations --------------------------------------------------------------------------------


def spent(run):
    budget = run.read().budgets[0]
    return budget["spent"], budget["reserved"]


@pytest.fixture
def run(worker):
    client = worker()
    client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=100)])
    return client.claim(ttl_seconds=60)[0]


def test_a_reservation_is_committed_with_what_was_used(run):
    with run.budget("tokens").reserve(80) as hold:
        assert (hold.amount, hold.granted.left) == (80, 20)
        assert spent(run) == (0, 80)
        with pytest.raises(BudgetExhausted) as refused, run.budget("tokens").reserve(21):
            pass
        assert (refused.value.reserved, refused.value.asked) == (80, 21)
        settled = hold.commit(30)
    assert (settled.state, settled.actual, settled.overdrawn, settled.left) == (
        "committed",
        30,
        False,
        70,
    )
    assert hold.commit(30).replayed
    assert spent(run) == (30, 0)


def test_an_error_gives_the_reservation_back(run):
    with pytest.raises(ZeroDivisionError), run.budget("tokens").reserve(80):
        _ = 1 / 0
    assert spent(run) == (0, 0)


def test_a_forgotten_commit_gives_it_back(run):
    with run.budget("tokens").reserve(80) as hold:
        pass
    assert hold.settled.state == "released"
    assert spent(run) == (0, 0)
    with pytest.raises(ReservationSettled):
        hold.commit(5)


def test_more_than_was_reserved_is_recorded_and_overdrawn(run):
    with run.budget("tokens").reserve(80) as hold:
        assert hold.commit(130).overdrawn
    assert spent(run) == (130, 0)
    with pytest.raises(BudgetExhausted):
        run.budget("tokens").spend(1)


def test_what_was_spent_before_the_end_is_committed_late(run):
    hold = run.budget("tokens").reserve(80)
    run.complete()
    settled = hold.commit(30)
    assert (settled.is_late, settled.state, settled.actual) == (True, "late", 30)
    assert spent(run) == (30, 0)


def test_who_lost_the_run_settles_nothing(clock, run, worker):
    hold = run.budget("tokens").reserve(80)
    clock.advance(seconds=61)
    (again,) = worker("w-2").claim()
    with pytest.raises(StaleFence):
        hold.commit(10)
    with pytest.raises(LeaseLost), run, hold:
        pass
    assert hold.settled is None
    assert spent(again)[0] == 0


def test_a_lost_answer_to_each_of_them_is_no_second_effect(worker, proxy):
    client = worker(url=proxy.url)
    client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=100)])
    (run,) = client.claim()
    for address in ("/reserve", "/commit", "PATCH /api/v1/runs/42"):
        proxy.cut_answers(address)
    with run.budget("tokens").reserve(80) as hold:
        assert hold.commit(10).replayed
    assert run.add(n=1).replayed
    assert proxy.cuts == 3
    assert (spent(run), run.read().counters) == ((10, 0), {"n": 1})


def test_a_commit_that_nobody_confirms_is_not_given_back(worker, proxy):
    client = worker(url=proxy.url)
    client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=100)])
    (run,) = client.claim(ttl_seconds=600)
    with run.budget("tokens").reserve(80) as hold:
        proxy.cut_answers("/commit", times=99)
        with pytest.raises(Unreachable):
            hold.commit(10)
    proxy.cut_answers("/commit", times=0)
    assert hold.settled is None
    assert hold.commit(10).state == "committed"
    assert spent(run) == (10, 0)


# --- receipts ------------------------------------------------------------------------------------


def test_who_was_left_without_an_answer_asks_what_became_of_it(worker, proxy):
    client = worker(url=proxy.url)
    run = client.create(task="t", key="42")
    proxy.cut_answers("/events", times=99)
    with pytest.raises(Unreachable) as silent:
        run.append(Event("a"))
    proxy.cut_answers("/events", times=0)
    for receipt in (
        client.receipt(silent.value.request_id),
        client.receipt(request_id=silent.value.request_id),
    ):
        assert receipt.state == "applied"
        assert [(w["run"], w["first_seq"], w["types"]) for w in receipt.writes] == [
            ("42", 2, ["a"])
        ]
        assert (receipt.charges, receipt.refusals) == ([], [])
        assert receipt.kept[0]["replays"] == proxy.cuts - 1
    assert client.receipt("never-heard-of").state == "unknown"
    with pytest.raises(ValueError, match="a key"):
        client.receipt()


# --- gathered events -----------------------------------------------------------------------------


def test_gathered_events_are_there_before_the_end_and_in_order(worker):
    client = worker()
    client.create(task="t", key="42")
    with client.claim()[0] as run:
        for n in range(5):
            assert run.append(Event("small", n), within_ms=60_000) is None
        assert [event.data.value() for event in run.unacknowledged()] == [0, 1, 2, 3, 4]
        assert run.read().last_seq == 3
        run.append(Event("big"))
        run.append(Event("small", 5), within_ms=60_000)
        run.complete()
    assert run.unacknowledged() == ()
    assert [(e.type, e.data) for e in run.events(origin="worker")] == [
        *[("small", n) for n in range(5)],
        ("big", None),
        ("small", 5),
    ]
    assert (run.version, run.last_seq) == (run.read().version, run.read().last_seq)
    # three calls for seven events
    assert rows(
        "SELECT count(DISTINCT version) FROM agentstate_event WHERE type IN ('small', 'big')"
    ) == [(3,)]


def test_who_lost_the_run_writes_none_of_what_was_gathered(worker, clock):
    first, second = worker("w-1"), worker("w-2")
    first.create(task="t", key="42")
    (late,) = first.claim(ttl_seconds=60)
    late.append(Event("late", 1), within_ms=60_000)
    clock.advance(seconds=61)
    (run,) = second.claim(ttl_seconds=60)
    with pytest.raises(Exception, match="stale-fence"):
        late.flush()
    assert late.lost.is_set()
    with pytest.raises(LeaseLost):
        late.append(Event("late", 2), within_ms=60_000)
    assert [event.data.value() for event in late.unacknowledged()] == [1]
    assert [e.type for e in run.events(origin="worker")] == []
    assert len(late.drop_unacknowledged()) == 1


def test_what_cannot_be_gathered_is_said_at_once(worker):
    run = worker().create(task="t", key="42")
    for events, within_ms in (((), 5), ((Event("a"),), -1), ((Event("a"),), 10**9)):
        with pytest.raises(Unsendable):
            run.append(*events, within_ms=within_ms)
    with pytest.raises(Unsendable, match="nan"):
        run.append(Event("a", float("nan")), within_ms=5)
    with pytest.raises(ValueError, match="alone"):
        run.append(Event("a"), within_ms=5, expected_seq=1)
    assert run.unacknowledged() == ()
