"""The console on a large store: how long pages take, how large they are, what staying live costs.

    .venv/bin/python -m bench.console --home FOLDER [--runs 1000000] [--repeats 40] [--viewers 200]

On a real site (one web process, Celery, an embedded PostgreSQL with fsync) over a store that
`bench.filled` makes in the folder, or has made there before:

1. every page, asked for by turns: from sending the request to the whole answer, what of it the
   server says it took itself, and the octets that came (compressed, as a browser gets them);
2. what each live part asks of the database, unchanged and changed, and how often at most;
3. what a browser with an empty cache loads for a first page;
4. from commit to visible: a worker appends, a browser shows a run's page, and others have pages
   open and fetch as live.js does. The time is from the event's own (the database's clock, before
   the commit) to the change in the browser's document, on the same machine;
5. what a viewer of a run's page and of one that asks for a reclaim costs a second: transactions of
   the database (a statement by itself is one, and all that these pages refresh is one statement),
   less what the same writes cost with nobody looking.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import re
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentstate.cli.output import progress, result
from bench import filled

PEOPLE = 5  # who look; each may have 50 streams
LONG = filled.LONG_RUN
QUIET_SECONDS = 15.0
MARGIN_SECONDS = 5.0  # until all viewers are connected, and for what is on its way at the end
GZIP = {"Accept-Encoding": "gzip"}
LIVE_PART = re.compile(r"<[^>]*\sdata-live=\"[^>]*>")
CONTROL = ("BEGIN", "COMMIT")  # they read nothing
ATTRIBUTE = re.compile(r'\s(data-live[\w-]*|id)(?:="([^"]*)")?')


def addresses(runs: int) -> dict[str, str]:
    """The pages that are measured, and in what state."""
    some, held = f"run-{runs // 2:07d}", f"run-{runs:07d}"
    return {
        "Now": "/",
        "Runs": "/runs",
        "Runs, failed in a week": "/runs?q=status:failed+since:7d",
        "Runs, of a worker": "/runs?q=worker:worker-7",
        "Runs, a lapsed lease": "/runs?q=lease:lapsed",
        "Runs, a tag": "/runs?q=tag:team:docs",
        "Runs, part of a task": "/runs?q=task:checkout",
        "Runs, loose words": "/runs?q=flaky",
        "Runs, nothing matches": "/runs?q=zebra",
        "Run": f"/runs/{some}",
        "Run, held": f"/runs/{held}",
        "Run, 100,000 events": f"/runs/{LONG}",
        "Run, 100,000 events: timeline": f"/runs/{LONG}/timeline",
        "Run, 100,000 events: state": f"/runs/{LONG}?tab=state",
        "Run, 100,000 events: the middle": f"/runs/{LONG}?after=50000",
        "Leases": "/leases",
        "Lease": f"/leases/run:{held}",
        "Reclaim": f"/leases/run:{held}/reclaim",
        "Workers": "/workers",
        "Contention": "/contention",
        "Budgets": "/budgets",
        "Budget of a run": f"/runs/{held}/budgets/tokens",
        "Alerts": "/alerts",
        "Audit": "/audit",
        "System": "/system",
        "Receipts": "/receipts?key=req-1-1",
    }


@dataclass(slots=True)
class Page:
    """What was measured of one: milliseconds, and octets as they came."""

    wall: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    octets: int = 0
    status: int = 0


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# --- people ---------------------------------------------------------------------------------------


def make_people() -> list[tuple[str, str]]:
    """Names and passwords of those who look."""
    from agentstate.cli.people import save_user

    made = [(f"bench-{n}", secrets.token_urlsafe(16)) for n in range(PEOPLE)]
    for name, password in made:
        save_user(name=name, role="operator", password=password)
    return made


def log_in(url: str, name: str, password: str) -> httpx.Client:
    client = httpx.Client(base_url=url, timeout=60, headers=GZIP)
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get("/login").text)
    assert token is not None
    form = {"username": name, "password": password, "csrfmiddlewaretoken": token[1]}
    answer = client.post("/login", data=form, headers={"Referer": f"{url}/login"})
    assert answer.status_code == 302, answer.status_code
    return client


# --- 1. pages -------------------------------------------------------------------------------------


def ask(client: httpx.Client, address: str, into: Page) -> None:
    began = time.perf_counter()
    with client.stream("GET", address) as answer:
        into.octets = sum(len(part) for part in answer.iter_raw())
        into.status = answer.status_code
    into.wall.append((time.perf_counter() - began) * 1_000)
    told = re.search(r"total;dur=([\d.]+)", answer.headers.get("Server-Timing", ""))
    into.server.append(float(told[1]) if told else float("nan"))


def measure_pages(client: httpx.Client, runs: int, repeats: int) -> None:
    pages = {name: Page() for name in addresses(runs)}
    for turn in range(repeats + 2):
        for name, address in addresses(runs).items():
            ask(client, address, pages[name] if turn >= 2 else Page())
        progress(f"pages, turn {turn + 1} of {repeats + 2}")
    result("\n| page | p50 ms | p95 ms | server p95 ms | kB |\n|---|---|---|---|---|")
    for name, page in pages.items():
        bad = "" if page.status == 200 else f" (status {page.status})"
        result(
            f"| {name}{bad} | {statistics.median(page.wall):.0f} |"
            f" {percentile(page.wall, 0.95):.0f} | {percentile(page.server, 0.95):.0f} |"
            f" {page.octets / 1000:.1f} |"
        )


# --- 2. what staying live costs -------------------------------------------------------------------


def live_parts(html: str) -> Iterator[dict[str, str]]:
    for tag in LIVE_PART.findall(html):
        yield {name: value.replace("&amp;", "&") for name, value in ATTRIBUTE.findall(tag)}


def address_of(part: dict[str, str], html: str, seen: int = 0, *, drawn: bool = False) -> str:
    """Where a part is fetched, with what live.js adds: the rows that are shown, or the last one.
    seen: the last one that was added since. drawn: the part beside it is due and comes along."""
    added = []
    if "data-live-rows" in part:
        added = [f"key={key}" for key in re.findall(r'<tr[^>]*\sdata-key="([^"]*)"', html)]
    if "data-live-after" in part and (last := re.search(r'data-last="(\d+)"', html)):
        added = [f"after={max(seen, int(last[1]))}"]
    added += ["drawn=1"] if drawn else []
    address = part["data-live"]
    return address + ("&" if "?" in address else "?") + "&".join(added) if added else address


def measure_live(client: httpx.Client, runs: int) -> None:
    """Statements of one refresh, in this process and shared with nobody; times of the real server,
    where all who ask within a second get what was made for the first."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext, override_settings

    inside = Client(headers={"host": "localhost"})
    inside.force_login(User.objects.get(username="bench-0"))
    result(
        "\n| live part | statements | a second | hinted | in the database, ms | server ms |"
        " every s, hinted s |\n|---|---|---|---|---|---|---|"
    )
    for name in ("Now", "Runs", "Run, held", "Run, 100,000 events", "Leases", "Lease", "Reclaim",
                 "Workers", "Contention", "Budgets", "Alerts", "System"):  # fmt: skip
        html = client.get(addresses(runs)[name]).text
        for part in live_parts(html):
            address = address_of(part, html)
            headers = {"HX-Request": "true", "HX-Target": part.get("data-live-as", "")}
            headers |= {"HX-Current-URL": f"http://localhost{addresses(runs)[name]}"}
            for _ in range(2):
                alone = override_settings(AGENTSTATE_SHARED_ANSWERS=False)
                with alone, CaptureQueriesContext(connection) as asked:
                    inside.get(address, headers=headers)
            spent = sum(float(one["time"]) for one in asked.captured_queries) * 1_000
            timed = Page()
            for _ in range(5):
                timed.server.append(served_ms(client, address, headers))
            every, gap = seconds_of(part)
            is_hinted = "data-live-stream" in part
            count = sum(not one["sql"].startswith(CONTROL) for one in asked.captured_queries)
            result(
                f"| {name}: {address[:48]} | {count} | {count / every:.2f} |"
                f" {f'{count / gap:.2f}' if is_hinted else ''} | {spent:.1f} |"
                f" {statistics.median(timed.server):.0f} |"
                f" {every:g}{f', {gap:g}' if is_hinted else ''} |"
            )


