"""Trajectories of SWE-agent (`.traj`) as runs: the text of a file goes in, a draft comes out.

A `.traj` file is one JSON object: `trajectory` is the list of steps (thought, response, action,
observation, state), `info` says how it ended (exit status, submission, model statistics), `history`
is the conversation, of which only the system prompt and the task are taken: the rest repeats the
steps. Nothing of a step is shortened. Pure: no Django, no I/O. How the parts map: docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentstate.store.commands import Charge, NewBudget, NewEvent
from agentstate.store.payloads import RawJSON, dump, parse
from tasks.drafts import RunDraft, Step, cap_above, key_from_name, task_line
from tasks.places import Wrong, a_list, an_event, an_object, kind_of, member, told_of

# Used only where the file has no token counts: a usual rule of thumb for English text and code.
CHARACTERS_PER_TOKEN = 4

_TEXTS = ("thought", "response", "action", "observation")
# `query` and `messages` repeat the whole conversation in every step of newer files.
_REPEATED = frozenset({"query", "messages", "history"})
# Left as text: nothing is taken from it.
_UNUSED = frozenset({"replay_config"})
_ISSUE = re.compile(r"\bISSUE:\s*\n\s*(?P<title>\S[^\n]*)")
_CHALLENGE = re.compile(
    r"The CTF challenge is an? (?P<kind>[^\n\"]{1,60}?) problem named "
    r"[\"“](?P<name>[^\"”\n]{1,200})[\"”]"
)


def read_trajectory(*, text: str, name: str) -> RunDraft:
    """The run that a `.traj` file tells of.

    name: the file's name, for messages and for the run's key.
    Raises UnreadableFile, naming line or JSON path and the reason.
    """
    with told_of(name, text):
        return _draft(an_object(parse(text, raw=_UNUSED), "$"), name)


def estimated_tokens(text: str) -> int:
    """At least 1; one for every CHARACTERS_PER_TOKEN characters."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


def _draft(source: Mapping[str, Any], name: str) -> RunDraft:
    taken = a_list(member(source, "trajectory", "$"), "$.trajectory")
    if not taken:
        raise Wrong("$.trajectory", "has no step")
    steps = [_checked_step(step, f"$.trajectory[{at}]") for at, step in enumerate(taken)]
    info = an_object(source.get("info") or {}, "$.info")
    system, task = _conversation(source)
    tokens, measured = _tokens(steps, info)
    return RunDraft(
        key=key_from_name(name),
        task=_title(task) or task_line(f"Replay of {key_from_name(name)}"),
        tags=_tags(task, info),
        attrs=_attrs(source, name, len(steps), measured),
        budgets=(NewBudget(name="tokens", unit="tokens", cap=cap_above(sum(tokens))),),
        opening=_opening(system, task),
        steps=(
            *(
                _step(at, step, spent, measured)
                for at, (step, spent) in enumerate(zip(steps, tokens, strict=True), 1)
            ),
            _ending(info),
        ),
        status="completed" if _is_submitted(info) else "failed",
        result=dump({"exit_status": info.get("exit_status"), "steps": len(steps)}),
        left_out=_left_out(source, steps),
    )


