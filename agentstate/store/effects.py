"""Effects on the outside world: one event before each, and one after it.

A worker that dies between the two leaves an effect of which nobody here knows whether it happened;
its next holder is told (`open_effects`). The store writes no meaning into either event: neither
status nor counters follow from them. Why it is so: docs/decisions/0016-effects.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentstate.store.errors import Invalid
from agentstate.store.rules import names

BEGUN, ENDED = "begun", "ended"
# An effect's key stands in for the event's id, behind a sign that no caller can write into one. So
# an effect begins once and ends once, by the index that keeps event ids unique in their run.
SIGN_BEGUN, SIGN_ENDED = "▶", "■"
_SIGNS = {BEGUN: SIGN_BEGUN, ENDED: SIGN_ENDED}
_STATES = {sign: state for state, sign in _SIGNS.items()}

# Of the open ones of a run a new holder is told so many, with so much of their data together; and
# they are counted so far. The rest is read page by page (GET /runs/{key}/effects).
TOLD_MAX, TOLD_BYTES_MAX, COUNTED_MAX = 100, 64 * 1024, 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Which effect an event is about, and whether it is the one before it or the one after."""

    key: str
    state: str

    def __post_init__(self) -> None:
        names.check_id("effect.key", self.key)
        if not isinstance(self.state, str) or self.state not in _SIGNS:
            raise Invalid("effect.state", f"one of {', '.join(_SIGNS)}")

    @property
    def event_id(self) -> str:
        """What the store keeps as the event's id."""
        return _SIGNS[self.state] + self.key

    @property
    def begin_id(self) -> str:
        """The same of the event that began this effect."""
        return SIGN_BEGUN + self.key


def effect_of(event_id: str | None) -> Effect | None:
    """The effect that an event is about, told from its id; None when it is about none."""
    if not event_id or event_id[0] not in _STATES:
        return None
    return Effect(key=event_id[1:], state=_STATES[event_id[0]])
