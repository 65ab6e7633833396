from __future__ import annotations

import socket
import threading
import uuid
from email.utils import formatdate

import pytest
from scripted_peer import (
    AT,
    KEY,
    QUICK,
    Make,
    Peer,
    Reply,
    appended,
    claimed,
    eventually,
    granted,
    problem,
    run_script,
)

from agentstate_client import (
    Budget,
    Charge,
    Client,
    ClientClosed,
    Event,
    LeaseLost,
    NewBudget,
    RetryPolicy,
    SeqConflict,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    Unsendable,
)
from agentstate_client.errors import lost_here
from agentstate_client.holding import Holding

EVENTS = "/runs/42/events"


def test_a_write_says_who_what_and_how_often(peer: Peer, client: Client) -> None:
    peer.says(EVENTS, appended())
    done = client.run("42").append(
        Event("tool.returned", {"n": 1}, id="e-1"),
        expected_seq=2,
        add={"steps_done": 1},
        spend=Charge("tokens", 12, id="c-1"),
        if_version=7,
    )
    (seen,) = peer.to(EVENTS)
    assert seen.body == {
        "events": [{"type": "tool.returned", "data": {"n": 1}, "id": "e-1"}],
        "expected_seq": 2,
        "add": {"steps_done": 1},
        "spend": [{"budget": "tokens", "amount": 12, "id": "c-1"}],
    }
    assert uuid.UUID(seen.headers["Idempotency-Key"])
    assert seen.headers["Agentstate-Attempt"] == "1"
    assert seen.headers["If-Match"] == '"v7"'
    assert seen.headers["Authorization"] == f"Bearer {KEY}"
    assert seen.headers["Content-Type"] == "application/json"
    assert int(seen.headers["Agentstate-Deadline"]) == 2000
    assert "Agentstate-Fence" not in seen.headers
    assert (done.first_seq, done.last_seq, done.version, done.replayed) == (3, 3, 4, False)


def test_the_same_request_goes_again_with_the_same_key_and_counts(
    peer: Peer, client: Client
) -> None:
    peer.says(
        EVENTS,
        problem(503, "unavailable", "same-request"),
        Reply(cut=True),
        problem(409, "idempotency-in-flight", "same-request"),
        appended(),
    )
    client.run("42").append(Event("a"))
    seen = peer.to(EVENTS)
    assert [s.headers["Agentstate-Attempt"] for s in seen] == ["1", "2", "3", "4"]
    assert len({s.headers["Idempotency-Key"] for s in seen}) == 1
    assert len({s.headers["X-Request-Id"] for s in seen}) == 1
    assert len({s.text for s in seen}) == 1


def test_two_calls_have_two_keys(peer: Peer, client: Client) -> None:
    peer.says(EVENTS, appended())
    run = client.run("42")
    run.append(Event("a"))
    run.append(Event("a"))
    assert len({s.headers["Idempotency-Key"] for s in peer.to(EVENTS)}) == 2


def test_the_first_answer_to_a_repeated_request_is_told_apart(peer: Peer, client: Client) -> None:
    replay = appended()
    peer.says(EVENTS, Reply(201, replay.body, {"Idempotent-Replayed": "true"}))
    assert client.run("42").append(Event("a")).replayed is True


@pytest.mark.parametrize("retry", ["never", "reread", "later", "a-word-of-next-year"])
def test_only_what_may_be_repeated_is(peer: Peer, client: Client, retry: str) -> None:
    peer.says(EVENTS, problem(412, "seq-conflict", retry))
    with pytest.raises(SeqConflict):
        client.run("42").append(Event("a"))
    assert len(peer.to(EVENTS)) == 1


def test_attempts_are_bounded_and_the_last_refusal_is_raised(peer: Peer, client: Client) -> None:
    peer.says(EVENTS, problem(503, "unavailable", "same-request"))
    with pytest.raises(Unavailable):
        client.run("42").append(Event("a"))
    assert len(peer.to(EVENTS)) == QUICK.attempts


