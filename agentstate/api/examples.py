"""Examples of calls and of refusals, for OpenAPI and the pages that explain problems.

examples.json is what the real server answered: tests/api/test_examples.py carries all of it out
again, in its order, and compares. So no example can say what is not so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("examples.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A call that was made and what was answered.

    operation: its id in OpenAPI. name: of the example, unique in its operation. path: with what
    follows the `?`. parameters: of the address and headers, by name. sent: the body, None without.
    code: of a refusal. headers: of the answer, those that matter.
    """

    operation: str
    name: str
    summary: str
    method: str
    path: str
    parameters: dict[str, Any]
    sent: Any
    status: int
    headers: dict[str, str]
    answer: Any
    code: str | None


@cache
def all_examples() -> tuple[Example, ...]:
    """In the order in which they were carried out; each stands on those before it."""
    if not PATH.exists():  # while they are made for the first time
        return ()
    return tuple(Example(**members) for members in json.loads(PATH.read_text(encoding="utf-8")))


def of(operation: str) -> dict[str, Example]:
    """The examples of a call that was carried out, by name."""
    return {one.name: one for one in all_examples() if one.operation == operation and not one.code}


def refused(code: str) -> Example | None:
    """The example of a refusal."""
    return next((one for one in all_examples() if one.code == code), None)


@cache
def problems() -> dict[str, dict[str, Any]]:
    """The answer of each code's example, as components of OpenAPI."""
    return {
        one.code: {"summary": one.summary, "value": one.answer}
        for one in reversed(all_examples())
        if one.code
    }
