"""What a person is told of a command that the store did not carry out."""

from __future__ import annotations

from dataclasses import dataclass

from agentstate.store.errors import (
    ExpectationFailed,
    IdempotencyInFlight,
    IdempotencyKeyReuse,
    OutcomeUnknown,
    Overloaded,
    Refusal,
    Unavailable,
    VersionConflict,
)

IN_A_MOMENT = frozenset(kind.code for kind in (Overloaded, Unavailable, OutcomeUnknown))
# What was seen is not so any more.
MOVED = frozenset(kind.code for kind in (VersionConflict, ExpectationFailed))
# Where the usual words would be wrong: a form that was sent twice may well have done something.
SPECIAL = {
    IdempotencyKeyReuse.code: (
        "This form was sent before, with other words.",
        "What it did then stands, and nothing more was done.",
    ),
    IdempotencyInFlight.code: (
        "The same form is being carried out already.",
        "Look again in a moment. It is not done twice.",
    ),
    OutcomeUnknown.code: (
        "It is not known whether this was done.",
        "The connection to the database was cut just then. Send it again as it is: what was done is"
        " not done twice.",
    ),
}


@dataclass(frozen=True, slots=True)
class Told:
    title: str
    text: str


def told(refused: Refusal) -> Told:
    """In two sentences; text is empty where the store had no more to say than the title."""
    if special := SPECIAL.get(refused.code):
        return Told(*special)
    text = "" if refused.detail == refused.title else f"{refused.detail}."
    title = f"{refused.title[:1].lower()}{refused.title[1:]}"
    if refused.code in MOVED:
        title = "it has changed since you looked"
    return Told(f"Nothing was done: {title}.", text)


def is_open(refused: Refusal | None) -> bool:
    """Whether the same form may be sent again as it is: its key keeps it from acting twice."""
    return refused is not None and refused.code == OutcomeUnknown.code
