"""A Celery app whose tasks write down what they do, one line each: for the tests that harm it.

BROKER_URL and VISIBILITY_SECONDS say where, AGENTSTATE_URL and AGENTSTATE_KEY where the store is.
A step waits for as long as there is a file of the name `hold-` and the step's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from agentstate_client import NewBudget
from agentstate_client.celery import DurableTask, step

# A machine may stand still for a while: leases run out when a test moves the store's clock.
LONG_TTL = 900
HOLD_SECONDS_MAX = 240

app = Celery("made", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.update(
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("VISIBILITY_SECONDS", "3600"))
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    redis_retry_on_timeout=True,
)


def note(folder: str, line: str) -> None:
    with (Path(folder) / "did").open("a") as file:
        file.write(f"{line}\n")


def hold(folder: str, name: str) -> None:
    """Say which process is here, and wait for as long as the test wants it."""
    note(folder, f"in {name} {os.getpid()}")
    until = time.monotonic() + HOLD_SECONDS_MAX
    while (Path(folder) / f"hold-{name}").exists() and time.monotonic() < until:
        time.sleep(0.02)


@step
def fetch(folder: str, page: str) -> dict[str, str]:
    hold(folder, page)
    note(folder, f"fetched {page}")
    return {"page": page}


class Task(DurableTask):
    ttl_seconds = LONG_TTL


@app.task(base=Task, bind=True, budgets=[NewBudget("tokens", cap=100)])
def report(self, folder: str, pages: list[str]) -> list[str]:
    """A step and ten tokens for each page."""
    found = []
    for number, page in enumerate(pages):
        found.append(fetch(folder, page)["page"])
        self.held.budget("tokens").spend(10, id=f"page-{number}")
    hold(folder, "end")
    return found


@app.task(base=Task, bind=True)
def after(self, found: list[str], folder: str) -> int:
    """What a chain goes on with."""
    fetch(folder, "after")
    return len(found)


@app.task(base=Task, bind=True, max_retries=5)
def trying(self, folder: str, times: int) -> int:
    """Fails so many times, by Celery's own retry, behind its first step."""
    fetch(folder, "first")
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(base=Task, bind=True, autoretry_for=(Exception,), max_retries=3, default_retry_delay=0)
def trying_always(self, folder: str) -> str:
    """Retries whatever is raised, also what is not the task's to retry."""
    fetch(folder, "first")
    fetch(folder, "second")
    return "done"


@app.task(base=Task, bind=True, max_attempts=2)
def deadly(self, folder: str) -> None:
    """Takes its process with it, each time."""
    note(folder, f"begun {os.getpid()}")
    os.kill(os.getpid(), 9)


@app.task(base=Task, bind=True, time_limit=3)
def slow(self, folder: str) -> str:
    """Killed by Celery itself when it takes too long."""
    fetch(folder, "first")
    fetch(folder, "second")
    return "done"


class Order(Task):
    def run_key(self, arguments, named):
        return f"order-{arguments[1]}"


@app.task(base=Order, bind=True)
def pay(self, folder: str, number: int, amount: int) -> int:
    """One run for an order, however many messages are about it."""
    note(folder, f"paid {amount}")
    return amount
