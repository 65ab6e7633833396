"""What stands where on the site: sections, and in each the pages with a short name.

Pages of integrations and decisions are found by themselves, so that a new one needs no line here.
What is named nowhere comes under "More"; a page that is named and is not there stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path

type Entry = tuple[str, str]  # how it is called here, and its file below docs/ (or from the root)
type Section = tuple[str, list[Entry]]

INTEGRATIONS, DECISIONS = "integrations", "decisions"
# Of the project's own, where it has them.
IF_THERE = (("Contributing", "../CONTRIBUTING.md"), ("Security", "../SECURITY.md"))

SECTIONS: list[Section] = [
    ("Start", [
        ("What it is, and what it is not", "what-it-is.md"),
        ("Quick start", "quickstart.md"),
        ("Tutorial: ten minutes", "tutorial.md"),
        ("When to use something else", "compare.md"),
        ("Thirty questions", "questions.md"),
    ]),
    ("Concepts", [
        ("Eight words", "concepts/README.md"),
        ("Run", "concepts/runs.md"),
        ("Lease", "concepts/leases.md"),
        ("Fence", "concepts/fencing.md"),
        ("Conflict policy", "concepts/conflicts.md"),
        ("Budget", "concepts/budgets.md"),
        ("Once", "concepts/once.md"),
        ("Feed", "concepts/feed.md"),
        ("Copies that can be lost", "concepts/copies.md"),
        ("How one write travels", "one-write.md"),
    ]),
    ("Workers", [
        ("How to: a worker's author", "how-to/worker.md"),
        ("The Python client", "../client/README.md"),
        ("Runs as files", "formats.md"),
        ("Command line", "command-line.md"),
    ]),
    (INTEGRATIONS, []),
    ("Operators", [
        ("How to: an operator", "how-to/operator.md"),
        ("The console", "console.md"),
        ("Alerts", "alerts.md"),
        ("Conflict and retry rates", "rates.md"),
        ("Fleet, scenarios, drills", "fleet.md"),
    ]),
    ("Platform", [
        ("How to: a platform engineer", "how-to/platform.md"),
        ("Running it", "operations.md"),
        ("Sizing", "sizing.md"),
        ("Proxies", "proxies.md"),
        ("TLS", "tls.md"),
        ("Hardening", "hardening.md"),
        ("How far one store goes", "scale.md"),
    ]),
    ("Reference", [
        ("API", "api.md"),
        ("Problems", "problems.md"),
        ("Streams and the feed", "streams.md"),
        ("Client", "client.md"),
        ("Statuses, policies, ages", "store.md"),
        ("Permissions", "access.md"),
        ("Settings", "settings.md"),
        ("Metrics", "metrics.md"),
        ("Copies", "caches.md"),
    ]),
    ("Evidence", [
        ("Claims and commands", "evidence.md"),
        ("Proof", "proof.md"),
        ("Benchmarks", "benchmarks.md"),
        ("Cases of others", "cases.md"),
        ("Our own sweeps", "sweeps.md"),
        ("The two texts", "texts.md"),
        ("Coverage", "coverage.md"),
        ("Changelog", "../CHANGELOG.md"),
        ("Contributing", "../CONTRIBUTING.md"),
        ("Security", "../SECURITY.md"),
    ]),
    (DECISIONS, []),
]  # fmt: skip

NUMBER = re.compile(r"^#\s+(\d{4}) · (.+)$", re.MULTILINE)


def title_of(page: Path) -> str:
    """Its first heading."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1].replace("`", "") if found else page.stem


def sections(docs: Path) -> list[Section]:
    """All of them with their pages, those that are found by themselves among them."""
    filled: list[Section] = []
    for name, entries in SECTIONS:
        if name == INTEGRATIONS:
            found = sorted(
                (docs / INTEGRATIONS).glob("*.md"), key=lambda page: title_of(page).lower()
            )
            filled.append(
                ("Integrations", [(title_of(p), f"{INTEGRATIONS}/{p.name}") for p in found])
            )
        elif name == DECISIONS:
            filled.append(("Decisions", _decisions(docs / DECISIONS)))
        else:
            filled.append((name, entries))
    there = [entry for entry in IF_THERE if (docs / entry[1]).exists()]
    if more := [*_unnamed(docs, filled), *there]:
        filled.append(("More", more))
    return filled


def _decisions(folder: Path) -> list[Entry]:
    entries = [("All decisions", f"{DECISIONS}/README.md")]
    for page in sorted(folder.glob("[0-9]*.md")):
        told = NUMBER.search(page.read_text(encoding="utf-8"))
        name = f"{told[1]} {told[2]}".replace("`", "") if told else title_of(page)
        entries.append((name, f"{DECISIONS}/{page.name}"))
    return entries


def _unnamed(docs: Path, filled: list[Section]) -> list[Entry]:
    named = {path for _, entries in filled for _, path in entries} | {"README.md"}
    pages = (page.relative_to(docs) for page in sorted(docs.rglob("*.md")))
    return [(title_of(docs / p), p.as_posix()) for p in pages if p.as_posix() not in named]
