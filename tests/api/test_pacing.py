"""How often a key may call: 429 rate-limited, and what is left of it in each answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.api import pacing
from agentstate.api.pacing import BURST_SECONDS, Paces, paced
from tests.api.asking import Api, new_key


@pytest.fixture(autouse=True)
def fresh():
    pacing.PACES.forget()
    yield
    pacing.PACES.forget()


@pytest.fixture
def time(monkeypatch):
    """The process's clock, standing still until the test moves it."""

    class Clock:
        now = 1_000.0

    monkeypatch.setattr(pacing, "monotonic", lambda: Clock.now)
    return Clock


GAPS = st.lists(st.floats(0, 3, allow_nan=False), max_size=300)


@given(st.integers(1, 1_000), GAPS)
def test_in_any_time_never_more_than_the_burst_and_the_rate(per_second, gaps):
    now, due, admitted = 0.0, 0.0, []
    for gap in gaps:
        now += gap
        due, pace = paced(due, now, per_second)
        if not pace.wait_seconds:
            admitted.append(now)
        assert 0 <= pace.left < pace.burst
        assert 0 < pace.full_in_seconds <= BURST_SECONDS + 1e-6
    for first, began in enumerate(admitted):
        for number, at in enumerate(admitted[first:], 1):
            assert number <= (at - began + BURST_SECONDS) * per_second + 1


@given(st.integers(1, 1_000), GAPS)
def test_who_waits_as_told_is_let_in(per_second, gaps):
    now = due = 0.0
    for gap in gaps:
        now += gap
        due, pace = paced(due, now, per_second)
        if pace.wait_seconds:
            now += pace.wait_seconds
            due, pace = paced(due, now, per_second)
            assert not pace.wait_seconds


def test_beyond_its_limit_a_key_is_told_when_to_come_again(api, settings, time):
    settings.KEY_REQUESTS_PER_SECOND = 2
    api.create("42")
    first = [api.get("/runs/42") for _ in range(3)]
    assert [a.status for a in first] == [200] * 3
    assert first[0].headers["RateLimit-Policy"] == '"key";q=4;w=2'
    assert [a.headers["RateLimit"] for a in first] == [
        '"key";r=2;t=1', '"key";r=1;t=2', '"key";r=0;t=2',
    ]  # fmt: skip
    answer = api.get("/runs/42")
    assert answer.refused == (429, "rate-limited")
    assert (answer["retry"], answer["per_second"]) == ("same-request", 2)
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["RateLimit"] == '"key";r=0;t=2'
    time.now += 0.5
    assert api.get("/runs/42").status == 200
    assert api.get("/runs/42").status == 429


def test_what_keeps_or_ends_work_is_never_held_up(api, settings, time):
    api.create("42")
    token = api.hold("42")
    settings.KEY_REQUESTS_PER_SECOND = 1
    assert [api.get("/runs/42").status for _ in range(3)] == [200, 200, 429]
    for _ in range(5):
        renewed = api.post("/leases/run:42/renew", {"token": int(token)})
        assert renewed.status == 200
        assert "RateLimit" not in renewed.headers
    assert api.append("42", Agentstate_Fence=token).status == 429
    assert api.move("completed", Agentstate_Fence=token).status == 200
    assert api.get("/health/live").status == 200


def test_each_key_has_its_own_limit_and_some_another_one(db, settings, time):
    settings.KEY_REQUESTS_PER_SECOND = 1
    settings.KEY_RATES = {"eager": 3, "free": 0}
    apis = {name: Api(new_key(name)) for name in ("plain", "other", "eager", "free")}
    allowed = {
        name: sum(one.get("/runs").status == 200 for _ in range(10)) for name, one in apis.items()
    }
    assert allowed == {"plain": 2, "other": 2, "eager": 6, "free": 10}


def test_without_a_limit_nothing_is_said_of_one(api):
    assert not [name for name in api.get("/runs").headers if re.match("ratelimit", name, re.I)]


def test_a_wrong_key_is_told_nothing_of_the_right_ones_limit(api, settings, time):
    settings.KEY_REQUESTS_PER_SECOND = 1
    assert [api.get("/runs").status for _ in range(3)] == [200, 200, 429]
    wrong = api.key.text[:-1] + ("A" if api.key.text[-1] != "A" else "B")
    answer = api.get("/runs", Authorization=f"Bearer {wrong}")
    assert answer.status == 401
    assert "RateLimit" not in answer.headers


def test_what_is_remembered_of_keys_has_an_end(monkeypatch):
    monkeypatch.setattr(pacing, "KEYS_MAX", 10)
    paces = Paces()
    for number in range(100):
        paces.note(f"k-{number}", per_second=10, now=float(number))
    assert len(paces._due) <= 10
