"""What a span of OpenTelemetry's GenAI conventions says, as events of ours. Pure.

The conventions are still changing (their status is "development"): names of 1.36 and before are
understood beside those of today, and what is not understood stands in the event all the same, under
`attributes`. Times of a span are data of whoever sent it; they order and decide nothing here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentstate.otlp.encoding import Span, moment_of
from agentstate.store import payloads
from agentstate.store.commands import NewEvent
from agentstate.store.errors import Refusal
from agentstate.store.payloads import PAYLOAD_BYTES_MAX, check

PREFIX = "gen_ai."
# What each operation's span is called as an event, when it went well and when not.
TYPES = {
    "chat": ("model.responded", "model.failed"),
    "text_completion": ("model.responded", "model.failed"),
    "generate_content": ("model.responded", "model.failed"),
    "embeddings": ("model.embedded", "model.failed"),
    "execute_tool": ("tool.returned", "tool.failed"),
    "invoke_agent": ("agent.finished", "agent.failed"),
    "create_agent": ("agent.created", "agent.failed"),
    "invoke_workflow": ("workflow.finished", "workflow.failed"),
    "retrieval": ("retrieval.returned", "retrieval.failed"),
}
OTHER = ("span.ended", "span.failed")
AGENTS = frozenset({"invoke_agent", "invoke_workflow"})
MODELS = frozenset({"chat", "text_completion", "generate_content", "embeddings"})
ERROR = 2
KINDS = ("", "internal", "server", "client", "producer", "consumer")
# Attributes that have a name of ours, by that name; of several the first that is there. What is
# text of JSON (the conventions allow both) is told as what it says.
_NAMED = {
    "model": ("gen_ai.response.model", "gen_ai.request.model"),
    "provider": ("gen_ai.provider.name", "gen_ai.system"),
    "agent": ("gen_ai.agent.name", "gen_ai.agent.id", "gen_ai.workflow.name"),
    "conversation": ("gen_ai.conversation.id",),
    "tool": ("gen_ai.tool.name",),
    "tool_call_id": ("gen_ai.tool.call.id",),
}
CONTENT = {
    "gen_ai.system_instructions": "system",
    "gen_ai.input.messages": "input",
    "gen_ai.output.messages": "output",
    "gen_ai.tool.call.arguments": "arguments",
    "gen_ai.tool.call.result": "observation",
}
_USAGE = {
    "input_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
}
NAME_CHARS = 200
# No call of a model has more; what says so stays an attribute and is not counted.
TOKENS_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A span as events. add: to the run's counters. left_out: values too large to be kept."""

    events: tuple[NewEvent, ...]
    add: dict[str, int]
    left_out: int

    @property
    def size(self) -> int:
        return sum(len(event.data.text) for event in self.events)


def is_genai(span: Span) -> bool:
    """Whether any of its attributes is one of the GenAI conventions."""
    return any(name.startswith(PREFIX) for name in span.attributes)


def operation_of(span: Span) -> str:
    """What the span is about; guessed from its other attributes where it does not say."""
    said = span.attributes.get("gen_ai.operation.name")
    if isinstance(said, str) and said:
        return said
    guesses = {
        "execute_tool": ("gen_ai.tool.name", "gen_ai.tool.call.id"),
        "chat": ("gen_ai.request.model", "gen_ai.response.model"),
        "invoke_agent": ("gen_ai.agent.name", "gen_ai.agent.id"),
    }
    for operation, names in guesses.items():
        if any(name in span.attributes for name in names):
            return operation
    return ""


def event_id(span: Span) -> str:
    """What makes a span that is sent again one that is known."""
    return f"span:{span.span_id}"


def told(span: Span) -> Told:
    """The span's events. Raises a Refusal for what no event can hold."""
    operation = operation_of(span)
    type = TYPES.get(operation, OTHER)[span.status == ERROR]
    try:
        members, values = _members(span, operation, decoded=True)
        data, left_out = _fitting(members)
    except Refusal:  # JSON inside JSON that nests too deep: it stays the text that it was
        members, values = _members(span, operation, decoded=False)
        data, left_out = _fitting(members)
    events = [NewEvent(type=type, id=event_id(span), data=data)]
    if operation == "execute_tool":
        called, more = _fitting(values)
        left_out += more
        events.insert(0, NewEvent(type="tool.called", id=f"{event_id(span)}:called", data=called))
    return Told(events=tuple(events), add=_counters(span, operation), left_out=left_out)


