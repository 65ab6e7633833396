"""A scenario: what fleet there is, which runs it gets and what goes wrong, read from TOML. Pure.

Every value has a default and bounds; a name that is not known is refused, so that a typing error
is not a calm day. With the same scenario and seed the same runs are made in the same order and the
same faults are due at the same moments; whom they hit depends on who is in a step just then.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tasks.simulate.plan import Fault

FOLDER = Path(__file__).resolve().parent.parent / "scenarios"
DEFAULT = "day"


class BadScenario(Exception):
    """A scenario cannot be taken. The text says where and what the rule is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the day: for so many seconds (at speed 1) so many runs wait. Phases repeat."""

    name: str
    seconds: float
    backlog: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """workers_per_machine: how many share a name. old_workers: how many of them write events of
    types that nobody knows any more. …_every: each Nth run, 0: none. faults: a minute, over all.
    """

    about: str = ""
    seed: int = 1
    workers: int = 4
    workers_per_machine: int = 1
    old_workers: int = 0
    speed: float = 1.0
    lease_ttl_seconds: int = 6
    backlog: int = 4
    tight_every: int = 0
    family_every: int = 0
    children: int = 2
    poison_every: int = 0
    faults: Mapping[Fault, float] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()

    def backlog_at(self, seconds: float) -> int:
        """How many runs should wait so long after the start."""
        at = seconds % (sum(phase.seconds for phase in self.phases) or 1)
        for phase in self.phases:
            if at < phase.seconds:
                return phase.backlog
            at -= phase.seconds
        return self.backlog


WHOLE: dict[str, tuple[int, int]] = {
    "seed": (0, 2**31 - 1),
    "workers": (1, 200),
    "workers_per_machine": (1, 200),
    "old_workers": (0, 200),
    "lease_ttl_seconds": (1, 3_600),
}
RUNS: dict[str, tuple[int, int]] = {
    "backlog": (0, 1_000),
    "tight_every": (0, 10**6),
    "family_every": (0, 10**6),
    "children": (1, 20),
    "poison_every": (0, 10**6),
}
RATE_MAX, SPEED_MAX, PHASE_SECONDS_MAX, PHASES_MAX = 600.0, 1_000.0, 86_400.0, 50


def names() -> list[str]:
    """The scenarios that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name: str) -> Scenario:
    """One of `names()`, or a file. Raises BadScenario."""
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        known = ", ".join(names())
        raise BadScenario(f"{name}: {wrong} (a TOML file, or one of {known})") from None
    try:
        return parse(document)
    except BadScenario as wrong:
        raise BadScenario(f"{name}: {wrong}") from None


def parse(document: Mapping[str, Any]) -> Scenario:
    """A scenario from what is in its file. Raises BadScenario."""
    known = {f.name for f in fields(Scenario)} - set(RUNS) | {"runs"}
    _refuse_unknown("", document, known)
    runs, faults = (_table(document, name) for name in ("runs", "faults"))
    _refuse_unknown("runs.", runs, set(RUNS))
    _refuse_unknown("faults.", faults, set(Fault))
    values: dict[str, Any] = {}
    for where, found, rules in (("", document, WHOLE), ("runs.", runs, RUNS)):
        values |= {k: _whole(where + k, found[k], rules[k]) for k in rules if k in found}
    if "speed" in document:
        values["speed"] = _number("speed", document["speed"], SPEED_MAX, least_excluded=True)
    if "about" in document:
        values["about"] = _text("about", document["about"])
    rates = {Fault(k): _number(f"faults.{k}", v, RATE_MAX) for k, v in faults.items()}
    return Scenario(**values, faults=rates, phases=_phases(document.get("phases", [])))


def _phases(found: Any) -> tuple[Phase, ...]:
    if not isinstance(found, list) or len(found) > PHASES_MAX:
        raise BadScenario(f"phases: at most {PHASES_MAX} tables")
    return tuple(_phase(f"phases[{at}].", phase) for at, phase in enumerate(found))


def _phase(where: str, found: Any) -> Phase:
    if not isinstance(found, dict) or set(found) != {"name", "seconds", "backlog"}:
        raise BadScenario(f"{where}: name, seconds and backlog")
    seconds = _number(f"{where}seconds", found["seconds"], PHASE_SECONDS_MAX, least_excluded=True)
    backlog = _whole(f"{where}backlog", found["backlog"], RUNS["backlog"])
    return Phase(name=_text(f"{where}name", found["name"]), seconds=seconds, backlog=backlog)


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise BadScenario(f"{name}: a table")
    return found


def _refuse_unknown(where: str, found: Mapping[str, Any], known: set[Any]) -> None:
    if unknown := sorted(set(found) - known):
        raise BadScenario(f"{where}{unknown[0]}: not known; one of {', '.join(sorted(known))}")


def _whole(name: str, value: Any, bounds: tuple[int, int]) -> int:
    least, most = bounds
    if type(value) is not int or not least <= value <= most:
        raise BadScenario(f"{name}: a whole number from {least} to {most}")
    return value


def _number(name: str, value: Any, most: float, *, least_excluded: bool = False) -> float:
    fine = type(value) in (int, float) and 0 <= value <= most
    if not fine or (least_excluded and value == 0):
        raise BadScenario(f"{name}: a number {'above' if least_excluded else 'from'} 0 to {most:g}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise BadScenario(f"{name}: a line of text")
    return value
