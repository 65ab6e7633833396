"""Following the feed: ordered, unique, whole batches, no hole, resumable, bookmarked."""

import random
import threading
import time

from agentstate.live.hub import Hint
from agentstate.live.sources import ChangeFeed, RunLog
from agentstate.store import audit, feed
from tests.live.streaming import Stream
from tests.store.asking import FLEET, at_once, event, rows
from tests.store.waiting import wait_for

RUNS, WRITERS, WRITES = 5, 4, 25
EVENTS = RUNS + WRITERS * sum(1 + k % 3 for k in range(WRITES))
DEADLINE_SECONDS = 60


def told(events):
    return [(e.json["run"], e.json["first_seq"], e.json["last_seq"]) for e in events]


def test_a_stream_has_what_is_there_and_what_comes(store, follow):
    store.create("42", events=(event("a"),))
    stream = follow("/feed")
    (created,) = stream.take(1)
    store.append("42", [event("b"), event("c")])
    (appended,) = stream.take(1)

    assert told([created, appended]) == [("42", 1, 2), ("42", 3, 4)]
    assert (created.id, appended.id) == ("1", "2")
    assert appended.json["types"] == ["b", "c"]
    assert appended.json["version"] == 2


def test_a_long_poll_waits_for_the_types_it_wants(store, site):
    store.create("42")

    def ask(n):
        if n == 1:
            return site.get("/feed?types=run.c*&types=run.cancelled&wait=20").status_code
        if n == 2:
            return site.get("/feed?types=run.cancelled&wait=20").json()
        wait_for(lambda: rows("SELECT count(*) FROM agentstate_feed") == [(1,)])
        store.append("42")
        return store.move("42", "cancelled")

    _, status, found = at_once(3, ask)

    assert status == 422
    assert [(i["position"], i["types"]) for i in found["items"]] == [(3, ["run.cancelled"])]
    assert found["position"] == 3


def test_what_a_filter_passes_over_is_bookmarked(store, follow, monkeypatch):
    monkeypatch.setattr("agentstate.live.follow.PING_SECONDS", 0.3)
    store.create("42")
    stream = follow("/feed", more="types=run.*")
    assert stream.take(1)[0].id == "1"
    store.append("42", [event("noise")])
    store.append("42", [event("noise")])
    wait_for(lambda: rows("SELECT count(*) FROM agentstate_feed") == [(3,)])

    lines = stream._lines()
    while stream.last_id != "3":
        line = next(lines)
        if line.startswith("id: "):
            stream.last_id = line.removeprefix("id: ")

    assert told(follow("/feed", last_id="2").take(1)) == [("42", 3, 3)]


def test_what_is_gone_is_refused_with_where_the_feed_begins(store, still_site, move_all):
    store.create("42")
    store.append("42")
    move_all()
    rows("DELETE FROM agentstate_feed WHERE position = 1")

    for accept in ("application/json", "text/event-stream"):
        answer = still_site.get("/feed?after=0", Accept=accept)
        assert (answer.status_code, answer.json()["code"]) == (410, "cursor-expired")
        assert answer.json()["earliest"] == 2
    assert still_site.get("/feed?after=3").status_code == 422


def test_followers_who_are_cut_miss_and_double_nothing_while_writers_and_movers_race(
    store, still_site
):
    for n in range(RUNS):
        store.create(f"r-{n}")
    over, readers = threading.Event(), [0, 1, 2]

    def write(n):
        for k in range(WRITES):
            store.append(f"r-{(n + k) % RUNS}", [event()] * (1 + k % 3))

    def move():
        while not over.wait(0.002):
            feed.move(limit=7)

    def read(n):
        try:
            return poll_all(still_site) if n == 0 else follow_all(still_site, seed=n)
        finally:
            readers.remove(n)
            if not readers:
                over.set()

    def role(n):
        if n < WRITERS:
            return write(n)
        return move() if n < WRITERS + 2 else read(n - WRITERS - 2)

    outcomes = at_once(WRITERS + 5, role)

    assert [o for o in outcomes if isinstance(o, Exception)] == []
    first = outcomes[-3][0]
    for seen, _ in outcomes[-3:]:
        check_feed(seen)
        assert seen == first
    assert all(cuts > 1 for _, cuts in outcomes[-2:])
    assert audit.verify() == []


def follow_all(site, *, seed):
    """Everything that is written, by streams that are cut at random."""
    dice, seen, cuts, last_id = random.Random(seed), [], 0, ""
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while count(seen) < EVENTS:
        assert time.monotonic() < ends_at, f"{count(seen)} events, then {last_id}"
        stream = Stream(site, "/feed", last_id=last_id)
        try:
            for got in stream:
                seen.append((int(got.id), got.json))
                last_id = got.id
                if count(seen) == EVENTS or dice.random() < 0.05:
                    break
        finally:
            stream.close()
        cuts += 1
    return seen, cuts


def poll_all(site):
    """The same by long polls."""
    seen, after = [], 0
    ends_at = time.monotonic() + DEADLINE_SECONDS
    while count(seen) < EVENTS:
        assert time.monotonic() < ends_at, f"{count(seen)} events, then {after}"
        page = site.get(f"/feed?after={after}&wait=5&limit=9").json()
        seen += [(item["position"], item) for item in page["items"]]
        after = page["position"]
    return seen, 0


def count(seen):
    """How many events these changes stand for."""
    return sum(item["last_seq"] - item["first_seq"] + 1 for _, item in seen)


def check_feed(seen):
    """Unique and ordered positions without a hole; each run's numbers go on where they were."""
    assert [position for position, _ in seen] == list(range(1, len(seen) + 1))
    ends: dict[str, tuple[int, int]] = {}
    for _, item in seen:
        seq, version = ends.get(item["run"], (0, 0))
        assert item["first_seq"] == seq + 1
        assert item["version"] > version
        ends[item["run"]] = (item["last_seq"], item["version"])
    assert len(ends) == RUNS


def test_runs_past_their_retention_are_passed_over(store, still_site, move_all, clock):
    store.create("old", retain_seconds=10)
    store.create("new")
    store.move("old", "cancelled")
    move_all()
    clock.advance(seconds=11)

    page = still_site.get("/feed").json()

    assert [item["run"] for item in page["items"]] == ["new"]
    assert page["position"] == 3


def test_a_late_hint_is_no_reason_to_look_again():
    """Hints about what was seen already cost nothing: no read, no frame."""
    changes = ChangeFeed(types=(), limit=10)
    log = RunLog(run="42", caller=FLEET, limit=10)
    assert not changes.is_news(Hint(5, {"42": 9}), 5)
    assert changes.is_news(Hint(6, {"42": 9}), 5)
    assert changes.is_news(Hint(None, None), 5)
    assert not log.is_news(Hint(6, {"42": 9}), 9)
    assert log.is_news(Hint(6, {"42": 10}), 9)
    assert log.is_news(Hint(6, None), 9)
