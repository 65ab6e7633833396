"""Server-Timing: where the time of a request went, told with every answer."""

from __future__ import annotations

import re
import threading

import httpx
import pytest
from django.db import connection
from django.test import Client

from agentstate.store import spent
from agentstate.store.execute import WRITES
from tests.api.asking import Api, new_key
from tests.api.serving import serving
from tests.store.asking import Asking, at_once
from tests.store.waiting import wait_for

PARTS = ["total", "queue", "lock", "db", "commit"]


def parts(header):
    found = dict(re.findall(r"(\w+);dur=([0-9]+\.[0-9]{2})", header))
    assert list(found) == PARTS, header
    return {name: float(ms) for name, ms in found.items()}


def timing(answer):
    return parts(answer.headers["Server-Timing"])


def test_every_answer_has_all_parts(api, anonymous):
    created = api.create("42")
    answers = [created, api.get("/runs"), api.get("/nowhere"), api.get("/runs/43")]
    answers += [anonymous.get("/runs"), anonymous.get("/time"), api.post("/runs", "{")]
    for answer in answers:
        assert timing(answer)["total"] >= timing(answer)["db"]
    assert timing(created)["commit"] > 0
    assert timing(api.append("42"))["lock"] > 0
    assert timing(api.get("/runs"))["commit"] == 0
    assert "Server-Timing" in Client().get("/login").headers
    assert "Server-Timing" in Client().get("/no/such/page").headers


def test_waiting_for_a_row_is_told_as_lock(transactional_db):
    api = Api(new_key("fleet"))
    api.create("42")
    other = connection.copy()
    found = []
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT FROM agentstate_run FOR UPDATE")
            pid = rows_of(cursor, "SELECT pg_backend_pid()")
        writer = threading.Thread(target=lambda: found.append(append(api)))
        writer.start()
        wait_for(lambda: blocked_by(pid))
        threading.Event().wait(0.05)
        other.rollback()
        writer.join(20)
    finally:
        other.close()
    (answer,) = found
    assert answer.status == 201
    spent_ms = timing(answer)
    assert spent_ms["lock"] >= 40
    assert spent_ms["lock"] > spent_ms["db"] + spent_ms["commit"] + spent_ms["queue"]


def append(api):
    try:
        return api.append("42")
    finally:
        connection.close()


def rows_of(cursor, statement):
    cursor.execute(statement)
    return cursor.fetchone()[0]


def blocked_by(pid):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid)))",
            [pid],
        )
        return cursor.fetchone()[0]


def test_what_another_thread_wrote_along_has_that_batchs_parts_and_its_own_waiting(
    transactional_db, monkeypatch
):
    """The first is held in its batch until the others wait; one of them then writes for all."""
    store = Asking()
    store.create("42")
    go, first = threading.Event(), threading.Event()
    together = WRITES._together

    def slow(asks):
        if not first.is_set():
            first.set()
            assert go.wait(20)
        return together(asks)

    monkeypatch.setattr(WRITES, "_together", slow)

    def write(number):
        record = spent.begin()
        if number:
            assert first.wait(20)
        store.append("42")
        return number, record

    opener = threading.Thread(target=lambda: (wait_for(lambda: WRITES.waiting == 3), go.set()))
    opener.start()
    records = dict(at_once(4, write))
    opener.join(20)

    assert records[0].queue == 0
    followers = [records[n] for n in (1, 2, 3)]
    assert all(r.queue > 0 and r.lock > 0 and r.commit > 0 for r in followers)
    # One batch: the same commit for each of them.
    assert len({round(r.commit, 9) for r in followers}) == 1


@pytest.fixture
def served(transactional_db):
    key = new_key("fleet")
    with serving() as address:
        headers = {"Authorization": f"Bearer {key.text}", "X-Request-Id": "job-7"}
        with httpx.Client(base_url=address, headers=headers, timeout=30, verify=False) as client:
            yield client


def test_the_served_product_tells_it_everywhere_with_the_callers_request_id(served):
    served.post("/api/v1/runs", json={"key": "42", "task": "x"})
    paths = ["/api/v1/runs/42", "/live/v1/runs/42/events", "/live/v1/feed?wait=x", "/live/v1/x"]
    paths += ["/health/live", "/problems/", "/login", "/metrics", "/static/none.css", "/nowhere"]
    for path in paths:
        answer = served.get(path)
        assert answer.headers["X-Request-Id"] == "job-7", path
        assert timing(answer)["total"] > 0, path
    assert timing(served.get("/live/v1/runs/42/events"))["db"] > 0
    headers = {"Accept": "text/event-stream"}
    with served.stream("GET", "/live/v1/runs/42/events", headers=headers) as stream:
        assert parts(stream.headers["Server-Timing"])["db"] > 0


def test_an_id_that_is_none_is_replaced(served):
    for bad in ("x" * 201, "a b"):
        answer = served.get("/health/live", headers={"X-Request-Id": bad})
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-Id"])
