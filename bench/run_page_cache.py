"""What copies save on a page of a long run: the same page with copies, and with none to be found.

    .venv/bin/python -m bench.run_page_cache [--events 100000] [--repeats 15]

Both kinds take turns in one process on one database, so that whatever else the machine does meets
both. Only the ratios mean anything. The database is a scratch one and is dropped at the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import setup_databases, setup_test_environment, teardown_databases  # noqa: E402

from agentstate.caching import copies  # noqa: E402
from agentstate.embedded import FORGETFUL, EmbeddedPostgres  # noqa: E402
from agentstate.store import audit  # noqa: E402
from tests.dashboard.conftest import person  # noqa: E402
from tests.store.asking import Asking, event  # noqa: E402

PER_APPEND = 500
OTHER_RUNS = 60
LONG = 3_600


@contextmanager
def scratch_database() -> Iterator[None]:
    """A database of its own on the tests' server."""
    setup_test_environment()
    server = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres", settings=FORGETFUL)
    with server.held():
        kept = setup_databases(0, interactive=False)
        try:
            yield
        finally:
            connections.close_all()
            teardown_databases(kept, 0)


def fill(events: int) -> None:
    """A run of so many events, and a list's worth of others."""
    store = Asking()
    store.create("long", task="a long one")
    lease = store.hold("long", "w-1", ttl_seconds=LONG)
    for first in range(0, events, PER_APPEND):
        said = [{"tool": "bash", "step": n} for n in range(first, first + PER_APPEND)]
        store.append("long", [event("tool.called", one) for one in said], fence=lease.token)
    for number in range(OTHER_RUNS):
        store.create(f"run-{number}", task="one of the others")
        store.hold(f"run-{number}", f"w-{number}", ttl_seconds=LONG)


def milliseconds(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1_000


def compare(ask: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Medians in ms: with copies, and with an empty cache."""
    ask()
    with_copies, without = [], []
    for _ in range(repeats):
        with_copies.append(milliseconds(ask))
        copies.empty()
        without.append(milliseconds(ask))
    return statistics.median(with_copies), statistics.median(without)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--events", type=int, default=100_000)
    asked.add_argument("--repeats", type=int, default=15)
    options = asked.parse_args()
    with scratch_database():
        fill(options.events)
        browser = Client()
        browser.force_login(person("ana", "operator"))
        print(f"{options.events} events; medians of {options.repeats}, with and without copies")
        for address in ("/runs/long", "/runs/long/timeline", "/runs", "/leases"):
            hit, miss = compare(lambda at=address: browser.get(at), options.repeats)
            print(f"{address:24} {hit:7.1f} ms {miss:7.1f} ms   {hit / miss:.2f}")
        print(f"{len(audit.verify())} differences when everything is derived again")


if __name__ == "__main__":
    main()