def _members(span: Span, operation: str, *, decoded: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the span's event says, and of a tool's what the call before it says."""
    known = dict(named(span))
    content = {
        ours: _decoded(span.attributes[theirs]) if decoded else span.attributes[theirs]
        for theirs, ours in CONTENT.items()
        if theirs in span.attributes
    }
    call: dict[str, Any] = {n: known[n] for n in ("tool", "tool_call_id") if n in known}
    if "arguments" in content:
        call["arguments"] = content["arguments"]
    # What tells most stands first: lists show an event from its beginning.
    members: dict[str, Any] = {n: known[n] for n in ("tool", "tool_call_id") if n in known}
    if span.status == ERROR:
        members["error"] = {"type": span.attributes.get("error.type"), "message": span.message}
    if operation in MODELS:
        members |= _said(content.get("output"))
    if "observation" in content:
        members["observation"] = content["observation"]
    members |= known
    if usage := _usage(span):
        members["usage"] = usage
    members["span"] = _facts(span, operation)
    members |= {n: v for n, v in content.items() if n != "arguments" or operation != "execute_tool"}
    members["attributes"] = {n: v for n, v in span.attributes.items() if n not in CONTENT}
    for name, items in (("span_events", span.events), ("links", span.links)):
        if items:
            members[name] = list(items)
    return members, call


def _facts(span: Span, operation: str) -> dict[str, Any]:
    facts = {
        "id": span.span_id,
        "parent": span.parent_id or None,
        "name": span.name[:NAME_CHARS],
        "operation": operation[:NAME_CHARS] or None,
        "kind": KINDS[span.kind] if 0 < span.kind < len(KINDS) else None,
        "started_at": moment_of(span.start),
        "ended_at": moment_of(span.end),
        "ms": round((span.end - span.start) / 1_000_000, 3) if span.end >= span.start > 0 else None,
        "status": ("unset", "ok", "error")[span.status] if 0 <= span.status <= 2 else span.status,
        "service": service_of(span) or None,
        "scope": span.scope[:NAME_CHARS] or None,
        "dropped_attributes": span.dropped or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def service_of(span: Span) -> str:
    """The name that the process gave itself."""
    name = span.resource.get("service.name")
    return name[:NAME_CHARS] if isinstance(name, str) else ""


def named(span: Span) -> Iterator[tuple[str, str]]:
    for ours, names in _NAMED.items():
        for name in names:
            value = span.attributes.get(name)
            if isinstance(value, str) and value:
                yield ours, value[:NAME_CHARS]
                break


def _decoded(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return payloads.check(value).value()
    except Refusal:
        return value


def _said(output: Any) -> dict[str, str]:
    """What the model said and thought, of messages as the conventions shape them."""
    said: dict[str, list[str]] = {"response": [], "thought": []}
    for message in output if isinstance(output, list) else []:
        parts = message.get("parts") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else []:
            name = {"text": "response", "reasoning": "thought"}.get(_type_of(part), "")
            if name and isinstance(part.get("content"), str):
                said[name].append(part["content"])
    return {name: "\n".join(texts) for name, texts in said.items() if texts}


def _type_of(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, dict) else ""


def _usage(span: Span) -> dict[str, int]:
    found = {}
    for ours, names in _USAGE.items():
        for name in names:
            count = span.attributes.get(name)
            if type(count) is int and 0 <= count <= TOKENS_MAX:
                found[ours] = count
                break
    if found:
        found["tokens"] = sum(found.values())
    return found


def _counters(span: Span, operation: str) -> dict[str, int]:
    """Tokens count once: with the call of a model, not with the agent that sums its calls up."""
    add = {"spans": 1}
    if operation in MODELS:
        add["model_calls"] = 1
        add |= {n: count for n, count in _usage(span).items() if n != "tokens" and count}
        if tokens := _usage(span).get("tokens"):
            add["tokens_spent"] = tokens
    elif operation == "execute_tool":
        add["tool_calls"] = 1
    if span.status == ERROR:
        add["errors"] = 1
    return add


def _fitting(members: dict[str, Any]) -> tuple[payloads.RawJSON, int]:
    """As one event can hold it: the largest values are told by size and hash where all of it is
    too much. Raises a Refusal for what is no payload whatever is left out."""
    size = len(dump_text(members))
    if size <= PAYLOAD_BYTES_MAX:
        return check(dump_text(members).decode()), 0
    left_out = 0
    for owner, name, length in _by_size(members):
        if size <= PAYLOAD_BYTES_MAX:
            break
        owner[name] = _marker(dump_text(owner[name]))
        size -= length - len(dump_text(owner[name]))
        left_out += 1
    if size > PAYLOAD_BYTES_MAX and "attributes" in members:  # very many, or very long names
        members["attributes"] = _marker(dump_text(members["attributes"]))
        left_out += 1
    return check(dump_text(members).decode()), left_out


def _marker(value: bytes) -> dict[str, Any]:
    return {"left_out": {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}}


def _by_size(members: dict[str, Any]) -> list[tuple[dict[str, Any], str, int]]:
    """Where each value stands, the largest first."""
    places = [(members, name) for name in members if name not in ("attributes", "span")]
    attributes = members.get("attributes")
    if isinstance(attributes, dict):
        places += [(attributes, name) for name in attributes]
    sized = [(owner, name, len(dump_text(owner[name]))) for owner, name in places]
    return sorted(sized, key=lambda place: -place[2])


def dump_text(value: Any) -> bytes:
    """A value's JSON; what its size and hash are those of."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
