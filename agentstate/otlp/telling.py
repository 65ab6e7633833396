"""A run as the spans of one trace. Pure: no Django, no I/O.

A run that came as a trace goes out as that trace: the same ids, times and attributes, so that who
has it already knows it. Any other run becomes spans of the GenAI conventions: the run is
`invoke_agent`, with a span for each term of a lease, each answer of a model, each tool's call and
each effect; its other events are events of the run's span. Its ids are made of its key and when it
was made, so that it is the same trace whenever and wherever it is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from agentstate.otlp.encoding import Span, nanoseconds_of
from agentstate.otlp.genai import CONTENT, ERROR, KINDS, OTHER, TYPES
from agentstate.store.commands import ImportedEvent, ImportRun
from agentstate.store.effects import BEGUN
from agentstate.store.states import TERMINAL, Status

SCOPE = "agentstate"
_EPOCH = datetime.fromtimestamp(0, UTC)
INTERNAL, CLIENT, OK = 1, 3, 1
_SPAN_TYPES = {name for pair in (*TYPES.values(), OTHER) for name in pair}
_STATUS = {"unset": 0, "ok": 1, "error": 2}
_ENDS = {"lease.released", "lease.lapsed", "lease.reclaimed", "lease.acquired"}


def spans_of(run: ImportRun) -> list[Span]:
    """The run's spans, its own first."""
    trace = run.attrs.value().get("trace")
    events = [(event, _data(event)) for event in run.events]
    came = [(e, data) for e, data in events if e.type in _SPAN_TYPES and _is_span(data)]
    if isinstance(trace, dict) and _is_hex(trace.get("id"), 32) and came:
        return [*_of_trace(str(trace["id"]), events)]
    return list(_Making(run, events).spans())


def _data(event: ImportedEvent) -> dict[str, Any]:
    value = event.data.value()
    return value if isinstance(value, dict) else {"value": value}


def _is_span(data: Mapping[str, Any]) -> bool:
    span = data.get("span")
    return isinstance(span, dict) and _is_hex(span.get("id"), 16)


def _is_hex(text: Any, length: int) -> bool:
    return isinstance(text, str) and len(text) == length and not set(text) - set("0123456789abcdef")


# --- as it came ----------------------------------------------------------------------------------


def _of_trace(trace_id: str, events: list[tuple[ImportedEvent, dict[str, Any]]]) -> Iterator[Span]:
    called: dict[str, Any] = {}
    for event, data in events:
        if event.type == "tool.called" and event.id:
            called[event.id] = data
        elif event.type in _SPAN_TYPES and _is_span(data):
            yield _span_again(trace_id, data, called.get(f"{event.id}:called", {}))


def _span_again(trace_id: str, data: Mapping[str, Any], call: Mapping[str, Any]) -> Span:
    facts, attributes = data["span"], dict(data.get("attributes") or {})
    for theirs, ours in CONTENT.items():
        value = data.get(ours, call.get(ours))
        if value is not None:
            attributes[theirs] = value if isinstance(value, str) else _json(value)
    error = data.get("error") or {}
    status = facts.get("status")
    kind = facts.get("kind")
    return Span(
        trace_id=trace_id,
        span_id=facts["id"],
        parent_id=facts.get("parent") or "",
        name=str(facts.get("name", "")),
        kind=KINDS.index(kind) if kind in KINDS else 0,
        start=nanoseconds_of(facts.get("started_at")),
        end=nanoseconds_of(facts.get("ended_at")),
        attributes=attributes,
        status=_STATUS.get(status, 0) if isinstance(status, str) else 0,
        message=str(error.get("message") or ""),
        events=tuple(_objects(data.get("span_events"))),
        links=tuple(_objects(data.get("links"))),
        resource={"service.name": facts["service"]} if facts.get("service") else {},
        scope=str(facts.get("scope") or ""),
        dropped=facts.get("dropped_attributes") or 0,
    )


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (one for one in (value if isinstance(value, list) else []) if isinstance(one, dict))


# --- of any run ----------------------------------------------------------------------------------


