"""What the commands say on the terminal: results to stdout, everything about the way to stderr."""

import re
import sys
from datetime import datetime

# What moves a terminal's cursor, changes its colours or turns its text: a name that somebody typed,
# or that stands in a file, may have it. Line ends stay: what is told may have several lines.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class CommandFailure(Exception):
    """The command cannot do what it was asked. The text is for a person."""

    def __init__(self, text: str, *, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def shown(text: str) -> str:
    """The text for a terminal: what could act on it is its escape."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def progress(text: str) -> None:
    """One line about what is going on, to stderr."""
    print(shown(text), file=sys.stderr, flush=True)


def event(text: str) -> None:
    """The same with the time of day: something happened while the site was running."""
    progress(f"{datetime.now():%H:%M:%S}  {text}")  # noqa: DTZ005  for the person at this machine


def result(text: str = "") -> None:
    """What was asked for, to stdout."""
    print(text, flush=True)