def test_no_attempt_starts_after_the_total_deadline(peer: Peer, make_client: Make) -> None:
    policy = RetryPolicy(attempts=1_000, total_seconds=0.3, first_delay_seconds=0.05)
    peer.says(EVENTS, problem(503, "unavailable", "same-request", headers={"Retry-After": "0"}))
    with make_client(peer.url, KEY, retry=policy) as client, pytest.raises(Unavailable):
        client.run("42").append(Event("a"))
    assert 1 < len(peer.to(EVENTS)) < 100


def test_retry_after_is_honoured(peer: Peer, client: Client) -> None:
    peer.says(
        EVENTS,
        problem(429, "rate-limited", "same-request", headers={"Retry-After": "1"}),
        appended(),
    )
    client.run("42").append(Event("a"))
    first, second = peer.to(EVENTS)
    assert 1.0 <= second.at - first.at < 2.0


def test_a_wait_that_is_longer_than_the_total_deadline_is_not_begun(
    peer: Peer, client: Client
) -> None:
    peer.says(EVENTS, problem(503, "unavailable", "same-request", headers={"Retry-After": "3600"}))
    with pytest.raises(Unavailable) as refused:
        client.run("42").append(Event("a"))
    assert refused.value.retry_after_seconds == 3600
    assert len(peer.to(EVENTS)) == 1


def test_a_date_to_wait_for_is_read_by_the_servers_clock(peer: Peer, client: Client) -> None:
    said, asked = formatdate(0, usegmt=True), formatdate(3600, usegmt=True)
    peer.says(
        EVENTS,
        problem(503, "unavailable", "same-request", headers={"Date": said, "Retry-After": asked}),
    )
    with pytest.raises(Unavailable) as refused:
        client.run("42").append(Event("a"))
    assert refused.value.retry_after_seconds == 3600


def test_a_full_jitter_stays_below_its_ceiling() -> None:
    policy = RetryPolicy(attempts=9, first_delay_seconds=0.2, longest_delay_seconds=5)
    failure = Unreachable("no answer")
    for attempt, most in ((1, 0.2), (2, 0.4), (5, 3.2), (6, 5.0), (8, 5.0)):
        waits = [policy.delay_seconds(attempt, failure) for _ in range(200)]
        assert 0 <= min(waits) < most * 0.2
        assert most * 0.8 < max(waits) <= most


def test_nobody_there_is_unreachable_and_certainly_not_written(make_client: Make) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        client = make_client(f"http://127.0.0.1:{port}", KEY, retry=QUICK)
        with pytest.raises(Unreachable) as silent:
            client.run("42").append(Event("a"))
    assert silent.value.outcome_unknown is False
    assert "ConnectError" in silent.value.detail


@pytest.mark.parametrize("how", ["cut", "silence", "gateway"])
def test_no_answer_after_sending_says_that_the_outcome_is_unknown(
    peer: Peer, how: str, make_client: Make
) -> None:
    reply = {
        "cut": Reply(cut=True),
        "silence": Reply(until=threading.Event()),
        "gateway": Reply(502, "<html>Bad gateway</html>"),
    }[how]
    peer.says(EVENTS, reply)
    policy = RetryPolicy(attempts=2, first_delay_seconds=0.01)
    with make_client(peer.url, KEY, retry=policy, timeout_seconds=0.3) as client:
        with pytest.raises(Unreachable) as silent:
            client.run("42").append(Event("a"))
        assert silent.value.outcome_unknown is True
        assert silent.value.request_id == peer.to(EVENTS)[0].headers["X-Request-Id"]
        assert len(peer.to(EVENTS)) == 2


def test_a_refusal_after_a_lost_answer_settles_it(peer: Peer, client: Client) -> None:
    peer.says(EVENTS, Reply(cut=True), problem(412, "seq-conflict", "reread"))
    with pytest.raises(SeqConflict) as refused:
        client.run("42").append(Event("a"))
    assert refused.value.outcome_unknown is False


