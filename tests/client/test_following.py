"""Following a run and the feed with the client, on the product's own server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from agentstate_client import (
    Client,
    CursorExpired,
    Event,
    Invalid,
    NotFound,
    Unreachable,
    Unsendable,
    VersionConflict,
)
from agentstate_client._async import following as async_following
from agentstate_client._sync import following as sync_following

from agentstate.store.execute import moving_the_feed
from tests.api.serving import serving
from tests.client.conftest import QUICK
from tests.client.proxy import Proxy
from tests.store.asking import at_once, rows
from tests.store.waiting import wait_for


@pytest.fixture
def between(transactional_db: None) -> Iterator[Proxy]:
    """A way to the running product on which answers can be lost."""
    with moving_the_feed(), serving() as url:
        proxy = Proxy(port=int(url.rpartition(":")[2]))
        yield proxy
        proxy.close()


@pytest.fixture
def follower(between: Proxy, api_key: str, make_client) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def make(name: str = "w") -> Client:
        made.append(make_client(between.url, api_key, worker=name, retry=QUICK, timeout_seconds=30))
        return made[-1]

    yield make
    for client in made:
        client.close()


def numbers(events):
    return [event.seq for event in events]


def test_a_run_is_followed_to_its_end(follower):
    client = follower()
    run = client.create(
        task="audit", key="42", status="running", events=[Event("planned", {"n": 3})]
    )
    begun = threading.Event()

    def read():
        seen = []
        for event in client.run("42").follow():
            seen.append((event.seq, event.type, event.data))
            begun.set()
        return seen

    def write():
        assert begun.wait(30)
        for n in range(3):
            run.append(Event("step", {"n": n}))
        run.complete({"ok": True})

    seen, _ = at_once(2, lambda n: read() if n == 0 else write())

    assert [seq for seq, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[1] == (2, "planned", {"n": 3})
    assert seen[-1][1] == "run.completed"
    assert numbers(client.run("42").follow(after=4)) == [5, 6]
    assert numbers(client.run("42").follow(after=6)) == []


def test_a_lost_answer_neither_loses_nor_doubles_an_event(follower, between):
    client = follower()
    run = client.create(task="audit", key="42", status="running")
    followed = client.run("42").follow()
    assert next(followed).seq == 1
    between.cut_answers("/live/v1/runs/42/events", times=3)
    for n in range(5):
        run.append(Event("step", {"n": n}))
    run.complete()

    assert numbers(followed) == [2, 3, 4, 5, 6, 7]
    assert between.cuts == 3


def test_what_cannot_be_followed_is_said(follower):
    client = follower()
    client.create(task="audit", key="42", status="running")
    with pytest.raises(NotFound):
        next(client.run("none").follow())
    with pytest.raises(Invalid):
        next(client.run("42").follow(after=9))
    with pytest.raises(Unsendable):
        client.feed(types="run.*")


def test_a_consumer_goes_on_behind_what_it_has_acknowledged(follower):
    client = follower()
    run = client.create(task="audit", key="42", status="running")
    for _ in range(4):
        run.append(Event("step"))

    first = list(islice(client.feed(consumer="billing"), 3))
    assert [(c.position, c.run, c.last_seq) for c in first] == [
        (1, "42", 1),
        (2, "42", 2),
        (3, "42", 3),
    ]
    first[1].ack()
    first[0].ack()  # behind what was said: nothing is set back

    again = list(islice(client.feed(consumer="billing"), 3))
    assert [c.position for c in again] == [3, 4, 5]
    assert again[0].types == ("step",)
    again[2].ack()
    with pytest.raises(VersionConflict) as behind:
        first[2].ack()
    assert behind.value.current == {"consumer": "billing", "position": 5}
    assert [c.position for c in islice(client.feed(after=4), 1)] == [5]
    with pytest.raises(ValueError, match="with a consumer"):
        next(client.feed()).ack()


def test_types_choose_and_the_feed_waits_for_them(follower):
    client = follower()
    run = client.create(task="audit", key="42", status="running")

    def read():
        return [c.types for c in islice(client.feed(types=["run.*", "tool.called"]), 3)]

    def write():
        run.append(Event("noise"))
        run.append(Event("tool.called"))
        run.append(Event("noise"))
        run.complete()

    types, _ = at_once(2, lambda n: read() if n == 0 else write())
    assert types == [("run.created",), ("tool.called",), ("run.completed",)]


def test_a_consumer_of_what_seldom_comes_does_not_stay_behind(follower, monkeypatch):
    """S-305 (docs/sweeps.md): its checkpoint stood still, so it seemed to lag, and what it stood
    before was gone one day."""
    for following in (sync_following, async_following):
        monkeypatch.setattr(following, "WAIT_SECONDS", 1)
    client = follower()
    run = client.create(task="audit", key="42", status="running")

    def read():
        return next(client.feed(consumer="quiet", types=["run.completed"])).position

    def write():
        for _ in range(3):
            run.append(Event("noise"))
        wait_for(lambda: rows("SELECT name, position FROM agentstate_feedconsumer") == told)
        run.complete()

    told = [("quiet", 4)]
    position, _ = at_once(2, lambda n: read() if n == 0 else write())

    assert position == 5
    assert rows("SELECT name, position FROM agentstate_feedconsumer") == told


def test_what_is_gone_is_raised_with_where_to_begin_anew(follower):
    client = follower()
    run = client.create(task="audit", key="42", status="running")
    run.append(Event("step"))
    list(islice(client.feed(), 2))
    rows("DELETE FROM agentstate_feed WHERE position = 1")

    with pytest.raises(CursorExpired) as gone:
        next(client.feed())
    assert (gone.value.earliest, gone.value.latest) == (2, 2)


def test_a_silent_store_is_waited_for_and_then_said(follower, between, monkeypatch):
    for following in (sync_following, async_following):
        monkeypatch.setattr(following, "PAUSE_SECONDS", 0.05)
    client = follower()
    run = client.create(task="audit", key="42", status="running")
    followed = run.follow(patience_seconds=0)
    next(followed)
    run.append(Event("step"))
    between.cut_answers("/live/v1/runs/42/events", times=99)
    with pytest.raises(Unreachable):
        next(followed)
    patient = run.follow(after=1, patience_seconds=120)
    between.cut_answers("/live/v1/runs/42/events", times=QUICK.attempts + 1)
    assert next(patient).seq == 2
