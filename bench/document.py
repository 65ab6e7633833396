"""docs/benchmarks.md, from the reports that are kept in bench/results and the notes beside them.

Nothing in that page is written by hand: what somebody tried stands in bench/notes/NAME.md, and how
all of it is measured in bench/notes/how.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.report import Kept, Table, read_kept

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NOTES = ROOT / "bench" / "notes"
FLAMES = ROOT / "docs" / "img" / "flames"
PAGE = ROOT / "docs" / "benchmarks.md"
HOW = "how"
QUICK = "**A quick run: one round of short turns. It shows that this works, not how fast it is.**"


def read_results(names: Sequence[str], folder: Path = RESULTS) -> list[Kept]:
    """Those that are kept, in the order of `names`."""
    files = [folder / f"{name}.json" for name in names]
    return [read_kept(file.read_text()) for file in files if file.exists()]


def read_notes(folder: Path = NOTES) -> dict[str, str]:
    return {file.stem: file.read_text().strip() for file in sorted(folder.glob("*.md"))}


def page(
    results: Sequence[Kept], notes: Mapping[str, str], flames: Mapping[str, str] | None = None
) -> str:
    """The whole page. flames: file name -> what the picture shows."""
    parts = [
        "# Benchmarks",
        "Made by `./run bench` from what it measured; nothing here is written by hand"
        " (`bench/document.py`).",
    ]
    if HOW in notes:
        parts.append(notes[HOW])
    parts += goals(results)
    for kept in results:
        parts += section(kept, notes.get(kept.name, ""))
    parts += not_reached(results, notes)
    if flames:
        parts += pictures(flames)
    return "\n\n".join(parts) + "\n"


def goals(results: Sequence[Kept]) -> list[str]:
    rows = [
        (
            link(kept),
            goal.what,
            goal.asked,
            goal.found,
            kept.before.get(goal.what, ""),
            "yes" if goal.reached else "**no**",
        )
        for kept in results
        for goal in kept.report.goals
    ]
    if not rows:
        return []
    reached = sum(row[-1] == "yes" for row in rows)
    return [
        "## Goals",
        f"{reached} of {len(rows)} reached. *Found before*: by the full run before that one.",
        table(("benchmark", "what", "asked", "found", "found before", "reached"), rows),
    ]


def link(kept: Kept) -> str:
    return f"[{kept.name}](#{kept.name}){' (quick)' if kept.quick else ''}"


def section(kept: Kept, note: str) -> list[str]:
    """One benchmark: how it was run, its tables, what was tried."""
    parts = [f"## {kept.name}", f"{kept.about}"]
    if kept.quick:
        parts.append(QUICK)
    parts.append(
        f"`{kept.command}`, {kept.made_at} UTC, {kept.seconds} s, {kept.cores} cores, "
        + ", ".join(f"{name} {version}" for name, version in kept.versions.items())
    )
    for one in kept.report.tables:
        parts += [f"**{one.title}**", table(one.columns, one.rows)]
        parts += [one.note] if one.note else []
    return [*parts, note] if note else parts


def not_reached(results: Sequence[Kept], notes: Mapping[str, str]) -> list[str]:
    lines = [
        f"- {link(kept)}: {goal.what}: asked {goal.asked}, found {goal.found}."
        + (f" {why}" if (why := goal.why or tried(kept, notes)) else "")
        for kept in results
        for goal in kept.report.goals
        if not goal.reached
    ]
    return ["## What did not reach its goal", "\n".join(lines)] if lines else []


def tried(kept: Kept, notes: Mapping[str, str]) -> str:
    return "What was tried stands in its section." if kept.name in notes else ""


def pictures(flames: Mapping[str, str]) -> list[str]:
    told = [f"![{what}](img/flames/{name})\n\n{what}" for name, what in flames.items()]
    return [
        "## Where the time goes",
        "`./run bench flames`: py-spy looks 250 times a second at the thread that holds Python's"
        " lock. Width is its time; a frame stands on what called it; what is narrower than a"
        " two-hundredth is left out. Waiting, also for PostgreSQL, is not in it.",
        *told,
    ]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; a bar within a cell stays within it."""
    lines = [list(columns), ["---"] * len(columns), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def pictured(folder: Path = FLAMES) -> dict[str, str]:
    """Each picture with the sentence that stands beside it in `captions.txt` (name<TAB>text)."""
    captions = folder / "captions.txt"
    if not captions.exists():
        return {}
    told = dict(line.split("\t", 1) for line in captions.read_text().splitlines() if line)
    return {name: text for name, text in told.items() if (folder / name).exists()}


def check_shape(one: Table) -> None:
    """Raises ValueError for a row that has not as many cells as there are columns."""
    for row in one.rows:
        if len(row) != len(one.columns):
            raise ValueError(f"{one.title}: {len(row)} cells for {len(one.columns)} columns")


def write_page(names: Sequence[str]) -> None:
    PAGE.write_text(page(read_results(names), read_notes(), pictured()))
