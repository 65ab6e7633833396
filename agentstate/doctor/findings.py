"""What a look can find: something that is wrong, or that will be, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """PROBLEM: something does not work, or is lost or open one day. WARNING: look at it."""

    PROBLEM = "problem"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """about: which part. what: what is so. mend: what to do, in one sentence."""

    level: Level
    about: str
    what: str
    mend: str


def problem(about: str, what: str, mend: str) -> Finding:
    return Finding(level=Level.PROBLEM, about=about, what=what, mend=mend)


def warning(about: str, what: str, mend: str) -> Finding:
    return Finding(level=Level.WARNING, about=about, what=what, mend=mend)
