"""Trajectories in ATIF (Agent Trajectory Interchange Format, of Harbor and terminal-bench): the
text of a file goes in and a draft comes out. `atif_out.py` writes them.

Each step becomes events with all its members, under our names where we have some, the rest under
`atif`. So a file that was read is written again as it was, but for white space, members that are
null, and empty lists. Pure: no Django, no I/O. How the parts map: docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentstate.store.commands import Charge, NewBudget, NewEvent
from agentstate.store.payloads import RawJSON, dump, parse
from tasks.conversations import text_of
from tasks.drafts import ENDINGS, RunDraft, Step, cap_above, key_from_name, split, task_line
from tasks.places import Wrong, a_list, a_text, an_event, an_object, member, told_of

_VERSION = re.compile(r"ATIF-v1\.[0-9]+")
SOURCES = ("system", "user", "agent")
_OF_STEP = frozenset({"step_id", "source", "message", "timestamp", "tool_calls", "observation"})
OF_AGENT = {"message": "response", "reasoning_content": "thought", "model_name": "model",
             "metrics": "metrics", "timestamp": "timestamp"}  # fmt: skip
_OF_CALL = {"function_name": "tool", "arguments": "arguments", "tool_call_id": "tool_call_id"}
_OF_RESULT = {"source_call_id": "tool_call_id", "content": "observation"}

type Members = Mapping[str, Any]


def is_atif(value: Any) -> bool:
    """Whether a JSON value says that it is one of these."""
    return isinstance(value, dict) and str(value.get("schema_version", "")).startswith("ATIF")


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
        if line := next((line for line in map(task_line, _plain(text).splitlines()) if line), ""):
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
    if source not in SOURCES:
        raise Wrong(f"{path}.source", f"one of {', '.join(SOURCES)}")
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
    kept = _of_step_kept(step, tuple(OF_AGENT))
    others = {n: v for n, v in (step.get("observation") or {}).items() if n != "results"}
    if others:
        kept["observation"] = others
    type = "agent.acted" if step.get("llm_call_count") == 0 else "model.responded"
    data = {"step": number, **_renamed(step, OF_AGENT), **_usage(step), **_more(kept)}
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
