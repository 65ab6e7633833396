"""Answers as JSON and back, so that a repeated request gets the very first one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from agentstate.store.commands import BatchDone, Result
from agentstate.store.errors import Refusal, every_refusal
from agentstate.store.payloads import RawJSON, parse, write

REFUSED = "refused"
# Members of answers that are payloads: they come back to the letter from a record too.
_PAYLOADS = frozenset({"progress", "data"})


def members(answer: Any) -> dict[str, Any]:
    """A result as JSON members, without `replayed` (that is a header, not part of the answer)."""
    return {name: _plain(getattr(answer, name)) for name in _names(answer.__class__)}


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls) if field.name != "replayed")


_AS_THEY_ARE = frozenset({str, int, bool, type(None), datetime})


def _plain(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, (RawJSON, type)):
        return members(value)
    return value


def dump(answer: Result | Refusal) -> tuple[str, str]:
    """(kind, JSON text) to keep beside an idempotency key."""
    if isinstance(answer, Refusal):
        told = {
            "code": answer.code,
            "detail": answer.detail,
            "current": answer.current,
            "retry_after_ms": answer.retry_after_ms,
            "facts": answer.facts,
        }
        return REFUSED, write(told)
    if isinstance(answer, BatchDone):
        parts = [(*dump(result), result.replayed) for result in answer.results]
        results = [[kind, RawJSON(text), replayed] for kind, text, replayed in parts]
        return type(answer).__name__, write({"at": answer.at, "results": results})
    return type(answer).__name__, write(members(answer))


def load(kind: str, text: str) -> Result | Refusal:
    """The answer that `dump` kept, marked as replayed."""
    told = parse(text, raw=_PAYLOADS)
    if kind == REFUSED:
        return _load_refusal(told)
    if kind == BatchDone.__name__:
        return BatchDone(
            results=tuple(_load_operation(*part) for part in told["results"]),
            at=datetime.fromisoformat(told["at"]),
            replayed=True,
        )
    result_class = {cls.__name__: cls for cls in Result.__subclasses__()}[kind]
    answer = _load_dataclass(result_class, told, replayed=True)
    assert isinstance(answer, Result)
    return answer


def _load_operation(kind: str, told: Mapping[str, Any], replayed: bool) -> Result:
    """An operation of a batch, marked as it was in the first answer."""
    return replace(cast("Result", load(kind, json.dumps(told))), replayed=replayed)


def _load_refusal(told: Mapping[str, Any]) -> Refusal:
    cls = every_refusal()[told["code"]]
    refusal = cls.__new__(cls)
    Refusal.__init__(
        refusal,
        told["detail"],
        current=told["current"],
        retry_after_ms=told["retry_after_ms"],
        replayed=True,
        **told["facts"],
    )
    return refusal


def _load_dataclass(cls: type, told: Mapping[str, Any], **more: Any) -> Any:
    hints = get_type_hints(cls)
    return cls(**{name: _load(hints[name], value) for name, value in told.items()}, **more)


def _load(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is tuple:
        return tuple(_load(get_args(hint)[0], inner) for inner in value)
    if hint is datetime:
        return datetime.fromisoformat(value)
    if hint is UUID:
        return UUID(value)
    if hint is RawJSON:
        return None if value.text == "null" else value
    return _load_dataclass(hint, value) if isinstance(hint, type) and is_dataclass(hint) else value
