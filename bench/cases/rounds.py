"""Cases whose short form is a test and whose long one is more rounds of it.

    .venv/bin/python -m bench.cases.rounds [--only late-renewals ...] [--seed 1]

late-renewals (O-02)  50 units are released while a renewal is 0 to 1 s late: free at once, and free
ends (O-08)           100 runs end while their renewals are due: all completed, nothing in the log
same-request (O-11)   20 times 50 equal requests with one key: one run each
first (O-14)          100 times 20 who want a unit, a number or a key first: one gets it
two-ends (O-34)       200 runs cancelled and completed at once: one end, the other is told of it
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from agentstate_client import Client, clock

from bench.cases import Verdict, site
from bench.grounds import Ground
from tests.client.proxy import Proxy

NEVER = 86_400
# Of leases whose first renewal, after a third of it, is waited for. Longer: for a busy machine.
TTL_SECONDS = int(os.environ.get("AGENTSTATE_CASE_TTL_SECONDS", "6"))


class Noted(logging.Handler):
    """What the client's log says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("agentstate_client").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Api:
    """Calls of many threads at once, each answer with what it says."""

    def __init__(self, ground: Ground) -> None:
        limits = httpx.Limits(max_connections=100)
        headers = {"Authorization": f"Bearer {ground.key}"}
        self.http = httpx.Client(
            base_url=f"{ground.url}/api/v1", headers=headers, timeout=60, limits=limits
        )
        self.pool = ThreadPoolExecutor(50)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def at_once(self, count: int, ask: Callable[[int], httpx.Response]) -> list[httpx.Response]:
        together = threading.Barrier(count)

        def one(number: int) -> httpx.Response:
            together.wait(30)
            return ask(number)

        return list(self.pool.map(one, range(count)))


def late_renewals(ground: Ground, chance: random.Random) -> tuple[str, bool]:
    between, noted = Proxy(port=ground.port), Noted()
    free = 0
    with (
        Client(between.url, ground.key, worker="w-1") as first,
        Client(ground.url, ground.key, worker="w-2") as second,
    ):
        for number in range(50):
            unit = f"late-{number}"
            let_go = between.hold(f"/{unit}/renew")
            lease = first.lease(unit, ttl_seconds=TTL_SECONDS)
            between.held.wait(10)
            timer = threading.Timer(chance.random(), let_go)
            timer.start()
            lease.release()
            with second.lease(unit, ttl_seconds=NEVER) as taken:
                timer.join()
                free += not taken.lost.is_set() and lease.state == "released"
    between.close()
    return f"{free} of 50 were free at once and stayed so; the log says {noted.lines}", (
        free == 50 and not noted.lines
    )


def ends(ground: Ground, chance: random.Random) -> tuple[str, bool]:
    noted, done = Noted(), 0
    with Client(ground.url, ground.key, worker="w-1") as client:
        for number in range(100):
            client.create(task="t", key=f"end-{number:03}", tags=["ends"])
        for _ in range(10):
            for run in client.claim(tag="ends", limit=10, ttl_seconds=TTL_SECONDS):
                assert run.lease is not None
                due_in = run.lease.renew_at - clock.now() - chance.uniform(0.0, 0.05)
                threading.Event().wait(max(0.0, due_in))
                done += run.complete().status == "completed"
    listed = Api(ground).http.get("/runs?tag=ends&limit=200").json()["items"]
    left = [run["key"] for run in listed if run["status"] != "completed"]
    return f"{done} completed, {left} not; the log says {noted.lines}", (
        done == 100 and not left and not noted.lines
    )


def same_request(ground: Ground, chance: random.Random) -> tuple[str, bool]:
    api, wrong = Api(ground), []
    for number in range(20):
        headers = {"Idempotency-Key": f"same-{number}"}

        def create(_: int, headers: dict[str, str] = headers) -> httpx.Response:
            return api.post("/runs", {"task": "t"}, **headers)

        answers = api.at_once(50, create)
        made = {a.json()["key"] for a in answers if a.status_code == 201}
        others = {a.json()["code"] for a in answers if a.status_code != 201}
        if len(made) != 1 or not others <= {"idempotency-in-flight"}:
            wrong.append((number, made, others))
    return f"20 rounds of 50, wrong: {wrong}", not wrong


def first(ground: Ground, chance: random.Random) -> tuple[str, bool]:
    api, wrong = Api(ground), []
    for number in range(100):
        key = f"first-{number}"
        asks: list[tuple[str, dict[str, Any]]] = [
            (f"/leases/unit-{number}/acquire", {"owner": "w"}),
            ("/runs", {"task": "t", "key": key}),
            (f"/runs/{key}/events", {"events": [{"type": "a"}], "expected_seq": 1}),
        ]
        acquired, made, appended = (
            api.at_once(20, lambda _, path=path, ask=ask: api.post(path, ask)) for path, ask in asks
        )
        told = [[a.status_code for a in part] for part in (acquired, made, appended)]
        expected = [(200, 423), (201, 409), (201, 412)]
        for codes, (won, lost) in zip(told, expected, strict=True):
            if (codes.count(won), codes.count(lost)) != (1, 19):
                wrong.append((number, codes))
    return f"100 rounds of 20, wrong: {wrong}", not wrong


def two_ends(ground: Ground, chance: random.Random) -> tuple[str, bool]:
    api, wrong = Api(ground), []
    for number in range(200):
        key = f"two-{number}"
        api.post("/runs", {"task": "t", "key": key, "status": "running"})
        answers = api.at_once(
            2,
            lambda n, key=key: api.post(
                f"/runs/{key}/transitions", {"to": ("cancelled", "completed")[n]}
            ),
        )
        ended = api.http.get(f"/runs/{key}").json()["status"]
        told = sorted((a.status_code, (a.json().get("current") or a.json())["status"])
                      for a in answers)  # fmt: skip
        if told != [(200, ended), (409, ended)]:
            wrong.append((key, told))
    return f"200 at once, wrong: {wrong}", not wrong


PARTS = {
    "late-renewals": ("O-02", late_renewals),
    "ends": ("O-08", ends),
    "same-request": ("O-11", same_request),
    "first": ("O-14", first),
    "two-ends": ("O-34", two_ends),
}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    asked.add_argument("--seed", default="1")
    options = asked.parse_args()
    verdict = Verdict()
    with site(background=True) as ground:
        for name in options.only:
            case, part = PARTS[name]
            verdict.say(case, *part(ground, random.Random(options.seed)))
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
