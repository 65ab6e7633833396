"""Refusal codes in five families, which is how the console counts and colours them."""

from __future__ import annotations

from dataclasses import dataclass

from agentstate.store.errors import CONFLICTS, FENCED


@dataclass(frozen=True, slots=True)
class Family:
    """Codes that mean the same to an operator. cure: what usually helps."""

    name: str
    label: str
    codes: frozenset[str]
    meaning: str
    cure: str


FAMILIES = (
    Family(
        "fenced",
        "Fenced",
        FENCED,
        "a worker that had lost its lease tried to write, and nothing of it was stored",
        "The worker was overtaken: look at why it was silent for longer than its lease.",
    ),
    Family(
        "conflict",
        "Conflicts",
        CONFLICTS,
        "two writers meant the same thing at the same time, and the second was turned away",
        "Add instead of setting, append without an expected number, or let one worker write.",
    ),
    Family(
        "held",
        "Held",
        frozenset({"lease-held", "paused", "run-hot", "rate-limited"}),
        "a worker asked for what another one holds",
        "Harmless in small numbers: let workers claim instead of naming what they want.",
    ),
    Family(
        "budget",
        "Over budget",
        frozenset({"budget-exhausted", "cap-below-use"}),
        "a charge would have passed its cap, and was not admitted",
        "Raise the cap, or let the run end.",
    ),
    Family(
        "other",
        "Other",
        frozenset(),
        "a command did not fit the state of the run",
        "Look at the code and the operation below.",
    ),
)
_BY_CODE = {code: family.name for family in FAMILIES for code in family.codes}
BY_NAME = {family.name: family for family in FAMILIES}


def family_of(code: str) -> str:
    """`fenced`, `conflict`, `held`, `budget` or `other`."""
    return _BY_CODE.get(code, "other")
