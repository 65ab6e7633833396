"""Following one run over /live/v1, on the product's own server."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentstate.live import hub
from agentstate.store.commands import NewEvent
from agentstate.store.payloads import RawJSON
from tests.api.asking import new_key
from tests.live.streaming import Stream, seconds_since
from tests.store.asking import at_once, event
from tests.store.waiting import wait_for


def numbers(events):
    return [e.json["seq"] for e in events]


def test_a_stream_has_what_is_there_and_what_comes(store, follow):
    store.create("42", events=(event("planned"),))
    stream = follow("/runs/42/events")
    assert stream.response.headers["Content-Type"] == "text/event-stream"
    assert numbers(stream.take(2)) == [1, 2]

    store.append("42", [event("tool.called", {"tool": "bash"}), event("tool.returned")])

    called, returned = stream.take(2)
    assert (called.id, called.json["type"], called.json["data"]) == (
        "3",
        "tool.called",
        {"tool": "bash"},
    )
    assert returned.id == "4"


def test_the_items_are_those_of_a_page(store, follow, site):
    store.create("42", events=(event("a", {"n": 1.50}, id="e-1"),))
    page = site.http.get("/api/v1/runs/42/events", headers={"Authorization": f"Bearer {site.key}"})
    polled = site.get("/runs/42/events?wait=0")
    streamed = follow("/runs/42/events").take(2)

    assert polled.json() == page.json()
    assert [e.json for e in streamed] == page.json()["items"]


def test_a_stream_goes_on_after_the_last_id_or_the_address(store, follow):
    store.create("42")
    store.append("42", [event()] * 9)

    assert numbers(follow("/runs/42/events", after=7).take(3)) == [8, 9, 10]
    assert numbers(follow("/runs/42/events", last_id="8").take(2)) == [9, 10]
    # A browser repeats its address when it connects again.
    assert numbers(follow("/runs/42/events", after=3, last_id="9").take(1)) == [10]
    assert numbers(follow("/runs/42/events", after=9, last_id="3").take(1)) == [10]


def test_nothing_is_lost_or_doubled_when_it_is_cut_at_random(store, site):
    store.create("42")
    dice = random.Random(7)
    done = threading.Event()

    def write(n):
        if n == 0:
            for _ in range(60):
                store.append("42", [event("step", {"n": dice.random()})] * 5)
            store.move("42", "cancelled")
            done.set()
            return None
        seen, cuts, last_id = [], 0, ""
        while True:
            stream = Stream(site, "/runs/42/events", last_id=last_id)
            try:
                for got in stream:
                    if got.event == "bye":
                        return seen, cuts, got.json["reason"]
                    seen.append(got.json["seq"])
                    last_id = got.id
                    if dice.random() < 0.06:
                        break
            finally:
                stream.close()
            cuts += 1

    _, (seen, cuts, reason) = at_once(2, write)

    assert seen == list(range(1, 303))
    assert reason == "run-ended"
    assert cuts >= 5


def test_a_finished_run_is_told_to_its_end_and_then_it_is_over(store, follow):
    store.create("42")
    open_before = follow("/runs/42/events")
    store.append("42")
    store.move("42", "cancelled")

    for stream in (open_before, follow("/runs/42/events"), follow("/runs/42/events", after=3)):
        events, reason = stream.until_bye()
        assert reason == "run-ended"
    assert numbers(events) == []
    assert numbers(follow("/runs/42/events").until_bye()[0]) == [1, 2, 3]


HOSTILE = [
    '{\n"a"\r\n:\r1\n\n}',
    '"id: 999999\\nevent: bye\\n\\n"',
    '"\u2028 \u2029 \x7f \u0085 tail\\n"',
    '[1.50, 1e3,\n\n 12345678901234567890123, "\\r\\n\\r\\n: x"]',
    '"\U0001f600 \\ud83d\\ude00"',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_payload_can_forge_a_field(store, follow, text):
    """Case O-24 (docs/cases.md)."""
    store.create("42")
    store.append("42", [NewEvent(type="x", data=RawJSON(text)), event("after")])

    _, hostile, after = follow("/runs/42/events").take(3)

    assert (hostile.event, hostile.id) == ("message", "2")
    assert (after.id, after.json["type"]) == ("3", "after")
    assert hostile.json["data"] == RawJSON(text).value()
    assert text.replace("\r", " ").replace("\n", " ") in hostile.data


def test_who_may_not_see_payloads_is_told_their_size(store, follow, site):
    store.create("42", events=(event("a", {"secret": "x"}),))
    reader = new_key("reader", ["read"]).text

    _, hidden = follow("/runs/42/events", key=reader).take(2)
    polled = site.get("/runs/42/events", key=reader)

    assert hidden.json["data_bytes"] == 14
    assert "data" not in hidden.json
    assert "secret" not in polled.text


def waiting() -> int:
    """Who waits for hints at the server of this process."""
    return sum(one.streams for one in list(hub._hubs.values()))


def test_a_long_poll_wakes_soon_after_a_write(store, site):
    store.create("42")
    took = []

    for after in range(1, 6):
        wait_for(lambda: waiting() == 0)
        with ThreadPoolExecutor(1) as pool:
            polled = pool.submit(site.get, f"/runs/42/events?after={after}&wait=20")
            wait_for(lambda: waiting() == 1)
            store.append("42")
            written_at = time.monotonic()
            answer = polled.result()
            took.append(seconds_since(written_at))
        assert [e["seq"] for e in answer.json()["items"]] == [after + 1]
        assert answer.json()["last_seq"] == after + 1
    assert min(took) < 0.2, took


def test_a_long_poll_ends_empty_when_its_time_is_over(store, site):
    store.create("42")
    began = time.monotonic()

    answer = site.get("/runs/42/events?after=1&wait=1")

    assert answer.json() == {"items": [], "last_seq": 1}
    assert 0.9 < seconds_since(began) < 5


def test_a_lost_hint_only_delays(store, still_site, monkeypatch):
    """Nobody moves the feed here, so no hint ever comes."""
    monkeypatch.setattr("agentstate.live.follow.POLL_SECONDS", 0.2)
    store.create("42")
    stream = Stream(still_site, "/runs/42/events")
    assert numbers(stream.take(1)) == [1]

    store.append("42")

    assert numbers(stream.take(1)) == [2]
    stream.close()


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/runs/none/events", 404, "not-found"),
        ("/runs/42/events?after=2", 422, "invalid"),
        ("/runs/42/events?after=-1", 422, "invalid"),
        ("/runs/42/events?after=x", 422, "invalid"),
        ("/runs/42/events?after=0&after=1", 422, "invalid"),
        ("/runs/42/events?wait=31", 422, "invalid"),
        ("/runs/42/events?wait=1.5", 422, "invalid"),
        ("/runs/42/events?limit=0", 422, "invalid"),
        ("/runs/42/events?key=as_secret", 422, "invalid"),
        ("/runs/4%2F2/events", 404, "not-found"),
        ("/runs/-42/events", 422, "invalid"),
        ("/runs/42", 404, "not-found"),
        ("/nowhere", 404, "not-found"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_it_begins(store, site, path, status, code):
    store.create("42")
    for accept in ("application/json", "text/event-stream"):
        answer = site.get(path, Accept=accept)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["code"] == code
        assert answer.json()["request_id"] == answer.headers["X-Request-Id"]


def test_only_the_header_lets_in_and_only_get_is_answered(store, site):
    store.create("42")
    path = "/live/v1/runs/42/events"
    nobody = site.http.get(path)
    assert (nobody.status_code, nobody.json()["code"]) == (401, "unauthenticated")
    writer = new_key("writer", ["write"]).text
    assert site.get("/runs/42/events", key=writer).json()["code"] == "not-allowed"
    posted = site.http.post(path, headers={"Authorization": f"Bearer {site.key}"})
    assert (posted.status_code, posted.headers["Allow"]) == (405, "GET, HEAD")
    head = site.http.head(path, headers={"Authorization": f"Bearer {site.key}"})
    assert (head.status_code, head.content) == (200, b"")
    headers = {"Last-Event-ID": "x", "Accept": "text/event-stream"}
    assert site.get("/runs/42/events", **headers).json()["field"] == "Last-Event-ID"
    waiting = site.get("/runs/42/events?wait=3", Accept="text/event-stream")
    assert (waiting.status_code, waiting.json()["field"]) == (422, "wait")


@pytest.mark.parametrize(
    ("accept", "is_stream"),
    [
        ("TEXT/Event-Stream", True),
        ("text/event-stream, application/json;q=0.9", True),
        ("application/json;q=0.1, text/event-stream", True),
        ("text/event-stream;q=0.5, application/json", False),
        ("text/event-stream;q=0, application/json", False),
        ("*/*", False),
        ("text/html, */*;q=0.8", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_what_a_client_would_rather_have_is_what_it_gets(store, site, accept, is_stream):
    """S-301 (docs/sweeps.md): capitals made a page of it, and `q=0` a stream."""
    store.create("42")
    answer = site.get("/runs/42/events?wait=0", Accept=accept)  # which no stream takes
    assert answer.status_code == (422 if is_stream else 200)
