"""Who is let in: pure rules under random input."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.admission import API, OWN_PLACES, Full, Gate, Kind, Room, kind_of

KINDS = st.sampled_from(list(Kind))
ROOMS = st.builds(Room, places=st.integers(min_value=20, max_value=300), threads=st.integers(1, 40))


@given(ROOMS, st.dictionaries(KINDS, st.integers(0, 400)))
def test_whoever_is_turned_away_later_is_let_in_wherever_another_is(room, taken):
    admitted = [room.admits(kind, taken) for kind in API]
    assert admitted == sorted(admitted)


@given(ROOMS, st.lists(KINDS, max_size=800))
def test_places_are_bounded_and_some_are_left_for_what_matters_more(room, asked):
    taken: Counter[Kind] = Counter()
    for kind in asked:
        if room.admits(kind, taken):
            taken[kind] += 1
    assert sum(taken[kind] for kind in API) <= room.places
    for lower, higher in pairwise(API):
        held = sum(taken[kind] for kind in API if kind <= lower)
        assert held <= room.places_up_to(lower) < room.places_up_to(higher)
    for kind, own in OWN_PLACES.items():
        assert taken[kind] <= own


@given(ROOMS, st.lists(st.sampled_from([k for k in API if k != Kind.LAST]), max_size=800))
def test_whatever_else_was_asked_a_renewal_gets_a_place(room, asked):
    taken: Counter[Kind] = Counter()
    for kind in asked:
        taken[kind] += room.admits(kind, taken)
    assert room.admits(Kind.LAST, taken)
    assert room.admits(Kind.PAGES, taken)
    assert room.admits(Kind.VITAL, taken)


@given(ROOMS, st.lists(KINDS, max_size=100))
def test_threads_are_bounded_and_of_ten_some_are_left_for_what_matters_more(room, asked):
    busy: Counter[Kind] = Counter()
    for kind in asked:
        busy[kind] += room.starts(kind, busy)
    assert sum(busy.values()) <= room.threads
    if room.threads < 10:
        return
    assert busy[Kind.LISTS] <= room.threads // 2
    assert busy[Kind.LOGIN] <= room.threads // 10
    of_api = Counter({kind: n for kind, n in busy.items() if kind in API and kind != Kind.LAST})
    assert room.starts(Kind.LAST, of_api)
    assert room.starts(Kind.PAGES, Counter({kind: busy[kind] for kind in API}))


class Visit:
    """One request at a gate."""

    def __init__(self, gate, kind, log):
        self.go, self.state, self.kind = asyncio.Event(), "waits", kind
        self.task = asyncio.create_task(self.pass_through(gate, log))

    async def pass_through(self, gate, log):
        try:
            async with gate.turn(self.kind, wait_seconds=100):
                self.state = "works"
                log.append(self.kind)
                await self.go.wait()
                self.state = "done"
        except Full:
            self.state = "refused"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), KINDS),
        st.tuples(st.sampled_from(["finish", "leave"]), st.integers(0, 50)),
    ),
    max_size=120,
)


@given(st.integers(1, 12), STEPS)
def test_a_gate_counts_right_whoever_comes_finishes_or_leaves(threads, steps):
    asyncio.run(_walk(Gate(Room(places=20, threads=threads)), steps))


async def _walk(gate, steps):
    visits, log = [], []
    for step, value in steps:
        here = [visit for visit in visits if visit.state in ("waits", "works")]
        if step == "come":
            visits.append(Visit(gate, value, log))
        elif here and step == "finish":
            here[value % len(here)].go.set()
        elif here:
            here[value % len(here)].task.cancel()
            here[value % len(here)].state = "left"
        for _ in range(4):
            await asyncio.sleep(0)
        working = Counter(v.kind for v in visits if v.state == "works")
        waiting = [v for v in visits if v.state == "waits"]
        assert +gate.busy == working
        assert +gate.taken == working + Counter(v.kind for v in waiting)
        # No thread is idle while one waits that may have it.
        assert not any(gate.room.starts(v.kind, gate.busy) for v in waiting)
    for visit in visits:
        visit.go.set()
    for _ in range(200):
        await asyncio.sleep(0)
    assert not +gate.busy
    assert not +gate.taken
    for visit in visits:
        with suppress(asyncio.CancelledError):
            await visit.task


def test_of_those_who_wait_the_most_important_goes_first_and_of_one_kind_the_oldest():
    async def run():
        gate, log = Gate(Room(places=20, threads=1)), []
        first = Visit(gate, Kind.WRITES, log)
        await asyncio.sleep(0)
        kinds = [Kind.LISTS, Kind.WRITES, Kind.LISTS, Kind.LAST, Kind.PAGES, Kind.FEED]
        later = [Visit(gate, kind, log) for kind in kinds]
        for visit in (first, *later):
            await asyncio.sleep(0)
            visit.go.set()
        await asyncio.gather(*(visit.task for visit in (first, *later)))
        return log

    order = [Kind.PAGES, Kind.LAST, Kind.WRITES, Kind.FEED, Kind.LISTS, Kind.LISTS]
    assert asyncio.run(run()) == [Kind.WRITES, *order]


def test_nobody_waits_longer_than_they_may():
    async def run():
        gate, log = Gate(Room(places=20, threads=1)), []
        first = Visit(gate, Kind.WRITES, log)
        await asyncio.sleep(0)
        with pytest.raises(Full) as full:
            async with gate.turn(Kind.LISTS, wait_seconds=0.01):
                raise AssertionError
        first.go.set()
        await first.task
        return full.value, gate

    full, gate = asyncio.run(run())
    assert full.waited
    assert gate.refused == {(Kind.LISTS, True): 1}
    assert not +gate.taken
    assert not +gate.busy


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("GET", "/api/v1/runs", b"", Kind.LISTS),
        ("GET", "/api/v1/runs/42/events", b"", Kind.LISTS),
        ("GET", "/api/v1/runs/42/verify", b"", Kind.LISTS),
        ("GET", "/api/v1/feed", b"", Kind.FEED),
        ("PUT", "/api/v1/feed/consumers/c", b"{}", Kind.FEED),
        ("GET", "/api/v1/runs/42", b"", Kind.WRITES),
        ("GET", "/api/v1/receipts", b"", Kind.WRITES),
        ("POST", "/api/v1/runs", b"{}", Kind.WRITES),
        ("POST", "/api/v1/runs/42/events", b'{"events": []}', Kind.WRITES),
        ("POST", "/api/v1/runs/42/events", b'{"to" :"completed"}', Kind.LAST),
        ("POST", "/api/v1/runs/42/transitions", b'{"to": "failed"}', Kind.LAST),
        ("POST", "/api/v1/runs/42/transitions", b'{"to": "running"}', Kind.WRITES),
        ("POST", "/api/v1/runs/42/transitions", None, Kind.LAST),
        ("POST", "/api/v1/batch", b'[{"to": "cancelled"}]', Kind.LAST),
        ("POST", "/api/v1/leases/u/renew", b"", Kind.LAST),
        ("POST", "/api/v1/leases/renew", b"", Kind.LAST),
        ("POST", "/api/v1/leases/u/release", b"", Kind.LAST),
        ("POST", "/api/v1/leases/u/acquire", b"", Kind.WRITES),
        ("POST", "/api/v1/runs/42/budgets/b/reservations/r/commit", b"", Kind.LAST),
        ("GET", "/health/live", b"", Kind.VITAL),
        ("GET", "/api/v1/health/ready", b"", Kind.VITAL),
        ("GET", "/metrics", b"", Kind.VITAL),
        ("GET", "/login", b"", Kind.PAGES),
        ("POST", "/login", b"", Kind.LOGIN),
        ("POST", "/login/second", b"", Kind.LOGIN),
        ("POST", "/setup", b"", Kind.LOGIN),
        ("POST", "/account/password", b"", Kind.LOGIN),
        ("POST", "/account/sign-out", b"", Kind.PAGES),
        ("GET", "/runs", b"", Kind.PAGES),
    ],
)
def test_what_a_request_is_for(method, path, body, kind):
    assert kind_of(method, path, body) is kind
