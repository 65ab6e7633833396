"""What those who read the feed are told: pages, patterns, what is gone, and their checkpoints."""

from datetime import timedelta

import pytest

from agentstate import store as the_store
from agentstate.store import feed, retention
from agentstate.store.commands import CheckpointSet, SetCheckpoint
from agentstate.store.errors import CursorExpired, Invalid, NotFound, VersionConflict
from tests.store.asking import FLEET, at_once, event, rows


def mark(consumer, position):
    return the_store.execute(SetCheckpoint(consumer=consumer, position=position), by=FLEET)


def move_all():
    while feed.move():
        pass


def test_a_batch_is_one_change_whatever_the_limit(store):
    store.create("42", events=(event("a"), event("b")))
    store.append("42", [event("c")] * 3)
    move_all()

    first = feed.read(after=0, limit=1)
    second = feed.read(after=first.position, limit=1)

    (created,), (appended,) = first.items, second.items
    assert (created.run, created.first_seq, created.last_seq, created.version) == ("42", 1, 3, 1)
    assert created.types == ("run.created", "a", "b")
    assert (appended.first_seq, appended.last_seq) == (4, 6)
    assert (first.position, second.position, second.latest) == (1, 2, 2)
    assert feed.read(after=2, limit=10).items == ()


def test_patterns_choose_by_the_beginning_of_a_type_and_nothing_else(store):
    store.create("42")
    for name in ("run_x", "runx.y", "run.custom", "tool.called"):
        store.append("42", [event(name)])
    move_all()

    def found(*types):
        return [change.types[0] for change in feed.read(after=0, types=types, limit=10).items]

    assert found("run.*") == ["run.created", "run.custom"]
    assert found("tool.called", "run_x") == ["run_x", "tool.called"]
    assert found("run") == []


def test_a_search_that_finds_nothing_still_gets_on(store, monkeypatch):
    monkeypatch.setattr(feed, "ROWS_PER_SEARCH", 3)
    store.create("42")
    for _ in range(7):
        store.append("42")
    store.append("42", [event("rare")])
    move_all()

    positions, position, found = [], 0, []
    while position < feed.read(after=position, limit=1).latest:
        page = feed.read(after=position, types=("rare",), limit=2)
        position, found = page.position, found + [c.last_seq for c in page.items]
        positions.append(position)

    assert positions == [3, 6, 9]
    assert found == [9]


def test_what_is_no_longer_kept_is_said_with_where_the_feed_begins(store, clock):
    store.create("42")
    move_all()
    clock.advance(seconds=timedelta(days=8).total_seconds())
    store.append("42")
    move_all()
    retention.purge("feed")

    with pytest.raises(CursorExpired) as gone:
        feed.read(after=0, limit=10)
    assert gone.value.facts == {"earliest": 2, "latest": 2}
    assert gone.value.retry == "reread"
    assert [c.last_seq for c in feed.read(after=1, limit=10).items] == [2]

    clock.advance(seconds=timedelta(days=8).total_seconds())
    retention.purge("feed")
    with pytest.raises(CursorExpired) as gone:
        feed.read(after=1, limit=10)
    assert gone.value.facts == {"earliest": 3, "latest": 2}
    assert feed.read(after=2, limit=10).items == ()


def test_nobody_waits_at_a_position_that_the_feed_has_not_reached(store):
    store.create("42")
    move_all()
    with pytest.raises(Invalid, match="at most 1"):
        feed.read(after=2, limit=10)


def test_runs_past_their_retention_are_passed_over(store, clock):
    store.create("old", retain_seconds=10)
    store.create("new")
    store.move("old", "cancelled")
    move_all()
    assert {c.run for c in feed.read(after=0, limit=10).items} == {"old", "new"}

    clock.advance(seconds=10)

    page = feed.read(after=0, limit=10)
    assert [c.run for c in page.items] == ["new"]
    assert page.position == page.latest == 3


def test_a_checkpoint_never_goes_back_and_not_beyond_the_feed(store):
    store.create("42")
    store.append("42")
    move_all()

    assert mark("billing", 1).position == 1
    assert mark("billing", 1).position == 1
    assert mark("billing", 2).position == 2
    with pytest.raises(VersionConflict) as refused:
        mark("billing", 1)
    assert refused.value.current == {"consumer": "billing", "position": 2}
    with pytest.raises(Invalid, match="at most 2"):
        mark("billing", 3)
    with pytest.raises(Invalid, match="at most 2"):
        mark("other", 3)

    assert feed.consumer("billing").position == 2
    with pytest.raises(NotFound):
        feed.consumer("other")
    assert store.refusals() == ["version-conflict"]


def test_of_two_who_set_a_new_checkpoint_at_once_the_higher_one_stays(store):
    store.create("42")
    for _ in range(9):
        store.append("42")
    move_all()

    outcomes = at_once(8, lambda n: mark("billing", n + 1))

    assert feed.consumer("billing").position == 8
    refused = [o for o in outcomes if not isinstance(o, CheckpointSet)]
    assert {type(o) for o in refused} <= {VersionConflict}


def test_lag_is_told_in_positions_and_seconds(store, clock):
    store.create("42")
    move_all()
    mark("billing", 1)
    mark("audit", 0)
    clock.advance(seconds=5)
    store.append("42")
    move_all()
    clock.advance(seconds=7)

    by_name = {c.name: c for c in feed.consumers(limit=10)}

    assert list(by_name) == ["audit", "billing"]
    assert (by_name["billing"].lag, by_name["billing"].lag_seconds) == (1, 7.0)
    assert (by_name["audit"].lag, by_name["audit"].lag_seconds) == (2, 12.0)
    assert not by_name["audit"].expired
    mark("billing", 2)
    assert (feed.consumer("billing").lag, feed.consumer("billing").lag_seconds) == (0, 0.0)

    clock.advance(seconds=timedelta(days=8).total_seconds())
    retention.purge("feed")
    assert feed.consumer("audit").expired
    assert not feed.consumer("billing").expired
    assert rows("SELECT count(*) FROM agentstate_feed") == [(0,)]
    assert [c.name for c in feed.consumers(after="audit", limit=1)] == ["billing"]
