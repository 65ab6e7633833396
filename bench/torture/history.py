"""What clients wrote down while they worked: every call before it is sent, and what came back.

A file of JSON lines per client process. `{"op": id, "at": t, "kind": …, "on": …, "ask": {…}}` is
written before the first byte is sent; `{"op": id, "at": t, "said": …, "code": …, "answer": {…}}`
after each try. Times are seconds of this machine's monotonic clock, one for all its processes. A
client that is killed leaves a call without an end: nobody knows whether it happened.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

NEVER = math.inf

# What a try came to. busy: the store says that it did nothing (503 unavailable, 429 and the like).
OK, REFUSED, BUSY, SILENT = "ok", "refused", "busy", "silent"
READS = frozenset({"read", "events", "budget", "lease", "feed", "stream", "consumer"})
# What a call came to, all its tries together. Unknown ones may have happened, once, at any time
# after they were sent; refused ones have not.
UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Op:
    """One call with all its tries, or one part of a call that does several things at once.

    on: what it is about: `run:k`, `unit:u`, `budget:run/name`, `feed`, `consumer:c`. whole: the id
    of the call that it is a part of, all of which happens or none. saw: what a refusal showed of
    the store; like an answer, it was true at a moment between invoked_at and ended_at.
    """

    id: str
    kind: str
    on: str
    ask: dict[str, Any] = field(default_factory=dict)
    invoked_at: float = 0.0
    ended_at: float = NEVER
    outcome: str = UNKNOWN
    code: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    replayed: bool = False
    whole: str = ""

    @property
    def effective_end(self) -> float:
        """When its effect, if it had one, was there at the latest."""
        return self.ended_at if self.outcome == OK else NEVER


@dataclass(slots=True)
class Tally:
    """Counts of tries. calls is their sum. codes: of those that were not acknowledged."""

    acknowledged: int = 0
    refused: int = 0
    busy: int = 0
    unknown: int = 0
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.acknowledged + self.refused + self.busy + self.unknown


@dataclass(slots=True)
class History:
    """ops: every call, those of many parts taken apart. acknowledged_at: for each thing that is
    written to, when the writes that were acknowledged were sent and answered."""

    ops: list[Op] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    acknowledged_at: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def read_history(files: Iterable[Path]) -> History:
    """All files as one history. A last line that was cut off by a kill counts as not written."""
    history = History()
    for path in files:
        for op in read_file(path, history):
            history.ops.extend(parts_of(op))
    return history


def read_file(path: Path, history: History) -> Iterator[Op]:
    """The calls of one process; counts their tries in `history`."""
    open_ops: dict[str, Op] = {}
    silent: set[str] = set()
    with path.open() as file:
        for text in file:
            if not text.endswith("\n"):
                break
            line = json.loads(text)
            if "kind" in line:
                open_ops[line["op"]] = Op(
                    id=line["op"],
                    kind=line["kind"],
                    on=line["on"],
                    ask=line["ask"],
                    invoked_at=line["at"],
                )
            else:
                note_try(open_ops[line["op"]], line, silent, history)
    for op in open_ops.values():
        if op.ended_at == NEVER:
            history.tally.unknown += 1
            op.outcome = UNKNOWN
        yield op


def note_try(op: Op, line: dict[str, Any], silent: set[str], history: History) -> None:
    """What a try means for its call: after one without an answer, a refusal of the next does not
    say that the first was not, or will not be, carried out: it may still be on its way."""
    said, tally = line["said"], history.tally
    op.ended_at, op.code = line["at"], line.get("code", "")
    op.answer, op.replayed = line.get("answer", {}), line.get("replayed", False)
    if said == OK:
        tally.acknowledged += 1
        op.outcome = OK
        if op.kind not in READS:
            history.acknowledged_at[op.on].append((line.get("sent", op.invoked_at), line["at"]))
        return
    tally.codes[op.code] += 1
    if said == SILENT:
        tally.unknown += 1
        silent.add(op.id)
    elif said == REFUSED:
        tally.refused += 1
    else:
        tally.busy += 1
    op.outcome = UNKNOWN if op.id in silent else REFUSED


def parts_of(op: Op) -> Iterator[Op]:
    """A call as single things: a batch's operations, the charges and moves that ride along."""
    if op.kind == "batch":
        answers = op.answer.get("results", []) if op.outcome == OK else []
        for index, part in enumerate(op.ask["parts"]):
            single = replace(
                op,
                id=f"{op.id}#{index}",
                kind=part["kind"],
                on=part["on"],
                ask=part["ask"],
                answer=answers[index] if index < len(answers) else {},
                whole=op.id,
            )
            yield from parts_of(single)
        return
    yield op
    charge = op.ask.get("spend")
    if op.kind == "append" and charge:
        if not op.whole:
            op.whole = op.id
        told = op.answer.get("spent") or [{}]
        yield replace(
            op,
            id=f"{op.id}$",
            kind="spend",
            on=charge["on"],
            ask=charge,
            answer=told[0] if op.outcome == OK else {},
        )


class Writer:
    """Appends lines to one file, each in one write: what is there survives a kill -9."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, **line: Any) -> None:
        self._file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        self._file.close()
