"""What is checked of each answer beside schemathesis's own checks, which read OpenAPI alone.

schemathesis imports this file by its name (SCHEMATHESIS_HOOKS).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import schemathesis
from schemathesis.generation.meta import StatefulPhaseData
from schemathesis.specs.openapi.checks import negative_data_rejection

# Rules that JSON Schema has no words for: what is valid by its shape may still break one of them.
BEYOND_SHAPE = (
    r"cursor: a cursor that this API has given out for this very list",
    r"after: at most \d+, the feed's last position",
    r"position: at most \d+, the feed's last position",
    r"key: either key or request_id",
    r"events\[\]\.id: each id once",
    r"budgets: each name once",
    r"spend: each budget once",
    r"parent: another budget",
    r"slots: (only a budget without a parent can be split|at least \d+, as many as it has.*)",
    r"after: a sort key of this partition",
    r"Agentstate-Fence: not with this call",
    r"by: each of .* once at most",
    r"target: .* is off: switch it on first",
    r"address: .*",
    r"pk: 1 to \d+ characters",
    r"\S+: an instant as RFC 3339 .* from 1970 to 9998 .*",
    r"after: of a split budget, `cursor` in its place",
    r"(add\.\S+: a counter stays within .*|add: at most 100 counters a run)",
    r"set\.attrs.*: an object, to set something inside it",
    r"\S+: each one once",
    r"(since|until): .*",
    # 60.0 is an integer to JSON Schema; ours are without a point, so that none is ever a float.
    r".*: a whole number from .*",
    # A payload is any JSON, but for texts that no database can hold.
    r".*: no U\+0000 and no lone surrogate",
    r"\S+: the same name twice in one object",
    r"set: at least one change: .*",
    r"operations\[\d+\]\..*",
)  # fmt: skip
_BEYOND_SHAPE = re.compile("|".join(f"(?:{rule})" for rule in BEYOND_SHAPE), re.DOTALL)
UNKNOWN_HEADER = "Object with unexpected properties"
SHAPE = ("malformed", "invalid", "unstorable-text")


def valid_input_is_taken(ctx: Any, response: Any, case: Any) -> None:
    """What fits OpenAPI is not refused for its shape."""
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or response.status_code < 400:
        return
    # What a link brings is put in without a look at its schema.
    if isinstance(meta.phase.data, StatefulPhaseData):
        return
    # The coverage phase sends this for a header with a pattern that it cannot satisfy.
    if (case.headers or {}).get("If-Match") == "0":
        return
    problem = _problem(response)
    if problem.get("code") in SHAPE and not _BEYOND_SHAPE.fullmatch(problem["detail"]):
        raise AssertionError(f"fits OpenAPI, and is refused: {problem['detail']}")


# JSON Schema cannot say all of our rules: what this one tells is to be read by a person.
if os.environ.get("AGENTSTATE_FUZZ_STRICT"):
    schemathesis.check(valid_input_is_taken)


@schemathesis.check
def invalid_input_is_refused(ctx: Any, response: Any, case: Any) -> None:
    """What does not fit OpenAPI is refused. A header that nobody knows is nobody's business."""
    told = case.meta.phase.data if case.meta is not None else None
    if getattr(told, "description", None) != UNKNOWN_HEADER:
        negative_data_rejection(ctx, response, case)


@schemathesis.check
def unavailable_only_by_its_deadline(ctx: Any, response: Any, case: Any) -> None:
    """Nothing is wrong with the site, so only a request with a deadline may hear 503."""
    if response.status_code == 503 and "Agentstate-Deadline" not in (case.headers or {}):
        raise AssertionError(f"503 though nothing is wrong: {response.text[:300]}")


@schemathesis.check
def refusals_are_consistent(ctx: Any, response: Any, case: Any) -> None:
    """A problem names its type, its status and its request; what may be repeated says when."""
    if response.status_code < 400:
        return
    problem = _problem(response)
    assert problem["status"] == response.status_code
    assert problem["type"] == f"/problems/{problem['code']}"
    assert problem["request_id"] == response.headers["x-request-id"][0]
    repeatable = problem["retry"] in ("same-request", "later")
    assert repeatable == ("retry-after" in response.headers), problem


def _problem(response: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(response.content)
    return found