def seconds_of(part: dict[str, str]) -> tuple[float, float]:
    """Between two polls, and on the average at least between two refreshes after hints."""
    return float(part.get("data-live-every", 5)), float(part.get("data-live-gap", 1))


def served_ms(client: httpx.Client, address: str, headers: dict[str, str]) -> float:
    told = client.get(address, headers=headers).headers.get("Server-Timing", "")
    return float(told.partition("total;dur=")[2].partition(",")[0])


# --- 3. what a browser loads ----------------------------------------------------------------------


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import ARGUMENTS, chromium

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield launched
        launched.close()


def window(launched: Any, url: str, client: httpx.Client) -> Any:
    context = launched.new_context(base_url=url, viewport={"width": 1440, "height": 900})
    context.add_cookies(
        [{"name": name, "value": value, "url": url} for name, value in client.cookies.items()]
    )
    return context.new_page()


def measure_transfer(launched: Any, url: str, client: httpx.Client, runs: int) -> None:
    result("\n| first page, empty cache | requests | kB in all |\n|---|---|---|")
    for name in ("Now", "Runs", "Run, 100,000 events", "Leases", "Contention"):
        page = window(launched, url, client)
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        octets: list[float] = []
        session.on("Network.loadingFinished", lambda e, o=octets: o.append(e["encodedDataLength"]))
        page.goto(addresses(runs)[name])
        page.wait_for_timeout(3_000)
        result(f"| {name} | {len(octets)} | {sum(octets) / 1000:.1f} |")
        page.context.close()


