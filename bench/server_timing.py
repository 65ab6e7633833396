"""What it costs to measure where a request's time goes, and to count it for /metrics.

    .venv/bin/python -m bench.server_timing [--calls 200] [--rounds 15]

The same calls with and without, by turns, in one process on one scratch database, through all of
Django and not over a socket. Only the ratios mean anything. Last the processor time of our own part
of it alone, without Django and the database, of a request with six statements.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from django.db import connection
from django.test import Client

from agentstate import metrics
from agentstate.store import audit, spent
from agentstate.store.spent import Spent
from bench.run_page_cache import scratch_database
from tests.api.asking import new_key


@contextmanager
def unmeasured() -> Iterator[None]:
    """As if nothing of it had been written."""
    wrappers, connection.execute_wrappers[:] = list(connection.execute_wrappers), []
    try:
        with (
            patch.object(spent, "begin", lambda **_: None),
            patch.object(metrics, "note_request", lambda **_: None),
            patch("agentstate.middleware.RequestMark.mark", _mark_only),
        ):
            yield
    finally:
        connection.execute_wrappers[:] = wrappers


def _mark_only(self, request, response, record, began):
    response.headers["X-Request-Id"] = request.request_id
    response.headers.setdefault("Content-Length", str(len(response.content)))
    return response


def seconds(call: Callable[[], object], calls: int) -> float:
    """Of processor time in this thread: what else the machine does is not in it, nor the waiting
    for the database, so that the ratio is rather too high."""
    began = time.thread_time()
    for _ in range(calls):
        call()
    return time.thread_time() - began


def compare(call: Callable[[], object], *, calls: int, rounds: int) -> list[float]:
    """With, divided by without, of each round."""
    ratios = []
    for _ in range(rounds):
        with_it = seconds(call, calls)
        with unmeasured():
            ratios.append(with_it / seconds(call, calls))
    return ratios


def own_microseconds(calls: int = 20_000) -> float:
    """Of one request with six statements."""

    def one() -> None:
        record = spent.begin(queue_seconds=0.001)
        for _ in range(6):
            spent.count_statement(lambda *_: None, "SELECT 1", None, False, {})
        spent.note_commit(0.001)
        record.told(0.01)
        metrics.note_request(
            method="POST", route="bench", status=201, spent=Spent(), total_seconds=0.01
        )

    return seconds(one, calls) / calls * 1e6


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--calls", type=int, default=200)
    asked.add_argument("--rounds", type=int, default=15)
    told = asked.parse_args()
    with scratch_database():
        key, client = new_key("bench"), Client()
        auth = {"Authorization": f"Bearer {key.text}"}
        sent = {"content_type": "application/json", "headers": auth}

        def append() -> None:
            body = json.dumps({"events": [{"type": "step.done", "data": {"n": 1}}]})
            assert client.post("/api/v1/runs/42/events", body, **sent).status_code == 201

        def read() -> None:
            assert client.get("/api/v1/runs/42", headers=auth).status_code == 200

        run = json.dumps({"key": "42", "task": "bench"})
        assert client.post("/api/v1/runs", run, **sent).status_code == 201
        for name, call in {"append": append, "read": read}.items():
            seconds(call, told.calls)
            ratios = compare(call, calls=told.calls, rounds=told.rounds)
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{name}: with / without {statistics.median(ratios):.3f} ({spread})", flush=True)
        print(f"own part: {own_microseconds():.1f} µs a request", flush=True)
        assert audit.differences() == []


if __name__ == "__main__":
    main()
