"""O-25: a live run of 100,000 events, forty of them as large as the API takes.

    .venv/bin/python -m bench.cases.long_run [--events 100000] [--large 40]

Filled and read over HTTP. A larger event is refused. Then: the run's page opened cold, its earlier
rows, its newest, a search in it; all of it by the API, asked without a limit, while somebody else's
calls are timed. A first screen is there in 2 s and has at most 1 MB and a few hundred rows; a page
of the API has at most 500 events and 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urljoin

import httpx

from agentstate.cli.output import progress, result
from agentstate.store.payloads import PAYLOAD_BYTES_MAX
from bench.cases import Verdict, site
from bench.cases.rounds import Api
from bench.console import log_in, make_people
from bench.grounds import Ground

RUN, BATCH, OTHERS = "long", 500, 200
PAGE_BYTES_MAX, PAGE_EVENTS_MAX, SCREEN_SECONDS_MAX, ROWS_MAX = 1_048_576, 500, 2.0, 400
# Of what stands around the payloads in an answer of the API: numbers, types, times.
AROUND_BYTES = 512 * PAGE_EVENTS_MAX
OTHERS_MS_MAX = 250.0
ROW = re.compile(r'<tr[^>]*\bdata-seq="')


@dataclass(slots=True)
class Screen:
    """A page as it came. octets: compressed; rows: events in it."""

    seconds: float
    octets: int
    plain: int
    rows: int
    text: str


def fill(api: Api, events: int, large: int) -> None:
    """Large ones evenly among the others, and the last of all."""
    api.post("/runs", {"task": "t", "key": RUN, "status": "running"}).raise_for_status()
    small = [{"type": "tool.returned", "data": {"out": "x" * 200, "n": n}} for n in range(BATCH)]
    batches = (events - 1 - large) // BATCH
    for number in range(batches):
        if (
            number % max(1, batches // large) == 0
            and number // max(1, batches // large) < large - 1
        ):
            append_large(api)
        api.post(f"/runs/{RUN}/events", {"events": small}).raise_for_status()
    left = events - api.http.get(f"/runs/{RUN}").json()["last_seq"] - 1
    api.post(f"/runs/{RUN}/events", {"events": small[:left]}).raise_for_status()
    append_large(api)


def append_large(api: Api, more: int = 0) -> httpx.Response:
    data = json.dumps("y" * (PAYLOAD_BYTES_MAX - 2 + more))
    body = f'{{"events": [{{"type": "tool.returned", "data": {data}}}]}}'
    answer = api.http.post(
        f"/runs/{RUN}/events", content=body, headers={"Content-Type": "application/json"}
    )
    if not more:
        answer.raise_for_status()
    return answer


def look(client: httpx.Client, address: str) -> Screen:
    began = time.perf_counter()
    with client.stream("GET", address) as answer:
        answer.raise_for_status()
        raw = b"".join(answer.iter_raw())
        took = time.perf_counter() - began
    text = client.get(address).text
    return Screen(took, len(raw), len(text.encode()), len(ROW.findall(text)), text)


def screens(client: httpx.Client, verdict: Verdict) -> None:
    page = f"/runs/{RUN}"
    first = look(client, page)
    back = re.search(r'href="([^"]*\bbefore=[^"]*)"', first.text)
    addresses = {
        "the run": page,
        "its earlier rows": urljoin(page, back[1].replace("&amp;", "&")) if back else page,
        "the middle": f"{page}?after=50000",
        "the last event": f"{page}?event=100000",
        "a search": f"{page}?find=zebra",
        "the timeline": f"{page}/timeline",
        "the state": f"{page}?tab=state",
    }
    for name, address in addresses.items():
        seen = first if address == page else look(client, address)
        verdict.say(
            "O-25",
            f"{name}: {seen.seconds:.2f} s, {seen.octets / 1000:.0f} kB as sent,"
            f" {seen.plain / 1000:.0f} kB of HTML, {seen.rows} rows",
            seen.seconds <= SCREEN_SECONDS_MAX
            and seen.plain <= PAGE_BYTES_MAX
            and seen.rows <= ROWS_MAX
            and (name != "its earlier rows" or back is not None),
        )


class Others:
    """Somebody else's calls, one after the other, until it is stopped."""

    def __init__(self, ground: Ground) -> None:
        self.ms: list[float] = []
        self._stopped = threading.Event()
        self._api = Api(ground)

    def run(self) -> None:
        while not self._stopped.is_set() or len(self.ms) < OTHERS:
            began = time.perf_counter()
            self._api.http.get("/runs/other").raise_for_status()
            self._api.post("/runs/other/events", {"events": [{"type": "a"}]}).raise_for_status()
            self.ms.append((time.perf_counter() - began) * 1_000)

    def stop(self) -> None:
        self._stopped.set()


def timed(ground: Ground, pool: ThreadPoolExecutor) -> tuple[Others, object]:
    others = Others(ground)
    return others, pool.submit(others.run)


def whole(api: Api, events: int, verdict: Verdict) -> None:
    """All of it, page by page, asked without a limit."""
    seen, after, pages, largest, longest = 0, 0, 0, 0, 0.0
    while True:
        began = time.perf_counter()
        answer = api.http.get(f"/runs/{RUN}/events?after={after}")
        longest = max(longest, time.perf_counter() - began)
        items = answer.json()["items"]
        if not items:
            break
        assert [item["seq"] for item in items] == list(range(after + 1, after + 1 + len(items)))
        assert len(items) <= PAGE_EVENTS_MAX
        seen, after, pages = seen + len(items), items[-1]["seq"], pages + 1
        largest = max(largest, len(answer.content))
    verdict.say(
        "O-25",
        f"by the API: {seen} events in {pages} pages, the largest {largest / 1000:.0f} kB,"
        f" the slowest {longest * 1000:.0f} ms",
        seen == events and largest <= PAGE_BYTES_MAX + AROUND_BYTES,
    )


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--events", type=int, default=100_000)
    asked.add_argument("--large", type=int, default=40)
    options = asked.parse_args()
    verdict = Verdict()
    with site(background=True) as ground, ThreadPoolExecutor(1) as pool:
        api = Api(ground)
        api.post("/runs", {"task": "t", "key": "other"}).raise_for_status()
        progress(f"{options.events:,} events …")
        fill(api, options.events, options.large)
        found = api.http.get(f"/runs/{RUN}").json()["last_seq"]
        refused = append_large(api, 1)
        verdict.say(
            "O-25",
            f"{found} events; one that is a byte larger: {refused.status_code}"
            f" {refused.json()['code']}",
            found == options.events and refused.status_code == 413,
        )
        (name, password), *_ = make_people()
        screens(log_in(ground.url, name, password), verdict)

        alone, working = timed(ground, pool)
        alone.stop()
        working.result()  # type: ignore[attr-defined]
        beside, working = timed(ground, pool)
        whole(api, options.events, verdict)
        beside.stop()
        working.result()  # type: ignore[attr-defined]
        told = [statistics.quantiles(one.ms, n=20)[18] for one in (alone, beside)]
        verdict.say(
            "O-25",
            f"somebody else's read and append: p95 {told[0]:.0f} ms alone,"
            f" {told[1]:.0f} ms while all of it was read",
            told[1] <= OTHERS_MS_MAX,
        )
    result("as the API and the console were asked over HTTP; no browser draws here")
    return int(verdict.failed)


if __name__ == "__main__":
    sys.exit(main())
