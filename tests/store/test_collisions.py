"""Who met whom is kept beside each refusal, added up per minute, and can be counted again."""

import json
from datetime import timedelta

import pytest
from django.db import connection

from agentstate.store import collisions, minutes, recount, retention
from agentstate.store.asks import Ask
from agentstate.store.callers import SCOPES, Caller
from agentstate.store.collisions import Collisions
from agentstate.store.commands import AcquireLease, Append, BrakeRun, NewBudget, Patch
from agentstate.store.errors import (
    BudgetExhausted,
    ExpectationFailed,
    FenceRequired,
    HolderChanged,
    LeaseHeld,
    Refusal,
    SeqConflict,
    StaleFence,
    VersionConflict,
)
from agentstate.store.execute import execute_all
from agentstate.store.minutes import TALLY
from agentstate.store.models import Refusal as Row
from agentstate.store.payloads import RawJSON
from tests.store.asking import ANA, FLEET, SENIOR, Asking, event, rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db, monkeypatch):
    """And nothing written but by the test."""
    monkeypatch.setattr(minutes, "PAUSE_SECONDS", float("inf"))
    TALLY.forget()


def worker(name):
    """One that writes without a lease, under a key of its own."""
    return Asking(Caller(kind="key", name=name, scopes=frozenset(SCOPES)))


def refused(kind, ask, *args, **more):
    with pytest.raises(kind):
        ask(*args, **more)


def counted():
    TALLY.write()
    return rows(
        "SELECT run_key, outcome, loser, winner, about, sum(count)::int FROM agentstate_collision"
        " GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5"
    )


def test_of_two_who_compare_and_set_the_second_is_told_of_the_first(store, clock):
    store.create("42")
    one, two = worker("w-3"), worker("w-7")
    first = {"run": "42", "add": {"steps": 1}, "expect": {"counters.steps": None}}
    one.ask(Patch(**first))
    refused(ExpectationFailed, two.ask, Patch(**first))
    refused(VersionConflict, two.ask, Patch(run="42", add={"steps": 1}, if_match=1))
    refused(SeqConflict, two.append, "42", expected_seq=1)

    assert counted() == [
        ("42", "expectation-failed", "key:w-7", "key:w-3", "counters.steps", 1),
        ("42", "seq-conflict", "key:w-7", "key:w-3", "expected_seq", 1),
        ("42", "version-conflict", "key:w-7", "key:w-3", "counters.steps", 1),
    ]
    assert set(Row.objects.values_list("met", "about")) == {
        ("key:w-3", "counters.steps"), ("key:w-3", "expected_seq"),
    }  # fmt: skip


def test_under_leases_workers_are_known_by_their_names(store, clock):
    store.create("42")
    first = store.hold("42", "w-3")
    store.append("42", fence=first.token)
    clock.advance(seconds=61)
    second = store.hold("42", "w-9")
    refused(SeqConflict, store.append, "42", expected_seq=1, fence=second.token)
    store.append("42", fence=second.token)
    refused(SeqConflict, store.append, "42", expected_seq=1, fence=second.token)
    refused(StaleFence, store.append, "42", fence=first.token)
    refused(FenceRequired, worker("w-5").append, "42")
    refused(LeaseHeld, store.acquire, "run:42", "w-1")

    assert counted() == [
        ("42", "fence-required", "key:w-5", "w-9", "", 1),
        ("42", "lease-held", "w-1", "w-9", "", 1),
        ("42", "seq-conflict", "w-9", "w-9", "expected_seq", 2),  # its own acquire is an event
        ("42", "stale-fence", "w-3", "w-9", "", 1),
    ]


