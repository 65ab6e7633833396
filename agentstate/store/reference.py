"""`docs/store.md`: moves, policies and ages, written from the tables that the code itself uses."""

from __future__ import annotations

from collections.abc import Iterator

from agentstate.store.ages import AGES, Age
from agentstate.store.policy import POLICY, Policy
from agentstate.store.states import MOVES, OPERATOR_MOVES, TERMINAL

HEAD = """# The store: moves, policies, ages

Written from the code's own tables by `./run manage write_store_docs`; a test compares.
"""
MEANINGS = {
    Policy.FIXED: "written once, when the row is made",
    Policy.GUARDED: "legal moves only, under the fence",
    Policy.ALLOCATED: "given out by the store under the row's lock, never by a caller",
    Policy.ADDED: "added to in the store; never read, changed and written back by a client",
    Policy.UNION: "both writers' elements stay",
    Policy.NEWEST: "the last write stands; losing one is harmless",
    Policy.COMPARED: "compare-and-set when asked, else the newest stands",
    Policy.HOLDER: "the lease's holder alone, or whoever takes the lease",
    Policy.CAPPED: "added under the cap, or refused",
    Policy.APPENDED: "rows are added; a trigger refuses UPDATE and DELETE",
    Policy.DERIVED: "a copy, which can be made again from its source",
}


def store_docs() -> str:
    """The whole page, as Markdown."""
    return "\n".join([HEAD, *_moves(), "", *_policies(), "", *_ages(), ""])


def _moves() -> Iterator[str]:
    yield "## A run's status"
    yield ""
    yield "Terminal states absorb: nothing leads out of them. Dashed: an operator needs no token."
    yield "Else every move of a run that was ever leased needs the holder's."
    yield ""
    yield "```mermaid"
    yield "flowchart LR"
    for status, targets in MOVES.items():
        if status in TERMINAL:
            yield f"    {status}([{status}])"
        for to in targets:
            arrow = "-.->" if (status, to) in OPERATOR_MOVES else "-->"
            yield f"    {status} {arrow} {to}"
    yield "```"


def _policies() -> Iterator[str]:
    yield "## What happens when two writers of a column meet"
    yield ""
    yield "| policy | meaning |"
    yield "|---|---|"
    for policy, meaning in MEANINGS.items():
        yield f"| {policy} | {meaning} |"
    yield ""
    yield "| column | policy | who may write it | made again from |"
    yield "|---|---|---|---|"
    for column, line in POLICY.items():
        yield f"| `{column}` | {line.policy} | {', '.join(line.writers)} | {line.source} |"


def _ages() -> Iterator[str]:
    yield "## What ages out"
    yield ""
    yield "A run goes after its own `retain_seconds`, counted from its end. It is hidden at once;"
    yield "its rows go with its week. A live run never goes. The rest goes after the days that"
    yield "stand here, or that an admin says within these bounds; the least has a reason:"
    yield ""
    yield "| rows | kept for | an admin may say | because |"
    yield "|---|---|---|---|"
    for kind, age in AGES.items():
        bounds = f"{age.least} to {age.most} days" if age.keep else ""
        because = f"{age.why}; never shorter than {age.not_before}" if age.not_before else age.why
        yield f"| {kind} | {_kept(age)} | {bounds} | {because if age.keep else ''} |"


def _kept(age: Age) -> str:
    return f"{age.keep.days} days" if age.keep else age.own