class _Making:
    """The spans of a run that came otherwise."""

    def __init__(self, run: ImportRun, events: list[tuple[ImportedEvent, dict[str, Any]]]) -> None:
        self.run, self.events = run, events
        made = f"agentstate\n{run.key}\n{run.created_at}"
        self.trace_id = hashlib.sha256(made.encode()).hexdigest()[:32]
        self.root_id = self._id("run")
        self.made: list[Span] = []
        self.notes: list[Mapping[str, Any]] = []
        # What has begun and not ended: terms by token, calls and effects by their key.
        self.terms: dict[int, tuple[ImportedEvent, dict[str, Any]]] = {}
        self.calls: dict[str, tuple[ImportedEvent, dict[str, Any]]] = {}
        self.effects: dict[str, tuple[ImportedEvent, dict[str, Any]]] = {}
        self.usage = {"input_tokens": 0, "output_tokens": 0}
        self.model = ""

    def spans(self) -> Iterator[Span]:
        before = self.run.created_at
        for event, data in self.events:
            self._take(event, data, before)
            before = event.at or before
        for begun, begun_data in self.calls.values():
            self._add(
                begun,
                begun,
                f"execute_tool {_tool(begun_data)}",
                _of_tool(begun_data),
                kind=INTERNAL,
            )
        for begun, begun_data in self.effects.values():
            self._add(
                begun, None, begun.type, {"agentstate.effect.open": True, **_content(begun_data)}
            )
        for token in list(self.terms):
            self._end_term(token, None)
        yield self._root()
        yield from self.made

    def _take(self, event: ImportedEvent, data: dict[str, Any], before: datetime | None) -> None:
        if event.origin == "store":
            self._take_of_store(event, data)
        elif event.effect is not None:
            self._take_effect(event, data)
        elif event.type in ("model.responded", "model.failed", "agent.acted"):
            self._add_model(event, data, before)
        elif event.type == "tool.called":
            self.calls[self._call_key(event, data)] = (event, data)
        elif event.type in ("tool.returned", "tool.failed"):
            self._end_call(event, data, before)
        else:
            self._note(event, data)

    def _take_of_store(self, event: ImportedEvent, data: dict[str, Any]) -> None:
        if event.type in _ENDS:
            for token in list(self.terms):
                self._end_term(token, event)
        if event.type == "lease.acquired" and event.token is not None:
            self.terms[event.token] = (event, data)
        elif event.type != "run.created":
            self._note(event, data)

    def _end_term(self, token: int, ended: ImportedEvent | None) -> None:
        begun, data = self.terms.pop(token)
        told = {"agentstate.token": token, "agentstate.owner": data.get("owner")}
        if ended is not None and ended.type != "lease.acquired":
            told["agentstate.ended_by"] = ended.type
        self._add(begun, ended, f"term {token}", told, id=self._id(f"term {token}"), term=False)

    def _take_effect(self, event: ImportedEvent, data: dict[str, Any]) -> None:
        assert event.effect is not None
        key = event.effect.key
        if event.effect.state == BEGUN:
            self.effects[key] = (event, data)
            return
        begun, before = self.effects.pop(key, (event, data))
        told = {"agentstate.effect": key, **_content(before), "agentstate.result": _json(data)}
        self._add(begun, event, f"effect {begun.type}", told)

    def _add_model(
        self, event: ImportedEvent, data: dict[str, Any], before: datetime | None
    ) -> None:
        usage = {n: c for n, c in _usage(data).items() if type(c) is int and c >= 0}
        for name, count in usage.items():
            self.usage[name] += count
        model = data.get("model")
        self.model = model if isinstance(model, str) else self.model
        told: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": str(data.get("provider") or "unknown"),
            **({"gen_ai.request.model": model} if isinstance(model, str) else {}),
            **{f"gen_ai.usage.{name}": count for name, count in usage.items()},
            **_content(data),
        }
        name = f"chat {model}" if isinstance(model, str) else "chat"
        failed = event.type.endswith(".failed")
        self._add(event, event, name, told, kind=CLIENT, since=before, failed=failed)

    def _call_key(self, event: ImportedEvent, data: dict[str, Any]) -> str:
        return str(data.get("tool_call_id") or f"#{event.seq}")

    def _end_call(
        self, event: ImportedEvent, data: dict[str, Any], before: datetime | None
    ) -> None:
        """A result ends its call; one without an id the oldest that is open, or none."""
        key = data.get("tool_call_id") or next(iter(self.calls), "")
        begun, call = self.calls.pop(str(key), (None, {}))
        told = {**_of_tool({**data, **call}), **_content(call)}
        told["gen_ai.tool.call.result"] = _json(data)
        self._add(begun or event, event, f"execute_tool {_tool({**data, **call})}", told,
                  kind=INTERNAL, since=None if begun else before,
                  failed=event.type.endswith(".failed"))  # fmt: skip

    def _note(self, event: ImportedEvent, data: dict[str, Any]) -> None:
        told = {"agentstate.seq": event.seq, "agentstate.actor": event.actor, **_content(data)}
        self.notes.append({"name": event.type, "at": _text(event.at), "attributes": told})

    def _add(
        self,
        begun: ImportedEvent,
        ended: ImportedEvent | None,
        name: str,
        told: Mapping[str, Any],
        *,
        kind: int = INTERNAL,
        since: datetime | None = None,
        failed: bool = False,
        id: str = "",
        term: bool = True,
    ) -> None:
        """since: when it began, where no event says so: with the event before it."""
        parent = self._id(f"term {begun.token}") if term and begun.token in self.terms else ""
        self.made.append(
            Span(
                trace_id=self.trace_id,
                span_id=id or self._id(f"event {begun.seq}"),
                parent_id=parent or self.root_id,
                name=name,
                kind=kind,
                start=_nanoseconds(since or begun.at),
                end=_nanoseconds((ended or self.events[-1][0]).at),
                attributes={
                    "agentstate.seq": begun.seq,
                    "agentstate.actor": begun.actor,
                    **({"agentstate.token": begun.token} if begun.token else {}),
                    **{name: value for name, value in told.items() if value is not None},
                },
                status=ERROR if failed else 0,
                resource={"service.name": SCOPE},
                scope=SCOPE,
            )
        )

    def _root(self) -> Span:
        run, attrs = self.run, self.run.attrs.value()
        agent = attrs.get("agent") if isinstance(attrs.get("agent"), str) else ""
        told: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": "unknown",
            **({"gen_ai.agent.name": agent} if agent else {}),
            "gen_ai.conversation.id": run.key,
            **({"gen_ai.request.model": self.model} if self.model else {}),
            **{f"gen_ai.usage.{name}": count for name, count in self.usage.items() if count},
            "agentstate.run": run.key,
            "agentstate.task": run.task,
            "agentstate.status": run.status,
            "agentstate.tags": list(run.tags),
            "agentstate.attempt": run.attempt,
            "agentstate.attrs": run.attrs.text,
        }
        if run.result is not None:
            told["agentstate.result"] = run.result.text
        last = self.events[-1][0].at
        return Span(
            trace_id=self.trace_id,
            span_id=self.root_id,
            name=f"invoke_agent {agent or run.key}",
            start=_nanoseconds(run.created_at),
            # Of one that goes on: up to its last event.
            end=_nanoseconds(run.ended_at or last),
            attributes=told,
            status=_status(run.status),
            message="" if run.status != Status.CANCELLED else "cancelled",
            events=tuple(self.notes),
            resource={"service.name": SCOPE},
            scope=SCOPE,
        )

    def _id(self, what: str) -> str:
        return hashlib.sha256(f"{self.trace_id}\n{what}".encode()).hexdigest()[:16]


