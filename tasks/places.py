"""Where in a JSON file a rule is broken: what all readers of foreign files tell it with. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from agentstate.store.commands import NewEvent
from agentstate.store.errors import Refusal, TooLarge
from agentstate.store.payloads import Malformed, dump
from tasks.drafts import UnreadableFile


class Wrong(Exception):
    """A rule broken at a JSON path, on its way to the one who knows the file's name."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


@contextmanager
def told_of(name: str, text: str) -> Iterator[None]:
    """What goes wrong inside becomes UnreadableFile, with line or JSON path and the reason."""
    try:
        yield
    except Wrong as wrong:
        raise UnreadableFile(name=name, place=wrong.path, reason=wrong.reason) from None
    except Malformed as wrong:
        place = line_and_column(text, wrong.facts["position"])
        raise UnreadableFile(name=name, place=place, reason=wrong.detail) from None
    except Refusal as wrong:
        place = f"$.{wrong.facts['field']}" if wrong.facts.get("field") else "$"
        reason = str(wrong.facts.get("rule", wrong.detail))
        raise UnreadableFile(name=name, place=place, reason=reason) from None
    except ValueError as wrong:
        raise UnreadableFile(name=name, place="file name", reason=str(wrong)) from None


def line_and_column(text: str, position: int) -> str:
    """A place in a text for people, both counted from 1."""
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind('\n', 0, position)}"


def an_object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Wrong(path, f"must be an object, is {kind_of(value)}")
    return value


def a_list(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise Wrong(path, f"must be a list, is {kind_of(value)}")
    return value


def a_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise Wrong(path, f"must be a text, is {kind_of(value)}")
    return value


def member(source: Mapping[str, Any], name: str, path: str) -> Any:
    """A member that has to be there."""
    if name not in source:
        raise Wrong(f"{path}.{name}", "is missing")
    return source[name]


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")


def an_event(type: str, id: str, data: Mapping[str, Any], path: str) -> NewEvent:
    """The event that a part of the file becomes, whole or not at all. Raises Wrong."""
    try:
        return NewEvent(type=type, id=id, data=dump(data))
    except TooLarge as large:
        limit, actual = large.facts["limit"], large.facts["actual"]
        reason = f"{type} would hold {actual} bytes, an event takes at most {limit}"
        raise Wrong(path, reason) from None
    except Refusal as wrong:
        raise Wrong(path, wrong.detail) from None
