"""Logs of chat messages as OpenAI's API has them: a JSON list of messages, an object that holds one
under `messages`, or JSON lines of either. The text of a file goes in and drafts come out, a run
goes in and a list of messages comes out. Pure: no Django, no I/O. How the parts map:
docs/formats.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentstate.store.commands import ImportRun, NewEvent
from agentstate.store.payloads import dump, parse
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
from tasks.drafts import RunDraft, UnreadableFile, key_from_name, split, task_line
from tasks.places import Wrong, a_list, a_text, an_event, an_object, member, told_of

GIVEN = ("system", "developer", "user")
ANSWERED = ("tool", "function")
_CALL = frozenset({"id", "type", "function"})


def is_messages(value: Any) -> bool:
    """Whether a JSON value looks like one of these."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, dict) and "role" in one for one in value)
    return isinstance(value, dict) and ("role" in value or isinstance(value.get("messages"), list))


# --- in ------------------------------------------------------------------------------------------


def read_messages(*, text: str, name: str) -> tuple[RunDraft, ...]:
    """The runs that a file of messages tells of: one, or of lines with `messages` one each.

    name: the file's name, for messages to people and for the keys (NAME, or NAME-1, NAME-2 …).
    Raises UnreadableFile, naming line or JSON path and the reason.
    """
    stripped = text.removeprefix("\ufeff").lstrip()
    if stripped.startswith("[") or _is_one_object(stripped):
        with told_of(name, text):
            value = parse(text.removeprefix("\ufeff"))
            found = value if isinstance(value, dict) else {"messages": value}
            return (_draft(found, key_from_name(name), name, "$"),)
    return _of_lines(text, name)


def _is_one_object(text: str) -> bool:
    """Whether the file is one object over many lines, and not one a line."""
    first = text.split("\n", 1)[0].rstrip()
    return text.startswith("{") and not first.endswith("}")


def _of_lines(text: str, name: str) -> tuple[RunDraft, ...]:
    whole: list[Mapping[str, Any]] = []
    messages: list[Any] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            with told_of(name, line):
                row = an_object(parse(line), "$")
        except UnreadableFile as wrong:
            place = wrong.place.replace("line 1", f"line {number}")
            place = place if place.startswith("line") else f"line {number}: {place}"
            raise UnreadableFile(name=name, place=place, reason=wrong.reason) from None
        (whole if "messages" in row else messages).append(row)
        if whole and messages:
            reason = "either messages or objects with `messages`, not both in one file"
            raise UnreadableFile(name=name, place=f"line {number}", reason=reason)
    with told_of(name, text):
        key = key_from_name(name)
        if not whole:
            return (_draft({"messages": messages}, key, name, "$"),)
        keys = [key] if len(whole) == 1 else [f"{key}-{n}" for n in range(1, len(whole) + 1)]
        return tuple(
            _draft(one, key, name, f"$[{at}]" if len(whole) > 1 else "$")
            for at, (one, key) in enumerate(zip(whole, keys, strict=True))
        )


def _draft(source: Mapping[str, Any], key: str, name: str, path: str) -> RunDraft:
    messages = a_list(member(source, "messages", path), f"{path}.messages")
    if not messages:
        raise Wrong(f"{path}.messages", "has no message")
    where = f"{path}.messages"
    checked = [_checked(one, f"{where}[{at}]") for at, one in enumerate(messages)]
    rest = {n: value for n, value in source.items() if n != "messages" and value is not None}
    opening: tuple[NewEvent, ...] = ()
    if rest:
        data = {"format": "messages", "members": rest}
        opening = (an_event("trajectory.described", "trajectory", data, path),)
    attrs = {
        "source": {"format": "messages", "file": name.rsplit("/", 1)[-1]},
        "model": rest.get("model"),
        "messages": len(messages),
    }
    return RunDraft(
        key=key,
        task=_title(checked) or task_line(f"Messages of {key}"),
        tags=("messages",),
        attrs=dump({n: value for n, value in attrs.items() if isinstance(value, (dict, str, int))}),
        opening=opening,
        steps=tuple(
            step
            for at, one in enumerate(checked)
            for step in split(
                list(_events(one, at + 1, f"{where}[{at}]")),
                add={"steps_done": 1} if one["role"] == "assistant" else None,
            )
        ),
    )


def _checked(value: Any, path: str) -> Mapping[str, Any]:
    message = an_object(value, path)
    role = member(message, "role", path)
    if role not in (*GIVEN, *ANSWERED, "assistant"):
        roles = ", ".join((*GIVEN, "assistant", *ANSWERED))
        raise Wrong(f"{path}.role", f"one of {roles}")
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise Wrong(f"{path}.content", "must be a text, a list of parts, or null")
    for at, call in enumerate(a_list(message.get("tool_calls") or [], f"{path}.tool_calls")):
        where = f"{path}.tool_calls[{at}]"
        _check_call(an_object(call, where), where)
    if message.get("tool_call_id") is not None:
        a_text(message["tool_call_id"], f"{path}.tool_call_id")
    return message


def _check_call(call: Mapping[str, Any], path: str) -> None:
    if call.get("id") is not None:
        a_text(call["id"], f"{path}.id")
    if call.get("function") is not None:
        where = f"{path}.function"
        a_text(member(an_object(call["function"], where), "name", where), f"{where}.name")


def _title(messages: Sequence[Mapping[str, Any]]) -> str:
    for one in messages:
        content = one.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        text = "\n".join(str(p["text"]) for p in parts if isinstance(p, dict) and "text" in p)
        line = next((line for line in map(task_line, text.splitlines()) if line), "")
        if one["role"] == "user" and line:
            return line
    return ""


