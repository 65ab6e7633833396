"""What only a real server shows: how bodies arrive, raw addresses, callers at the same moment."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

import httpx
import pytest

from agentstate import store
from agentstate.store import keys
from tests.api.asking import new_key
from tests.api.serving import serving
from tests.store.asking import rows

BIG = 4 * 1024 * 1024


@pytest.fixture
def served(transactional_db) -> Iterator[httpx.Client]:
    """A client of the served product, with a key that has every scope."""
    key = new_key("fleet")
    with serving() as address:
        headers = {"Authorization": f"Bearer {key.text}"}
        limits = httpx.Limits(max_connections=100)
        with httpx.Client(
            base_url=f"{address}/api/v1/",
            headers=headers,
            timeout=30,
            limits=limits,
            verify=False,
        ) as client:
            yield client


def raw(client: httpx.Client, text: bytes, *, hang_up: bool = False) -> bytes:
    """Send bytes as they are, and read everything that comes, or hang up at once."""
    address = urlsplit(str(client.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=20) as line:
        line.sendall(text)
        return b"" if hang_up else b"".join(iter(lambda: line.recv(65536), b""))


def head(client: httpx.Client, *more: str, path: str = "runs", method: str = "POST") -> bytes:
    lines = [
        f"{method} /api/v1/{path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: {client.headers['Authorization']}",
        "Connection: close",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def pieces(size: int) -> Iterator[bytes]:
    yield b'{"task": "x", "key": "chunked", "attrs": {"a": "'
    yield b"x" * size
    yield b'"}}'


def test_a_body_without_a_length_is_read_to_its_end(served):
    answer = served.post(
        "runs", content=pieces(100_000), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 201, answer.text
    assert len(served.get("runs/chunked").json()["attrs"]["a"]) == 100_000


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (["Agentstate_Fence: 5"], "agentstate_fence"),
        (['If_Match: "v1"'], "if_match"),
        (["Idempotency_Key: k"], "idempotency_key"),
        (["Idempotency-Key: a", "Idempotency-Key: b"], "Idempotency-Key: once"),
    ],
)
def test_a_header_that_a_server_would_take_for_another_is_400(served, headers, told):
    body = b'{"task": "x"}'
    lines = ["Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    answer = raw(served, head(served, *lines) + body)
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert told.encode() in answer
    assert served.get("runs").json()["items"] == []


def test_a_body_without_a_length_is_bounded_while_it_is_read(served):
    answer = served.post("runs", content=pieces(BIG), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload-too-large")
    assert answer.json()["limit"] == BIG


def test_a_body_that_says_it_is_too_large_is_not_read(served):
    sent = head(served, "Content-Type: application/json", f"Content-Length: {10**12}")
    answer = raw(served, sent + b"{")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"actual":1000000000000' in answer


def test_a_body_that_is_too_large_gets_its_answer_though_it_was_sent_whole(served):
    content = b'{"task": "' + b"x" * (5 * 1024 * 1024) + b'"}'
    answer = served.post("runs", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload-too-large")
    assert served.get("runs").status_code == 200


def test_a_body_that_ends_too_soon_writes_nothing(served):
    sent = head(served, "Content-Type: application/json", "Content-Length: 500")
    raw(served, sent + b'{"task": "x"}', hang_up=True)
    assert served.get("runs").json()["items"] == []


@pytest.mark.parametrize("path", ["runs/42%2Fevents", "runs/42%2fevents", "leases/run:42%2Fterms"])
def test_a_slash_within_a_name_does_not_lead_to_another_address(served, path):
    served.post("runs", json={"key": "42", "task": "x"})
    answer = raw(served, head(served, path=path, method="GET"))
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b"no name has a slash" in answer


def test_dots_in_an_address_stay_a_name_and_are_refused(served):
    answer = raw(served, head(served, path="runs/..", method="GET"))
    assert answer.startswith(b"HTTP/1.1 422 ")


@pytest.mark.parametrize("path", ["runs?q=\u00e9", "runs/\u00e9", "runs?q=%", "runs?%ZZ=1"])
def test_an_address_with_bytes_that_do_not_belong_there_is_no_fault_of_ours(served, path):
    answer = raw(served, head(served, path=path, method="GET"))
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200 ")), answer[:200]


def test_head_has_no_content_on_the_wire(served):
    served.post("runs", json={"key": "42", "task": "x"})
    answer = raw(served, head(served, path="runs/42", method="HEAD"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


def test_utf8_comes_and_goes_as_it_is(served):
    served.post("runs", content='{"key": "42", "task": "é 😀 \u202e"}'.encode(), headers=JSON)
    assert 'task":"é 😀 \u202e"' in served.get("runs/42").text


JSON = {"Content-Type": "application/json"}


def at_once(count: int, ask) -> list[httpx.Response]:
    together = Barrier(count)

    def one(number: int) -> httpx.Response:
        together.wait(timeout=30)
        return ask(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_fifty_equal_requests_make_one_run(served):
    """The others get the same answer, or are told to send it again, and then get it (O-11)."""
    for round_number in range(4):
        headers = {"Idempotency-Key": f"create-{round_number}"}

        def create(_: int, headers=headers) -> httpx.Response:
            return served.post("runs", json={"task": "once"}, headers=headers)

        answers = at_once(50, create)
        told = Counter(answer.status_code for answer in answers)
        assert set(told) <= {201, 409}, told
        late = [a for a in answers if a.status_code == 409]
        assert all(a.json()["code"] == "idempotency-in-flight" for a in late)
        assert all(a.json()["retry"] == "same-request" and a.headers["Retry-After"] for a in late)
        again = create(0)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert {a.text for a in answers if a.status_code == 201} == {again.text}
        assert len(served.get("runs?limit=200").json()["items"]) == round_number + 1


def test_twenty_workers_ask_for_one_unit_and_one_gets_it(served):
    answers = at_once(20, lambda n: served.post("leases/u-new/acquire", json={"owner": f"w-{n}"}))
    assert Counter(a.status_code for a in answers) == {200: 1, 423: 19}
    winner = next(a.json() for a in answers if a.status_code == 200)
    assert {a.json()["owner"] for a in answers if a.status_code == 423} == {winner["owner"]}
    assert served.get("leases/u-new").json()["token"] == winner["token"]


def test_a_hundred_charges_race_for_a_cap_of_thirty_seven(served):
    budgets = [{"name": "tokens", "cap": 37}]
    served.post("runs", json={"key": "42", "task": "x", "budgets": budgets})
    answers = at_once(
        100, lambda n: served.post("runs/42/budgets/tokens/spend", json={"amount": 1})
    )
    assert Counter(a.status_code for a in answers) == {200: 37, 402: 63}
    assert served.get("runs/42/budgets/tokens").json()["spent"] == 37
    ledger = served.get("runs/42/budgets/tokens/ledger?limit=500").json()["items"]
    assert sum(entry["spent"] for entry in ledger) == 37


def test_two_append_number_two_and_one_does(served):
    served.post("runs", json={"key": "42", "task": "x"})
    ask = {"events": [{"type": "a"}], "expected_seq": 1}
    answers = at_once(2, lambda n: served.post("runs/42/events", json=ask))
    assert sorted(a.status_code for a in answers) == [201, 412]
    assert served.get("runs/42").json()["last_seq"] == 2


def test_writers_of_other_fields_let_a_guarded_one_through(served):
    """Thirty-two adders and one who guards his field alone: he needs no second try."""
    served.post("runs", json={"key": "42", "task": "x", "attrs": {"phase": "plan"}})
    guarded = {"set": {"attrs.phase": "act"}, "expect": {"attrs.phase": "plan"}}

    def write(n: int) -> httpx.Response:
        return served.patch("runs/42", json=guarded if n == 16 else {"add": {"steps_done": 1}})

    assert Counter(a.status_code for a in at_once(33, write)) == {200: 33}
    run = served.get("runs/42").json()
    assert (run["counters"], run["attrs"], run["version"]) == (
        {"steps_done": 32},
        {"phase": "act"},
        34,
    )
    assert served.patch("runs/42", json=guarded).json()["code"] == "expectation-failed"
    assert served.put("runs/42/telemetry", json={"host": "h"}).status_code == 200
    assert served.put("workers/w-1", json={}).json()["signals"] == []


def test_a_revoked_key_is_refused_by_every_thread_at_once(served):
    assert served.get("runs").status_code == 200
    keys.revoke_key(name="fleet", by=store.SYSTEM)
    answers = at_once(16, lambda n: served.get("runs"))
    assert {a.status_code for a in answers} == {401}


def test_no_connection_stays_open_in_a_transaction(served):
    """Case O-42 (docs/cases.md)."""
    served.post("runs", json={"key": "42", "task": "x"})
    served.get("runs/42/verify")
    served.post("runs", json={"key": "42", "task": "x"})
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state ~ '^idle in transaction'"
    assert rows(f"{idle} AND datname = current_database()") == [(0,)]
