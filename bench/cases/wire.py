"""Cases tried as they are written, over HTTP and with the client, on a site of its own.

    .venv/bin/python -m bench.cases.wire [--only keys ...]

cut-off (O-03)     20 s without a packet, one 503, a reclaim: who holds is told in time, and why
lost (O-12)        the answers to a change, an append, an end and an acquire are cut
keys (O-10)        a key again with another amount, path and order; keys of 0 to 300 characters
late (O-15)        a worker that was overtaken sends state, event and charge based on what it saw
caps (O-16)        4, 8 and 200 charges at once against 5.00, a default cap of 1.00, and 100
json (O-20)        odd numbers, nesting, a million numbers, 5 MB, no body, another content type
names (O-23)       seventeen odd names: made, or refused; list, read, follow, acquire, reclaim
lines (O-24)       line breaks in types and texts of a stream, read as a browser reads it
paging (O-26)      30 runs of one instant; 500 while 20 a second come and states change
bulk (O-35)        every lapsed lease reclaimed at once, the request cut, sent again
clear (O-39)       a key is looked for in every file of the site and in all of its database
viewer (O-40)      a viewer sends to every address of the console, and a reader's key to the API
streams (O-42)     100 requests, three waves of 20, 100 streams that vanish
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection

import httpx
from agentstate_client import (
    Charge,
    Client,
    Event,
    LeaseHeld,
    LeaseLost,
    NewBudget,
    SeqConflict,
    clock,
)

from agentstate.cli.output import result
from bench.cases import Verdict, at_large, key_with, person, site, until
from bench.cases.rounds import Api
from bench.grounds import Ground
from tests.client.proxy import Proxy

type Case = Callable[[Ground, Verdict], None]

TIMED = 3


@contextmanager
def between(ground: Ground) -> Iterator[Proxy]:
    proxy = Proxy(port=ground.port)
    try:
        yield proxy
    finally:
        proxy.close()


# --- O-03, O-12: the client -----------------------------------------------------------------------


def cut_off(ground: Ground, verdict: Verdict) -> None:
    with between(ground) as proxy, Client(proxy.url, ground.key, worker="w-1") as client:
        api = Api(ground)
        client.create(task="t", key="silent")
        (run,) = client.claim(ttl_seconds=6)
        time.sleep(3)
        confirmed_at = run.lease.deadline - 6 + 0.6  # its margin is a tenth of the ttl
        proxy.silent.set()
        run.lost.wait(20)
        told_after = clock.now() - confirmed_at
        held = api.post("/leases/run:silent/acquire", {"owner": "w-2"})
        early = held.status_code == 423
        until(lambda: api.post("/leases/run:silent/acquire", {"owner": "w-2"}).status_code == 200)
        time.sleep(10)
        proxy.silent.clear()
        refused = []
        for write in (lambda: run.append(Event("late")), run.complete):
            try:
                write()
            except LeaseLost as lost:
                refused.append(lost.reason)
        types = [e.type for e in client.run("silent").events()]
        verdict.say(
            "O-03",
            f"(a) told {told_after:.1f} s after its last renewal, before anybody was"
            f" let in: {early}; writes: {refused}; late events: {types.count('late')}",
            told_after < 6 and early and refused == ["deadline"] * 2 and "late" not in types,
        )
    with Client(ground.url, ground.key, worker="w-3") as client:
        client.create(task="t", key="taken")
        (run,) = client.claim(ttl_seconds=6)
        lease = api.http.get("/leases/run:taken").json()
        ask = {
            "expected_token": lease["token"],
            "expected_owner": lease["owner"],
            "reason": "stuck since noon",
            "force": True,
        }
        operator = {"Authorization": f"Bearer {key_with('read', 'operate', 'override')}"}
        api.post("/leases/run:taken/reclaim", ask, **operator).raise_for_status()
        run.lost.wait(15)
        assert run.lease.loss is not None
        verdict.say(
            "O-03",
            f"(c) told: {run.lease.loss.reason}, {run.lease.loss.fact('why')}",
            run.lease.loss.reason == "reclaimed",
        )


def lost(ground: Ground, verdict: Verdict) -> None:
    with between(ground) as proxy, Client(proxy.url, ground.key, worker="w-1") as client:
        other = Client(ground.url, ground.key, worker="w-2")
        made = client.create(task="t", key="cut", budgets=[NewBudget("tokens", cap=100)])
        proxy.cut_answers("/events")
        done = made.append(Event("e"), expected_seq=1, spend=Charge("tokens", 5))
        proxy.cut_answers("PATCH /api/v1/runs/cut")
        changed = made.set(notes="x")
        proxy.cut_answers("/acquire")
        lease = client.lease("unit-cut", ttl_seconds=60)
        try:
            other.lease("unit-cut")
            taken = True
        except LeaseHeld as held:
            taken = held.owner != client.owner
        made.start()
        proxy.cut_answers("/transitions")
        ended = made.complete({"ok": True})
        events = [e.type for e in made.events()]
        other.run("cut-2")
        conflict = client.create(task="t", key="cut-2")
        other.run("cut-2").append(Event("theirs"))
        proxy.cut_answers("/events")
        try:
            conflict.append(Event("mine"), expected_seq=1)
            met = False
        except SeqConflict as seen:
            met = seen.last_seq == 2
        verdict.say(
            "O-12",
            f"{proxy.cuts} answers cut: append at {done.first_seq}, change to"
            f" v{changed.version}, its own lease, {ended.status}; {events.count('e')} event;"
            f" a real conflict shows: {met}",
            proxy.cuts == 5
            and done.first_seq == 2
            and changed.version == done.version + 1
            and not taken
            and ended.status == "completed"
            and events.count("e") == 1
            and met,
        )
        lease.release()
        other.close()


# --- O-10, O-15, O-16, O-20 -----------------------------------------------------------------------


def keys(ground: Ground, verdict: Verdict) -> None:
    api = Api(ground)
    for run in ("k-1", "k-2"):
        budgets = [{"name": "tokens", "cap": 1_000}]
        api.post("/runs", {"task": "t", "key": run, "budgets": budgets}).raise_for_status()

    def spend(run: str, body: str, key: bytes) -> httpx.Response:
        headers = [(b"Idempotency-Key", key), (b"Content-Type", b"application/json")]
        return api.http.post(f"/runs/{run}/budgets/tokens/spend", content=body, headers=headers)

    told = {
        "first": spend("k-1", '{"amount": 10, "note": "n"}', b"k"),
        "another amount": spend("k-1", '{"amount": 20, "note": "n"}', b"k"),
        "another run": spend("k-2", '{"amount": 10, "note": "n"}', b"k"),
        "reordered": spend("k-1", '{ "note":"n",  "amount" : 10 }', b"k"),
        "of 0": spend("k-1", '{"amount": 1}', b""),
        "of 255": spend("k-1", '{"amount": 1}', b"x" * 255),
        "of 300": spend("k-1", '{"amount": 1}', b"x" * 300),
        "an emoji": spend("k-1", '{"amount": 1}', "😀".encode()),
    }
    codes = {name: (a.status_code, a.json().get("code")) for name, a in told.items()}
    replayed = told["reordered"].headers.get("Idempotent-Replayed")
    spent = [api.http.get(f"/runs/{run}/budgets/tokens").json()["spent"] for run in ("k-1", "k-2")]
    expected = {
        "first": (200, None),
        "reordered": (200, None),
        "another amount": (422, "idempotency-key-reuse"),
        "another run": (422, "idempotency-key-reuse"),
    }
    wrong = {n: c for n, c in codes.items() if c != expected.get(n, (422, "invalid"))}
    verdict.say(
        "O-10",
        f"spent {spent}, replayed: {replayed}, not as it should be: {wrong}",
        not wrong and spent == [10, 0] and replayed == "true",
    )
    # No client library sends it so: the space stands before and after the key on the wire.
    spaces = [spend_bare(ground, key) for key in ("one", " one ")]
    verdict.say(
        "O-10",
        f"without and with outer spaces: {spaces}",
        spaces == [200, 422] and api.http.get("/runs/k-1/budgets/tokens").json()["spent"] == 11,
    )


def spend_bare(ground: Ground, key: str) -> int:
    """The status of a charge whose header goes out as it is."""
    wire = HTTPConnection("127.0.0.1", ground.port, timeout=20)
    body = '{"amount": 1}'
    wire.putrequest("POST", "/api/v1/runs/k-1/budgets/tokens/spend")
    for name, value in (
        ("Authorization", f"Bearer {ground.key}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Idempotency-Key", key),
    ):
        wire.putheader(name, value)
    wire.endheaders(body.encode())
    status = wire.getresponse().status
    wire.close()
    return status


def late(ground: Ground, verdict: Verdict) -> None:
    api = Api(ground)
    ask = {"task": "t", "key": "late", "budgets": [{"name": "tokens", "cap": 100}]}
    api.post("/runs", ask).raise_for_status()
    first = api.post("/leases/run:late/acquire", {"owner": "w-1", "ttl_seconds": 1}).json()
    time.sleep(1.2)
    second = api.post("/leases/run:late/acquire", {"owner": "w-2"}).json()
    for _ in range(2):
        api.post(
            "/runs/late/events",
            {"events": [{"type": "b"}]},
            **{"Agentstate-Fence": str(second["token"])},
        ).raise_for_status()
    before = api.http.get("/runs/late").json()
    write = {
        "events": [{"type": "late"}],
        "spend": {"budget": "tokens", "amount": 1},
        "expected_seq": first["last_seq"],
        "to": "completed",
    }
    answer = api.post("/runs/late/events", write, **{"Agentstate-Fence": str(first["token"])})
    now = api.http.get("/runs/late").json()
    same = {k: v for k, v in now.items() if k != "lease"} == {
        k: v for k, v in before.items() if k != "lease"
    }
    seen = person(ground, "vi-late", "viewer").get("/contention").text
    verdict.say(
        "O-15",
        f"{answer.status_code} {answer.json()['code']}, nothing changed: {same},"
        f" shown under contention: {'late' in seen}",
        answer.status_code == 409 and same and "stale-fence" in seen,
    )


def caps(ground: Ground, verdict: Verdict) -> None:
    api = Api(ground)

    def at_once(run: str, budget: str, amount: int, count: int, way: str) -> Counter[int]:
        def ask(number: int) -> httpx.Response:
            body = {"amount": amount} | ({"id": f"h-{number}"} if way == "reserve" else {})
            return api.post(f"/runs/{run}/budgets/{budget}/{way}", body)

        with ThreadPoolExecutor(50) as pool:
            return Counter(answer.status_code for answer in pool.map(ask, range(count)))

    for run, cap in (("cap-a", 5_000_000), ("cap-c", 100)):
        budgets = [{"name": "usd", "cap": cap}]
        api.post("/runs", {"task": "t", "key": run, "budgets": budgets}).raise_for_status()
    api.post("/runs", {"task": "t", "key": "cap-b"}).raise_for_status()
    api.post("/runs/cap-a/budgets/usd/spend", {"amount": 4_752_720}).raise_for_status()
    told = [
        at_once("cap-a", "usd", 88_400, 4, "reserve"),
        at_once("cap-b", "site", 400_000, 8, "spend"),
        at_once("cap-c", "usd", 1, 200, "spend"),
    ]
    left = [
        api.http.get(f"/runs/{run}/budgets/{name}").json()
        for run, name in (("cap-a", "usd"), ("cap-b", "site"), ("cap-c", "usd"))
    ]
    admitted = [answers[200] for answers in told]
    used = [one["spent"] + one["reserved"] for one in left]
    verdict.say(
        "O-16",
        f"admitted {admitted}, used {used}, answers {[dict(a) for a in told]}",
        admitted == [2, 2, 100]
        and used == [4_929_520, 800_000, 100]
        and all(set(a) <= {200, 402} for a in told),
    )


def odd_json(ground: Ground, verdict: Verdict) -> None:
    api = Api(ground)
    api.post("/runs", {"task": "t", "key": "json"}).raise_for_status()
    bodies = {
        name: f'{{"events": [{{"type": "a", "data": {data}}}]}}'
        for name, data in {
            "NaN": "NaN",
            "Infinity": "Infinity",
            "-Infinity": "-Infinity",
            "1e999": "1e999",
            "-0": "-0",
            "a name twice": '{"a": 1, "a": 2}',
            "100 deep": "[" * 100 + "]" * 100,
            "1,000 deep": "[" * 1_000 + "]" * 1_000,
            "20,000 deep": "[" * 20_000 + "]" * 20_000,
            "a million numbers": "[" + "1," * 999_999 + "1]",
            "5 MB": '"' + "x" * 5_000_000 + '"',
        }.items()
    } | {"no body": "", "null": "null"}
    wrong, slowest = {}, 0.0
    kind = {"Content-Type": "application/json"}
    for name, body in bodies.items():
        took = 1e9
        for _ in range(1 if name == "-0" else TIMED):  # the machine may be busy with something else
            began = time.monotonic()
            answer = api.http.post("/runs/json/events", content=body.encode(), headers=kind)
            took = min(took, time.monotonic() - began)
        slowest = max(slowest, took)
        said = answer.json()
        taken = name == "-0"
        if (answer.status_code == 201) != taken or (not taken and not said.get("code")) or took > 1:
            wrong[name] = (answer.status_code, said.get("code"), round(took, 2))
    text = api.http.post("/runs/json/events", content=b"{}", headers={"Content-Type": "text/plain"})
    if text.status_code != 415:
        wrong["text/plain"] = (text.status_code, "", 0)
    listed = api.http.get("/runs/json/events").text
    json.loads(listed, parse_constant=lambda name: wrong.setdefault("returned", (0, name, 0)))
    verdict.say(
        "O-20", f"{len(bodies) + 1} bodies, the slowest {slowest:.2f} s; wrong: {wrong}", not wrong
    )


# --- O-23, O-24, O-26 -----------------------------------------------------------------------------

NAMES = [
    "a/b",
    "..",
    "../admin",
    "%2e%2e",
    "100%",
    "a b",
    "a+b",
    "2026-03-12T09:40:00+00:00",
    "x'y",
    "a?b#c",
    "a&b=c",
    "\u00e9",
    "e\u0301",
    "😀",
    "a\u202eb",
    "a\u200bb",
    "a ",
    "a.b_c:d@e~f-g",
    "2026-03-12T09:40:00",
    "A",
    "a",
]


def names(ground: Ground, verdict: Verdict) -> None:
    api, console = Api(ground), person(ground, "op-names", "operator")
    operator = {"Authorization": f"Bearer {key_with('read', 'operate')}"}
    made, wrong = [], {}
    for name in NAMES:
        answer = api.post("/runs", {"task": "t", "key": name})
        if answer.status_code == 201:
            made.append(name)
        elif (answer.status_code, answer.json().get("field")) != (422, "key"):
            wrong[name] = f"{answer.status_code} {answer.text[:100]}"
    listed = console.get("/runs").text
    for name in made:
        read = api.http.get(f"/runs/{name}").json()["key"]
        page = console.get(f"/runs/{name}")
        lease = api.post(f"/leases/run:{name}/acquire", {"owner": "w", "ttl_seconds": 1}).json()
        time.sleep(1.1)
        ask = {"expected_token": lease["token"], "expected_owner": "w", "reason": "r"}
        taken = api.post(f"/leases/run:{name}/reclaim", ask, **operator).status_code
        first = next(frames(ground, f"/runs/{name}/events"))
        client = Client(ground.url, ground.key)
        by_client = client.run(name).read().key
        client.close()
        linked = f'href="/runs/{name}' in listed
        told = (read, by_client, page.status_code, taken, json.loads(first["data"])["type"], linked)
        if told != (name, name, 200, 200, "run.created", True):
            wrong[name] = str(told)
    verdict.say(
        "O-23",
        f"of {len(NAMES)} names {len(made)} can be made, and work everywhere; wrong: {wrong}",
        not wrong and len(made) == 4,
    )


def frames(ground: Ground, path: str, last_id: str | None = None) -> Iterator[dict[str, str]]:
    """Events of a stream, cut into fields as the standard says it: by CR, LF or CRLF."""
    headers = {"Authorization": f"Bearer {ground.key}", "Accept": "text/event-stream"} | (
        {"Last-Event-ID": last_id} if last_id else {}
    )
    with httpx.stream("GET", f"{ground.url}/live/v1{path}", headers=headers, timeout=20) as answer:
        answer.raise_for_status()
        fields: dict[str, str] = {}
        pending = ""
        for part in answer.iter_text():
            pending += part
            *lines, pending = re.split(r"\r\n|\r|\n", pending)
            for line in lines:
                if not line:
                    if "data" in fields:
                        yield fields
                    fields = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(":")
                    fields[name] = (
                        fields[name] + "\n" if name in fields else ""
                    ) + value.removeprefix(" ")


def lines(ground: Ground, verdict: Verdict) -> None:
    api = Api(ground)
    api.post("/runs", {"task": "t", "key": "lines"}).raise_for_status()
    refused = {
        api.post("/runs/lines/events", {"events": [{"type": kind}]}).status_code
        for kind in ("x\nevent: spoof", "x\r", "x\u2028")
    }
    texts = [
        "a\n\nevent: spoof\ndata: 1\n\n",
        "a\rid: 7\r\n",
        "a\u2028b\u2029",
        "trailing\n",
        "id: 999999\n\nid: 999999",
    ]
    bodies = [json.dumps(text, ensure_ascii=False) for text in texts]
    bodies += ['{\n\n"a"\r:\r\n1\n}', '[\n"id: 999999"\n\n]']  # line breaks between the tokens
    for body in bodies:
        ask = f'{{"events": [{{"type": "x", "data": {body}}}]}}'.encode()
        kind = {"Content-Type": "application/json"}
        api.http.post("/runs/lines/events", content=ask, headers=kind).raise_for_status()
    found = []
    for frame in frames(ground, "/runs/lines/events"):
        found.append(frame)
        if len(found) == len(bodies) + 1:
            break
    wrong = [
        (frame, body)
        for frame, body in zip(found[1:], bodies, strict=True)
        if set(frame) != {"id", "data"} or json.loads(frame["data"])["data"] != json.loads(body)
    ]
    numbers = [frame["id"] for frame in found]
    verdict.say(
        "O-24",
        f"types with line breaks: {refused}; {len(found)} events as they were sent,"
        f" numbers {numbers[0]} to {numbers[-1]}; wrong: {wrong}",
        refused == {422} and not wrong and numbers == [str(n) for n in range(1, len(bodies) + 2)],
    )


PARTS: dict[str, Case] = {
    "cut-off": cut_off,
    "lost": lost,
    "keys": keys,
    "late": late,
    "caps": caps,
    "json": odd_json,
    "names": names,
    "lines": lines,
    "paging": at_large.paging,
    "bulk": at_large.bulk,
    "clear": at_large.clear,
    "viewer": at_large.viewer,
    "streams": at_large.streams,
}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = asked.parse_args()
    verdict = Verdict()
    default = [{"name": "site", "unit": "usd_micros", "cap": 1_000_000}]
    with site(background=True, AGENTSTATE_DEFAULT_BUDGETS=json.dumps(default)) as ground:
        for name in options.only:
            try:
                PARTS[name](ground, verdict)
            except Exception as failed:  # the others are tried all the same
                verdict.say(name, f"{type(failed).__name__}: {failed}"[:400], False)
    result("all held" if not verdict.failed else "something did not hold")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