# --- 4. from commit to visible --------------------------------------------------------------------


async def _view(client: httpx.AsyncClient, page: str, run: str | None, tally: list[int]) -> None:
    """One open page: a stream of hints, and its live parts fetched as live.js fetches them."""
    html = (await client.get(page)).text
    parts = list(live_parts(html))
    due = {part["data-live"]: 0.0 for part in parts}
    fetched = dict.fromkeys(due, time.monotonic())
    wanted: set[str] = set()

    def gap(part: dict[str, str]) -> float:
        return float(part.get("data-live-gap", "1"))

    tags: dict[str, str] = {}
    last = [0]
    # The timeline of a run's page: it has no hints of its own and comes along.
    with_it = [part for part in parts if "data-live-beside" in part]
    along = [part["data-live"] for part in parts if with_it and "data-live-stream" not in part]

    def comes_along(part: dict[str, str], at: float) -> bool:
        every = float(part.get("data-live-beside-every", "inf"))
        return part in with_it and any(at - fetched[one] > every for one in along)

    async def fetch(part: dict[str, str]) -> None:
        own = part["data-live"]
        fetched[own] = at = time.monotonic()
        drawn = comes_along(part, at)
        fetched.update(dict.fromkeys(along, at) if drawn else {})
        due[own] = max(due[own], fetched[own]) + gap(part)
        shown = f"{client.base_url}".rstrip("/") + page
        headers = {"HX-Request": "true", "HX-Target": part.get("data-live-as", "")}
        headers |= {"HX-Current-URL": shown}
        headers |= {"If-None-Match": tags[own]} if own in tags else {}
        address = address_of(part, html, last[0], drawn=drawn)
        try:
            answer = await client.get(address, headers=headers)
        except httpx.RemoteProtocolError:  # kept open for too long; a browser asks again, too
            answer = await client.get(address, headers=headers)
        tags[own] = answer.headers.get("ETag", "")
        last[0] = max([last[0], *map(int, re.findall(r'data-seq="(\d+)"', answer.text))])
        tally[1] += 1

    async def poll(part: dict[str, str]) -> None:
        every = float(part.get("data-live-every", "5"))
        if "data-live-stream" in part and "data-live-kind" not in part:
            every *= 2
        while True:
            next_at = fetched[part["data-live"]] + every * random.uniform(0.9, 1.1)
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            if time.monotonic() >= fetched[part["data-live"]] + 0.9 * every:
                await fetch(part)

    async def hinted(part: dict[str, str]) -> None:
        own = part["data-live"]
        if own not in wanted:
            wanted.add(own)
            await asyncio.sleep(max(0.0, due[own] - gap(part) - time.monotonic()))
            wanted.discard(own)
            await fetch(part)

    address = "/live/console" + (f"?run={run}" if run else "")
    async with asyncio.TaskGroup() as group, client.stream("GET", address, timeout=None) as stream:
        tally[0] += 1
        for part in parts:
            group.create_task(poll(part))
        is_hint = False
        async for line in stream.aiter_lines():
            kinds = json.loads(line[6:]).get("kinds") if line.startswith("data: ") else None
            for part in parts if is_hint else ():
                if "data-live-stream" in part and (
                    "data-live-kind" not in part or kinds is None or part["data-live-kind"] in kinds
                ):
                    group.create_task(hinted(part))
            is_hint = line == "event: hint"


