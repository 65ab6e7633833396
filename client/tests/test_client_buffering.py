"""Small events are gathered and written in order, each once, before whatever depends on them."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_peer import (
    KEY,
    QUICK,
    Make,
    Peer,
    Reply,
    appended,
    claimed,
    eventually,
    moved,
    problem,
    renewed,
)

from agentstate_client import (
    Client,
    ClientClosed,
    Event,
    Invalid,
    LeaseLost,
    NotFound,
    RetryPolicy,
    Run,
    Unavailable,
    Unreachable,
)

EVENTS = "/runs/a/events"
LATER = 60_000
REFUSED = problem(422, "invalid", field="events[0].type")


@pytest.fixture
def held(peer: Peer, client: Client) -> Run:
    """A run under a lease, on a peer that takes everything."""
    peer.says("/leases/claim", claimed("a"))
    peer.says("/leases/run%3Aa/renew", renewed())
    peer.says("/leases/run%3Aa/release", Reply(200, {}))
    peer.says("/runs/a/transitions", moved("completed"))
    peer.says(EVENTS, appended())
    return client.claim(ttl_seconds=60)[0]


def written(peer: Peer) -> list[list[Any]]:
    return [[event["data"] for event in seen.body["events"]] for seen in peer.to(EVENTS)]


def told(run: Run) -> list[Any]:
    return [event.data.value() for event in run.unacknowledged()]


def test_what_comes_within_the_time_goes_in_one_call(peer: Peer, held: Run) -> None:
    data = {"n": 0}
    for n in range(20):
        data["n"] = n
        held.append(Event("small", data), within_ms=2_000)
    assert peer.to(EVENTS) == []
    peer.wait_for(EVENTS, 1)
    assert written(peer) == [[{"n": n} for n in range(20)]]
    assert peer.to(EVENTS)[0].headers["Agentstate-Fence"] == "7"
    eventually(lambda: held.unacknowledged() == ())
    assert (held.version, held.last_seq) == (4, 3)


def test_who_is_in_a_hurry_takes_the_others_along(peer: Peer, held: Run) -> None:
    held.append(Event("small", 1), within_ms=LATER)
    held.append(Event("small", 2), within_ms=0)
    peer.wait_for(EVENTS, 1)
    assert written(peer) == [[1, 2]]


@pytest.mark.parametrize(
    "what", ["append", "transition", "spend", "tag", "release", "leave", "close"]
)
def test_they_go_before_whatever_depends_on_them(
    peer: Peer, client: Client, held: Run, what: str
) -> None:
    held.append(Event("small", 1), within_ms=LATER)
    ways: dict[str, Callable[[], object]] = {
        "append": lambda: held.append(Event("big", 2)),
        "transition": held.complete,
        "spend": lambda: held.budget("tokens").spend(1),
        "tag": lambda: held.tag("x"),
        "release": held.release,
        "leave": lambda: held.__exit__(None, None, None),
        "close": client.close,
    }
    with contextlib.suppress(NotFound):  # the peer knows no budgets and tags
        ways[what]()
    first, second = [seen for seen in peer.seen if "claim" not in seen.path][:2]
    assert (first.path, written(peer)[0]) == (f"/api/v1{EVENTS}", [1])
    assert second.body != first.body


def test_a_lost_answer_is_asked_for_with_the_same_key(peer: Peer, held: Run) -> None:
    peer.says(EVENTS, Reply(cut=True), problem(503, "unavailable", "same-request"), appended())
    held.append(Event("small", 1), within_ms=0)
    peer.wait_for(EVENTS, 1)
    held.append(Event("small", 2), within_ms=LATER)
    peer.wait_for(EVENTS, 3)
    eventually(lambda: told(held) == [2])
    held.flush()
    assert written(peer) == [[1], [1], [1], [2]]
    assert len({seen.headers["Idempotency-Key"] for seen in peer.to(EVENTS)}) == 2


def test_what_was_not_written_is_said_at_the_next_call_which_takes_nothing(
    peer: Peer, held: Run
) -> None:
    peer.says(EVENTS, problem(503, "unavailable", "same-request"))
    held.append(Event("small", 1), within_ms=0)
    peer.wait_for(EVENTS, QUICK.attempts)
    eventually(lambda: peer.to(EVENTS)[-1].headers["Agentstate-Attempt"] == str(QUICK.attempts))
    for call in (
        held.flush,
        held.complete,
        lambda: held.append(Event("small", 2), within_ms=LATER),
        lambda: held.append(Event("big", 3)),
    ):
        with pytest.raises(Unavailable):
            call()
    assert told(held) == [1]
    assert peer.to("/runs/a/transitions") == []

    peer.says(EVENTS, appended())
    held.append(Event("small", 4), within_ms=LATER)
    held.complete()
    assert written(peer)[-2:] == [[1], [4]]
    keys = [seen.headers["Idempotency-Key"] for seen in peer.to(EVENTS)]
    assert len(set(keys[:-1])) == 1
    assert keys[-1] not in keys[:-1]


def test_what_the_store_refuses_stays_until_it_is_given_up(peer: Peer, held: Run) -> None:
    peer.says(EVENTS, REFUSED)
    held.append(Event("small", 1), within_ms=LATER)
    held.append(Event("small", 2), within_ms=LATER)
    for _ in range(2):
        with pytest.raises(Invalid):
            held.complete()
    assert peer.to("/runs/a/transitions") == []
    assert [event.type for event in held.drop_unacknowledged()] == ["small", "small"]
    assert held.drop_unacknowledged() == ()
    held.complete()


def test_closing_says_what_it_could_not_write_after_all_else(
    peer: Peer, make_client: Make, held: Run
) -> None:
    peer.says(EVENTS, REFUSED)
    client = make_client(peer.url, KEY, retry=QUICK)
    run, free = client.claim()[0], client.run("a")
    run.append(Event("small", 1), within_ms=LATER)
    with pytest.raises(Invalid):
        client.close()
    assert len(peer.to("/leases/run%3Aa/release")) == 1
    assert told(run) == [1]
    with pytest.raises(LeaseLost):
        run.append(Event("small", 2), within_ms=LATER)
    with pytest.raises(ClientClosed):
        free.append(Event("small", 2), within_ms=LATER)


def test_the_error_of_the_block_is_not_hidden_by_what_was_not_written(
    peer: Peer, make_client: Make, held: Run
) -> None:
    peer.says(EVENTS, REFUSED)

    def work() -> None:
        with make_client(peer.url, KEY, retry=QUICK) as client:
            client.claim()[0].append(Event("small", 1), within_ms=LATER)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()
    assert len(peer.to(EVENTS)) == 1


def test_leaving_the_block_of_a_run_gives_it_back_and_says_what_was_not_written(
    peer: Peer, held: Run
) -> None:
    peer.says(EVENTS, REFUSED)
    with pytest.raises(Invalid), held:
        held.append(Event("small", 1), within_ms=LATER)
    assert len(peer.to("/leases/run%3Aa/release")) == 1
    assert len(held.drop_unacknowledged()) == 1


def test_nothing_waits_for_its_time_once_all_is_written_or_closed(
    peer: Peer, client: Client, held: Run
) -> None:
    def waiting() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "agentstate-later"]

    held.append(Event("small", 1), within_ms=LATER)
    held.flush()
    eventually(lambda: waiting() == [])
    held.append(Event("small", 2), within_ms=LATER)
    held.drop_unacknowledged()
    eventually(lambda: waiting() == [])
    peer.says(EVENTS, REFUSED)
    held.append(Event("small", 3), within_ms=LATER)
    with pytest.raises(Invalid):
        client.close()
    eventually(lambda: waiting() == [])
    held.drop_unacknowledged()


def test_closing_does_not_wait_for_a_store_that_is_silent(peer: Peer, make_client: Make) -> None:
    peer.says("/leases/claim", claimed("a"))
    peer.says(EVENTS, Reply(until=threading.Event()))
    client = make_client(peer.url, KEY, retry=QUICK)
    (run,) = client.claim()
    run.append(Event("small", 1), within_ms=0)
    peer.wait_for(EVENTS, 1)  # on its way, and it does not come back
    run.append(Event("small", 2), within_ms=LATER)
    started = time.monotonic()
    with pytest.raises(Unreachable):
        client.close()
    assert time.monotonic() - started < 8
    assert told(run) == [1, 2]
    peer.over.set()


def test_nothing_is_written_after_the_lease_is_lost(peer: Peer, client: Client) -> None:
    peer.says("/leases/claim", claimed("a"))
    peer.says("/leases/run%3Aa/renew", problem(409, "lease-lost", reason="taken"))
    peer.says(EVENTS, appended())
    (run,) = client.claim(ttl_seconds=1)
    run.append(Event("small", 1), within_ms=LATER)
    assert run.lost.wait(5)
    for call in (run.flush, lambda: run.append(Event("small", 2), within_ms=0)):
        with pytest.raises(LeaseLost):
            call()
    assert peer.to(EVENTS) == []
    assert told(run) == [1]
    run.drop_unacknowledged()


def test_a_call_holds_as_much_as_it_may_and_no_append_is_torn(peer: Peer, held: Run) -> None:
    for first in range(0, 1000, 200):
        held.append(*[Event("small", n) for n in range(first, first + 200)], within_ms=LATER)
    held.flush()
    assert [len(batch) for batch in written(peer)] == [400, 400, 200]
    assert [n for batch in written(peer) for n in batch] == list(range(1000))
    for _ in range(3):
        held.append(Event("large", "x" * 600_000), within_ms=LATER)
    held.flush()
    assert [len(batch) for batch in written(peer)][3:] == [1, 1, 1]


def test_many_threads_gather_and_each_keeps_its_order(peer: Peer, held: Run) -> None:
    def gather(name: int) -> None:
        for n in range(30):
            held.append(Event("small", [name, n]), within_ms=n % 3)

    threads = [threading.Thread(target=gather, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    held.flush()
    log = [tuple(pair) for batch in written(peer) for pair in batch]
    assert sorted(log) == [(name, n) for name in range(6) for n in range(30)]
    for name in range(6):
        assert [n for who, n in log if who == name] == list(range(30))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("small"), st.integers(1, 4), st.sampled_from([0, 3, LATER])),
        st.tuples(st.just("big"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
    ),
    max_size=12,
)
# What becomes of the requests, in the order in which they come; then all is well.
FAULTS = st.lists(
    st.sampled_from(["written", "cut", "cut but written", "unavailable"]), max_size=10
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, faults=FAULTS)
def test_whatever_happens_on_the_way_each_is_written_once_and_in_order(
    peer: Peer, make_client: Make, steps: list[tuple[str, int, int]], faults: list[str]
) -> None:
    key = uuid.uuid4().hex
    address = f"/runs/{key}/events"
    replies = {
        "written": appended(),
        "cut": Reply(cut=True),
        "cut but written": Reply(cut=True),
        "unavailable": problem(503, "unavailable", "same-request"),
    }
    peer.says(address, *(replies[fault] for fault in faults), appended())
    given_out = 0
    patient = RetryPolicy(attempts=20, first_delay_seconds=0.001, longest_delay_seconds=0.002)
    with make_client(peer.url, KEY, retry=patient, timeout_seconds=20) as client:
        run = client.run(key)
        for step, count, within_ms in steps:
            events = [Event("e", n) for n in range(given_out, given_out + count)]
            if step == "small":
                run.append(*events, within_ms=within_ms)
            elif step == "big":
                run.append(*events)
            else:
                run.flush()
            given_out += count
    assert run.unacknowledged() == ()

    log: list[int] = []
    known: set[str] = set()
    outcomes = [*faults, *["written"] * len(peer.to(address))]
    for seen, outcome in zip(peer.to(address), outcomes, strict=False):
        request = seen.headers["Idempotency-Key"]
        if outcome in ("written", "cut but written") and request not in known:
            known.add(request)
            log += [event["data"] for event in seen.body["events"]]
    assert log == list(range(given_out))
