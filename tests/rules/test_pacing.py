"""The limit of a run's writes, without a database: never passed, and kept to when one waits."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.callers import SWEEP, Caller
from agentstate.store.errors import RunHot
from agentstate.store.rows import RunRow, replace
from agentstate.store.rules.pacing import is_counted, limit_of, pace

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
RUN = RunRow(
    id=UUID(int=7), key="42", task="x", status="running", version=1, last_seq=1, created_at=NOW,
    updated_at=NOW,
)  # fmt: skip
MS = timedelta(milliseconds=1)

rates = st.one_of(st.integers(1, 50), st.sampled_from([333, 999, 2_000, 70_000, 100_000]))
waits = st.lists(st.integers(0, 3_000_000), min_size=1, max_size=120)


def admitted(run, waits, *, per_second):
    """When each write was taken that came after such waits, in microseconds."""
    now, taken = NOW, []
    for wait in waits:
        now += timedelta(microseconds=wait)
        try:
            run = pace(run, now=now, per_second=per_second)
        except RunHot:
            continue
        taken.append(now)
    return taken


@given(rate=rates, waits=waits)
def test_no_window_takes_more_than_the_burst_and_the_rate(rate, waits):
    taken = admitted(RUN, [wait // rate for wait in waits] * 3, per_second=rate)
    for first in range(0, len(taken), 7):
        for last in range(first, len(taken), 5):
            window = (taken[last] - taken[first]).total_seconds()
            assert last - first + 1 <= 2 * rate + rate * window + 1e-6


@given(rate=rates, braked=st.booleans(), taken=st.integers(0, 300))
def test_who_waits_as_long_as_it_was_told_is_taken(rate, braked, taken):
    run = RUN
    if braked:
        run = replace(run, brake_per_second=rate, brake_until=NOW + timedelta(days=1))
    now = NOW
    for _ in range(min(taken, 2 * rate) + 1):
        try:
            run = pace(run, now=now, per_second=rate)
        except RunHot as hot:
            with pytest.raises(RunHot):
                pace(run, now=now + (hot.retry_after_ms - 1) * MS, per_second=rate)
            now += hot.retry_after_ms * MS
            run = pace(run, now=now, per_second=rate)


def test_a_pause_gives_two_seconds_worth_at_once_and_a_brake_one():
    assert len(admitted(RUN, [0] * 50, per_second=10)) == 20
    braked = replace(RUN, brake_per_second=3, brake_until=NOW + timedelta(seconds=1))
    assert len(admitted(braked, [0] * 50, per_second=10)) == 3


def test_a_brake_ends_by_itself_and_zero_is_no_limit():
    braked = replace(RUN, brake_per_second=1, brake_until=NOW + timedelta(seconds=5))
    assert limit_of(braked, now=NOW + timedelta(seconds=4.9), per_second=0).per_second == 1
    assert limit_of(braked, now=NOW + timedelta(seconds=5), per_second=0) is None
    assert pace(RUN, now=NOW, per_second=0) is RUN


def test_the_refusal_says_what_the_limit_is():
    braked = replace(RUN, brake_per_second=1, brake_until=NOW + timedelta(seconds=5))
    with pytest.raises(RunHot) as hot:
        pace(pace(braked, now=NOW, per_second=0), now=NOW, per_second=0)
    assert hot.value.retry_after_ms == 1_000
    assert hot.value.current == RUN.facts() | {
        "per_second": 1, "braked": True, "until": braked.brake_until
    }  # fmt: skip


@pytest.mark.parametrize("ahead", [timedelta(seconds=3, microseconds=1), timedelta(days=1)])
def test_a_clock_that_was_set_back_holds_no_run_up(ahead):
    """Counted from then on, not from an hour that is yet to come."""
    run = replace(RUN, paced_at=NOW + ahead)
    for _ in range(20):
        run = pace(run, now=NOW, per_second=10)
    with pytest.raises(RunHot) as hot:
        pace(run, now=NOW, per_second=10)
    assert hot.value.retry_after_ms == 100


def test_only_workers_are_held_up():
    def key(*scopes):
        return Caller(kind="key", name="k", scopes=frozenset(scopes))

    assert is_counted(key("write", "operate"))
    assert not is_counted(key("operate"))
    assert not is_counted(SWEEP)
    assert not is_counted(Caller(kind="person", name="ana", scopes=frozenset({"operate"})))
