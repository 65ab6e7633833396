"""Whoever begins to wait just when it happens is woken: between looking and waiting is no gap."""

from contextlib import asynccontextmanager

import pytest

from agentstate.live import follow
from agentstate.live.threads import in_thread
from agentstate.store import feed
from tests.live.conftest import site, still_site, store
from tests.live.streaming import Stream

__all__ = ["site", "still_site", "store"]

# A hint that came too early would only be made good by a poll or a ping.
LATE_SECONDS, SOON_SECONDS = 600.0, 30.0


@pytest.fixture
def at_the_gap(monkeypatch):
    """at_the_gap(happen): done once, after the first look and before anybody listens for hints."""
    monkeypatch.setattr(follow, "POLL_SECONDS", LATE_SECONDS)
    monkeypatch.setattr(follow, "PING_SECONDS", LATE_SECONDS)
    subscribe, waiting_for = follow._subscribed, []

    @asynccontextmanager
    async def subscribed(source):
        while waiting_for:
            await in_thread(waiting_for.pop())
        async with subscribe(source) as subscription:
            yield subscription

    monkeypatch.setattr(follow, "_subscribed", subscribed)
    return waiting_for.append


def written_and_hinted(store):
    """An event that is there, in the feed, and whose hint nobody heard."""

    def happen():
        store.append("42")
        while feed.move():
            pass

    return happen


def test_a_long_poll_that_begins_when_an_event_is_written_has_it(store, still_site, at_the_gap):
    store.create("42")
    at_the_gap(written_and_hinted(store))

    answer = still_site.get("/runs/42/events?after=1&wait=30")

    assert [e["seq"] for e in answer.json()["items"]] == [2]


@pytest.mark.parametrize("after", [0, 1])
def test_a_stream_that_begins_when_an_event_is_written_has_it(store, still_site, at_the_gap, after):
    store.create("42")
    at_the_gap(written_and_hinted(store))
    stream = Stream(still_site, "/runs/42/events", after=after, seconds=SOON_SECONDS)

    assert [sent.json["seq"] for sent in stream.take(2 - after)][-1] == 2
    stream.close()


def test_a_follower_of_the_feed_too(store, still_site, at_the_gap):
    store.create("42")
    feed.move()
    at_the_gap(written_and_hinted(store))
    stream = Stream(still_site, "/feed", after=1, seconds=SOON_SECONDS)

    assert [sent.json["run"] for sent in stream.take(1)] == ["42"]
    stream.close()
