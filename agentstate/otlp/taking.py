"""A batch of spans into the store: a run for each trace, events for its spans.

Everything goes through `store.execute`, and an event's id is its span's: a batch that is sent again
writes nothing twice, whoever sends it, in whichever order and pieces. The run of a trace is made
with whichever span comes first; nobody holds it and no worker is given it, since it was running
from the beginning. It ends once its trace has gone quiet (`ending.py`). Spans that come later still
begin a further part of it. Why: docs/decisions/0054-opentelemetry.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentstate import store
from agentstate.otlp import genai
from agentstate.otlp.encoding import Span
from agentstate.store import traced
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.commands import EVENTS_PER_APPEND, Append, CreateRun, Patch
from agentstate.store.errors import (
    AlreadyTerminal,
    EventIdReuse,
    Exists,
    NotFound,
    PartialDuplicate,
    Refusal,
    Retry,
    Unavailable,
)
from agentstate.store.payloads import dump
from agentstate.store.rules import names
from agentstate.store.states import TERMINAL, Status

KEY = "otel-"
TAG = "otel"
# A trace that has ended and goes on all the same is told in so many further runs.
PARTS_MAX = 9
BYTES_PER_APPEND = 3 * 1024 * 1024
# Somebody else writes the same spans at the same moment: look again which are there.
TRIES = 5
TITLE_CHARS = 120
REASONS_TOLD = 10


@dataclass(slots=True)
class Taken:
    """What became of a batch's spans. refused: reasons, with how many spans each had.

    left_out: values of attributes that were too large for an event.
    """

    kept: int = 0
    known: int = 0
    not_genai: int = 0
    left_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        return self.not_genai + self.refused.total()

    @property
    def message(self) -> str:
        """For whoever sent them; empty when there is nothing to say."""
        most = self.refused.most_common(REASONS_TOLD)
        told = [f"{count} spans: {reason}" for reason, count in most]
        if len(self.refused) > len(most):
            told.append(f"{len(self.refused) - len(most)} other reasons")
        if self.not_genai:
            told.append(f"{self.not_genai} spans have no attribute gen_ai.*, and are not kept")
        if self.left_out:
            told.append(
                f"{self.left_out} values are too large for an event, and are kept as their size"
                " and SHA-256"
            )
        return "; ".join(told)


def take(spans: Sequence[Span], *, by: Caller, under: Circumstances) -> Taken:
    """Write what is new of a batch. Raises a Refusal that may be repeated: then the whole batch is
    to be sent again, and what was written of it is known."""
    taken = Taken()
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    for trace_id, of_trace in traces.items():
        _Trace(trace_id, of_trace, by, under, taken).take()
    return taken


class _Trace:
    """The spans of one trace in one batch."""

    def __init__(
        self, trace_id: str, spans: Sequence[Span], by: Caller, under: Circumstances, taken: Taken
    ) -> None:
        self.trace_id, self.by, self.under, self.taken = trace_id, by, under, taken
        # Of a span that is there twice the first counts, as it would in two batches.
        once = {span.span_id: span for span in reversed(spans)}
        self.spans = [span for span in spans if once[span.span_id] is span]
        taken.known += len(spans) - len(self.spans)
        self.genai = [span for span in self.spans if genai.is_genai(span)]
        self.root = next((s for s in self.spans if not s.parent_id and s.end), None)

    def take(self) -> None:
        self.taken.not_genai += len(self.spans) - len(self.genai)
        told = list(self._told())
        if not told and (self.root is None or self._open_part() is None):
            return
        for part in _pieces(told):
            self._append(part)
        if self.root is not None:
            self._note_root(self.root)

    def _told(self) -> Iterator[tuple[Span, genai.Told]]:
        for span in self.genai:
            try:
                one = genai.told(span)
            except Refusal as refused:
                self.taken.refused[f"{refused.code}: {refused.detail}"] += 1
            else:
                yield span, one

    def _append(self, part: Sequence[tuple[Span, genai.Told]]) -> None:
        """Those that are not there yet, in one write."""
        left = list(part)
        for _ in range(TRIES):
            try:
                key, left = self._unknown(left)
                if not left:
                    return
                store.execute(_append_of(key, left), by=self.by, under=self.under)
            except (PartialDuplicate, EventIdReuse, AlreadyTerminal, NotFound):
                continue  # somebody was faster: look again
            except Refusal as refused:
                if refused.retry in (Retry.LATER, Retry.SAME_REQUEST):
                    raise
                self.taken.refused[f"{refused.code}: {refused.detail}"] += len(left)
                return
            self.taken.kept += len(left)
            self.taken.left_out += sum(one.left_out for _, one in left)
            return
        raise Unavailable("others write the same trace at the same time")

    def _unknown(
        self, told: list[tuple[Span, genai.Told]]
    ) -> tuple[str, list[tuple[Span, genai.Told]]]:
        """The part of the run that is open, made where there is none, and what none has."""
        left = told
        for key in self._keys():
            status = traced.status_of(key)
            if status is None:
                if left:
                    self._create(key)
                return key, left
            ids = {genai.event_id(span) for span, _ in left}
            known = traced.known_ids(key, ids)
            self.taken.known += len(known)
            left = [one for one in left if genai.event_id(one[0]) not in known]
            if not left or status not in TERMINAL:
                return key, left
        self.taken.refused[f"the run has ended, and so have {PARTS_MAX - 1} further parts"] += len(
            left
        )
        return "", []

    def _keys(self) -> Iterator[str]:
        yield f"{KEY}{self.trace_id}"
        for part in range(2, PARTS_MAX + 1):
            yield f"{KEY}{self.trace_id}~{part}"

    def _open_part(self) -> str | None:
        for key in self._keys():
            status = traced.status_of(key)
            if status is None:
                return None
            if status not in TERMINAL:
                return key
        return None

    def _create(self, key: str) -> None:
        agents = [dict(genai.named(span)) for span in self.genai]
        facts = {
            name: next((one[name] for one in agents if name in one), None)
            for name in ("agent", "conversation", "model", "provider")
        }
        service = next(
            (genai.service_of(span) for span in self.genai if genai.service_of(span)), ""
        )
        attrs: dict[str, Any] = {n: value for n, value in facts.items() if value}
        attrs |= {"service": service} if service else {}
        attrs |= {"trace": {"id": self.trace_id}}
        if "~" in key:
            attrs["continues"] = f"{KEY}{self.trace_id}"
        command = CreateRun(
            key=key,
            task=_title(facts["agent"] or service, self.trace_id, late="~" in key),
            status=Status.RUNNING,
            tags=tuple({TAG, *([_tag(facts["agent"])] if _tag(facts["agent"]) else [])}),
            attrs=dump(attrs),
        )
        try:
            store.execute(command, by=self.by, under=self.under)
        except Exists:
            return  # somebody was faster

    def _note_root(self, root: Span) -> None:
        """That the span without a parent has ended: after it there is little to come."""
        key = self._open_part()
        if key is None:
            return
        said = {
            "span": root.span_id,
            "name": _line(root.name)[: genai.NAME_CHARS],
            "failed": root.status == genai.ERROR,
        }
        command = Patch(run=key, attrs={"trace.root": dump(said)}, id=f"root:{root.span_id}")
        try:
            store.execute(command, by=self.by, under=self.under)
        except Refusal as refused:
            if refused.retry in (Retry.LATER, Retry.SAME_REQUEST):
                raise  # else it has ended, or somebody took it: then that one ends it


def _pieces(
    told: Iterable[tuple[Span, genai.Told]],
) -> Iterator[list[tuple[Span, genai.Told]]]:
    """As much at a time as one write can take."""
    part: list[tuple[Span, genai.Told]] = []
    events = size = 0
    for one in told:
        more = len(one[1].events)
        full = events + more > EVENTS_PER_APPEND or size + one[1].size > BYTES_PER_APPEND
        if part and full:
            yield part
            part, events, size = [], 0, 0
        part.append(one)
        events, size = events + more, size + one[1].size
    if part:
        yield part


def _append_of(key: str, told: Sequence[tuple[Span, genai.Told]]) -> Append:
    add: Counter[str] = Counter()
    for _, one in told:
        add.update(one.add)
    events = tuple(event for _, one in told for event in one.events)
    return Append(run=key, events=events, add=dict(add))


def _title(who: str, trace_id: str, *, late: bool) -> str:
    name = _line(who)[:TITLE_CHARS].strip()
    who = name if names.has_ink(name) else "An agent"
    return f"{who}, trace {trace_id[:8]}{', late spans' if late else ''}"


def _tag(name: Any) -> str:
    """The name as a tag; nothing where nothing of it can be seen: no run can have that."""
    tag = _line(name or "")[: names.TAG_CHARS].strip()
    return tag if names.has_ink(tag) else ""


def _line(text: Any) -> str:
    """A text as one line that a title, a tag or an attribute can be."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