def _events(message: Mapping[str, Any], number: int, path: str) -> Iterator[NewEvent]:
    role, content = message["role"], message.get("content")
    rest = {n: v for n, v in message.items() if n not in ("role", "content", "tool_calls")}
    data: dict[str, Any] = {"step": number}
    if role in GIVEN:
        data |= {"role": role, "content": content}
        if "tool_calls" in message:
            rest["tool_calls"] = message["tool_calls"]
        yield an_event("message.given", f"message-{number}", data | _more(rest), path)
    elif role in ANSWERED:
        asked = rest.pop("tool_call_id", None)
        if asked is not None:
            data["tool_call_id"] = asked
        if role != "tool" or asked is None:
            rest["role"] = role  # so that it is told from a result that no message was
        data["observation"] = content
        yield an_event("tool.returned", f"message-{number}", data | _more(rest), path)
    else:
        data["response"] = content
        yield an_event("model.responded", f"message-{number}", data | _more(rest), path)
        for n, call in enumerate(message.get("tool_calls") or [], 1):
            where = f"{path}.tool_calls[{n - 1}]"
            yield an_event("tool.called", f"message-{number}.call-{n}", _call(call, number), where)


def _call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A call under our names; arguments stay the text that the model wrote."""
    function = dict(call.get("function") or {})
    data: dict[str, Any] = {"step": number, "tool": str(function.pop("name", "tool"))}
    if "arguments" in function:
        data["arguments"] = function.pop("arguments")
    if call.get("id") is not None:
        data["tool_call_id"] = call["id"]
    rest = {n: value for n, value in call.items() if n not in _CALL}
    if call.get("type", "function") != "function" or "type" not in call:
        rest["type"] = call.get("type")
    if call.get("function") is None:
        rest["function"] = None
    elif function:
        rest["function"] = function
    return data | _more(rest)


def _more(rest: Mapping[str, Any]) -> dict[str, Any]:
    return {"openai": dict(rest)} if rest else {}


# --- out -----------------------------------------------------------------------------------------


def write_messages(run: ImportRun) -> Written:
    """The run as a JSON list of messages; as an object with `messages` where it came as one."""
    log = _Log()
    for one in said(run):
        log.take(one)
    left = left_of_store(run) + log.left_out
    left["key, task, status, tags and attrs of the run"] = 1
    document = {**log.described, "messages": log.messages} if log.described else log.messages
    return Written(text=as_json(document, indent=2) + "\n", left_out=dict(left))


class _Log:
    """Takes event after event; `messages` are what they say."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.described: dict[str, Any] = {}
        self.left_out: Counter[str] = Counter()
        self._unanswered: list[str] = []

    def take(self, one: Said) -> None:
        data = one.data
        match one.type:
            case "trajectory.described" if data.get("format") == "messages":
                self.described = dict(data.get("members") or {})
            case "task.given":
                for role, part in (("system", "system"), ("user", "task")):
                    if isinstance(data.get(part), str):
                        self.messages.append({"role": role, "content": data[part]})
            case "message.given":
                given = data.get("role") if data.get("role") in GIVEN else "user"
                self._put(one, {"role": given, "content": data.get("content")}, "role", "content")
            case "model.responded" | "agent.acted":
                name, text = first_of(data, RESPONSE)
                content = text if text is None or isinstance(text, (str, list)) else text_of(text)
                if content is None and "response" not in data:
                    content = ""
                self._put(one, {"role": "assistant", "content": content}, name or "response")
                self._unanswered = []
            case "tool.called":
                self._put_call(one)
            case "tool.returned":
                self._put_result(one)
            case _:
                self.left_out[f"event {one.type}"] += 1

    def _put(self, one: Said, message: dict[str, Any], *used: str) -> None:
        more = one.data.get("openai")
        self.messages.append(message | (more if isinstance(more, dict) else {}))
        self._leave_out(one, "openai", *used)

    def _leave_out(self, one: Said, *used: str) -> None:
        for name, value in one.rest(*used).items():
            said_already = name == "thought" and text_of(value) in text_of(one.data.get("response"))
            if not said_already:
                self.left_out[f"{name} of {one.type}"] += 1

    def _put_call(self, one: Said) -> None:
        data, more = one.data, one.data.get("openai")
        more = dict(more) if isinstance(more, dict) else {}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        call: dict[str, Any] = {"id": data.get("tool_call_id"), "type": "function"}
        if call["id"] is None:
            made = call["id"] = f"call-{one.seq}"
            self._unanswered.append(made)
        used = ("tool", "tool_call_id", "openai")
        function = {"name": str(data.get("tool") or data.get("name") or "tool")}
        if "arguments" in data:
            function["arguments"] = text_of(data["arguments"])
            self._leave_out(one, "arguments", *used)
        else:
            function["arguments"] = as_json(one.rest(*used))
        of_function = more.pop("function", {})
        if isinstance(of_function, dict):  # else it is a call of another type
            call["function"] = function | of_function
        call |= more
        if call["type"] is None:
            del call["type"]
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def _put_result(self, one: Said) -> None:
        """A result of a call; one that nobody asked for by an id is told as the user's words."""
        name, content = first_of(one.data, RESULT)
        content = (
            content if content is None or isinstance(content, (str, list)) else text_of(content)
        )
        asked = one.data.get("tool_call_id")
        if asked is None and self._unanswered:
            asked = self._unanswered.pop(0)
        message: dict[str, Any] = {"role": "tool"}
        if asked is not None:
            message["tool_call_id"] = asked
        elif "openai" not in one.data:
            message["role"] = "user"
            self.left_out["that a message of the user is a tool's result"] += 1
        message["content"] = content
        self._put(one, message, "tool_call_id", name or "observation")
