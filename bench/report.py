"""What a benchmark tells, and how it is kept: tables, goals, and where and how they were measured.

A benchmark is a module bench/NAME.py with ABOUT (one line) and `report(options) -> Report`; its
name stands in `bench/suite.py`. `./run bench` keeps each as bench/results/NAME.json, of which
`bench/document.py` writes docs/benchmarks.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """rows: as many cells each as there are columns, ready to be read. note: one paragraph."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """what is measured, what was asked for and what was found, each in words with its unit.

    why: of one that was not reached, why not and what was tried.
    """

    what: str
    asked: str
    found: str
    reached: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    tables: tuple[Table, ...]
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """quick: seconds per contender cut, one round. home: a folder for what is large, kept there."""

    quick: bool = False
    rounds: int = 5
    home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A report with how it came about. made_at: UTC, to the minute. versions: name -> version.

    before: what the full run before this one found, by goal; it says how far one can rely on it.
    """

    name: str
    about: str
    command: str
    made_at: str
    seconds: int
    quick: bool
    rounds: int
    cores: int
    versions: Mapping[str, str]
    report: Report
    before: Mapping[str, str] = field(default_factory=dict)


def write_kept(kept: Kept) -> str:
    """As JSON that a person can read, and that changes line by line."""
    return json.dumps(asdict(kept), indent=1, ensure_ascii=False) + "\n"


def read_kept(text: str) -> Kept:
    """The inverse of `write_kept`. Raises KeyError or TypeError for what is none."""
    told: dict[str, Any] = json.loads(text)
    return Kept(**told | {"report": read_report(told["report"])})


def read_report(told: dict[str, Any]) -> Report:
    """Of what `asdict` makes of one, by way of JSON."""
    return Report(
        tables=tuple(_read_table(one) for one in told["tables"]),
        goals=tuple(Goal(**one) for one in told["goals"]),
    )


def _read_table(told: dict[str, Any]) -> Table:
    rows = tuple(tuple(row) for row in told["rows"])
    return Table(**told | {"columns": tuple(told["columns"]), "rows": rows})
