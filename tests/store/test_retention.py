"""What ages out goes in bounded passes, and takes nothing with it that is still wanted."""

from datetime import timedelta

import pytest

from agentstate.store import audit, feed, partitions, retention
from agentstate.store.commands import Append, NewBudget, Reserve
from agentstate.store.errors import SeqConflict
from agentstate.store.minutes import TALLY
from tests.store.asking import event, rows


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
    assert store.acquire("unit-7", "B").token > lease.token
    assert audit.verify(run="42") == []


def test_a_held_unit_and_its_term_stay(store, clock):
    store.acquire("unit-7", "A", ttl_seconds=1)
    clock.advance(days=365)
    assert sum(retention.purge_all().values()) == 0


def test_a_week_goes_when_all_its_runs_have_expired(store, clock):
    clock.set(clock.now - timedelta(days=365))
    partitions.ensure_ahead()
    for key in ("a", "b"):
        store.create(key, retain_seconds=86_400, budgets=(NewBudget(name="budget", cap=9),))
        lease = store.hold(key)
        store.spend(key, 1, fence=lease.token)
        store.ask(Reserve(run=key, budget="budget", amount=2, id="h", fence=lease.token))
        store.move(key, "completed", fence=lease.token)
        clock.advance(days=8)
    name = partitions.name_of(partitions.week_of(clock.now) - 2 * partitions.WEEK)

    (week, *_) = [w for w in retention.weeks() if w.keeping or w.name == name]
    assert week.keeping == 0
    while retention.drop_oldest_week(limit=1) != name:
        assert store.run("b")

    assert rows("SELECT key FROM agentstate_run") == [("b",)]
    assert rows("SELECT to_regclass(%s)::text", name) == [(None,)]
    for table in ("budget", "leaseterm", "reservation"):
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
    while retention.drop_oldest_week() is not None:
        pass
    assert store.run("still-running").status == "pending"


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
