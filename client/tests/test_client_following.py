"""Followers and servers that are not quite as they should be, or no longer what they were."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from scripted_peer import AT, Peer, Reply, problem

from agentstate_client import Client, Unauthenticated
from agentstate_client._async import following as async_following
from agentstate_client._sync import following as sync_following

FEED, EVENTS, CONSUMER = "/live/v1/feed", "/live/v1/runs/r/events", "/feed/consumers/quiet"
OVER = problem(401, "unauthenticated")
PAUSE_SECONDS = 0.3


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for following in (sync_following, async_following):
        monkeypatch.setattr(following, "PAUSE_SECONDS", PAUSE_SECONDS)


def page(position: int, *changes: tuple[int, str, int, int]) -> Reply:
    """Of changes (position, run, first_seq, last_seq)."""
    names = ("position", "run", "first_seq", "last_seq")
    rest: dict[str, Any] = {"version": 1, "types": ["x"], "at": AT}
    items = [dict(zip(names, change, strict=True)) | rest for change in changes]
    return Reply(200, {"items": items, "position": position})


def asked(peer: Peer, path: str) -> list[float]:
    """When requests for the path came."""
    return [seen.at for seen in peer.seen if seen.path.partition("?")[0] == path]


def noted(peer: Peer) -> list[int]:
    return [s.body["position"] for s in peer.to(CONSUMER) if s.method == "PUT"]


@pytest.mark.parametrize("path", [FEED, EVENTS])
def test_who_is_told_nothing_at_once_does_not_ask_again_at_once(
    peer: Peer, client: Client, path: str
) -> None:
    """S-303 (docs/sweeps.md): a hundred requests a second, as long as the other side was so."""
    peer.says("/runs/r", Reply(200, {"status": "running", "last_seq": 0}))
    nothing = Reply(200, {"items": [], "position": 0, "last_seq": 0})
    peer.says(path, *[nothing] * 3, OVER)

    with pytest.raises(Unauthenticated):
        next(iter(client.feed(after=0) if path == FEED else client.run("r").follow()))

    times = asked(peer, path)
    assert len(times) == 4
    # The waits of another thread end some milliseconds early by this clock.
    assert times[-1] - times[0] > 3 * PAUSE_SECONDS - 0.1


def test_a_key_that_is_another_runs_now_is_followed_from_its_first_number(
    peer: Peer, client: Client
) -> None:
    """S-304 (docs/sweeps.md): all changes of the new run were left out until it had more events
    than the one that is gone."""
    before = [(1, "nightly", 1, 1), (2, "nightly", 2, 9)]
    doubled = [(2, "nightly", 2, 9), (3, "nightly", 5, 9)]
    anew = [(4, "nightly", 1, 1), (5, "nightly", 2, 3)]
    peer.says(FEED, page(2, *before), page(3, *doubled), page(5, *anew), OVER)

    found = [(c.position, c.last_seq) for c in islice(client.feed(after=0), 4)]

    assert found == [(1, 1), (2, 9), (4, 1), (5, 3)]


def test_what_a_filter_passes_over_is_noted_while_nothing_waits_to_be_acknowledged(
    peer: Peer, client: Client
) -> None:
    """S-305 (docs/sweeps.md)."""
    peer.says(CONSUMER, Reply(200, {"consumer": "quiet", "position": 3}))
    peer.says(
        FEED,
        page(9),
        page(10, (10, "r", 1, 1)),
        page(15),
        page(17, (17, "r", 2, 2)),
        page(20),
        OVER,
    )
    changes = iter(client.feed(consumer="quiet", types=["x"]))

    next(changes)
    assert noted(peer) == [9]
    second = next(changes)
    assert noted(peer) == [9]  # 10 may still be at work
    second.ack()
    with pytest.raises(Unauthenticated):
        next(changes)
    assert noted(peer) == [9, 17, 20]


@pytest.mark.parametrize(
    ("refusal", "tries"), [(problem(403, "not-allowed"), 1), (problem(412, "version-conflict"), 2)]
)
def test_what_cannot_be_noted_keeps_nobody_from_reading(
    peer: Peer, client: Client, refusal: Reply, tries: int
) -> None:
    """S-305 (docs/sweeps.md)."""
    peer.says(CONSUMER, Reply(200, {"consumer": "quiet", "position": 3}), refusal)
    peer.says(FEED, page(9), page(12), page(13, (13, "r", 1, 1)), OVER)

    assert next(iter(client.feed(consumer="quiet", types=["x"]))).position == 13
    assert len(noted(peer)) == tries


def test_who_says_where_to_begin_has_nothing_noted(peer: Peer, client: Client) -> None:
    """S-305 (docs/sweeps.md): between its checkpoint and there may be what nobody has read."""
    peer.says(FEED, page(9), page(13, (13, "r", 1, 1)), OVER)

    assert next(iter(client.feed(consumer="quiet", after=8, types=["x"]))).position == 13
    assert noted(peer) == []
