"""A lease lives as long as it is renewed, and the client knows when it does not.

The ttl is a second or two: what is tested here is time itself.
"""

from __future__ import annotations

import gc
import json
import logging
import threading
import time

import pytest
from scripted_peer import (
    KEY,
    QUICK,
    Make,
    Peer,
    Reply,
    appended,
    claimed,
    eventually,
    granted,
    moved,
    problem,
    renewed,
    renewed_all,
    run_script,
)

from agentstate_client import (
    CancelRequested,
    Client,
    Event,
    Invalid,
    Lease,
    LeaseHeld,
    LeaseLost,
    NotFound,
    StaleFence,
    Unreachable,
    Unsendable,
)
from agentstate_client.holding import margin_seconds

ACQUIRE, RENEW, RELEASE = "/leases/u/acquire", "/leases/u/renew", "/leases/u/release"


@pytest.fixture
def unit(peer: Peer) -> Peer:
    peer.says(ACQUIRE, granted())
    peer.says(RENEW, renewed())
    peer.says(RELEASE, Reply(200, {"unit": "u", "token": 7}))
    return peer


def threads_of_leases() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("agentstate-")]


def test_a_lease_is_renewed_at_a_third_of_its_ttl_and_outlives_it(
    unit: Peer, client: Client
) -> None:
    with client.lease("u", ttl_seconds=1) as lease:
        first, *renewals = unit.wait_for(ACQUIRE, 1) + unit.wait_for(RENEW, 6)
        assert lease.state == "held"
        assert not lease.lost.is_set()
    assert 0.25 < renewals[0].at - first.at < 0.6
    assert renewals[0].body == {"token": 7, "ttl_seconds": 1}
    assert (lease.owner, lease.token, lease.unit) == ("w-1~0000", 7, "u")
    assert unit.to(RELEASE)[0].body == {"token": 7}
    assert lease.state == "released"


def test_work_that_keeps_the_interpreter_busy_does_not_stop_renewals(
    unit: Peer, client: Client
) -> None:
    """Case O-05 (docs/cases.md)."""
    with client.lease("u", ttl_seconds=1) as lease:
        until, n = time.monotonic() + 2.5, 0
        while time.monotonic() < until:
            n += 1
        assert not lease.lost.is_set()
    assert len(unit.to(RENEW)) >= 5


def test_one_503_does_not_lose_a_lease(unit: Peer, client: Client) -> None:
    """Case O-03 (docs/cases.md)."""
    unit.says(RENEW, problem(503, "overloaded", "same-request"), renewed())
    with client.lease("u", ttl_seconds=1) as lease:
        eventually(lease.unreachable.is_set)
        failed, again = unit.wait_for(RENEW, 2)[:2]
        eventually(lambda: not lease.unreachable.is_set())
        unit.wait_for(RENEW, 4)
        assert not lease.lost.is_set()
    assert again.at - failed.at < 0.4
    assert (failed.headers["Agentstate-Attempt"], again.headers["Agentstate-Attempt"]) == ("1", "2")


def test_a_long_retry_after_is_cut_to_the_time_that_is_left(unit: Peer, client: Client) -> None:
    unit.says(
        RENEW,
        problem(503, "overloaded", "same-request", headers={"Retry-After": "60"}),
        renewed(),
    )
    with client.lease("u", ttl_seconds=1) as lease:
        unit.wait_for(RENEW, 4)
        assert not lease.lost.is_set()


def test_a_cut_connection_does_not_lose_a_lease(unit: Peer, client: Client) -> None:
    unit.says(RENEW, Reply(cut=True), Reply(502, "Bad gateway"), Reply(500, "oops"), renewed())
    with client.lease("u", ttl_seconds=1) as lease:
        unit.wait_for(RENEW, 6)
        assert not lease.lost.is_set()


