"""Whatever an agent's framework hands over, as JSON that the store takes.

What JSON cannot say becomes text; a text that cannot be stored loses only the characters that
cannot. Nothing here raises for a strange value: recording must not be what stops an agent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from typing import Any

# An event's data takes 1 MiB; several such values have room in one.
VALUE_BYTES_MAX = 200_000
DEPTH_MAX, VALUES_MAX, INTEGER_BITS_MAX = 40, 100_000, 3_000
REPR_CHARS = 2_000


def storable(value: Any) -> Any:
    """A JSON value that says the same, as far as JSON can.

    Objects with `model_dump` (pydantic) and dataclasses become objects of their members, bytes
    their number, sets lists, everything else its repr.
    """
    return _Conversion().of(value, 0)


def told_contents(contents: Mapping[str, Any], *, with_content: bool) -> dict[str, Any]:
    """The members that have a value, ready to be written.

    In place of `NAME` stand `NAME_bytes` without content, and `NAME_bytes` and `NAME_sha256` (of
    its JSON text) when it is larger than a value may be.
    """
    told: dict[str, Any] = {}
    for name, given in contents.items():
        if given is None:
            continue
        value = storable(given)
        text = json.dumps(value, ensure_ascii=False).encode()
        if with_content and len(text) <= VALUE_BYTES_MAX:
            told[name] = value
            continue
        told[f"{name}_bytes"] = len(text)
        if with_content:
            told[f"{name}_sha256"] = hashlib.sha256(text).hexdigest()
    return told


def read_json(value: Any) -> Any:
    """A text that is a JSON object or array as that; everything else as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def clean(text: str) -> str:
    """Without what the store cannot keep: U+0000 and halves of surrogate pairs."""
    return (
        text.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


class _Conversion:
    """One value and all that is in it, down to a depth and up to a number of values."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum):
            return self.of(value.value, depth)
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, int):
            return int(value) if value.bit_length() <= INTEGER_BITS_MAX else hex(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, (bytes, bytearray, memoryview)):
            return {"bytes": len(value)}
        if depth >= DEPTH_MAX or self._left <= 0:
            return _shown(value)
        try:
            return self._of_many(value, depth)
        except Exception:  # its own methods; an agent is not stopped by them
            return _shown(value)

    def _of_many(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return {clean(str(name)): self.of(inner, depth + 1) for name, inner in value.items()}
        if isinstance(value, (list, tuple, Set)):
            return self._listed(value, depth)
        if isinstance(value, type):
            return _shown(value)
        if dataclasses.is_dataclass(value):
            names = [member.name for member in dataclasses.fields(value)]
            return {name: self.of(getattr(value, name), depth + 1) for name in names}
        if callable(dump := getattr(value, "model_dump", None)):
            return self.of(dump(mode="json"), depth + 1)
        return _shown(value)

    def _listed(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.of(inner, depth + 1) for inner in values]


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return clean(text[:REPR_CHARS])
