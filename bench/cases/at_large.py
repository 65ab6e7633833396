"""The parts of wire.py that look at much, or at all of a site; it runs them.

paging (O-26)   30 runs of one instant; 500 while 20 a second come and states change
bulk (O-35)     every lapsed lease reclaimed at once, the request cut, sent again
clear (O-39)    a key is looked for in every file of the site and in all of its database
viewer (O-40)   a viewer sends to every address of the console, and a reader's key to the API
streams (O-42)  100 requests, three waves of 20, 100 streams that vanish
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
from agentstate_client import Client

from bench.cases import Verdict, key_with, person, until
from bench.cases.rounds import Api
from bench.grounds import Ground


def paging(ground: Ground, verdict: Verdict) -> None:
    from django.db import connection

    api, console = Api(ground), person(ground, "vi-paging", "viewer")
    for number in range(500):
        api.post("/runs", {"task": "paged", "key": f"p-{number:03}"}).raise_for_status()
    with connection.cursor() as cursor:  # thirty of one instant, in the middle
        cursor.execute(
            "UPDATE agentstate_run SET created_at = (SELECT created_at FROM agentstate_run"
            " WHERE key = 'p-250') WHERE key BETWEEN 'p-235' AND 'p-264'"
        )
    connection.close()
    there = {f"p-{number:03}" for number in range(500)}
    stopped, sent = threading.Event(), [0]

    def write() -> None:
        while not stopped.is_set():
            api.post("/runs", {"task": "paged", "key": f"q-{sent[0]:05}"})
            api.post(f"/runs/p-{sent[0] * 7 % 500:03}/transitions", {"to": "running"})
            sent[0] += 1
            stopped.wait(0.05)

    writing = threading.Thread(target=write)
    writing.start()
    seen = {}
    for order in ("newest", "oldest"):
        found, cursor_text = [], ""
        while True:
            more = f"&cursor={cursor_text}" if cursor_text else ""
            answer = api.http.get(f"/runs?task=paged&order={order}&limit=7{more}").json()
            found += [run["key"] for run in answer["items"]]
            cursor_text = answer["next"]
            if not cursor_text or (order == "oldest" and found[-1].startswith("q")):
                break
        seen[f"API, {order}"] = found
    found, address = [], "/runs?q=task:paged"
    while address:
        text = console.get(address).text
        found += re.findall(r'<tr id="run-([pq]-\d+)"', text) or re.findall(
            r'data-key="([pq]-\d+)"', text
        )
        older = re.search(r'rel="next" href="([^"]+)"', text)
        address = "/runs" + older[1].replace("&amp;", "&") if older else ""
    seen["console"] = found
    stopped.set()
    writing.join()
    wrong = {
        name: (
            len(keys),
            sorted(there - set(keys))[:3],
            [k for k, n in Counter(keys).items() if n > 1][:3],
        )
        for name, keys in seen.items()
        if Counter(k for k in keys if k in there) != Counter(there)
    }
    verdict.say(
        "O-26",
        f"{sent[0]} runs came meanwhile; each of the 500 once, three ways; wrong: {wrong}",
        not wrong and sent[0] > 0,
    )


# --- O-35, O-39, O-40, O-42 -----------------------------------------------------------------------

LAPSED, CHANGED, PRESSED_MAX = 10_000, 300, 10
TTL_SECONDS = 60  # longer than it takes to hold them all


def bulk(ground: Ground, verdict: Verdict) -> None:
    from agentstate.store import bulking
    from agentstate.store.models import BulkAction, BulkItem, OperatorAction

    api, senior = Api(ground), person(ground, "bo-bulk", "senior")
    for first in range(0, LAPSED, 50):
        parts = [
            {"op": "create", "task": "lapsing", "key": f"l-{n:05}"}
            for n in range(first, first + 50)
        ]
        api.post("/batch", {"operations": parts}).raise_for_status()
    ask = {"owner": "gone", "limit": 100, "ttl_seconds": TTL_SECONDS, "task": "lapsing"}
    while api.post("/leases/claim", ask).json()["items"]:
        pass
    time.sleep(TTL_SECONDS + 1)
    address = "/bulk/new?q=lease:lapsed+task:lapsing&kind=reclaim"
    page = senior.get(address).text
    wanted = ("form_key", "seen_at", "shown", "is_all", "csrfmiddlewaretoken")
    form = {
        n: found[-1] for n in wanted if (found := re.findall(f'name="{n}" value="([^"]*)"', page))
    }
    shown = int(form["shown"])
    form |= {
        "q": "lease:lapsed task:lapsing",
        "kind": "reclaim",
        "begin": "yes",
        "reason": "a dead fleet",
        "typed": str(shown),
    }
    cut_in_half(ground, senior, form)
    again = []

    def come_back() -> None:
        for n in range(CHANGED):
            got = api.post(f"/leases/run:l-{LAPSED - 1 - n:05}/acquire", {"owner": "back"})
            again.append(got.status_code)

    coming = threading.Thread(target=come_back)
    coming.start()
    began = time.monotonic()
    told = []  # 409 while the request that was cut is still at work: then it is pressed again
    while not told or (told[-1] == 409 and len(told) < PRESSED_MAX):
        again_at = {"Referer": f"{ground.url}/bulk/new"}
        told.append(senior.post("/bulk/new", data=form, headers=again_at).status_code)
    took = time.monotonic() - began
    coming.join()
    until(lambda: BulkAction.objects.filter(ended_at__isnull=False).exists(), 400)
    whole = list(BulkAction.objects.all())
    outcomes = Counter(BulkItem.objects.values_list("outcome", flat=True))
    why = set(BulkItem.objects.exclude(outcome="done").values_list("why", flat=True))
    entries = OperatorAction.objects.filter(
        action="lease.reclaimed", request_id=bulking.name_of(whole[0].id)
    )
    per_row = Counter(entries.values_list("object", flat=True))
    verdict.say(
        "O-35",
        f"{shown} shown; {told} after {took:.1f} s; {len(whole)} bulk,"
        f" {dict(outcomes)}; {entries.count()} entries under"
        f" {len(set(entries.values_list('request_id', flat=True)))} id; {len(why)} reasons,"
        f" such as {next(iter(why), '')!r}; {Counter(again)} of those that came back",
        told[-1] == 302
        and took < 5
        and len(whole) == 1
        and sum(outcomes.values()) >= shown - CHANGED
        and not outcomes["waiting"]
        and max(per_row.values()) == 1
        and entries.count() == outcomes["done"]
        and "" not in why,
    )


def cut_in_half(ground: Ground, console: httpx.Client, form: dict[str, str]) -> None:
    """The same request, but that its connection goes before the answer."""
    request = console.build_request(
        "POST", "/bulk/new", data=form, headers={"Referer": f"{ground.url}/bulk/new"}
    )
    body = request.read()
    head = f"POST /bulk/new HTTP/1.1\r\nHost: 127.0.0.1:{ground.port}\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in request.headers.items() if name.lower() != "host"
    )
    with socket.create_connection(("127.0.0.1", ground.port)) as wire:
        wire.sendall(head.encode() + b"\r\n" + body)


def clear(ground: Ground, verdict: Verdict) -> None:
    from django.conf import settings
    from django.db import connection

    api = Api(ground)
    secret = ground.key[36:]  # after as_, its id and _
    console = person(ground, "vi-clear", "viewer")
    wrong_key = ground.key[:-1] + ("a" if ground.key[-1] != "a" else "b")
    told: Counter[int] = Counter()
    outside = httpx.Client(base_url=ground.url, timeout=60)
    for ask in (
        lambda: api.http.get("/runs?key=" + ground.key),
        lambda: api.http.get("/runs/none"),
        lambda: api.post("/runs", {"task": ground.key * 10}),
        lambda: api.post("/runs", {}),
        lambda: outside.get("/api/v1/runs", headers={"Authorization": f"Bearer {wrong_key}"}),
        lambda: outside.get("/api/v1/runs", headers={"Authorization": f"Basic {ground.key}"}),
        lambda: outside.get(f"/live/v1/feed?key={ground.key}"),
        lambda: console.get(f"/jump?to={ground.key}"),
        lambda: console.get(f"/runs?q={ground.key}"),
        lambda: outside.get(f"/{ground.key}"),
    ):
        told[ask().status_code] += 1
    with Client(ground.url, ground.key) as client:
        client.create(task="t")
        said = repr(client)
    files = [
        path
        for path in Path(settings.AGENTSTATE_HOME).rglob("*")
        if path.is_file() and "postgres/data" not in str(path) and has(path, secret)
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace ="
            " (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
        )
        tables = [name for (name,) in cursor.fetchall()]
        stored = []
        for table in tables:
            cursor.execute(
                f'SELECT count(*) FROM "{table}" t WHERE t::text LIKE %s', [f"%{secret}%"]
            )
            stored += [table] * cursor.fetchone()[0]
    connection.close()
    verdict.say(
        "O-39",
        f"answers {dict(told)}; in files: {files}, in {len(tables)} tables: {stored},"
        f" in a repr: {secret in said}",
        not files and not stored and secret not in said,
    )


def has(path: Path, text: str) -> bool:
    with suppress(OSError):
        return text.encode() in path.read_bytes()
    return False


def viewer(ground: Ground, verdict: Verdict) -> None:
    from agentstate.store.models import OperatorAction, RefusedAction
    from dashboard.rights import LINES

    api = Api(ground)
    for name in ("v-1", "v-2"):
        api.post("/runs", {"task": "t", "key": name}).raise_for_status()
    api.post("/leases/run:v-1/acquire", {"owner": "w-1"}).raise_for_status()
    console = person(ground, "vi-viewer", "viewer")
    token = console.cookies.get("agentstate_csrf") or next(iter(console.cookies.values()))
    reader = {"Authorization": f"Bearer {key_with('read')}"}
    before = api.http.get("/runs/v-1").json(), OperatorAction.objects.count()
    parts = {
        "key": "v-1",
        "unit": "run:v-1",
        "name": "w-1",
        "rule": "overdue-runs",
        "bulk": "0" * 32,
        "delivery": "0" * 32,
        "action": "cancel",
        "number": "1",
        "kind": "refusals",
        "seq": "1",
        "uidb64": "x",
        "token": "x",
        "pk": "1",
        "code": "stale-fence",
    }
    sent, wrong, tries = 0, {}, RefusedAction.objects.count()
    for route, line in LINES.items():
        if line.post not in ("operate", "override", "admin"):
            continue
        address = "/" + re.sub(r"<\w+:(\w+)>", lambda found: parts[found[1]], route)
        answer = console.post(
            address,
            data={"csrfmiddlewaretoken": token, "reason": "because"},
            headers={"X-CSRFToken": token, "Referer": f"{ground.url}/runs"},
        )
        sent += 1
        if answer.status_code not in (403, 404):
            wrong[address] = answer.status_code
        with_get = console.get(address)
        if with_get.status_code >= 500:
            wrong[f"GET {address}"] = with_get.status_code
    calls = {
        "/runs": {"task": "t"},
        "/runs/v-1/events": {"events": [{"type": "a"}]},
        "/runs/v-1/transitions": {"to": "cancelled"},
        "/leases/run:v-1/acquire": {"owner": "w"},
        "/leases/run:v-1/reclaim": {"expected_token": 1, "expected_owner": "w", "reason": "r"},
        "/budgets": {"name": "b", "cap": 1},
        "/batch": {"operations": []},
    }
    refused = {path: api.post(path, body, **reader).status_code for path, body in calls.items()}
    wrong |= {path: status for path, status in refused.items() if status not in (403, 422)}
    after = api.http.get("/runs/v-1").json(), OperatorAction.objects.count()
    unchanged = after[0]["version"] == before[0]["version"] and after[1] == before[1]
    written = RefusedAction.objects.count() - tries
    verdict.say(
        "O-40",
        f"{sent} addresses and {len(calls)} calls; nothing changed: {unchanged};"
        f" {written} tries written down; wrong: {wrong}",
        not wrong and unchanged and written > 0,
    )


def streams(ground: Ground, verdict: Verdict) -> None:
    from django.db import connection

    api = Api(ground)
    api.post("/runs", {"task": "t", "key": "streams"}).raise_for_status()

    def sessions() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), count(*) FILTER (WHERE state ~ '^idle in tr')"
                " FROM pg_stat_activity WHERE application_name ~ 'web|streams|live'"
                " AND datname = current_database()"
            )
            found: tuple[int, int] = cursor.fetchone()
            return found

    at_rest = sessions()
    for _ in range(100):
        api.http.get("/runs/streams").raise_for_status()
    for _ in range(3):
        assert all(a.status_code == 200 for a in api.at_once(20, lambda _: api.http.get("/runs")))
    worked = sessions()
    opened = []
    ask = (
        "GET /live/v1/runs/streams/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Accept: text/event-stream\r\nAuthorization: Bearer {ground.key}\r\n\r\n"
    )
    for _ in range(100):
        wire = socket.create_connection(("127.0.0.1", ground.port), timeout=20)
        wire.sendall(ask.encode())
        opened.append(wire)
    until(lambda: open_streams(ground) == 100, 20)
    waiting, meanwhile = sessions(), open_streams(ground)
    answers = api.http.get("/runs/streams").status_code
    for number, wire in enumerate(opened):
        if number % 2:  # killed: the connection is reset
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wire.close()
    ended = until(lambda: open_streams(ground) == 0, 30)
    after = sessions()
    connection.close()
    verdict.say(
        "O-42",
        f"sessions (in a transaction): at rest {at_rest}, after 160 requests {worked},"
        f" with {meanwhile} streams {waiting}, after them {after}; the API answers {answers};"
        f" all ended: {ended}",
        meanwhile == 100
        and ended
        and answers == 200
        and waiting[1] == 0 == after[1]
        and waiting[0] <= worked[0] + 6,
    )


def open_streams(ground: Ground) -> int:
    by = {"Authorization": f"Bearer {ground.key}"}
    told = httpx.get(f"{ground.url}/metrics", headers=by, timeout=60).text
    found = re.search(r'^agentstate_streams\{whose="workers"\} ([\d.]+)', told, re.MULTILINE)
    return int(float(found[1])) if found else -1
