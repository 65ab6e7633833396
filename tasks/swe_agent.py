"""A run as the trajectory of SWE-agent (`.traj`), as `trajectories.py` reads it. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentstate.store.commands import ImportRun
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

_OF_RESULT = ("state", "execution_time")


def write_trajectory(run: ImportRun) -> Written:
    """The run as the text of a `.traj` file; calls and results of one step are one action and one
    observation, with an empty line between several."""
    steps = _Steps()
    for one in said(run):
        steps.take(one)
    attrs = run.attrs.value()
    document: dict[str, Any] = {}
    if isinstance(attrs.get("environment"), str):
        document["environment"] = attrs["environment"]
    document["trajectory"] = steps.steps
    document["history"] = steps.history
    document["info"] = steps.info or {"exit_status": _exit_status(run), "submission": None}
    left = left_of_store(run) + steps.left_out
    left["key, task, tags and attrs of the run"] = 1
    return Written(text=as_json(document, indent=2) + "\n", left_out=dict(left))


def _exit_status(run: ImportRun) -> str:
    """Its readers take what begins with "submitted" for a success."""
    return "submitted" if run.status == "completed" else run.status


class _Steps:
    """Takes event after event."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}
        self.left_out: Counter[str] = Counter()
        self._number: Any = None

    def take(self, one: Said) -> None:
        match one.type:
            case "task.given":
                for role, member in (("system", "system"), ("user", "task")):
                    if isinstance(one.data.get(member), str):
                        self._tell(role, one.data[member])
            case "message.given":
                self._tell(one.data.get("role"), text_of(one.data.get("content") or ""))
                self._leave_out(one, "role", "content")
            case "model.responded" | "agent.acted":
                self._begin(one)
                name, response = first_of(one.data, RESPONSE)
                self.steps[-1]["response"] = text_of(response or "")
                self.steps[-1]["thought"] = text_of(one.data.get("thought") or "")
                self._leave_out(one, "thought", name or "response")
            case "tool.called":
                self._add_action(one)
            case "tool.returned":
                self._add_result(one)
            case "submission.made" | "agent.exited":
                self.info = dict(one.data)
            case _:
                self.left_out[f"event {one.type}"] += 1

    def _tell(self, role: Any, content: str) -> None:
        role = role if role in ("system", "user") else "system"
        self.history.append({"role": role, "content": content, "agent": "main"})

    def _begin(self, one: Said) -> None:
        self._number = one.step
        self.steps.append({"action": "", "observation": "", "response": "", "thought": ""})

    def _step(self, one: Said) -> dict[str, Any]:
        if not self.steps or (one.step is not None and one.step != self._number):
            self._begin(one)
        return self.steps[-1]

    def _add_action(self, one: Said) -> None:
        step, data = self._step(one), one.data
        if isinstance(data.get("action"), str):
            action = data["action"]
            if data.get("tool_calls") is not None:
                step["tool_calls"] = data["tool_calls"]
            self._leave_out(one, "action", "tool", "tool_calls")
        else:
            action = f"{data.get('tool') or 'tool'} {as_json(one.rest('tool'))}"
        step["action"] = _joined(step["action"], action)

    def _add_result(self, one: Said) -> None:
        step, data = self._step(one), one.data
        name, found = first_of(data, RESULT)
        step["observation"] = _joined(step["observation"], text_of(found or ""))
        step |= {n: data[n] for n in _OF_RESULT if n in data}
        extra = data.get("extra")
        step |= extra if isinstance(extra, dict) else {}
        used = ["extra"] if isinstance(extra, dict) else []
        self._leave_out(one, name or "observation", *used, *_OF_RESULT)

    def _leave_out(self, one: Said, *used: str) -> None:
        for name in one.rest(*used):
            self.left_out[f"{name} of {one.type}"] += 1


def _joined(before: str, text: str) -> str:
    return f"{before}\n\n{text}" if before else text