def test_a_person_who_was_first_is_named(store, clock):
    store.create("42")
    store.as_caller(ANA).ask(Patch(run="42", tags_add=("hot",)))
    refused(VersionConflict, store.move, "42", "running", if_match=1)
    refused(
        VersionConflict, store.ask,
        Patch(run="42", attrs={"plan.n": RawJSON("1")}, if_match=1),
    )  # fmt: skip
    assert {(row[2], row[3], row[4]) for row in counted()} == {
        ("key:fleet", "person:ana", "status"), ("key:fleet", "person:ana", "attrs.plan.n"),
    }  # fmt: skip


def test_what_is_no_run_is_told_by_its_own_name(store, clock):
    store.create("42", budgets=(NewBudget(name="tokens", cap=5),))
    store.acquire("mailbox:support", "w-1")
    refused(LeaseHeld, store.acquire, "mailbox:support", "w-2")
    refused(BudgetExhausted, store.spend, "42", 9, budget="tokens")
    lease = store.hold("42", "w-1")
    refused(
        HolderChanged, store.as_caller(SENIOR).reclaim, "run:42", token=lease.token + 1,
        owner="w-1", force=True,
    )  # fmt: skip
    brake = BrakeRun(run="42", per_second=5, seconds=60, reason="x", expected_until=clock.now)
    refused(ExpectationFailed, store.as_caller(ANA).ask, brake)
    assert counted() == [
        ("", "lease-held", "w-2", "w-1", "mailbox:support", 1),
        ("42", "budget-exhausted", "key:fleet", "", "tokens", 1),
        ("42", "expectation-failed", "person:ana", "w-1", "brake.until", 1),
        ("42", "holder-changed", "person:bo", "w-1", "holder", 1),
    ]


def test_in_one_batch_the_loser_met_whoever_came_before_it(store, clock):
    store.create("42")
    keys = [worker(name).by for name in ("w-1", "w-2", "w-3")]
    ask = Append(run="42", events=(event(),), expected_seq=1)
    outcomes = execute_all([Ask(command=ask, by=by) for by in keys])
    assert [isinstance(outcome, SeqConflict) for outcome in outcomes] == [False, True, True]
    assert [row[2:4] for row in counted()] == [("key:w-2", "key:w-1"), ("key:w-3", "key:w-1")]


def test_a_term_that_began_in_the_same_batch_has_its_workers_name(store, clock):
    store.create("42")
    acquire = AcquireLease(unit="run:42", owner="w-1", ttl_seconds=60)
    late = Patch(run="42", tags_add=("x",), if_match=1, fence=None)
    outcomes = execute_all([Ask(command=one, by=by) for one, by in ((acquire, FLEET), (late, ANA))])
    assert isinstance(outcomes[1], VersionConflict)
    assert [row[2:4] for row in counted()] == [("person:ana", "w-1")]


def test_a_refusal_that_is_about_nobody_else_is_no_collision(store, clock):
    store.create("42")
    store.move("42", "cancelled")
    refused(Refusal, store.append, "42")
    assert counted() == []
    assert Row.objects.get().about is None


def test_many_columns_are_cut_and_very_many_pairs_are_counted_without_names(store, clock):
    store.create("42")
    long = "x" * 60
    many = {f"attrs.{name}": RawJSON("1") for name in ("a", "b", long)} | {"z": RawJSON("1")}
    attrs = {name.removeprefix("attrs."): value for name, value in many.items()}
    refused(VersionConflict, store.ask, Patch(run="42", attrs=attrs, if_match=9))
    assert counted()[0][4] == f"attrs.a, attrs.b, attrs.{'x' * 33}…, …"

    kept = Collisions()
    for number in range(collisions.KEYS_MAX + 5):
        kept.add(at=clock.now, run_key=f"r-{number}", outcome="seq-conflict", loser="w-1",
                 winner="w-2", about="expected_seq", latency_ms=3)  # fmt: skip
    assert kept.write() == collisions.KEYS_MAX + 1
    assert rows(
        "SELECT count, latency_ms FROM agentstate_collision WHERE loser = '' AND run_key = ''"
    ) == [(5, 15)]
    found = collisions.read(since=clock.now, until=clock.now.replace(hour=23), limit=3)
    assert (found.pairs[0].count, found.pairs[0].columns, found.more) == (5, [], True)