def test_a_read_is_never_of_unknown_outcome(peer: Peer, client: Client) -> None:
    peer.says("/runs/42", Reply(cut=True))
    with pytest.raises(Unreachable) as silent:
        client.run("42").read()
    assert silent.value.outcome_unknown is False


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, "<html>no such page</html>"),
        Reply(302, "", {"Location": "http://127.0.0.1:9/elsewhere"}),
        Reply(200, "<html>welcome</html>"),
        Reply(200, "[1, 2]"),
        Reply(200, '{"nothing": "of this"}'),
        Reply(200, "[" * 100_000),
        Reply(500, "Traceback (most recent call last)"),
    ],
)
def test_what_is_not_agentstate_is_said_to_be_so_and_not_repeated(
    peer: Peer, client: Client, reply: Reply
) -> None:
    peer.says(EVENTS, reply)
    with pytest.raises(UnexpectedAnswer) as strange:
        client.run("42").append(Event("a"))
    assert len(peer.to(EVENTS)) == 1
    assert strange.value.outcome_unknown is (reply.status == 500)


@pytest.mark.parametrize(
    ("key", "segment"),
    [
        ("a/b", "a%2Fb"),
        ("../admin", "..%2Fadmin"),
        ("%2e%2e", "%252e%252e"),
        ("100%", "100%25"),
        ("a b", "a%20b"),
        ("a+b", "a%2Bb"),
        ("2026-03-12T09:40:00+00:00", "2026-03-12T09%3A40%3A00%2B00%3A00"),
        ("a?b#c", "a%3Fb%23c"),
        ("é", "%C3%A9"),
        ("e\u0301", "e%CC%81"),
        ("\U0001f600\u202e\u200b ", "%F0%9F%98%80%E2%80%AE%E2%80%8B%20"),
        ("w~1", "w~1"),
    ],
)
def test_a_name_is_one_segment_of_the_path_whatever_it_holds(
    peer: Peer, client: Client, key: str, segment: str
) -> None:
    peer.says(f"/runs/{segment}/events", appended())
    client.run(key).append(Event("a"))
    assert [seen.path for seen in peer.seen] == [f"/api/v1/runs/{segment}/events"]


@pytest.mark.parametrize("key", ["", ".", "..", "\ud800", None, 7])
def test_what_cannot_be_a_segment_never_leaves(peer: Peer, client: Client, key: str) -> None:
    with pytest.raises(Unsendable, match="is not a name"):
        client.run(key).append(Event("a"))
    assert peer.seen == []


