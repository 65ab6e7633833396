"""The long forms of cases that the suite has a short form of: docs/cases.md says which and how.

Each makes a site of its own in a folder that is gone afterwards, ends by itself, and says of each
case what it saw; exit code 1 when one does not hold.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from agentstate.cli.output import result
from bench import grounds
from bench.console import log_in
from bench.grounds import Ground
from bench.torture.trial import move_in

# The client, for this process and those that it starts, where ./run has it.
CLIENT = grounds.ROOT / "client" / "src"
sys.path.insert(0, str(CLIENT))
os.environ["PYTHONPATH"] = f"{grounds.ROOT}:{CLIENT}"


@contextmanager
def site(*, background: bool = False, **more: str) -> Iterator[Ground]:
    """A new site while the block lasts. background: with Celery, which sweeps. more: of the
    environment of its processes."""
    with grounds.folder(None) as folder:
        move_in(folder, **more)
        with grounds.site(background=background) as ground:
            yield ground


class Verdict:
    """What was seen. `failed` once something did not hold."""

    def __init__(self) -> None:
        self.failed = False

    def say(self, case: str, what: str, holds: bool) -> None:
        self.failed |= not holds
        result(f"{'held  ' if holds else 'FAILED'}  {case}  {what}")


def until(what: Callable[[], Any], seconds: float = 60.0) -> bool:
    ends_at = time.monotonic() + seconds
    while not what():
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.02)
    return True


def person(ground: Ground, name: str, role: str) -> httpx.Client:
    """Somebody who is logged in at the console."""
    from agentstate.cli.people import make_password, save_user

    password = make_password()
    save_user(name=name, role=role, password=password)
    return log_in(ground.url, name, password)


def key_with(*scopes: str) -> str:
    from agentstate.cli.people import make_key

    return make_key(name="-".join(scopes), scopes=scopes)
