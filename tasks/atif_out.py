"""A run as a trajectory in ATIF: a run goes in and the text of a file comes out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentstate.store.commands import ImportRun
from agentstate.store.errors import Refusal
from agentstate.store.payloads import check, moment
from tasks.atif import OF_AGENT, SOURCES
from tasks.conversations import (
    RESPONSE,
    RESULT,
    Said,
    Written,
    as_json,
    first_of,
    left_of_store,
    said,
    text_of,
)

WRITTEN_VERSION = "ATIF-v1.7"


def write_atif(run: ImportRun) -> Written:
    """The run as the text of an ATIF file. Events that the format has no step for become steps of
    `system` with all of them under `extra`; what the store wrote itself is left out."""
    steps = _Steps()
    for one in said(run):
        steps.take(one)
    root = steps.described or _root(run, steps)
    document = {**root, "steps": steps.finished()}
    if steps.embedded:
        document["subagent_trajectories"] = steps.embedded
    return Written(text=as_json(document, indent=2) + "\n", left_out=dict(left_of_store(run)))


def _root(run: ImportRun, steps: _Steps) -> dict[str, Any]:
    attrs = run.attrs.value()
    agent = {"name": str(attrs.get("agent") or "agentstate"), "version": "unknown"}
    if isinstance(attrs.get("model"), str):
        agent["model_name"] = attrs["model"]
    ours = {"key": run.key, "task": run.task, "status": run.status, "tags": list(run.tags),
            "attrs": attrs}  # fmt: skip
    if run.result is not None:
        ours["result"] = run.result.value()
    return {
        "schema_version": WRITTEN_VERSION,
        "session_id": run.key,
        "agent": agent,
        "final_metrics": steps.totals(),
        "extra": {"agentstate": ours},
    }


class _Steps:
    """Takes event after event; `finished` are the steps."""

    def __init__(self) -> None:
        self.described: dict[str, Any] | None = None
        self.embedded: list[Any] = []
        self._steps: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._number: Any = None

    def take(self, one: Said) -> None:
        data = one.data
        match one.type:
            case "trajectory.described" if data.get("format") == "atif":
                self.described = dict(data.get("members") or {})
            case "trajectory.embedded":
                self.embedded.append(data.get("trajectory"))
            case "task.given":
                for role, name in (("system", "system"), ("user", "task")):
                    if isinstance(data.get(name), str):
                        self._add(one, role, data[name])
            case "message.given":
                self._add_message(one)
            case "model.responded" | "agent.acted":
                self._add_agent(one)
            case "tool.called":
                step = self._agent_step(one)
                step.setdefault("tool_calls", []).append(_call_of(one))
            case "tool.returned":
                self._add_result(one)
            case _:
                event = {"event": one.type, "data": data}
                self._add(one, "system", "")["extra"] = {"agentstate": event}

    def finished(self) -> list[dict[str, Any]]:
        steps = self._steps or [{"source": "system", "message": "nothing was written"}]
        return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]

    def totals(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("prompt_tokens", "completion_tokens"):
            counts = [step.get("metrics", {}).get(name) for step in self._steps]
            if any(type(count) is int for count in counts):
                found[f"total_{name}"] = sum(c for c in counts if type(c) is int)
        return found | {"total_steps": len(self._steps)}

    def _add(self, one: Said, source: str, message: Any) -> dict[str, Any]:
        step = {**self._time(one), "source": source, "message": message}
        self._steps.append(step)
        return step

    def _time(self, one: Said) -> dict[str, Any]:
        """When the store took it; of a file's own steps what the file said."""
        if self.described is not None:
            told = one.data.get("timestamp")
            return {} if told is None else {"timestamp": told}
        return {} if one.at is None else {"timestamp": moment(one.at)}

    def _add_message(self, one: Said) -> None:
        role, content = one.data.get("role"), one.data.get("content")
        source = "user" if role == "user" else "system"
        step = self._add(one, source, _content(content))
        more = one.data.get("atif")
        step |= more if isinstance(more, dict) else {}
        rest = one.rest("role", "content", "timestamp", "atif")
        if rest or role not in ("system", "user"):
            _keep(step, {**rest, **({} if role in SOURCES else {"role": role})})
        self._open = None

    def _add_agent(self, one: Said) -> None:
        data, more = one.data, one.data.get("atif")
        name, text = first_of(data, RESPONSE)
        step = self._add(one, "agent", _content(text))
        for theirs, ours in OF_AGENT.items():
            if theirs not in ("message", "timestamp") and data.get(ours) is not None:
                step[theirs] = data[ours]
        used = {"atif", "timestamp", *OF_AGENT.values(), *([name] if name else [])}
        rest = one.rest(*used)
        if "metrics" in data:
            rest.pop("usage", None)
        elif isinstance(rest.get("usage"), dict):
            step["metrics"] = _metrics(rest.pop("usage"))
        step |= more if isinstance(more, dict) else {}
        _keep(step, rest)
        self._open, self._number = step, one.step

    def _agent_step(self, one: Said) -> dict[str, Any]:
        """The step that a call or its result belongs to; one of no model where there is none."""
        if self._open is not None and (one.step is None or one.step == self._number):
            return self._open
        self._open = self._add(one, "agent", "")
        self._open["llm_call_count"] = 0
        self._number = one.step
        return self._open

    def _add_result(self, one: Said) -> None:
        step = self._agent_step(one)
        name, content = first_of(one.data, RESULT)
        result: dict[str, Any] = {}
        asked = one.data.get("tool_call_id") or _unanswered(step)
        if asked is not None:
            result["source_call_id"] = asked
        if content is not None:
            result["content"] = _content(content)
        more = one.data.get("atif")
        result |= more if isinstance(more, dict) else {}
        _keep(result, one.rest("tool_call_id", "atif", *([name] if name else [])))
        observation = step.setdefault("observation", {})
        observation.setdefault("results", []).append(result)


