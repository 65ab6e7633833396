"""What the commands say on the terminal: results to stdout, everything about the way to stderr."""

import sys
from datetime import datetime


class CommandFailure(Exception):
    """The command cannot do what it was asked. The text is for a person."""

    def __init__(self, text: str, *, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def progress(text: str) -> None:
    """One line about what is going on, to stderr."""
    print(text, file=sys.stderr, flush=True)


def event(text: str) -> None:
    """The same with the time of day: something happened while the site was running."""
    progress(f"{datetime.now():%H:%M:%S}  {text}")  # noqa: DTZ005  for the person at this machine


def result(text: str = "") -> None:
    """What was asked for, to stdout."""
    print(text, flush=True)
