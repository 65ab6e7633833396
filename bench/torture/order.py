"""Findings, and the one question about time that every check asks.

Is a history linearizable? In general that takes a search over orders, and is NP-complete. Not
here: the store itself puts a number on every effect (a run's version, a unit's token, a budget's
ledger line, a feed's position) and tells it in its answers. So there is exactly one order that can
explain a history, the order of those numbers; what is left to decide is

1. whether that order obeys real time: a call that had ended before another was sent must not have
   the greater number (`check_order`, one pass after a sort); and
2. whether each call, at its place, is what the plain object (a log, a register, a lock, a bank)
   would have done there (the modules runs, units, budgets: one pass over the log each).

Both hold if and only if the history is linearizable: the order is the witness, and no other order
would give the numbers that the callers were told. A call without an answer may have happened or
not: if its mark is in the log it has a place like any other, with no end to hold against it; if it
is not, leaving it out is the explanation. A read stands between the write whose number it saw and
the next one. Linearizability is local (Herlihy and Wing): a history of many runs, units and
budgets is linearizable if it is for each of them, so each is checked by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LOST, DOUBLED, HOLE, OVERLAP = "lost", "doubled", "hole", "overlap"
ORDER, STALE, INVENTED, TORN = "order", "stale-write", "invented", "torn"
OVER_CAP, WRONG, FEED = "over-cap", "wrong-answer", "feed"
# What each kind of finding means, for people.
MEANINGS = {
    LOST: "acknowledged, and not there",
    DOUBLED: "there twice",
    HOLE: "numbers with a gap",
    OVERLAP: "two holders at a time",
    ORDER: "not linearizable: the order of numbers goes against time",
    STALE: "written under a token that had been superseded",
    INVENTED: "there, and nobody asked for it, or it was refused",
    TORN: "part of what happens all at once or not at all",
    OVER_CAP: "admitted beyond the cap, or over it and not flagged",
    WRONG: "an answer that no state of the store explains",
    FEED: "the feed skips, repeats, splits or goes back",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise: its kind, what it is about, and what was seen."""

    kind: str
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A call at its place. rank: the number of its effect; a read of n stands at n + ½."""

    rank: float
    invoked_at: float
    ended_at: float
    name: str


def check_order(what: str, placed: Iterable[Placed]) -> list[Finding]:
    """Whether the order by rank obeys real time. Those of one rank may stand in any order."""
    found: list[Finding] = []
    latest_before: Placed | None = None  # of all with a smaller rank: who was sent last
    latest: Placed | None = None
    rank = float("-inf")
    for one in sorted(placed, key=lambda p: p.rank):
        if one.rank > rank:
            rank, latest_before = one.rank, latest
        if latest_before is not None and one.ended_at < latest_before.invoked_at:
            found.append(Finding(ORDER, what, _told(latest_before, one)))
        if latest is None or one.invoked_at > latest.invoked_at:
            latest = one
    return found


def _told(earlier: Placed, later: Placed) -> str:
    gap_ms = (earlier.invoked_at - later.ended_at) * 1000
    return (
        f"{later.name} (at {later.rank:g}) had ended {gap_ms:.1f} ms before {earlier.name}"
        f" (at {earlier.rank:g}) was sent"
    )