VIEWED = (("/runs", None), ("/runs/{}", "{}"), ("/leases", None), ("/", None))
# Each by itself, over runs that somebody writes to; the first fetch may be early, so for a minute.
COUNTED = {"a run's page": "/runs/{}", "the page that asks for a reclaim": "/leases/run:{}/reclaim"}
WATCHED, COUNTED_VIEWERS, COUNTED_SECONDS = 2, 20, 60.0


def viewers(
    url: str,
    sessions: list[dict[str, str]],
    count: int,
    runs: int,
    told: Any,
    viewed: Sequence[tuple[str, str | None]] = VIEWED,
) -> None:
    """A process of its own with so many open pages, in turn those of `viewed`: a quarter lists of
    runs, a quarter one run each, a quarter leases, a quarter Now. told: a pipe that says how many
    are connected and how many parts were fetched.
    """

    async def look() -> None:
        tally = [0, 0]
        async with asyncio.TaskGroup() as group:
            clients = [
                httpx.AsyncClient(base_url=url, cookies=one, timeout=60, headers=GZIP,
                                  limits=httpx.Limits(max_connections=None))
                for one in sessions
            ]  # fmt: skip
            for n in range(count):
                key = f"run-{runs - n:07d}"
                page, run = viewed[n % len(viewed)]
                page, run = page.format(key), run and run.format(key)
                group.create_task(_view(clients[n % len(clients)], page, run, tally))
            while True:
                await asyncio.sleep(0.2)
                told.send(tuple(tally))

    asyncio.run(look())


WATCH = """
() => {
  window.seen = {};
  new MutationObserver(() => {
    for (const row of document.querySelectorAll("#events tr[data-seq]")) {
      window.seen[row.dataset.seq] ??= Date.now();
    }
  }).observe(document.body, { childList: true, subtree: true });
}
"""


class Transactions:
    """What the database is asked: a statement by itself is one, all of a page's panels are one."""

    def __init__(self) -> None:
        self.before = self._read()

    def _read(self) -> tuple[float, int]:
        # The browser's own loop runs in this thread, and Django asks nothing in such a one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._ask).result()

    @staticmethod
    def _ask() -> tuple[float, int]:
        from django.db import connection

        try:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_stat_force_next_flush(), xact_commit + xact_rollback"
                    " FROM pg_stat_database WHERE datname = current_database()"
                )
                return time.monotonic(), cursor.fetchone()[1]
        finally:
            connection.close()

    def per_second(self) -> float:
        """Since it was made."""
        (began, before), (at, now) = self.before, self._read()
        return (now - before) / (at - began)


def transactions_per_second(seconds: float) -> float:
    counted = Transactions()
    time.sleep(seconds)
    return counted.per_second()


