"""The feed: ordered, unique, whole per batch, complete, and the same whenever it is read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.torture.final import FeedRow, Final
from bench.torture.history import OK, Op
from bench.torture.order import FEED, Finding
from bench.torture.runs import marks_of


def check_feed(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """The stored feed against the logs, then every page that somebody read against the feed."""
    yield from check_rows(final)
    yield from check_batches(ops, final)
    pages = [op for op in ops if op.kind == "feed" and op.outcome == OK]
    for page in pages:
        yield from check_page(page, final.feed)
    yield from check_progress(pages)


def check_rows(final: Final) -> Iterator[Finding]:
    """Positions 1, 2, 3 …; in them each run's numbers 1 to the last, and its versions."""
    came_to: dict[str, int] = {}
    for position, row in enumerate(final.feed, 1):
        if row.position != position:
            yield Finding(FEED, "feed", f"after {position - 1} comes {row.position}")
            return
        expected = came_to.get(row.run, 0) + 1
        if row.first_seq != expected or row.last_seq < row.first_seq:
            yield Finding(
                FEED,
                f"run {row.run}",
                f"position {position} has {row.first_seq} to {row.last_seq}, expected {expected}",
            )
        came_to[row.run] = row.last_seq
        events = final.events.get(row.run, [])
        if row.last_seq <= len(events) and events[row.last_seq - 1].version != row.version:
            yield Finding(FEED, f"run {row.run}", f"position {position} says v{row.version}")
    for run, events in final.events.items():
        if came_to.get(run, 0) != len(events):
            yield Finding(
                FEED,
                f"run {run}",
                f"the feed ends at {came_to.get(run, 0)}, the log at {len(events)}",
            )


def check_batches(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """The events of one append are in one row."""
    row_of: dict[tuple[str, int], int] = {}
    for row in final.feed:
        for seq in range(row.first_seq, row.last_seq + 1):
            row_of[row.run, seq] = row.position
    seqs = {
        (run, event.mark): event.seq for run, events in final.events.items() for event in events
    }
    for op in ops:
        if op.kind != "append" or op.ask["count"] < 2:
            continue
        run = op.on[4:]
        at = {row_of.get((run, seqs[run, m])) for m in marks_of(op) if (run, m) in seqs}
        if len(at) > 1:
            yield Finding(FEED, op.on, f"append {op.id} was split over positions {at}")


def check_page(op: Op, feed: list[FeedRow]) -> Iterator[Finding]:
    """A page holds what follows its `after`. items: [position, run, first, last, version] each."""
    after, items = op.ask["after"], op.answer["items"]
    there = feed[after : after + len(items)]
    for item, row in zip(items, there, strict=False):
        if item != [row.position, row.run, row.first_seq, row.last_seq, row.version]:
            yield Finding(FEED, op.on, f"page {op.id} after {after} had {item}, there is {row}")
            return
    if len(items) > len(there):
        yield Finding(FEED, op.on, f"page {op.id} had {items[len(there)]}, which is not there")
    expected = after + len(items)
    if op.answer["position"] != expected:
        yield Finding(
            FEED, op.on, f"page {op.id} goes on at {op.answer['position']}, not {expected}"
        )


def check_progress(pages: list[Op]) -> Iterator[Finding]:
    """Who asks later sees no less: a page that is not full ends where the feed did at that time."""
    ends = sorted((op.ended_at, op.answer["position"]) for op in pages)
    seen, index = 0, 0
    for op in sorted(pages, key=lambda op: op.invoked_at):
        while index < len(ends) and ends[index][0] < op.invoked_at:
            seen = max(seen, ends[index][1])
            index += 1
        full = len(op.answer["items"]) >= op.ask["limit"]
        if not full and op.answer["position"] < seen:
            yield Finding(
                FEED,
                op.on,
                f"page {op.id} ended at {op.answer['position']}, {seen} had been read before",
            )
