"""What each key does, page by page: the sheet behind `?` is made of this, and tests press them.

A link or field that a key is for says so itself (`data-hot="r"`); the rest is in keys.js.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Keys and what they do on these pages, by the names of their addresses; none: on every page.

    In a key a space stands between two that are pressed one after the other, a comma between two
    of which each does something.
    """

    title: str
    pages: frozenset[str] = frozenset()
    keys: Mapping[str, str]


SECTIONS = (
    Section(
        title="Every page",
        keys={
            "/, ⌘ K": "jump to a run, unit, worker or request (Ctrl K)",
            "g h": "Now",
            "g r": "Runs",
            "g l": "Leases",
            "g w": "Workers",
            "g c": "Contention",
            "g b": "Budgets",
            "g u": "Bulk",
            "g n": "Alerts",
            "g a": "Audit",
            "g s": "System",
            "Esc": "close what is open",
            "?": "this list",
        },
    ),
    Section(
        title="Now",
        pages=frozenset({"home"}),
        keys={"1, 9": "the next step of the first card … of the ninth"},
    ),
    Section(
        title="Lists",
        keys={
            "j, k": "next row, previous row",
            "o, ↵": "open the row",
            "[, ]": "newer page, older page",
        },
    ),
    Section(
        title="Runs",
        pages=frozenset({"runs"}),
        keys={
            "x": "select the chosen row",
            "⇧ x": "select all from the last one to it",
            "b": "to what can be done with those selected",
            "v": "views",
        },
    ),
    Section(
        title="A run",
        pages=frozenset({"run"}),
        keys={
            "[, ]": "newer run, older run of the list that it was opened from; as of a moment the"
            " event before, after",
            "r": "reclaim it",
            "f": "follow the newest event, or stop to inspect",
            "e": "only what went wrong, and back",
            "w": "only those of the worker, and back",
            "s": "its state after any event",
            "d": "what the open event changed; the difference of two states",
            "t": "to the timeline",
            "+, -": "closer, farther",
            "<, >": "earlier, later",
            "0": "all of the run",
            "{, }": "the term of ownership before, after",
            "g g": "idle stretches in full, or folded",
        },
    ),
    Section(
        title="Leases",
        pages=frozenset({"leases"}),
        keys={
            "r": "reclaim the unit of the chosen row",
            "h": "only what this holder has",
            "l": "only the lapsed ones, and back",
        },
    ),
    Section(
        title="A unit",
        pages=frozenset({"lease"}),
        keys={"r": "reclaim it", "[, ]": "as of a moment the one before, after"},
    ),
    Section(
        title="Workers",
        pages=frozenset({"workers"}),
        keys={
            "h": "what the chosen worker holds",
            "d": "drain it, or stop that",
        },
    ),
    Section(
        title="Contention",
        pages=frozenset({"contention"}),
        keys={
            "m": "to the matrix of who met whom",
            "y": "to the same time yesterday",
        },
    ),
    Section(
        title="A budget",
        pages=frozenset({"budget", "run-budget"}),
        keys={"u": "change its cap"},
    ),
    Section(
        title="Charts",
        pages=frozenset({"budget", "run-budget", "contention"}),
        keys={"+, -": "closer, wider", "<, >": "earlier, later"},
    ),
    Section(
        title="A bulk",
        pages=frozenset({"bulk"}),
        keys={"s": "stop it"},
    ),
    Section(
        title="Pages that ask",
        keys={
            "⌘ ↵": "send, also from a field (Ctrl ↵)",
            "Esc": "leave it, nothing is done",
        },
    ),
)


def sections_for(page: str) -> list[Section]:
    """All of them, those of this page first."""
    return sorted(SECTIONS, key=lambda section: page not in section.pages)