def measure_visible(
    launched: Any, url: str, people: list[httpx.Client], options: argparse.Namespace, key: str
) -> None:
    alone = transactions_per_second(QUIET_SECONDS)
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    sessions = [dict(one.cookies) for one in people]
    looking = multiprocessing.get_context("spawn").Process(
        target=viewers, args=(url, sessions, options.viewers, options.runs, theirs), daemon=True
    )
    looking.start()
    try:
        tally = wait_for_viewers(ours, options.viewers)
        idle = transactions_per_second(QUIET_SECONDS) - alone
        while ours.poll():
            tally = ours.recv()
        fetched = tally[1]
        page = window(launched, url, people[0])
        page.goto("/runs/seen")
        page.evaluate(WATCH)
        began = time.monotonic()
        counted = Transactions()
        committed = append_and_wait(page, url, key, options)
        busy = counted.per_second() - alone
        while ours.poll():
            tally = ours.recv()
        seconds = time.monotonic() - began
        seen = {int(seq): at / 1_000 for seq, at in page.evaluate("window.seen").items()}
        if not looking.is_alive():
            raise RuntimeError("the viewers did not stay")
    finally:
        looking.terminate()
    missing = [seq for seq in committed if seq not in seen]
    took = [(seen[seq] - at) * 1_000 for seq, at in committed.items() if seq in seen]
    result(
        f"\nFrom commit to visible with {options.viewers} other pages open, {len(took)} events,"
        f" {len(missing)} not seen: p50 {statistics.median(took):.0f} ms,"
        f" p95 {percentile(took, 0.95):.0f} ms, longest {max(took):.0f} ms."
        f" The others fetched {(tally[1] - fetched) / seconds:.0f} parts a second."
        f" Transactions per second and viewer: {idle / options.viewers:.2f} while nothing is"
        f" written, {busy / options.viewers:.2f} while {options.writes_per_second:g} a second are."
    )


def wait_for_viewers(told: Any, count: int) -> tuple[int, int]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        tally: tuple[int, int] = told.recv()
        progress(f"{tally[0]} of {count} pages open")
        if tally[0] == count:
            return tally
    raise TimeoutError("the viewers did not connect")


def append_and_wait(page: Any, url: str, key: str, options: argparse.Namespace) -> dict[int, float]:
    """Append to the run that is looked at, and to one of the others at a time; when it was."""
    from datetime import datetime

    committed: dict[int, float] = {}
    with httpx.Client(base_url=url, timeout=30, headers={"Authorization": f"Bearer {key}"}) as api:
        end_at = time.monotonic() + options.seconds
        while time.monotonic() < end_at:
            body = {"events": [{"type": "step.done", "data": {"at": len(committed)}}]}
            answer = api.post("/api/v1/runs/seen/events", json=body).json()
            committed[answer["last_seq"]] = datetime.fromisoformat(answer["at"]).timestamp()
            page.wait_for_timeout(1_000 / options.writes_per_second)
    page.wait_for_timeout(MARGIN_SECONDS * 1_000)
    return committed


# --- 5. what a viewer costs -----------------------------------------------------------------------


class Writer:
    """A worker that holds the watched runs and appends to each, so often a second."""

    def __init__(self, writes_per_second: float) -> None:
        from agentstate.store.callers import SCOPES, Caller
        from agentstate.store.commands import AcquireLease, CreateRun

        self.by = Caller(kind="key", name="bench-writer", scopes=frozenset(SCOPES))
        self.pause = 1 / writes_per_second
        self.tokens: dict[str, int] = {}
        for _ in range(WATCHED):
            key = f"watched-{secrets.token_hex(4)}"
            self._ask(CreateRun(key=key, task="watched"))
            asked = AcquireLease(unit=f"run:{key}", owner="bench", ttl_seconds=86_400)
            self.tokens[key] = self._ask(asked).token

    def _ask(self, command: Any) -> Any:
        from agentstate import store
        from agentstate.store.callers import Circumstances

        return store.execute(command, by=self.by, under=Circumstances(request_id="bench"))

    def write_for(self, seconds: float) -> float:
        """Transactions a second while it writes."""
        from agentstate.store.commands import Append, NewEvent
        from agentstate.store.payloads import RawJSON

        counted, end_at = Transactions(), time.monotonic() + seconds
        while time.monotonic() < end_at:
            began = time.monotonic()
            for key, token in self.tokens.items():
                event = NewEvent(type="step.done", data=RawJSON('{"at": 1}'))
                self._ask(Append(run=key, events=(event,), fence=token))
            time.sleep(max(0.0, began + self.pause - time.monotonic()))
        return counted.per_second()


