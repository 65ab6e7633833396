"""`./run manage lab agent-state`: the texts' own scenarios against the real store."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection

from agentstate.store import settable_clock
from agentstate.store.labs import agent_state, distributed_state

LABS: dict[str, Callable[[settable_clock.Clock], Iterator[str]]] = {
    "agent-state": agent_state.play,
    "distributed-state": distributed_state.play,
}


class Command(BaseCommand):
    help = (
        "Play a scenario of the texts that agentstate comes from, against the real store in a "
        "scratch database of its own, and print what the text prints."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("lab", choices=LABS)

    def handle(self, *, lab: str, **_: Any) -> None:
        with scratch_database():
            for line in LABS[lab](settable_clock.Clock()):
                self.stdout.write(line)


@contextmanager
def scratch_database() -> Iterator[None]:
    """A database beside the site's, with a clock that can be set; dropped again at the end."""
    site, scratch = connection.settings_dict["NAME"], f"agentstate_lab_{uuid4().hex[:12]}"
    _on(site, f'CREATE DATABASE "{scratch}"')
    try:
        connection.close()
        connection.settings_dict["NAME"] = scratch
        call_command("migrate", verbosity=0)
        settable_clock.install()
        yield
    finally:
        _on(site, f'DROP DATABASE IF EXISTS "{scratch}" WITH (FORCE)')


def _on(name: str, statement: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name
    with connection.cursor() as cursor:
        cursor.execute(statement)
    connection.close()
