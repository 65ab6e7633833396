"""How the processes of a fleet work: where, with which key, how fast."""

from __future__ import annotations

from dataclasses import dataclass, field

TAG = "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How to work. speed: 2 is twice as fast. ttl_seconds: of each lease."""

    url: str
    key: str = field(repr=False)
    speed: float = 1.0
    ttl_seconds: int = 6
    tag: str = TAG