def measure_viewers(url: str, people: list[httpx.Client], options: argparse.Namespace) -> None:
    """Without a browser: each page alone, first while nothing is written, then while its run is."""
    writer = Writer(options.writes_per_second)
    count = min(COUNTED_VIEWERS, options.viewers)
    result(
        f"\n| {count} viewers of | transactions a second and viewer, unchanged |"
        " changed each second | parts fetched a second and viewer |\n|---|---|---|---|"
    )
    for name, address in COUNTED.items():
        viewed = [(address.format(key), key) for key in writer.tokens]
        alone = transactions_per_second(COUNTED_SECONDS)
        written = writer.write_for(COUNTED_SECONDS)
        ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
        sessions = [dict(one.cookies) for one in people]
        looking = multiprocessing.get_context("spawn").Process(
            target=viewers, args=(url, sessions, count, 0, theirs, viewed), daemon=True
        )
        looking.start()
        try:
            tally = wait_for_viewers(ours, count)
            time.sleep(MARGIN_SECONDS)
            idle = transactions_per_second(COUNTED_SECONDS) - alone
            while ours.poll():
                tally = ours.recv()
            fetched, began = tally[1], time.monotonic()
            busy = writer.write_for(COUNTED_SECONDS) - written
            while ours.poll():
                tally = ours.recv()
            rate = (tally[1] - fetched) / (time.monotonic() - began) / count
        finally:
            looking.terminate()
        result(f"| {name} | {idle / count:.2f} | {busy / count:.2f} | {rate:.2f} |")


# --- all of it ------------------------------------------------------------------------------------


def measure(site: Any, options: argparse.Namespace) -> None:
    from django.db import connections

    from agentstate.cli.people import make_key

    people = [log_in(site.url, *one) for one in make_people()]
    key = make_key(name=f"bench-{secrets.token_hex(4)}", scopes=("read", "payloads", "write"))
    with httpx.Client(base_url=site.url, headers={"Authorization": f"Bearer {key}"}) as api:
        api.post("/api/v1/runs", json={"key": "seen", "task": "looked at"})
    if not options.only_visible:
        measure_pages(people[0], options.runs, options.repeats)
        measure_live(people[0], options.runs)
    measure_viewers(site.url, people, options)
    connections.close_all()
    with browser() as launched:
        if not options.only_visible:
            measure_transfer(launched, site.url, people[0], options.runs)
        measure_visible(launched, site.url, people, options, key)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    filled.arguments(asked)
    asked.add_argument("--repeats", type=int, default=40)
    asked.add_argument("--viewers", type=int, default=200)
    asked.add_argument("--seconds", type=int, default=60, help="of appending")
    asked.add_argument("--writes-per-second", type=float, default=1)
    asked.add_argument("--only-visible", action="store_true", help="leave parts 1 to 3 out")
    options = asked.parse_args()
    with filled.site_database(options.home):
        filled.fill(filled.size_of(options))
    from agentstate.cli.site import running_site

    here = argparse.Namespace(host="127.0.0.1", port=0)
    with running_site(here) as site:
        result(f"{options.runs:,} runs of {options.events} events and one of 100,000")
        measure(site, options)
        result(json.dumps({"repeats": options.repeats, "viewers": options.viewers}))


if __name__ == "__main__":
    main()
