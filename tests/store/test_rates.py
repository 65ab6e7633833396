"""Conflict and retry rates of a window, from what was counted per minute and nothing else."""

from datetime import timedelta
from math import inf

import pytest

from agentstate import store as the_store
from agentstate.store import rates
from agentstate.store.callers import Circumstances
from agentstate.store.commands import Append, NoteLapsed
from agentstate.store.errors import CONFLICTS, FENCED, Invalid, Refusal, every_refusal
from agentstate.store.minutes import LATENCY_MS, TALLY
from agentstate.store.rates import Figures
from tests.store.asking import FLEET, event, rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db):
    TALLY.forget()


def attempt(run="42", *, attempt=1, attempts_max=None, **more):
    """One try of an append, as a client that counts its tries sends it."""
    under = Circumstances(attempt=attempt, attempts_max=attempts_max)
    try:
        the_store.execute(Append(run=run, events=(event(),), **more), by=FLEET, under=under)
    except Refusal as refused:
        return refused.code
    return "ok"


def read(**asked):
    TALLY.write()
    return rates.read(**asked)


def count(minute, run="42", operation="append", worker="w-1", outcome="ok", times=1, **more):
    """Rows as if they had been counted, which is all that the rates look at."""
    for _ in range(times):
        TALLY.add(
            at=minute,
            run_key=run,
            operation=operation,
            worker=worker,
            outcome=outcome,
            **({"attempt": 1, "latency_ms": 1} | more),
        )


def test_what_conflicts_and_what_is_fenced_is_said_in_one_place():
    known = set(every_refusal())
    assert known >= CONFLICTS | FENCED
    assert not CONFLICTS & FENCED


def test_each_figure_of_a_window_comes_from_what_happened(store, clock):
    store.create("42")
    lease = store.hold("42", "w-1")
    outcomes = [
        attempt(fence=lease.token, expected_seq=1),
        attempt(fence=lease.token, expected_seq=1, attempt=2),
        attempt(fence=lease.token, attempt=3),
        attempt(fence=lease.token + 1),
        attempt(fence=lease.token, expected_seq=0, attempt=5, attempts_max=5),
    ]
    assert outcomes == ["seq-conflict", "seq-conflict", "ok", "stale-fence", "seq-conflict"]

    found = read(operation="append")

    total = found.total
    assert (total.writes, total.accepted, total.refused, total.failed) == (5, 1, 4, 0)
    assert (total.conflicts, total.fenced, total.gave_up) == (3, 1, 1)
    assert total.conflict_ratio == 3 / 5
    assert total.attempts == (2, 1, 1, 0, 1)
    assert (total.retries, total.retries_per_success) == (3, 3.0)
    assert total.events == 1
    assert found.as_of == clock.now
    assert found.until - found.since == timedelta(hours=1)
    assert found.since < clock.now < found.until


def test_only_a_conflict_at_the_last_try_is_given_up(store):
    store.create("42")
    attempt(attempt=4, attempts_max=5, expected_seq=0)
    attempt(attempt=5, attempts_max=5)
    attempt(attempt=7)
    attempt(attempt=5, attempts_max=5, fence=1)
    assert read().total.gave_up == 0
    attempt(attempt=6, attempts_max=5, expected_seq=0)
    assert read().total.gave_up == 1


