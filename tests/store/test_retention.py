"""What ages out goes in bounded passes, and takes nothing with it that is still wanted."""

from datetime import timedelta
from threading import Thread

import pytest
from django.db import transaction

from agentstate.store import audit, feed, partitions, retention
from agentstate.store.commands import Append, NewBudget, NewEvent, Reserve, SetCheckpoint
from agentstate.store.effects import Effect
from agentstate.store.errors import SeqConflict
from agentstate.store.minutes import TALLY
from tests.store.asking import at_once, event, rows
from tests.store.waiting import wait_until_blocked


def test_each_kind_goes_at_its_own_age_and_in_bounded_passes(store, clock):
    store.create("42")
    for n in range(5):
        store.ask(Append(run="42", events=(event(),)), key=f"k{n}")
        with pytest.raises(SeqConflict):
            store.append("42", expected_seq=0)
    lease = store.acquire("unit-7", "A")
    store.release("unit-7", lease.token)
    feed.move()
    TALLY.write()
    clock.advance(hours=23)
    assert sum(retention.purge_all().values()) == 0

    clock.advance(hours=1)
    assert retention.purge("idempotency records", limit=2) == 2
    assert retention.purge("idempotency records") == 3
    clock.advance(days=6, seconds=1)
    assert retention.purge_all() | {"minutes": 0} == dict.fromkeys(retention.AGES, 0) | {
        "feed": 6, "free units": 1}  # fmt: skip
    clock.advance(days=90)
    went = retention.purge_all()
    assert (went["refusals"], went["terms of units"], went["minutes"] > 0) == (5, 1, True)
    assert went["collisions"] > 0
    assert store.acquire("unit-7", "B").token > lease.token
    assert audit.verify(run="42") == []


def test_a_held_unit_and_its_term_stay(store, clock):
    store.acquire("unit-7", "A", ttl_seconds=1)
    clock.advance(days=365)
    went = retention.purge_all() | {"minutes": 0}  # which are written when their time has come
    assert sum(went.values()) == 0


def test_a_week_goes_when_all_its_runs_have_expired(store, clock):
    clock.set(clock.now - timedelta(days=365))
    partitions.ensure_ahead()
    for key in ("a", "b"):
        store.create(key, retain_seconds=86_400, budgets=(NewBudget(name="budget", cap=9),))
        lease = store.hold(key)
        store.spend(key, 1, fence=lease.token)
        effect = Effect(key="mail", state="begun")
        store.append(key, [NewEvent(type="x", effect=effect)], fence=lease.token)
        store.ask(Reserve(run=key, budget="budget", amount=2, id="h", fence=lease.token))
        store.move(key, "completed", fence=lease.token)
        clock.advance(days=8)
    name = partitions.name_of(partitions.week_of(clock.now) - 2 * partitions.WEEK)

    (week, *_) = [w for w in retention.weeks() if w.keeping or w.name == name]
    assert week.keeping == 0
    while (step := retention.drop_oldest_week(limit=1)) and step.dropped != name:
        assert store.run("b")

    assert rows("SELECT key FROM agentstate_run") == [("b",)]
    assert rows("SELECT to_regclass(%s)::text", name) == [(None,)]
    for table in ("budget", "leaseterm", "reservation", "openeffect"):
        assert rows(f"SELECT count(*) FROM agentstate_{table}") == [(1,)]
    assert store.types("b")[0] == "run.created"
    assert audit.verify() == []
    partitions.ensure_ahead()


def test_a_run_that_is_held_or_not_ended_keeps_its_week_and_is_named(store, clock):
    clock.set(clock.now - timedelta(days=700))
    partitions.ensure_ahead()
    store.create("still-running", retain_seconds=1)
    clock.advance(days=100)

    (week,) = [w for w in retention.weeks() if w.keeping]
    assert (week.keeping, week.first_key) == (1, "still-running")
    while retention.drop_oldest_week():
        pass
    assert store.run("still-running").status == "pending"


