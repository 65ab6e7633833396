"""The figures of a trial, and whether it was passed."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from bench.torture.calls import NOTHING_DONE
from bench.torture.faults import Fault
from bench.torture.final import Final
from bench.torture.history import History
from bench.torture.order import DOUBLED, HOLE, LOST, MEANINGS, OVERLAP, Finding

SHOWN = 20  # findings that are printed; all of them are in the folder


NO_ANSWER = frozenset({"no-answer", "unreadable", "outcome-unknown", "internal", ""})


def is_not_now(code: str) -> bool:
    return code in NOTHING_DONE


def is_reason(code: str) -> bool:
    return code not in NOTHING_DONE | NO_ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a trial. stops: each fault with the seconds from its end until every hot run was
    served again; None: one never was. longest_allowed: of them, in seconds. differences: what the
    store's own audit found. unhappy: what went wrong otherwise. codes: of the calls that were not
    acknowledged."""

    seed: int
    seconds: float
    longest_allowed: float
    calls: int
    acknowledged: int
    refused: int
    busy: int
    unknown: int
    runs: int
    events: int
    feed: int
    terms: int
    ledger_lines: int
    stops: tuple[tuple[Fault, float | None], ...]
    findings: tuple[Finding, ...]
    differences: tuple[str, ...]
    unhappy: tuple[str, ...] = ()
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not (self.findings or self.differences or self.unhappy or self.late)

    @property
    def late(self) -> tuple[tuple[Fault, float | None], ...]:
        """Faults after which the service was not back in time."""
        return tuple(
            (fault, stop)
            for fault, stop in self.stops
            if stop is None or stop > self.longest_allowed
        )

    @property
    def longest_stop(self) -> float:
        return max((stop for _, stop in self.stops if stop is not None), default=0.0)


def stops_of(
    faults: Sequence[Fault], history: History, things: Sequence[str]
) -> Iterator[tuple[Fault, float | None]]:
    """For each fault how long after its end every one of the things was served again: until a call
    about it was acknowledged that had been sent after the end."""
    served = [Served(history.acknowledged_at.get(thing, [])) for thing in things]
    for fault in faults:
        waits = [one.wait_after(fault.ended_at) for one in served]
        known = [wait for wait in waits if wait is not None]
        yield fault, max(known) if len(known) == len(waits) else None


class Served:
    """When calls about something were sent and acknowledged; asked for the next one."""

    def __init__(self, acknowledged: Sequence[tuple[float, float]]) -> None:
        ordered = sorted(acknowledged)
        self._sent = [sent for sent, _ in ordered]
        # The earliest answer among all that were sent at or after each moment.
        earliest = list(accumulate((answered for _, answered in reversed(ordered)), min))
        self._earliest = earliest[::-1]

    def wait_after(self, at: float) -> float | None:
        index = bisect_left(self._sent, at)
        return self._earliest[index] - at if index < len(self._sent) else None


def sizes_of(final: Final) -> dict[str, int]:
    return {
        "runs": len(final.heads),
        "events": sum(map(len, final.events.values())),
        "feed": len(final.feed),
        "terms": sum(map(len, final.terms.values())),
        "ledger_lines": sum(len(budget.entries) for budget in final.budgets.values()),
    }


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people."""
    kinds = Counter(finding.kind for finding in verdict.findings)
    per_second = verdict.calls / verdict.seconds if verdict.seconds else 0
    yield f"seed {verdict.seed}: {verdict.seconds:.0f} s, {per_second:.0f} calls a second"
    yield ""
    rows: list[tuple[str, int, str]] = [
        ("calls", verdict.calls, ""),
        ("  acknowledged", verdict.acknowledged, ""),
        ("  refused", verdict.refused, f"with a reason: {_codes(verdict, is_reason)}"),
        ("  not now", verdict.busy, f"nothing was done: {_codes(verdict, is_not_now)}"),
        ("  unknown", verdict.unknown, "no answer: may have happened, once"),
        ("runs", verdict.runs, f"with {verdict.events:,} events"),
        ("terms", verdict.terms, "of ownership"),
        ("ledger lines", verdict.ledger_lines, ""),
        ("feed", verdict.feed, "positions"),
        ("faults", len(verdict.stops), _told(verdict)),
        ("lost", kinds.pop(LOST, 0), MEANINGS[LOST]),
        ("doubled", kinds.pop(DOUBLED, 0), MEANINGS[DOUBLED]),
        ("holes", kinds.pop(HOLE, 0), MEANINGS[HOLE]),
        ("overlaps", kinds.pop(OVERLAP, 0), MEANINGS[OVERLAP]),
        ("other findings", sum(kinds.values()), ", ".join(sorted(kinds))),
        ("audit", len(verdict.differences), "differences, derived anew from events and ledgers"),
    ]
    for name, count, more in rows:
        yield f"  {name:<16}{count:>10,}  {more}".rstrip()
    yield f"  {'longest stop':<16}{verdict.longest_stop:>9.1f}s  {_slowest(verdict)}".rstrip()
    for finding in verdict.findings[:SHOWN]:
        yield f"  {finding.kind}: {finding.what}: {finding.text}"
    for text in (*verdict.differences[:SHOWN], *verdict.unhappy):
        yield f"  {text}"
    for fault, stop in verdict.late:
        back = "never" if stop is None else f"only after {stop:.1f} s"
        yield f"  late: after {fault.name} ({fault.detail}) the service was back {back}"


def _codes(verdict: Verdict, wanted: Callable[[str], bool]) -> str:
    found = Counter({code: n for code, n in verdict.codes.items() if wanted(code)})
    return ", ".join(f"{count:,} {code}" for code, count in found.most_common())


def _told(verdict: Verdict) -> str:
    names = Counter(fault.name for fault, _ in verdict.stops)
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))


def _slowest(verdict: Verdict) -> str:
    slowest = max(
        ((stop, fault) for fault, stop in verdict.stops if stop is not None),
        key=lambda pair: pair[0],
        default=None,
    )
    return f"until every hot run was served again, after: {slowest[1].name}" if slowest else ""


def write_findings(verdict: Verdict, path: Path) -> None:
    """All of them, a JSON line each."""
    with path.open("w") as file:
        for finding in verdict.findings:
            file.write(json.dumps([finding.kind, finding.what, finding.text]) + "\n")
        for text in (*verdict.differences, *verdict.unhappy):
            file.write(json.dumps(["audit", "", text]) + "\n")