def test_a_window_is_of_whole_minutes_with_its_first_and_without_its_last(clock):
    for minutes_ago in range(4):
        count(clock.now - timedelta(minutes=minutes_ago), times=10**minutes_ago)
    start = clock.now - timedelta(minutes=2)

    def writes(since, until):
        return read(since=since, until=until).total.writes

    assert writes(start, start + timedelta(minutes=1)) == 100
    assert writes(start + timedelta(seconds=59), start + timedelta(seconds=61)) == 110
    assert writes(start - timedelta(microseconds=1), start) == 1000
    assert writes(clock.now, None) == 1
    assert read().total.writes == 1111


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (lambda now: {"since": now + timedelta(minutes=2)}, "since"),
        (lambda now: {"since": now, "until": now}, "since"),
        (lambda now: {"since": now - timedelta(days=368)}, "since"),
        (lambda now: {"by": ("colour",)}, "by"),
        (lambda now: {"by": ("run", "run")}, "by"),
        (lambda now: {"limit": 0}, "limit"),
        (lambda now: {"limit": 10_001}, "limit"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_field_and_rule(clock, asked, field):
    with pytest.raises(Invalid) as refused:
        read(**asked(clock.now))
    assert refused.value.field == field


def test_groups_come_with_the_most_contested_first_then_the_most_writes(clock):
    count(clock.now, run="quiet", times=9)
    count(clock.now, run="busy", times=5)
    count(clock.now, run="busy", outcome="lease-held", times=3)
    count(clock.now, run="hot", outcome="version-conflict", times=2)
    count(clock.now, run="", operation="claim", worker="")

    found = read(by=("run",))

    assert [(g.keys["run"], g.figures.writes) for g in found.groups] == [
        ("hot", 2), ("busy", 8), ("quiet", 9), (None, 1)]  # fmt: skip
    assert found.total.writes == 20
    assert not found.more
    cut = read(by=("run",), limit=2)
    assert [g.keys["run"] for g in cut.groups] == ["hot", "busy"]
    assert cut.more
    assert cut.total.writes == 20


def test_minutes_come_newest_first_and_can_be_taken_together(clock):
    for minutes_ago in (0, 1, 5, 6):
        count(clock.now - timedelta(minutes=minutes_ago))
    step = timedelta(minutes=15)

    by_minute = read(by=("minute",)).groups
    by_quarter = read(by=("minute", "operation"), step=step).groups

    assert [clock.now - g.keys["minute"] for g in by_minute] == [
        timedelta(minutes=m) for m in (0, 1, 5, 6)
    ]
    assert sum(g.figures.writes for g in by_quarter) == 4
    assert all(g.keys["minute"].minute % 15 == 0 for g in by_quarter)


def test_every_filter_holds_and_any_grouping_works(clock):
    count(clock.now, outcome="version-conflict", worker="w-1")
    count(clock.now, worker="w-2")
    count(clock.now, run="43", operation="patch")

    assert read(runs=("42",)).total.writes == 2
    assert read(runs=("42", "43")).total.writes == 3
    assert read(runs=("none",)).total == Figures()
    assert read(worker="w-2").total.writes == 1
    assert read(operation="patch").total.writes == 1
    assert read(outcome="version-conflict", runs=("42",)).total.conflicts == 1
    every = read(by=("minute", "run", "operation", "worker", "outcome")).groups
    assert len(every) == 3
    assert set(every[0].keys) == set(rates.BY)


def test_our_own_sweeps_do_not_thin_the_figures(store):
    store.create("42")
    the_store.execute(NoteLapsed(), by=the_store.SWEEP)
    assert read().total.writes == 1
    assert rows("SELECT count(*) FROM agentstate_minute") == [(2,)]


def test_latency_is_told_by_the_bound_that_it_stayed_under(clock):
    assert Figures().percentile_ms(0.5) is None
    count(clock.now, latency_ms=1, times=90)
    count(clock.now, latency_ms=30, times=9)
    count(clock.now, latency_ms=5_000, outcome="version-conflict")

    total = read().total

    assert [total.percentile_ms(p) for p in (0.5, 0.9, 0.95, 0.99, 1.0)] == [1, 1, 50, 50, inf]
    assert total.mean_ms == (90 + 270 + 5_000) / 100
    assert (total.conflict_ms, total.added_ms_per_success) == (5_000, 5_000 / 99)
    assert len(total.latency) == len(LATENCY_MS) + 1


def test_nothing_counted_is_no_ratio(clock):
    total = read().total
    assert total == Figures()
    assert (total.conflict_ratio, total.retries_per_success, total.mean_ms) == (None, None, None)


def test_a_window_of_a_long_past_reads_only_its_own_minutes(clock):
    """A year of minutes, of which an hour is asked for: an index leads there."""
    rows(
        "INSERT INTO agentstate_minute (minute, run_key, operation, worker, outcome, count, events,"
        " latency_ms, attempts, latency) SELECT %s::timestamptz - n * interval '10 minutes',"
        " 'run-' || n %% 500, 'append', 'w', 'ok', 1, 1, 1, '{1,0,0,0,0}', %s"
        " FROM generate_series(0, 52559) n",
        clock.now,
        [1] + [0] * len(LATENCY_MS),
    )
    rows("ANALYZE agentstate_minute")
    assert read(by=("run",)).total.writes == 6
    values = {"since": clock.now - timedelta(hours=1), "until": clock.now, "run": "run-7"}
    for condition, index in (
        ("minute >= %(since)s AND minute < %(until)s", "agentstate_minute_pkey"),
        ("run_key = %(run)s AND minute < %(until)s", "minute_of_run"),
    ):
        plan = explained(f"SELECT sum(count) FROM agentstate_minute WHERE {condition}", values)
        assert index in plan
    year = read(since=clock.now - timedelta(days=365), by=("run",), limit=3)
    assert (len(year.groups), year.more) == (3, True)


def explained(statement, values):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}", values)
        return " ".join(line for (line,) in cursor.fetchall())


def test_lists_and_charts_of_a_window_are_what_one_question_each_would_tell(store, clock):
    store.create("42")
    lease = store.hold("42", "w-1")
    for _ in range(3):
        store.append("42", fence=lease.token)
        clock.advance(seconds=50)
        with pytest.raises(Refusal):
            store.append("42", expected_seq=0, fence=lease.token)
    TALLY.write()
    asked = {"since": clock.now - timedelta(minutes=30), "until": clock.now + timedelta(minutes=1)}
    since, until = rates.window(**asked, now=clock.now)
    whole = {"since": since, "until": until}

    tops = rates.tops(**whole, limit=2)
    for name, groups in tops.items():
        one = rates.read(**whole, by=(name,), limit=2, buckets=False)
        assert tuple(groups) == one.groups
    by_outcome = rates.read(**whole, by=("outcome",)).groups
    assert rates.outcomes(**whole) == {g.keys["outcome"]: g.figures for g in by_outcome}
    step = timedelta(minutes=2)
    over_time = rates.read(**whole, by=("minute", "outcome"), step=step, buckets=False)
    key = str
    assert sorted(rates.over_time(**whole, step=step), key=key) == sorted(over_time.groups, key=key)
    total = rates.add_up(rates.outcomes(**whole).values())
    assert total == rates.read(**whole).total != rates.Figures() == rates.add_up([])