def test_a_run_that_was_held_just_before_it_expired_keeps_all_that_is_its(store, clock):
    store.create("42", retain_seconds=14 * 86_400, budgets=(NewBudget(name="budget", cap=9),))
    store.spend("42", 1)
    store.move("42", "cancelled")
    clock.advance(days=13, hours=23)
    while retention.drop_oldest_week():
        pass
    clock.advance(hours=1, seconds=1)
    got = []
    sweep = Thread(target=lambda: got.extend(at_once(1, lambda n: retention.drop_oldest_week())))

    with transaction.atomic():
        # As a command writes it that read the clock two seconds ago.
        rows("UPDATE agentstate_run SET hold = true WHERE key = '42'")
        sweep.start()
        wait_until_blocked()
    sweep.join(30)
    assert got == [None]
    assert rows("SELECT count(*) FROM agentstate_budgetentry") == [(2,)]


def test_the_ledger_lets_go_for_retention_alone(store, clock):
    from django.db import IntegrityError

    store.create("42", budgets=(NewBudget(name="b", cap=1),))
    for statement in (
        "DELETE FROM agentstate_budgetentry",
        "SELECT set_config('agentstate.retention', 'on', false);"
        " UPDATE agentstate_budgetentry SET spent = 1",
    ):
        with pytest.raises(IntegrityError, match="append-only"):
            rows(statement)
    rows("SELECT set_config('agentstate.retention', '', false)")


def test_an_answered_key_that_expired_is_free_again_before_it_is_purged(store, clock):
    store.create("42")
    ask = Append(run="42", events=(event(),))
    store.ask(ask, key="k")
    clock.advance(hours=25)
    assert not store.ask(ask, key="k").replayed


def test_progress_tells_the_oldest_row_and_how_many_are_due(store, clock):
    assert {p.due for p in retention.progress()} == {0}
    store.create("42")
    for n in range(3):
        store.ask(Append(run="42", events=(event(),)), key=f"k{n}")
        clock.advance(seconds=1)
    feed.move()
    first = clock.now - timedelta(seconds=3)
    store.ask(SetCheckpoint(consumer="reader", position=4))

    at = {p.kind: (p.keep, p.oldest_at, p.due) for p in retention.progress()}
    assert at["idempotency records"] == (None, first + timedelta(hours=24), 0)
    assert at["feed"] == (timedelta(days=7), first, 0)
    clock.set(first + timedelta(days=7, seconds=1))
    due = {p.kind: p.due for p in retention.progress()}
    assert (due["idempotency records"], due["feed"], due["consumers not seen"]) == (3, 3, 0)
    clock.advance(days=24)
    assert {p.kind: p.due for p in retention.progress()}["consumers not seen"] == 1
    assert retention.purge("consumers not seen") == 1
    assert feed.consumers(limit=10) == ()


def test_the_feed_goes_from_its_front_and_stops_before_a_young_change(store, clock):
    """Two transactions may get their positions in the other order than their times."""
    for key in ("a", "b", "c"):
        store.create(key)
    feed.move()
    rows("UPDATE agentstate_feed SET at = at + interval '1 hour' WHERE position = 2")
    clock.advance(days=7)

    assert retention.purge("feed") == 1
    assert rows("SELECT position FROM agentstate_feed ORDER BY 1") == [(2,), (3,)]
    clock.advance(hours=1)
    assert retention.purge("feed") == 2


def test_a_week_that_somebody_reads_is_dropped_in_a_later_pass(store, clock):
    clock.set(clock.now - timedelta(days=365))
    partitions.ensure_ahead()
    store.create("a", retain_seconds=1)
    store.move("a", "cancelled")
    clock.advance(days=8)
    while (step := retention.drop_oldest_week()) and not step.rows:
        pass

    with transaction.atomic():
        rows("SELECT count(*) FROM agentstate_event")
        (outcome,) = at_once(1, lambda n: retention.drop_oldest_week())
        assert outcome is None
    assert retention.drop_oldest_week().dropped
    partitions.ensure_ahead()


def test_two_that_drop_the_same_week_have_the_effect_of_one(store, clock):
    clock.set(clock.now - timedelta(days=365))
    partitions.ensure_ahead()
    for n in range(20):
        store.create(f"r{n}", retain_seconds=1)
        store.move(f"r{n}", "cancelled")
    clock.advance(days=8)

    def work(number):
        while any(not week.keeping for week in retention.weeks()):
            retention.drop_oldest_week(limit=3)

    assert at_once(3, work) == [None] * 3
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]
    partitions.ensure_ahead()