def _content(value: Any) -> Any:
    """A text, or the parts that the format knows; anything else as the text of its JSON."""
    if value is None:
        return ""
    known = isinstance(value, list) and all(
        isinstance(part, dict) and part.get("type") in ("text", "image") for part in value
    )
    return value if known else text_of(value)


def _call_of(one: Said) -> dict[str, Any]:
    data, more = one.data, one.data.get("atif")
    call: dict[str, Any] = {
        "tool_call_id": str(data.get("tool_call_id") or f"call-{one.seq}"),
        "function_name": str(data.get("tool") or data.get("name") or "tool"),
    }
    arguments = _as_object(data.get("arguments"))
    used = ("tool_call_id", "tool", "atif")
    call["arguments"] = one.rest(*used) if arguments is None else arguments
    call |= more if isinstance(more, dict) else {}
    _keep(call, {} if arguments is None else one.rest("arguments", *used))
    return call


def _as_object(arguments: Any) -> dict[str, Any] | None:
    """Arguments as an object; None when they are no such thing, nor the text of one."""
    if isinstance(arguments, str):
        with suppress(Refusal):
            arguments = check(arguments).value()
    return arguments if isinstance(arguments, dict) else None


def _unanswered(step: dict[str, Any]) -> str | None:
    """The first call of ours that has no result yet: an event without an id belongs to it."""
    results = step.get("observation", {}).get("results", [])
    answered = {result.get("source_call_id") for result in results}
    for call in step.get("tool_calls", []):
        made_up = call["tool_call_id"].startswith("call-")
        if made_up and call["tool_call_id"] not in answered:
            return str(call["tool_call_id"])
    return None


def _metrics(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Counts under the format's names; a total alone has none, and stands under `extra`."""
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    known = {theirs: usage[ours] for ours, theirs in names.items() if type(usage.get(ours)) is int}
    rest = {name: value for name, value in usage.items() if names.get(name) not in known}
    return known | ({"extra": rest} if rest else {})


def _keep(part: dict[str, Any], rest: Mapping[str, Any]) -> None:
    """Members that the format has no place for stand under `extra`, beside what is there."""
    if rest:
        extra = part.get("extra")
        kept = dict(extra) if isinstance(extra, dict) else {}
        part["extra"] = {**kept, "agentstate": dict(rest)}
