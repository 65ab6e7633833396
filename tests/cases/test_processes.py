"""Several web processes, and one whose host has a wrong clock."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx
import pytest

from tests.api.asking import new_key
from tests.bootstrap.conftest import eventually
from tests.browser.conftest import session_of
from tests.cases.processes import web_process
from tests.dashboard.conftest import person
from tests.faults.test_wrong_clocks import library
from tests.store.asking import rows

pytestmark = [pytest.mark.long, pytest.mark.many]


def test_equal_requests_to_several_processes_make_one_run(store):
    """O-11: fifty at once with one key; who comes in between is told to send it again."""
    headers = {"Authorization": f"Bearer {new_key('fleet').text}"}
    with web_process() as here, web_process() as there, httpx.Client(timeout=60) as http:

        def create(number, rounds):
            url = (here, there)[number % 2]
            sent = headers | {"Idempotency-Key": f"k-{rounds}"}
            while True:
                answer = http.post(f"{url}/api/v1/runs", headers=sent, json={"task": "x"})
                if answer.status_code == 201:
                    return answer.json()["key"]
                assert answer.json()["code"] == "idempotency-in-flight", answer.text
                assert answer.json()["retry"] == "same-request"

        with ThreadPoolExecutor(50) as pool:
            for n in range(4):
                made = set(pool.map(lambda number, n=n: create(number, n), range(50)))
                assert len(made) == 1
    assert rows("SELECT count(*) FROM agentstate_run") == [(4,)]


def test_a_host_whose_clock_is_wrong_changes_nothing(store, tmp_path):
    """O-47: minutes off, and set back an hour while a lease is held."""
    clock = tmp_path / "clock"
    clock.write_text("+5m")
    faked = {
        "LD_PRELOAD": library(), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1",
        "FAKETIME_TIMESTAMP_FILE": str(clock),
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {new_key('fleet').text}"}
    cookie = session_of(person("vi", "viewer"))
    store.create("42")
    with web_process(**faked) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.cookies.set(cookie["name"], cookie["value"])
        ask = {"owner": "w-1", "ttl_seconds": 600}
        held = http.post("/api/v1/leases/run:42/acquire", headers=headers, json=ask).json()
        assert held["expires_in_ms"] == 600_000
        for seconds in (300, -300, -3_900, 315_360_000):
            clock.write_text(f"{seconds:+d}")
            eventually(lambda off=seconds: is_wrong(http, off))
            lease = http.get("/api/v1/leases/run:42", headers=headers).json()
            assert lease["state"] == "live"
            assert 500_000 < lease["expires_in_ms"] <= 600_000
            page = http.get("/leases/run:42").text
            left = re.findall(r">(\d+)m[^<]*</time> left", page)
            assert left, page
            assert set(left) <= {"9", "10"}
            renew = {"token": held["token"], "ttl_seconds": 600}
            renewed = http.post("/api/v1/leases/run:42/renew", headers=headers, json=renew)
            assert renewed.json()["expires_in_ms"] == 600_000
            other = http.post("/api/v1/leases/run:42/acquire", headers=headers, json=ask)
            assert other.json()["code"] == "lease-held"


def is_wrong(http, seconds):
    """Whether the process has this clock: else nothing is shown here. Its server reads it once a
    second for this header; what the API tells is the database's time."""
    told = http.get("/api/v1/time")
    off = parsedate_to_datetime(told.headers["date"]) - datetime.fromisoformat(told.json()["now"])
    return abs(off.total_seconds() - seconds) < 0.01 * abs(seconds)