def _status(status: str) -> int:
    if status not in TERMINAL:
        return 0
    return OK if status == Status.COMPLETED else ERROR


def _tool(data: Mapping[str, Any]) -> str:
    return str(data.get("tool") or data.get("name") or "tool")


def _of_tool(data: Mapping[str, Any]) -> dict[str, Any]:
    call = data.get("tool_call_id")
    arguments = data.get("arguments")
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": _tool(data),
        **({"gen_ai.tool.call.id": call} if isinstance(call, str) else {}),
        **({"gen_ai.tool.call.arguments": _json(arguments)} if arguments is not None else {}),
    }


def _usage(data: Mapping[str, Any]) -> dict[str, Any]:
    """Counts under the conventions' names. A total alone has none there, and is not told."""
    usage = data.get("usage")
    metrics = data.get("metrics")
    found: dict[str, Any] = {}
    for source, names in (
        (usage, {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}),
        (metrics, {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}),
    ):
        if isinstance(source, dict):
            found |= {ours: source[n] for n, ours in names.items() if n in source}
    return found


def _content(data: Mapping[str, Any]) -> dict[str, str]:
    """All that the event says, as the text of its JSON."""
    return {"agentstate.data": _json(data)} if data else {}


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _nanoseconds(at: datetime | None) -> int:
    if at is None:
        return 0
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _text(at: datetime | None) -> str | None:
    return (
        None if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}000Z"
    )
