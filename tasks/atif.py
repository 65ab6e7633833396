"""Trajectories in ATIF (Agent Trajectory Interchange Format, of Harbor and terminal-bench): the
text of a file goes in and a draft comes out, a run goes in and the text of a file comes out.

Each step becomes events with all its members, under our names where we have some, the rest under
`atif`. So a file that was read is written again as it was, but for white space, members that are
null, and empty lists. Pure: no Django, no I/O. How the parts map: docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentstate.store.commands import Charge, ImportRun, NewBudget, NewEvent
from agentstate.store.errors import Refusal
from agentstate.store.payloads import RawJSON, check, dump, moment, parse
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
from tasks.drafts import ENDINGS, RunDraft, Step, cap_above, key_from_name, split, task_line
from tasks.places import Wrong, a_list, a_text, an_event, an_object, member, told_of

WRITTEN_VERSION = "ATIF-v1.7"
_VERSION = re.compile(r"ATIF-v1\.[0-9]+")
_SOURCES = ("system", "user", "agent")
_OF_STEP = frozenset({"step_id", "source", "message", "timestamp", "tool_calls", "observation"})
_OF_AGENT = {"message": "response", "reasoning_content": "thought", "model_name": "model",
             "metrics": "metrics", "timestamp": "timestamp"}  # fmt: skip
_OF_CALL = {"function_name": "tool", "arguments": "arguments", "tool_call_id": "tool_call_id"}
_OF_RESULT = {"source_call_id": "tool_call_id", "content": "observation"}

type Members = Mapping[str, Any]


def is_atif(value: Any) -> bool:
    """Whether a JSON value says that it is one of these."""
    return isinstance(value, dict) and str(value.get("schema_version", "")).startswith("ATIF")


# --- in ------------------------------------------------------------------------------------------


def read_atif(*, text: str, name: str) -> RunDraft:
    """The run that an ATIF file tells of.

    name: the file's name, for messages and for the run's key.
    Raises UnreadableFile, naming line or JSON path and the reason.
    """
    with told_of(name, text):
        return _draft(an_object(parse(text), "$"), name)


def _draft(source: Members, name: str) -> RunDraft:
    version = a_text(member(source, "schema_version", "$"), "$.schema_version")
    if not _VERSION.fullmatch(version):
        raise Wrong("$.schema_version", f"ATIF-v1.0 and later of ATIF-v1 are read, not {version}")
    agent = an_object(member(source, "agent", "$"), "$.agent")
    for one in ("name", "version"):
        a_text(member(agent, one, "$.agent"), f"$.agent.{one}")
    taken = a_list(member(source, "steps", "$"), "$.steps")
    if not taken:
        raise Wrong("$.steps", "has no step")
    steps = [_checked(step, at) for at, step in enumerate(taken)]
    ours = _ours(source)
    spent = sum(_tokens(step) for step in steps)
    status, left_out = _status(ours)
    return RunDraft(
        key=key_from_name(name),
        task=_title(steps, agent, ours),
        tags=tuple(ours["tags"]) if isinstance(ours.get("tags"), list) else ("atif",),
        attrs=_attrs(source, agent, name, len(steps), ours),
        budgets=(NewBudget(name="tokens", cap=cap_above(spent)),) if spent else (),
        opening=(_described(source),),
        steps=tuple(_steps(steps, source)),
        status=status,
        result=dump(ours["result"]) if ours.get("result") is not None else None,
        left_out=left_out,
    )


def _ours(source: Members) -> Members:
    """What our own writer says of a run beside its steps."""
    extra = source.get("extra")
    ours = extra.get("agentstate") if isinstance(extra, dict) else None
    return ours if isinstance(ours, dict) else {}


def _status(ours: Members) -> tuple[str, dict[str, int]]:
    """How it ended. The format does not say; a run that had not ended has by being read."""
    told = ours.get("status", "completed")
    if told in ENDINGS and told != "pending":
        return str(told), {}
    return "completed", {f"status {text_of(told)}": 1}


def _title(steps: Sequence[Members], agent: Members, ours: Members) -> str:
    told = [ours.get("task"), *(s["message"] for s in steps if s["source"] == "user")]
    for text in told:
        first = next((line for line in _plain(text).splitlines() if line.strip()), "")
        if line := task_line(first):
            return line
    return task_line(f"Trajectory of {agent['name']}")


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, dict) and "text" in p)


def _attrs(source: Members, agent: Members, name: str, steps: int, ours: Members) -> RawJSON:
    if isinstance(ours.get("attrs"), dict):
        return dump(ours["attrs"])
    attrs = {
        "source": {"format": "atif", "file": name.rsplit("/", 1)[-1]},
        "agent": agent["name"],
        "model": agent.get("model_name"),
        "session": source.get("session_id"),
        "steps": steps,
    }
    return dump({key: value for key, value in attrs.items() if value is not None})


def _described(source: Members) -> NewEvent:
    """The file but for its steps."""
    others = ("steps", "subagent_trajectories")
    members = {n: v for n, v in source.items() if n not in others and v is not None}
    data = {"format": "atif", "members": members}
    return an_event("trajectory.described", "trajectory", data, "$")


def _checked(value: Any, at: int) -> Members:
    path = f"$.steps[{at}]"
    step = an_object(value, path)
    if member(step, "step_id", path) != at + 1:
        raise Wrong(f"{path}.step_id", f"{at + 1} is next: they count from 1 without a hole")
    source = member(step, "source", path)
    if source not in _SOURCES:
        raise Wrong(f"{path}.source", f"one of {', '.join(_SOURCES)}")
    message = member(step, "message", path)
    if not isinstance(message, list):
        a_text(message, f"{path}.message")
    if step.get("tool_calls") and source != "agent":
        raise Wrong(f"{path}.tool_calls", "of an agent's step only")
    for n, call in enumerate(a_list(step.get("tool_calls") or [], f"{path}.tool_calls")):
        _check_call(call, f"{path}.tool_calls[{n}]")
    for n, result in enumerate(_results(step, path)):
        an_object(result, f"{path}.observation.results[{n}]")
    if step.get("metrics") is not None:
        an_object(step["metrics"], f"{path}.metrics")
    return step


def _check_call(value: Any, path: str) -> None:
    call = an_object(value, path)
    for name in ("tool_call_id", "function_name"):
        a_text(member(call, name, path), f"{path}.{name}")
    an_object(member(call, "arguments", path), f"{path}.arguments")


def _results(step: Members, path: str) -> Sequence[Any]:
    observation = an_object(step.get("observation") or {}, f"{path}.observation")
    if not observation:
        return []
    results = member(observation, "results", f"{path}.observation")
    return a_list(results, f"{path}.observation.results")


def _tokens(step: Members) -> int:
    metrics = step.get("metrics") or {}
    counts = (metrics.get("prompt_tokens"), metrics.get("completion_tokens"))
    return sum(count for count in counts if type(count) is int and count > 0)


def _steps(steps: Sequence[Members], source: Members) -> Iterator[Step]:
    for at, step in enumerate(steps):
        path, number = f"$.steps[{at}]", at + 1
        if step["source"] != "agent":
            yield from split([_message(step, number, path)])
            continue
        tokens = _tokens(step)
        yield from split(
            list(_of_agent(step, number, path)),
            add={"steps_done": 1, **({"tokens_spent": tokens} if tokens else {})},
            spend=Charge(budget="tokens", amount=tokens) if tokens else None,
        )
    embedded = a_list(source.get("subagent_trajectories") or [], "$.subagent_trajectories")
    for at, one in enumerate(embedded):
        path = f"$.subagent_trajectories[{at}]"
        data = {"trajectory": an_object(one, path)}
        yield from split([an_event("trajectory.embedded", f"embedded-{at + 1}", data, path)])


def _message(step: Members, number: int, path: str) -> NewEvent:
    data = {"step": number, "role": step["source"], "content": step["message"]}
    if step.get("timestamp") is not None:
        data["timestamp"] = step["timestamp"]
    kept = _of_step_kept(step, ())
    if step.get("observation"):
        kept["observation"] = step["observation"]
    return an_event("message.given", f"step-{number}.message", data | _more(kept), path)


def _of_agent(step: Members, number: int, path: str) -> Iterator[NewEvent]:
    kept = _of_step_kept(step, tuple(_OF_AGENT))
    others = {n: v for n, v in (step.get("observation") or {}).items() if n != "results"}
    if others:
        kept["observation"] = others
    type = "agent.acted" if step.get("llm_call_count") == 0 else "model.responded"
    data = {"step": number, **_renamed(step, _OF_AGENT), **_usage(step), **_more(kept)}
    yield an_event(type, f"step-{number}.model", data, path)
    for n, call in enumerate(step.get("tool_calls") or [], 1):
        kept = {name: v for name, v in call.items() if name not in _OF_CALL and v is not None}
        data = {"step": number, **_renamed(call, _OF_CALL), **_more(kept)}
        yield an_event(
            "tool.called", f"step-{number}.call-{n}", data, f"{path}.tool_calls[{n - 1}]"
        )
    for n, result in enumerate(_results(step, path), 1):
        kept = {name: v for name, v in result.items() if name not in _OF_RESULT and v is not None}
        data = {"step": number, **_renamed(result, _OF_RESULT), **_more(kept)}
        where = f"{path}.observation.results[{n - 1}]"
        yield an_event("tool.returned", f"step-{number}.result-{n}", data, where)


def _of_step_kept(step: Members, renamed: tuple[str, ...]) -> dict[str, Any]:
    used = _OF_STEP | set(renamed)
    return {name: v for name, v in step.items() if name not in used and v is not None}


def _renamed(source: Members, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        ours: source[theirs] for theirs, ours in names.items() if source.get(theirs) is not None
    }


def _usage(step: Members) -> dict[str, Any]:
    tokens = _tokens(step)
    return {"usage": {"tokens": tokens, "estimated": False}} if tokens else {}


def _more(kept: dict[str, Any]) -> dict[str, Any]:
    return {"atif": kept} if kept else {}


# --- out -----------------------------------------------------------------------------------------


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
            _keep(step, {**rest, **({} if role in _SOURCES else {"role": role})})
        self._open = None

    def _add_agent(self, one: Said) -> None:
        data, more = one.data, one.data.get("atif")
        name, text = first_of(data, RESPONSE)
        step = self._add(one, "agent", _content(text))
        for theirs, ours in _OF_AGENT.items():
            if theirs not in ("message", "timestamp") and data.get(ours) is not None:
                step[theirs] = data[ours]
        used = {"atif", "timestamp", *_OF_AGENT.values(), *([name] if name else [])}
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