def _left_out(source: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What is not taken: it repeats the steps, but for the settings of a replay."""
    told = {f"{name} of a step": sum(name in step for step in steps) for name in sorted(_REPEATED)}
    messages = source.get("history")
    if isinstance(messages, list):
        taken = sum(1 for text in _conversation(source) if text)
        told["messages of history"] = len(messages) - taken
    others = source.keys() - {"trajectory", "info", "history", "environment"}
    told |= dict.fromkeys(sorted(others), 1)
    return {name: count for name, count in told.items() if count}


def _checked_step(value: Any, path: str) -> Mapping[str, Any]:
    step = an_object(value, path)
    if "action" not in step:
        raise Wrong(f"{path}.action", "is missing")
    for name in _TEXTS:
        if step.get(name) is not None and not isinstance(step[name], str):
            raise Wrong(f"{path}.{name}", f"must be a text, is {kind_of(step[name])}")
    return step


def _conversation(source: Mapping[str, Any]) -> tuple[str, str]:
    """The system prompt and the task: the first message of each role that is no demonstration."""
    said = {"system": "", "user": ""}
    for message in a_list(source.get("history") or [], "$.history"):
        if not isinstance(message, dict) or message.get("is_demo"):
            continue
        role = message.get("role")
        if isinstance(role, str) and role in said and not said[role]:
            said[role] = _message_text(message.get("content"))
    return said["system"], said["user"]


def _message_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)


def _title(task: str) -> str:
    if found := _CHALLENGE.search(task):
        return task_line(f"Solve “{found['name']}” ({found['kind']} challenge)")
    if found := _ISSUE.search(task):
        return task_line(found["title"])
    return next((line for line in map(task_line, task.splitlines()) if line), "")


def _tags(task: str, info: Mapping[str, Any]) -> tuple[str, ...]:
    kind = "ctf" if _CHALLENGE.search(task) else "issue" if _ISSUE.search(task) else "task"
    return (kind, "swe-agent") if _is_submitted(info) else (kind, "not-submitted", "swe-agent")


def _is_submitted(info: Mapping[str, Any]) -> bool:
    return str(info.get("exit_status") or "").startswith("submitted")


def _attrs(source: Mapping[str, Any], name: str, steps: int, measured: bool) -> RawJSON:
    attrs = {
        "source": {"format": "swe-agent", "file": name.rsplit("/", 1)[-1]},
        "environment": source.get("environment"),
        "steps": steps,
        "tokens": "measured" if measured else f"estimated: {CHARACTERS_PER_TOKEN} characters each",
    }
    return dump({key: value for key, value in attrs.items() if value is not None})


def _tokens(steps: Sequence[Mapping[str, Any]], info: Mapping[str, Any]) -> tuple[list[int], bool]:
    """Tokens of each step, and whether they were measured.

    A measured total is shared out by the length of the steps' texts, without losing one.
    """
    estimated = [estimated_tokens(_said(step)) for step in steps]
    total = _measured_tokens(info)
    return (_shared(total, estimated), True) if total >= len(steps) else (estimated, False)


def _said(step: Mapping[str, Any]) -> str:
    """What passed between model and tools; a response is the thought and the action in one."""
    spoken = step.get("response") or f"{step.get('thought') or ''}{step['action'] or ''}"
    return f"{spoken}{step.get('observation') or ''}"


def _measured_tokens(info: Mapping[str, Any]) -> int:
    stats = info.get("model_stats")
    if not isinstance(stats, dict):
        return 0
    counts = [stats.get("tokens_sent"), stats.get("tokens_received")]
    return sum(count for count in counts if type(count) is int and count > 0)


def _shared(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in parts as the weights have it, each at least 1; the parts add up to `total`."""
    spare, whole = total - len(weights), sum(weights)
    edges, run = [0], 0
    for weight in weights:
        run += weight
        edges.append(spare * run // whole)
    return [1 + after - before for before, after in pairwise(edges)]


def _opening(system: str, task: str) -> tuple[NewEvent, ...]:
    said = {"system": system, "task": task}
    given = {name: text for name, text in said.items() if text}
    return (an_event("task.given", "task", given, "$.history"),) if given else ()


def _step(at: int, step: Mapping[str, Any], tokens: int, measured: bool) -> Step:
    path = f"$.trajectory[{at - 1}]"
    usage = {"tokens": tokens, "estimated": not measured}
    parts = [("model.responded", {**_present(step, "thought", "response"), "usage": usage})]
    if (step["action"] or "").strip():
        tool = step["action"].split()[0]
        parts.append(("tool.called", {"tool": tool, **_present(step, "action", "tool_calls")}))
    parts.append(("tool.returned", _returned(step)))
    return Step(
        events=tuple(
            an_event(type, f"step-{at}.{type}", {"step": at, **data}, path) for type, data in parts
        ),
        add={"steps_done": 1, "tokens_spent": tokens},
        spend=Charge(budget="tokens", amount=tokens),
    )


def _present(step: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: step[name] for name in names if step.get(name) is not None}


def _returned(step: Mapping[str, Any]) -> dict[str, Any]:
    known = _present(step, "observation", "state", "execution_time")
    used = {"thought", "response", "action", "tool_calls", *known, *_REPEATED}
    extra = {name: value for name, value in step.items() if name not in used and value is not None}
    return {**known, "extra": extra} if extra else known


def _ending(info: Mapping[str, Any]) -> Step:
    """What was handed in, in full, with everything else that the file says about the end."""
    rest = {
        name: value for name, value in info.items() if name not in ("exit_status", "submission")
    }
    data = {"exit_status": info.get("exit_status"), "submission": info.get("submission"), **rest}
    type = "submission.made" if _is_submitted(info) else "agent.exited"
    return Step(events=(an_event(type, "end", data, "$.info"),))
