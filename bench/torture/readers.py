"""Those who follow: a run's events by stream, and the feed's consumers with their checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from bench.torture.final import EventLine, Final
from bench.torture.history import OK, REFUSED, Op
from bench.torture.order import FEED, LOST, WRONG, Finding, Placed, check_order
from bench.torture.streams import QUIET


def check_readers(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """Every stream against its run's log, every consumer as a register that only grows."""
    consumers: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.kind == "stream" and op.outcome == OK:
            yield from check_stream(op, final.events.get(op.on[4:], []))
        elif op.on.startswith("consumer:"):
            consumers[op.on[9:]].append(op)
    for name in consumers.keys() | final.consumers.keys():
        stands = final.consumers.get(name)
        yield from check_consumer(f"consumer {name}", consumers[name], stands, len(final.feed))


def check_stream(op: Op, log: list[EventLine]) -> Iterator[Finding]:
    """What came is what the log has behind `after`, each event once and in order, however the
    connection ended. items: [number, version, type] each. to_end: nothing was left to come."""
    came_to = op.ask["after"]
    for seq, version, kind in op.answer["items"]:
        if seq != came_to + 1:
            yield Finding(FEED, op.on, f"stream {op.id}: after {came_to} came {seq}")
            return
        came_to = seq
        event = log[seq - 1] if seq <= len(log) else None
        if event is None:
            yield Finding(LOST, op.on, f"stream {op.id} had event {seq}, which is not there")
        elif (event.version, event.type) != (version, kind):
            yield Finding(WRONG, op.on, f"stream {op.id} had event {seq} as v{version} {kind}")
    wanted = op.ask.get("to_end", 0)
    if op.answer["end"] == QUIET and came_to < wanted:
        yield Finding(FEED, op.on, f"stream {op.id} fell silent at {came_to} of {wanted}")


def check_consumer(
    what: str, ops: list[Op], stands: int | None, feed_ends: int
) -> Iterator[Finding]:
    """Never back, never beyond the feed, and only where somebody said it was."""
    placed: list[Placed] = []
    asked = {op.ask["position"] for op in ops if op.kind == "checkpoint" and op.outcome != REFUSED}
    for op in ops:
        name = f"{op.kind} {op.id}" + (f" ({op.code})" if op.code else "")
        seen = op.ask["position"] if op.outcome == OK and op.kind == "checkpoint" else None
        if seen is None:
            seen = op.answer.get("position")
            if seen is not None and seen not in asked | {0}:
                yield Finding(WRONG, what, f"{name} saw {seen}, where nobody had set it")
        if seen is None or (op.replayed and op.outcome != OK):
            continue
        placed.append(Placed(seen, op.invoked_at, op.ended_at, name))
        if seen > feed_ends:
            yield Finding(WRONG, what, f"{name}: {seen} is beyond the feed's end, {feed_ends}")
        if op.code == "version-conflict" and seen <= op.ask["position"]:
            yield Finding(WRONG, what, f"{name} at {seen} refused {op.ask['position']}")
    yield from check_order(what, placed)
    confirmed = max((int(one.rank) for one in placed), default=0)
    if (stands or 0) < confirmed:
        yield Finding(LOST, what, f"it stands at {stands}, {confirmed} was confirmed")
    elif stands is not None and stands not in asked | {0}:
        yield Finding(WRONG, what, f"it stands at {stands}, where nobody set it")