def test_silence_loses_the_lease_before_the_store_would_and_no_write_leaves_after(
    unit: Peer, client: Client
) -> None:
    """Case O-03 (docs/cases.md)."""
    unit.says(RENEW, Reply(until=threading.Event()))
    started = time.monotonic()
    lease = client.lease("u", ttl_seconds=2)
    assert lease.lost.wait(5)
    told_after = time.monotonic() - started
    assert 2 - margin_seconds(2) <= told_after < 2.0
    assert lease.unreachable.is_set()
    assert lease.remaining_seconds == 0

    before = len(unit.seen)
    run = client.run("42")
    run.lease = lease
    for write in (lambda: run.append(Event("a")), lease.guard, lease.checkpoint):
        with pytest.raises(LeaseLost) as lost:
            write()
        assert (lost.value.reason, lost.value.status) == ("deadline", None)
        assert isinstance(lost.value.__cause__, Unreachable)
    lease.release()
    assert [s.path for s in unit.seen[before:] if not s.path.endswith("renew")] == []


def test_a_dead_store_is_unreachable_first_and_lost_later(unit: Peer, client: Client) -> None:
    lease = client.lease("u", ttl_seconds=2)
    unit.close()
    eventually(lease.unreachable.is_set)
    assert not lease.lost.is_set()
    assert lease.state == "held"
    assert lease.lost.wait(5)
    assert lease.loss is not None
    assert lease.loss.reason == "deadline"


def test_a_reclaimed_lease_is_lost_with_the_stores_reason(unit: Peer, client: Client) -> None:
    refused = problem(
        409, "lease-lost", reason="reclaimed", current={"by": "person:ana", "why": "stuck"}
    )
    unit.says(RENEW, renewed(), refused)
    lease = client.lease("u", ttl_seconds=1)
    assert lease.lost.wait(5)
    assert lease.loss is not None
    assert (lease.loss.reason, lease.loss.status) == ("reclaimed", 409)
    assert lease.loss.current["by"] == "person:ana"
    assert not lease.unreachable.is_set()
    eventually(lambda: threads_of_leases() == [])
    assert len(unit.to(RENEW)) == 2


def test_leaving_the_block_of_a_lost_lease_says_so(unit: Peer, client: Client) -> None:
    unit.says(RENEW, problem(409, "lease-lost", reason="taken"))
    with pytest.raises(LeaseLost), client.lease("u", ttl_seconds=1) as lease:
        assert lease.lost.wait(5)
    assert unit.to(RELEASE) == []


def test_the_error_of_the_block_is_not_hidden_by_the_lost_lease(unit: Peer, client: Client) -> None:
    unit.says(RENEW, problem(409, "lease-lost", reason="taken"))
    lease = client.lease("u", ttl_seconds=1)
    assert lease.lost.wait(5)
    with pytest.raises(ZeroDivisionError), lease:
        _ = 1 / 0


def test_a_unit_that_was_taken_before_it_was_given_back_was_lost(
    unit: Peer, client: Client
) -> None:
    unit.says(RELEASE, problem(409, "lease-lost", reason="reclaimed"))
    with pytest.raises(LeaseLost), client.lease("u"):
        pass


