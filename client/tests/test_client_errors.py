from __future__ import annotations

import json
import logging
import pickle
import traceback

import pytest
from scripted_peer import KEY, Make, Peer, problem

import agentstate_client
from agentstate_client import (
    BudgetExhausted,
    CancelRequested,
    Client,
    IllegalTransition,
    Invalid,
    Refused,
    SeqConflict,
    Unreachable,
)
from agentstate_client.errors import BY_CODE, lost_here

# api.md's list; the server's own is compared in the project's tests.
CODES = """
    malformed payload-too-large invalid unstorable-text idempotency-key-reuse event-id-reuse
    unauthenticated not-allowed budget-exhausted not-found cursor-expired run-expired exists
    illegal-transition already-terminal paused stale-fence lease-lost partial-duplicate
    reservation-settled cap-below-use batch-refused attempts-exhausted idempotency-in-flight
    version-conflict seq-conflict expectation-failed holder-changed lease-held fence-required
    rate-limited run-hot overloaded unavailable outcome-unknown internal
"""


def test_every_code_has_one_class_and_every_class_is_offered() -> None:
    assert sorted(BY_CODE) == sorted(CODES.split())
    for cls in BY_CODE.values():
        assert getattr(agentstate_client, cls.__name__) is cls
        assert cls.__name__ in agentstate_client.__all__


def test_a_refusal_has_all_that_the_store_said(peer: Peer, client: Client) -> None:
    peer.says(
        "/runs/42/events",
        problem(412, "seq-conflict", "reread", last_seq=41, current={"version": 57, "a": [1]}),
    )
    with pytest.raises(SeqConflict) as refused:
        client.run("42").append()
    error = refused.value
    assert (error.code, error.status, error.retry) == ("seq-conflict", 412, "reread")
    assert (error.detail, error.request_id, error.last_seq) == ("it is seq-conflict", "r-1", 41)
    assert error.outcome_unknown is False
    error.current["a"].append(2)
    assert error.current == {"version": 57, "a": [1]}
    assert str(error) == "seq-conflict: it is seq-conflict"


def test_facts_are_members_of_their_classes(peer: Peer, client: Client) -> None:
    peer.says(
        "/runs/42/events",
        problem(402, "budget-exhausted", budget="tokens", cap=100, spent=90, reserved=5, asked=6),
        problem(409, "illegal-transition", allowed=["running"]),
        problem(422, "invalid", field="events[0].type", rule="first a letter"),
    )
    run = client.run("42")
    with pytest.raises(BudgetExhausted) as poor:
        run.append()
    e = poor.value
    assert (e.budget, e.cap, e.spent, e.reserved, e.asked) == ("tokens", 100, 90, 5, 6)
    with pytest.raises(IllegalTransition) as illegal:
        run.append()
    assert illegal.value.allowed == ["running"]
    with pytest.raises(Invalid) as invalid:
        run.append()
    assert (invalid.value.field, invalid.value.rule) == ("events[0].type", "first a letter")


def test_a_code_of_a_newer_server_is_still_a_refusal(peer: Peer, client: Client) -> None:
    peer.says("/runs/42/events", problem(409, "quota-of-next-year", current={"x": 1}))
    with pytest.raises(Refused) as refused:
        client.run("42").append()
    assert type(refused.value) is Refused
    assert (refused.value.code, refused.value.current) == ("quota-of-next-year", {"x": 1})


def test_every_error_survives_pickling(peer: Peer, client: Client) -> None:
    peer.says("/runs/42/events", problem(402, "budget-exhausted", budget="tokens"))
    with pytest.raises(BudgetExhausted) as refused:
        client.run("42").append()
    errors = [
        refused.value,
        lost_here("deadline", "too late"),
        Unreachable("no answer", "r-1", 2.0, True),
        CancelRequested("enough"),
        agentstate_client.UnexpectedAnswer("odd", 500),
        agentstate_client.Unsendable("NaN"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert again.outcome_unknown == error.outcome_unknown
        as_json = type(error)(*json.loads(json.dumps(error.args)))  # as Celery keeps it
        assert (str(as_json), as_json.outcome_unknown) == (str(error), error.outcome_unknown)
    copied = pickle.loads(pickle.dumps(refused.value))
    assert copied.budget == "tokens"


def test_the_key_is_nowhere_to_be_read(
    peer: Peer, client: Client, caplog: pytest.LogCaptureFixture, make_client: Make
) -> None:
    caplog.set_level(logging.DEBUG)
    peer.says("/runs/42/events", problem(401, "unauthenticated"))
    with pytest.raises(Refused) as refused:
        client.run("42").append()
    unreachable = make_client(
        "http://127.0.0.1:9", KEY, worker="w", retry=agentstate_client.RetryPolicy(1)
    )
    with pytest.raises(Unreachable) as silent:
        unreachable.run("42").append()
    assert peer.seen[0].headers["Authorization"] == f"Bearer {KEY}"
    shown = [
        repr(client),
        repr(client.run("42")),
        caplog.text,
        *traceback.format_exception(refused.value),
        *traceback.format_exception(silent.value),
        repr(silent.value.__cause__),
    ]
    assert "secret" not in "\n".join(shown)


@pytest.mark.parametrize("key", ["", "two words", "new\nline", "ключ"])
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(
    key: str, make_client: Make
) -> None:
    with pytest.raises(ValueError, match="key: printable") as refused:
        make_client("http://127.0.0.1:8000", key)
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x/?a=1", "http://a:b@x"]
)
def test_an_address_that_cannot_be_one_is_refused(url: str, make_client: Make) -> None:
    with pytest.raises(ValueError, match="url: an http or https address"):
        make_client(url, "k")
