"""Contenders that take turns, so that whatever else the machine does meets all of them.

A round is one turn of each, every other round backwards; a first round warms up and is not counted.
Ratios are taken within a round and their median over the rounds is told: absolute figures of two
runs, or two machines, say nothing about each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agentstate.cli.output import progress
from bench.report import Options

FULL_SECONDS, QUICK_SECONDS = 2, 1


@dataclass(frozen=True, slots=True)
class Measured:
    """A turn. p50_ms, p99_ms: of one call, None where nobody measured it."""

    per_second: float
    p50_ms: float | None = None
    p99_ms: float | None = None


type Turn = Callable[[], Measured]


def measured(count: int, seconds: float, took_ms: Sequence[float]) -> Measured:
    """count in so many seconds; took_ms: of each call, in any order."""
    return Measured(count / seconds, percentile(took_ms, 0.5), percentile(took_ms, 0.99))


def percentile(figures: Sequence[float], part: float) -> float | None:
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


@dataclass(slots=True)
class Turns:
    """What was found, by group (the same number of callers, say) and contender."""

    unit: str  # the contender that is 1.0
    found: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def play(self, options: Options, groups: Mapping[str, Mapping[str, Turn]]) -> None:
        """All rounds of all groups. A quick one has no round to warm up."""
        first = 1 if options.quick else 0
        for number in range(first, options.rounds + 1):
            for group, contenders in groups.items():
                self.play_round(number, group, contenders)

    def play_round(self, number: int, group: str, contenders: Mapping[str, Turn]) -> None:
        names = list(contenders) if number % 2 else list(reversed(contenders))
        took = {name: contenders[name]() for name in names}
        if number:
            for name, one in took.items():
                self.found.setdefault((group, name), []).append(one)
        told = ", ".join(f"{name} {took[name].per_second:,.0f}" for name in contenders)
        progress(f"round {number or 'to warm up'} · {group} · {told}")

    def has(self, group: str, name: str) -> bool:
        return (group, name) in self.found

    def per_second(self, group: str, name: str) -> float:
        return statistics.median(one.per_second for one in self.found[group, name])

    def ratio(self, group: str, name: str, to: str | None = None) -> float:
        """The median of the ratios within each round; to: the unit, unless another is named."""
        pairs = zip(self.found[group, name], self.found[group, to or self.unit], strict=True)
        return statistics.median(own.per_second / other.per_second for own, other in pairs)

    def p50_ms(self, group: str, name: str) -> float | None:
        return _median([one.p50_ms for one in self.found[group, name]])

    def p99_ms(self, group: str, name: str) -> float | None:
        return _median([one.p99_ms for one in self.found[group, name]])

    def rows(self, groups: Collection[str] | None = None) -> tuple[tuple[str, ...], ...]:
        """For a table with `columns`; of these groups alone, if they are named."""
        return tuple(self._row(*key) for key in self.found if groups is None or key[0] in groups)

    def _row(self, group: str, name: str) -> tuple[str, ...]:
        figures = [one.per_second for one in self.found[group, name]]
        has_unit = self.has(group, self.unit)
        return (
            group, name, f"{statistics.median(figures):,.0f}",
            f"{min(figures):,.0f} to {max(figures):,.0f}",
            f"{self.ratio(group, name):.2f}" if has_unit else "",
            ms(self.p50_ms(group, name)), ms(self.p99_ms(group, name)),
        )  # fmt: skip


def columns(group: str, unit: str) -> tuple[str, ...]:
    return (group, "what", "a second", "lowest to highest", f"of {unit}", "p50 ms", "p99 ms")


def ms(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _median(figures: Sequence[float | None]) -> float | None:
    known = [one for one in figures if one is not None]
    return statistics.median(known) if known else None


def seconds_of(options: Options) -> int:
    """How long a turn is; whole, as pgbench wants it."""
    return QUICK_SECONDS if options.quick else FULL_SECONDS