def test_what_cannot_be_written_is_counted_on(store, clock, monkeypatch):
    store.create("42")
    refused(SeqConflict, store.append, "42", expected_seq=9)
    monkeypatch.setattr(collisions, "SAVE", "SELECT 1/0 -- %s")
    TALLY.write()
    assert TALLY.waiting
    monkeypatch.undo()
    TALLY.write()
    assert counted()[0][5] == 1
    assert not TALLY.waiting


def test_what_was_lost_is_counted_exactly_as_it_would_have_been(store, clock):
    store.create("42", budgets=(NewBudget(name="tokens", cap=5),))
    lease = store.hold("42", "w-1")
    for _ in range(3):
        refused(SeqConflict, store.append, "42", expected_seq=0, fence=lease.token)
        refused(LeaseHeld, store.acquire, "run:42", "w-2")
        clock.advance(seconds=1)
    refused(BudgetExhausted, store.spend, "42", 9, budget="tokens", fence=lease.token)
    whole = counted()
    rows("DELETE FROM agentstate_collision WHERE outcome = 'seq-conflict'")
    rows("UPDATE agentstate_collision SET count = 7 WHERE outcome = 'budget-exhausted'")
    rows("UPDATE agentstate_refusal SET met = NULL, about = NULL WHERE code = 'lease-held'")
    clock.advance(minutes=3)

    wrong = recount.difference()
    assert [(one.what, one.told, one.counted) for one in wrong] == [
        ("w-1 budget-exhausted tokens", 1, 7),
        ("w-1 seq-conflict by w-1 expected_seq", 3, 0),
    ]
    assert recount.rebuild() == 2
    assert counted() == whole
    assert recount.difference() == []


def test_a_minute_that_was_too_much_to_tell_apart_is_left_alone(store, clock, monkeypatch):
    monkeypatch.setattr(collisions, "KEYS_MAX", 1)
    store.create("42")
    for name in ("w-1", "w-2", "w-3"):
        refused(SeqConflict, worker(name).append, "42", expected_seq=9)
    TALLY.write()
    clock.advance(minutes=3)
    assert [one.what for one in recount.difference()] == []


def test_collisions_go_when_the_minutes_go(store, clock):
    store.create("42")
    refused(SeqConflict, store.append, "42", expected_seq=9)
    TALLY.write()
    clock.advance(days=30, seconds=-1)
    assert retention.purge("collisions") == 0
    clock.advance(seconds=1)
    assert retention.purge("collisions") == 1


YEAR = """
INSERT INTO agentstate_collision (minute, run_key, outcome, loser, winner, about, count)
SELECT date_trunc('minute', agentstate_now()) - n * interval '15 minutes', 'r-' || mod(n, 50),
    'seq-conflict', 'w-' || mod(n, 7), 'w-' || mod(n, 5), 'expected_seq', 1
FROM generate_series(0, 35039) AS n
"""


def test_of_a_year_only_the_rows_of_the_window_are_read(store, clock):
    rows(YEAR)
    rows("ANALYZE agentstate_collision")
    asked = {"since": clock.now - timedelta(hours=23, minutes=59), "until": clock.now,
             "runs": None, "limit": 100}  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + collisions.READ, asked)
        plan = cursor.fetchone()[0][0]["Plan"]
    scans = list(scans_of(plan))
    assert [(scan["Relation Name"], scan["Actual Rows"]) for scan in scans] == [
        ("agentstate_collision", 95)
    ]
    assert "Index" in json.dumps(plan)
    assert len(collisions.read(since=asked["since"], until=asked["until"]).pairs) == 95


def scans_of(node):
    """The nodes of a plan that read a table."""
    if "Relation Name" in node:
        yield node
    for child in node.get("Plans", ()):
        yield from scans_of(child)
