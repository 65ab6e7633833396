"""The formats in which runs come in and go out as files, by name. docs/formats.md explains each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentstate.otlp import encoding, telling
from agentstate.store.commands import ImportRun
from tasks import atif, atif_out, messages
from tasks.archive import read_archive
from tasks.conversations import Written, as_json
from tasks.drafts import RunDraft, printable
from tasks.swe_agent import write_trajectory
from tasks.trajectories import read_trajectory

type Read = Callable[..., Iterable[RunDraft | ImportRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """read: takes `text` and `name`. write: None for our own, which is written line by line.
    suffix: of a file that is written."""

    name: str
    suffix: str
    read: Read | None
    write: Callable[[ImportRun], Written] | None
    about: str


def _one(read: Callable[..., RunDraft]) -> Read:
    return lambda *, text, name: (read(text=text, name=name),)


def _write_otlp(run: ImportRun) -> Written:
    """Spans, as the API's GET /runs/{key}/trace has them."""
    spans = telling.spans_of(run)
    text = as_json(encoding.document(spans))
    left = {
        "line of a budget's ledger": sum(len(b.entries) for b in run.budgets),
        "addition to counters": sum(event.add is not None for event in run.events),
        "version and request id of an event": len(run.events),
        "notes": int(bool(run.notes)),
    }
    if spans and spans[0].scope != telling.SCOPE:  # it came as a trace, and goes out as that
        left["event that is no span"] = sum(event.origin != "worker" for event in run.events)
    return Written(text=f"{text}\n", left_out={what: n for what, n in left.items() if n})


OWN = "agentstate"
FORMATS = {
    one.name: one
    for one in (
        Format(
            name=OWN,
            suffix=".jsonl",
            read=read_archive,
            write=None,
            about="JSON lines of our own: nothing is lost",
        ),
        Format(
            name="swe-agent",
            suffix=".traj",
            read=_one(read_trajectory),
            write=write_trajectory,
            about="a trajectory of SWE-agent",
        ),
        Format(
            name="atif",
            suffix=".atif.json",
            read=_one(atif.read_atif),
            write=atif_out.write_atif,
            about="Agent Trajectory Interchange Format (Harbor, terminal-bench)",
        ),
        Format(
            name="messages",
            suffix=".messages.json",
            read=messages.read_messages,
            write=messages.write_messages,
            about="chat messages as OpenAI's API has them",
        ),
        Format(
            name="otlp",
            suffix=".otlp.json",
            read=None,
            write=_write_otlp,
            about="spans of OpenTelemetry, as a collector takes them",
        ),
    )
}


def readable() -> list[str]:
    return [name for name, one in FORMATS.items() if one.read is not None]


def format_of(*, text: str, suffix: str) -> Format:
    """What a file is, by its name and what it begins with; what is not clear its reader refuses."""
    if suffix == ".traj":
        return FORMATS["swe-agent"]
    if suffix == ".json":
        whole = _value(text)
        if atif.is_atif(whole):
            return FORMATS["atif"]
        return FORMATS["messages" if messages.is_messages(whole) else "swe-agent"]
    first = next((line for line in _lines(text) if line.strip()), "")
    return FORMATS["messages" if messages.is_messages(_value(first)) else OWN]


def _lines(text: str) -> Iterator[str]:
    yield from text.removeprefix("\ufeff").split("\n", 50)


def _value(text: str) -> object:
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None


def tell_left_out(stream: Any, name: str, left_out: Mapping[str, int]) -> None:
    """Say what is not there, for people: a line on `stream` (a command's), nothing if all is."""
    if left_out:
        told = ", ".join(f"{what} ({count})" for what, count in sorted(left_out.items()))
        stream.write(printable(f"{name}: left out: {told}"))