def test_after_its_own_release_no_such_lease_is_normal(
    unit: Peer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Case O-08 (docs/cases.md)."""
    caplog.set_level(logging.INFO, "agentstate_client")
    unit.says(RELEASE, problem(404, "not-found"))
    with client.lease("u") as lease:
        pass
    assert lease.state == "released"
    assert caplog.text == ""


def test_releasing_twice_sends_once(unit: Peer, client: Client) -> None:
    lease = client.lease("u")
    lease.release()
    lease.release()
    assert len(unit.to(RELEASE)) == 1
    with pytest.raises(LeaseLost) as gone:
        lease.guard()
    assert gone.value.reason == "released"
    assert not lease.lost.is_set()


def test_a_release_that_cannot_be_told_does_not_hide_what_the_block_did(
    unit: Peer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    unit.says(RELEASE, Reply(cut=True))
    with client.lease("u", ttl_seconds=2):
        pass
    assert "will run out" in caplog.text
    with pytest.raises(Unreachable):
        client.lease("u", ttl_seconds=2).release()


def test_a_renewal_on_its_way_does_not_revive_what_was_released(
    unit: Peer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentstate_client")
    for late in (renewed(), problem(409, "lease-lost", reason="released")):
        caplog.clear()
        answer_now = threading.Event()
        before = len(unit.to(RENEW))
        unit.says(RENEW, Reply(late.status, late.body, until=answer_now))
        lease = client.lease("u", ttl_seconds=1)
        unit.wait_for(RENEW, before + 1)
        lease.release()
        answer_now.set()
        eventually(lambda: threads_of_leases() == [])
        assert lease.state == "released"
        assert not lease.lost.is_set()
        assert caplog.text == ""


RELEASE_AND_RETURN = """
import sys, threading
from agentstate_client import Client
client = Client(sys.argv[1], "k")
lease = client.lease("u", ttl_seconds=1)
threading.Event().wait(0.6)
lease.release()
"""


def test_a_process_ends_at_once_though_a_renewal_hangs(unit: Peer) -> None:
    """Case O-02 (docs/cases.md)."""
    unit.says(RENEW, Reply(until=threading.Event()))
    ended: list[float] = []

    def run() -> None:
        assert run_script(RELEASE_AND_RETURN, unit.url).stderr == ""
        ended.append(time.monotonic())

    worker = threading.Thread(target=run)
    worker.start()
    released = unit.wait_for(RELEASE, 1, seconds=30)[0].at
    worker.join(20)
    assert ended[0] - released < 4  # an attempt to renew may take 10


def test_a_lease_whose_handle_nobody_has_is_not_kept_alive(unit: Peer, client: Client) -> None:
    lease = client.lease("u", ttl_seconds=1)
    unit.wait_for(RENEW, 2)
    del lease
    eventually(lambda: gc.collect() >= 0 and threads_of_leases() == [])
    assert unit.to(RELEASE) == []


def test_threads_come_again_with_the_next_lease(unit: Peer, client: Client) -> None:
    for _ in range(5):
        before = len(unit.to(RENEW))
        with client.lease("u", ttl_seconds=1):
            assert sorted(threads_of_leases()) == ["agentstate-deadlines", "agentstate-renewals"]
            unit.wait_for(RENEW, before + 1)
    eventually(lambda: threads_of_leases() == [])


def test_closing_gives_back_what_is_held(unit: Peer, make_client: Make) -> None:
    client = make_client(unit.url, KEY, retry=QUICK)
    lease = client.lease("u")
    client.close()
    assert len(unit.to(RELEASE)) == 1
    assert lease.state == "released"
    eventually(lambda: threads_of_leases() == [])


def test_closing_does_not_wait_for_a_store_that_is_silent(unit: Peer, make_client: Make) -> None:
    unit.says(RELEASE, Reply(until=threading.Event()))
    client = make_client(unit.url, KEY, retry=QUICK)
    leases = [client.lease("u") for _ in range(20)]
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 3
    assert {lease.state for lease in leases} == {"released"}


def test_a_held_unit_says_by_whom_and_for_how_long(peer: Peer, client: Client) -> None:
    peer.says(
        ACQUIRE,
        problem(
            423, "lease-held", "later", owner="w-2", expires_in_ms=900, headers={"Retry-After": "1"}
        ),
    )
    with pytest.raises(LeaseHeld) as held:
        client.lease("u")
    error = held.value
    assert (error.owner, error.expires_in_ms, error.retry_after_seconds) == ("w-2", 900, 1)
    assert len(peer.to(ACQUIRE)) == 1


def test_a_grant_counts_from_the_first_request_that_may_have_made_it(
    unit: Peer, client: Client
) -> None:
    slow = threading.Event()
    unit.says(ACQUIRE, Reply(until=slow, cut=True), granted())
    unit.says(RENEW, Reply(until=threading.Event()))
    threading.Timer(0.5, slow.set).start()
    lease = client.lease("u", ttl_seconds=2)
    first, second = unit.to(ACQUIRE)
    assert second.at - first.at > 0.3
    assert lease.lost.wait(5)
    assert time.monotonic() - first.at < 2.0


def test_the_store_may_ask_the_holder_to_stop_which_is_no_loss(unit: Peer, client: Client) -> None:
    cancel = {"signal": "cancel", "reason": "wrong input", "by": "person:ana"}
    drain, pause = {"signal": "drain"}, {"signal": "pause"}
    unit.says(RENEW, renewed(signals=[pause]), renewed(signals=[drain, cancel]))
    with client.lease("u", ttl_seconds=1) as lease:
        lease.checkpoint()
        assert lease.cancel_requested.wait(5)
        with pytest.raises(CancelRequested) as asked:
            lease.checkpoint()
        unit.wait_for(RENEW, 4)
        assert asked.value.reason == "wrong input"
        assert [s.name for s in lease.signals] == ["drain", "cancel"]
        assert not lease.lost.is_set()


def test_progress_goes_up_once_with_the_next_renewal(unit: Peer, client: Client) -> None:
    unit.says(RENEW, problem(503, "unavailable", "same-request"), renewed())
    with client.lease("u", ttl_seconds=1) as lease:
        lease.checkpoint({"step": 3})
        bodies = [s.body for s in unit.wait_for(RENEW, 3)[:3]]
    assert [b.get("progress") for b in bodies] == [{"step": 3}, {"step": 3}, None]


def test_progress_that_the_store_refuses_does_not_cost_the_lease(
    unit: Peer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    unit.says(RENEW, problem(413, "payload-too-large"), renewed())
    with client.lease("u", ttl_seconds=1) as lease:
        lease.checkpoint("x" * 20_000)
        assert "progress" not in unit.wait_for(RENEW, 3)[1].body
        assert not lease.lost.is_set()
    assert "progress of u is dropped" in caplog.text


def test_progress_that_is_not_json_is_refused_where_it_was_said(unit: Peer, client: Client) -> None:
    with client.lease("u") as lease, pytest.raises(Unsendable):
        lease.checkpoint({"loss": float("nan")})


def test_an_answer_that_makes_no_sense_does_not_end_the_renewals(
    unit: Peer, client: Client
) -> None:
    unit.says(RENEW, Reply(200, {"expires_at": 5}), Reply(200, "<html>"), renewed())
    with client.lease("u", ttl_seconds=1) as lease:
        unit.wait_for(RENEW, 5)
        assert not lease.lost.is_set()


@pytest.mark.parametrize("ttl_seconds", [0, -1, 2**62, "60", True, None, 0.4])
def test_a_ttl_is_the_stores_to_judge_and_goes_out_as_it_was_given(
    peer: Peer, client: Client, ttl_seconds: int
) -> None:
    peer.says(ACQUIRE, problem(422, "invalid", field="ttl_seconds", rule="1 to 86400"))
    with pytest.raises(Invalid) as refused:
        client.lease("u", ttl_seconds=ttl_seconds)
    assert refused.value.field == "ttl_seconds"
    assert peer.to(ACQUIRE)[0].text.endswith(f'"ttl_seconds":{json.dumps(ttl_seconds)}}}')


# --- runs under a lease --------------------------------------------------------------------------


@pytest.fixture
def two_runs(peer: Peer) -> Peer:
    peer.says("/leases/claim", claimed("a", "b"))
    peer.says("/leases/renew", renewed_all())
    for key in ("a", "b"):
        peer.says(f"/leases/run%3A{key}/renew", renewed())
        peer.says(f"/leases/run%3A{key}/release", Reply(200, {}))
        peer.says(f"/runs/{key}/events", appended())
        peer.says(f"/runs/{key}/transitions", moved("completed"))
        peer.says(f"/runs/{key}/budgets/tokens/spend", problem(404, "not-found"))
    return peer


def test_claimed_runs_write_under_their_own_tokens(two_runs: Peer, client: Client) -> None:
    a, b = client.claim(limit=2)
    assert (a.key, a.task, a.attempt, a.status, a.version, a.last_seq) == (
        "a",
        "audit",
        1,
        "running",
        3,
        2,
    )
    a.append(Event("x"))
    b.append(Event("x"))
    with pytest.raises(NotFound):
        b.budget("tokens").spend(5)
    assert two_runs.to("/runs/a/events")[0].headers["Agentstate-Fence"] == "7"
    assert two_runs.to("/runs/b/events")[0].headers["Agentstate-Fence"] == "8"
    assert two_runs.to("/runs/b/budgets/tokens/spend")[0].headers["Agentstate-Fence"] == "8"
    assert (a.version, a.last_seq) == (4, 3)


def test_a_completed_run_is_neither_renewed_nor_released(two_runs: Peer, client: Client) -> None:
    a, b = client.claim(limit=2, ttl_seconds=1)
    with a:
        assert a.complete({"ok": True}).status == "completed"
        assert two_runs.to("/runs/a/transitions")[0].body == {
            "to": "completed",
            "result": {"ok": True},
        }
        two_runs.wait_for("/leases/run%3Ab/renew", 4)
        assert two_runs.to("/leases/run%3Aa/renew") == []
    assert a.lease is not None
    assert (a.lease.state, a.lost.is_set()) == ("ended", False)
    assert two_runs.to("/leases/run%3Aa/release") == []
    b.release()


def test_completing_again_asks_the_store_which_knows_that_it_was_us(
    two_runs: Peer, client: Client
) -> None:
    a, _ = client.claim(limit=2)
    a.complete()
    a.complete()
    assert [s.headers["Agentstate-Fence"] for s in two_runs.to("/runs/a/transitions")] == ["7", "7"]


def test_a_move_that_rides_on_an_append_ends_the_lease_too(two_runs: Peer, client: Client) -> None:
    a, _ = client.claim(limit=2)
    a.append(Event("x"), to="failed", result="no")
    assert two_runs.to("/runs/a/events")[0].body["to"] == "failed"
    assert a.lease is not None
    assert a.lease.state == "ended"


def test_a_write_that_is_refused_for_its_token_ends_the_work(
    two_runs: Peer, client: Client
) -> None:
    two_runs.says("/runs/a/events", problem(409, "stale-fence", current={"owner": "w-2"}))
    a, b = client.claim(limit=2)
    with pytest.raises(StaleFence) as stale:
        a.append(Event("x"))
    assert stale.value.current["owner"] == "w-2"
    assert a.lost.is_set()
    with pytest.raises(LeaseLost) as lost:
        a.append(Event("x"))
    assert lost.value.reason == "superseded"
    assert len(two_runs.to("/runs/a/events")) == 1
    b.append(Event("x"))
    assert not b.lost.is_set()


def test_a_lost_lease_ends_a_write_that_waits_for_its_next_attempt(
    two_runs: Peer, client: Client
) -> None:
    two_runs.says(
        "/runs/a/events",
        problem(503, "unavailable", "same-request", headers={"Retry-After": "5"}),
        appended(),
    )
    two_runs.says("/leases/renew", renewed_all(run_a=problem(409, "lease-lost", reason="taken")))
    a, b = client.claim(limit=2, ttl_seconds=1)
    started = time.monotonic()
    with pytest.raises(LeaseLost) as lost:
        a.append(Event("x"))
    assert lost.value.reason == "taken"
    assert time.monotonic() - started < 2
    assert len(two_runs.to("/runs/a/events")) == 1
    assert not b.lost.is_set()


def test_leases_of_one_ttl_are_renewed_in_one_request(two_runs: Peer, client: Client) -> None:
    runs = client.claim(limit=2, ttl_seconds=1)
    first = two_runs.wait_for("/leases/renew", 4)[0]
    assert sorted(item["token"] for item in first.body["items"]) == [7, 8]
    assert {item["unit"] for item in first.body["items"]} == {"run:a", "run:b"}
    assert first.body["ttl_seconds"] == 1
    assert {run.lost.is_set() for run in runs} == {False}
    assert two_runs.to("/leases/run%3Aa/renew") == []


def test_progress_travels_alone_and_the_others_are_renewed_too(
    two_runs: Peer, client: Client
) -> None:
    a, b = client.claim(limit=2, ttl_seconds=1)
    b.checkpoint({"step": 1})
    assert two_runs.wait_for("/leases/run%3Ab/renew", 1)[0].body["progress"] == {"step": 1}
    two_runs.wait_for("/leases/renew", 3)
    assert {run.lost.is_set() for run in (a, b)} == {False}


def test_a_request_for_many_that_fails_is_tried_again_for_all(
    two_runs: Peer, client: Client
) -> None:
    unavailable = problem(503, "unavailable", "same-request")
    odd = Reply(200, {"items": []})
    one_of_them = renewed_all(run_b=problem(503, "unavailable", "same-request"))
    two_runs.says("/leases/renew", unavailable, odd, one_of_them, renewed_all())
    runs = client.claim(limit=2, ttl_seconds=2)
    eventually(lambda: sum("renew" in s.path for s in two_runs.seen) >= 7)
    assert {run.lost.is_set() for run in runs} == {False}


def test_a_renewal_that_hangs_does_not_cost_another_lease(unit: Peer, client: Client) -> None:
    """One hour and one second: the long one must not hold the thread for longer than the short
    one can wait."""
    unit.says("/leases/long/acquire", granted("long", 6))
    unit.says("/leases/long/renew", Reply(until=threading.Event()))
    with client.lease("long", ttl_seconds=3600) as long, client.lease("u", ttl_seconds=2) as short:
        long.note_trouble(Unreachable("as if it were due"), renew_at=0)
        unit.wait_for("/leases/long/renew", 2)
        unit.wait_for(RENEW, 4)
        assert not short.lost.is_set()


def test_a_run_left_unfinished_is_given_back_also_by_an_error(
    two_runs: Peer, client: Client
) -> None:
    a, b = client.claim(limit=2)
    with a:
        a.append(Event("x"))
    with pytest.raises(ZeroDivisionError), b:
        _ = 1 / 0
    for key, token in (("a", 7), ("b", 8)):
        assert two_runs.to(f"/leases/run%3A{key}/release")[0].body == {"token": token}


def test_one_run_can_be_acquired_by_its_key(two_runs: Peer, client: Client) -> None:
    two_runs.says("/leases/run%3Aa/acquire", granted("run:a", 9, version=5, last_seq=4))
    with client.run("a").acquire(ttl_seconds=30) as run:
        assert (run.key, run.version, run.last_seq) == ("a", 5, 4)
        run.append(Event("x"), expected_seq=run.last_seq)
    assert two_runs.to("/runs/a/events")[0].headers["Agentstate-Fence"] == "9"
    assert len(two_runs.to("/leases/run%3Aa/release")) == 1


def test_what_the_holder_before_left_is_handed_over(peer: Peer, client: Client) -> None:
    answer = claimed("a")
    answer.body["items"][0] |= {
        "taken_from": "w-0~1234",
        "progress": {"step": 12345678901234567890},
    }
    peer.says("/leases/claim", answer)
    (run,) = client.claim()
    lease = run.lease
    assert isinstance(lease, Lease)
    assert lease.taken_from == "w-0~1234"
    assert lease.found_progress is not None
    assert lease.found_progress.value() == {"step": 12345678901234567890}


def test_a_claim_that_was_answered_too_late_is_nothing_to_do(peer: Peer, client: Client) -> None:
    peer.says("/leases/claim", Reply(cut=True), problem(409, "lease-lost", reason="expired"))
    assert client.claim() == []


def test_a_grant_that_comes_after_its_time_is_lost_at_once(peer: Peer, client: Client) -> None:
    peer.says("/leases/claim", Reply(until=threading.Event()), claimed("a"))
    peer.says("/leases/run%3Aa/renew", renewed())
    (run,) = client.claim(ttl_seconds=1)
    assert run.lost.wait(1)
    with pytest.raises(LeaseLost):
        run.append(Event("x"))
    assert peer.to("/runs/a/events") == []


def test_many_threads_share_one_handle(two_runs: Peer, client: Client) -> None:
    a, _ = client.claim(limit=2)
    threads = [threading.Thread(target=lambda: a.append(Event("x"))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({s.headers["Idempotency-Key"] for s in two_runs.to("/runs/a/events")}) == 20