def test_a_write_that_had_to_wait_for_its_connection_does_not_leave_too_late(
    peer: Peer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look at the lease is when the first byte is about to go."""
    peer.says("/leases/run%3A42/acquire", granted("run:42"))
    peer.says("/leases/run%3A42/release", Reply(200, {}))
    run = client.run("42").acquire()
    looks = []

    def guard(lease: object) -> None:
        looks.append(lease)
        if len(looks) == 2:
            raise lost_here("deadline", "it ran out while connecting")

    monkeypatch.setattr(Holding, "guard", guard)
    with pytest.raises(LeaseLost, match="while connecting"):
        run.append(Event("a"))
    assert len(looks) == 2
    assert peer.to(EVENTS) == []
    peer.says(EVENTS, appended())
    assert run.append(Event("a")).first_seq == 3


def test_a_run_is_made_with_all_that_was_given_and_nothing_else(peer: Peer, client: Client) -> None:
    run_42 = {"key": "42", "task": "audit", "status": "pending", "version": 1, "last_seq": 2}
    peer.says("/runs", Reply(201, run_42))
    run = client.create(
        task="audit",
        key="42",
        tags=["a"],
        budgets=[NewBudget("tokens", cap=100)],
        events=[Event("job.planned", {"steps": 3})],
    )
    (seen,) = peer.to("/runs")
    assert seen.body == {
        "task": "audit",
        "key": "42",
        "tags": ["a"],
        "budgets": [{"name": "tokens", "cap": 100, "unit": "tokens"}],
        "events": [{"type": "job.planned", "data": {"steps": 3}}],
    }
    assert (run.key, run.status, run.version, run.last_seq) == ("42", "pending", 1, 2)
    assert run.lease is None
    assert isinstance(run.budget("tokens"), Budget)


def test_one_text_is_not_taken_for_many_tags(peer: Peer, client: Client) -> None:
    with pytest.raises(Unsendable, match="tags"):
        client.create(task="t", tags="eu")
    assert peer.seen == []


def test_a_child_goes_out_with_its_parents_token(peer: Peer, client: Client) -> None:
    peer.says("/leases/claim", claimed("p"))
    peer.says(
        "/runs",
        Reply(201, {"key": "c", "task": "t", "status": "pending", "version": 1, "last_seq": 1}),
    )
    (parent,) = client.claim()
    client.create(task="t", parent=parent)
    (seen,) = peer.to("/runs")
    assert seen.body["parent"] == "p"
    assert seen.headers["Agentstate-Fence"] == "7"


def test_events_are_read_page_by_page_until_the_end(peer: Peer, client: Client) -> None:
    def event(seq: int) -> dict[str, object]:
        return {"seq": seq, "type": "a", "origin": "worker", "at": AT, "data": seq}

    peer.says(
        EVENTS,
        Reply(200, {"items": [event(1), event(2)], "last_seq": 3}),
        Reply(200, {"items": [event(3)], "last_seq": 3}),
    )
    assert [e.data for e in client.run("42").events()] == [1, 2, 3]
    assert [s.path.partition("?")[2] for s in peer.to(EVENTS)] == [
        "after=0&limit=500",
        "after=2&limit=500",
    ]


def test_a_closed_client_sends_nothing(peer: Peer, make_client: Make) -> None:
    client = make_client(peer.url, KEY)
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.run("42").append(Event("a"))
    assert peer.seen == []


def test_closing_ends_a_wait_between_two_attempts(peer: Peer, make_client: Make) -> None:
    policy = RetryPolicy(first_delay_seconds=20, longest_delay_seconds=20)
    peer.says(EVENTS, problem(503, "unavailable", "same-request", headers={"Retry-After": "20"}))
    client = make_client(peer.url, KEY, retry=policy)
    raised: list[BaseException] = []

    def write() -> None:
        try:
            client.run("42").append(Event("a"))
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    peer.wait_for(EVENTS, 1)
    client.close()
    thread.join(5)
    eventually(lambda: raised)
    assert isinstance(raised[0], (ClientClosed, Unavailable))


FORKED = """
import os, sys, warnings
warnings.simplefilter('ignore')
from agentstate_client import Client, ClientClosed
client = Client("http://127.0.0.1:9", "k")
child = os.fork()
if child == 0:
    try:
        client.run("42").append()
    except ClientClosed as error:
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_client_of_before_a_fork_says_so() -> None:
    assert run_script(FORKED).returncode == 7


def test_a_worker_is_another_one_each_time_it_starts(peer: Peer, make_client: Make) -> None:
    peer.says("/leases/claim", claimed())
    for _ in range(2):
        with make_client(peer.url, KEY, worker="w-1") as client:
            client.claim(limit=3, ttl_seconds=30, task="audit", tag="eu")
    first, second = (s.body for s in peer.to("/leases/claim"))
    assert first["owner"].startswith("w-1~")
    assert first["owner"] != second["owner"]
    assert {**first, "owner": ""} == {
        "owner": "",
        "limit": 3,
        "ttl_seconds": 30,
        "task": "audit",
        "tag": "eu",
    }
