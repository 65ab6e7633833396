"""A bulk of many runs: how soon it answers, how soon it is over, and what it costs the others.

    .venv/bin/python -m bench.bulk --home FOLDER [--runs 10000]

Makes a site in an empty folder, with so many pending runs, and cancels all of them in one bulk, by
the pages and with one worker process as Celery would start it. Before and meanwhile a worker
appends to a run of its own, one event after the other, with a short pause: its p50 and p95.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress, result
from bench import filled
from bench.minutes import percentile

ANSWER_SECONDS, WHOLE_SECONDS = 2.0, 120.0
QUIET_APPENDS, PAUSE_SECONDS = 300, 0.02
AT_ONCE = 200
WORKED_EVERY_SECONDS = 2.0


def create_runs(count: int) -> None:
    from agentstate.store import Ask, execute_all
    from agentstate.store.callers import SYSTEM
    from agentstate.store.commands import CreateRun

    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        asks = [Ask(command=CreateRun(key=f"b-{n}", task="bulk"), by=SYSTEM) for n in numbers]
        execute_all(asks)


def senior() -> Any:
    from django.contrib.auth.models import Group, User
    from django.test import Client

    user = User.objects.create_user("bo")
    user.groups.add(Group.objects.get(name="senior"))
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    return client


def begin(client: Any, count: int) -> tuple[float, float, str]:
    """Seconds of the dry run and of the answer that it is begun, and the bulk's address."""
    started = time.monotonic()
    page = client.get("/bulk/new", {"q": "key:b-", "kind": "cancel"}).content.decode()
    dry = time.monotonic() - started
    names = ("form_key", "seen_at", "shown", "is_all")
    form = {n: re.findall(f'name="{n}" value="([^"]*)"', page)[-1] for n in names}
    assert form["shown"] == str(count), form
    form |= {"q": "key:b-", "kind": "cancel", "begin": "yes", "reason": "measured"}
    started = time.monotonic()
    answer = client.post("/bulk/new", form | {"typed": str(count)})
    assert answer.status_code == 302, answer.content
    return dry, time.monotonic() - started, answer["Location"]


class Appending:
    """A worker's appends, one after the other; how long each took, in milliseconds."""

    def __init__(self) -> None:
        from tests.store.asking import Asking

        self.store = Asking()
        self.store.create("beside")
        self.token = self.store.hold("beside", ttl_seconds=3_600).token

    def once(self) -> float:
        from tests.store.asking import event

        started = time.monotonic()
        self.store.append("beside", [event()], fence=self.token)
        took = (time.monotonic() - started) * 1_000
        time.sleep(PAUSE_SECONDS)
        return took


def work_until_done() -> None:
    """What beat and a Celery process do, without a broker."""
    from agentstate.store import bulks
    from tasks.bulks import work_bulks

    while True:
        began = time.monotonic()
        work_bulks(when_due=True)
        if not bulks.left():
            return
        time.sleep(max(0.0, WORKED_EVERY_SECONDS - (time.monotonic() - began)))


def measure(count: int) -> None:
    from agentstate.store.models import BulkAction, Run

    progress(f"making {count} runs …")
    create_runs(count)
    appending, client = Appending(), senior()
    client.get("/bulk/new", {"q": "key:nobody", "kind": "cancel"})  # a process's first page is slow
    alone = [appending.once() for _ in range(QUIET_APPENDS)]
    dry, answer, address = begin(client, count)
    started, beside, pages = time.monotonic(), [], []
    child = subprocess.Popen([sys.executable, "-m", "bench.bulk", "--work"])
    while BulkAction.objects.get().ended_at is None:
        beside += [appending.once() for _ in range(20)]
        looked = time.monotonic()
        assert client.get(address).status_code == 200
        pages.append((time.monotonic() - looked) * 1_000)
        if child.poll() not in (None, 0):
            raise SystemExit("the worker ended")
    took = time.monotonic() - started
    child.wait()
    bulk = BulkAction.objects.get()
    assert (bulk.done, bulk.skipped, bulk.refused) == (count, 0, 0), bulk.__dict__
    assert Run.objects.filter(status="cancelled").count() == count
    result("| what | measured | wanted |\n|---|---|---|")
    result(f"| dry run of {count} | {dry:.2f} s | |")
    result(f"| begun | {answer:.2f} s | {ANSWER_SECONDS:.0f} s |")
    result(f"| all done | {took:.0f} s | {WHOLE_SECONDS:.0f} s |")
    result(f"| its page meanwhile, p95 | {percentile(pages, 0.95):.0f} ms | |")
    for name, times in (("alone", alone), ("beside it", beside)):
        result(
            f"| a worker's append {name}, p50 and p95 of {len(times)} |"
            f" {statistics.median(times):.1f} and {percentile(times, 0.95):.1f} ms | |"
        )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--home", type=Path, help="an empty folder for the site")
    asked.add_argument("--runs", type=int, default=10_000)
    asked.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.work:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
        import django

        django.setup()
        work_until_done()
        return
    with filled.site_database(options.home):
        measure(options.runs)


if __name__ == "__main__":
    main()
