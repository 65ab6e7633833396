"""Reads over a large store: a long run's story, lists by every filter, counts, and the feed.

The store is that of `bench.filled`: 1,000,000 runs of 20 events and one of 100,000, made in the
folder that is given or there already. The web process runs, Celery does not, so that nothing is
deleted meanwhile. What is compared takes turns. Pages are asked for over HTTP by a person who is
logged in, and their time is what the server says of itself (`Server-Timing`, total); everything
else is asked in this process on one connection, and its time is that of the call.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentstate.cli.output import progress
from bench import filled, grounds
from bench.grounds import Ground, median, ms, percentile
from bench.report import Goal, Options, Report, Table, read_report
from bench.talk import Talk

ABOUT = "Reads over a million runs: a long run's story, lists by every filter, counts, the feed"

ROWS = 100  # of a page of events
WARM = 1  # turn that is not counted
DEEP_PAGE, PAGE_ROWS = 5_000, 50
FEED_PAGE = 500  # the most that the API gives
LATE_NAMED = 6
LIST_MS, STORY_RATIO, CHANGES_PER_SECOND = 50.0, 2.0, 50_000

# By what one may ask in the query bar: each field at least once, and what is known to be dear.
FILTERS = (
    "", "status:running", "status:completed", "status:live", "status:failed,cancelled",
    "-status:completed", "worker:worker-7", "lease:lapsed", "lease:live", "lease:free",
    "task:checkout", "key:run-00012", "tag:team:docs", "tag:nowhere", "attr.n:{some}",
    "attr.none:x", "since:7d", "since:1h", "overdue:yes", "overdue:no", "parent:run-0000001",
    "budget:>80%", "budget:>98%", "conflicts:>0", "conflicts:>10", "-tag:team:docs",
    "-worker:worker-7", "-budget:>10%", "flaky", "zebra", "status:failed since:7d",
    "status:failed budget:>80%", "status:failed budget:>98%", "status:failed task:flaky",
    "status:cancelled attr.none:x", "worker:worker-7 budget:>50%",
)  # fmt: skip


@dataclass(slots=True)
class Took:
    """Milliseconds of each turn that counted."""

    times: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return median(self.times)

    @property
    def p95(self) -> float:
        return percentile(self.times, 0.95)


def in_turns(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, Took]:
    """Each of them once a turn; the first one is to warm up."""
    found = {name: Took() for name in calls}
    for turn in range(turns + WARM):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            took = (time.perf_counter() - began) * 1_000
            if turn >= WARM:
                found[name].times.append(took)
    return found


def told_rows(found: dict[str, Took]) -> tuple[tuple[str, ...], ...]:
    return tuple((name, ms(took.p50), ms(took.p95)) for name, took in found.items())


# --- a long run's story ---------------------------------------------------------------------------

# As many rows and the same columns, by the primary key, and nothing else.
BARE = """
SELECT {columns} FROM agentstate_event WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s
"""


def measure_story(turns: int) -> Report:
    from django.db import connection

    from agentstate.store import reads, rowsql
    from agentstate.store.models import Run

    run_id, last = Run.objects.values_list("id", "last_seq").get(key=filled.LONG_RUN)
    statement = BARE.format(columns=rowsql.EVENT_COLUMNS)

    def bare() -> int:
        with connection.cursor() as cursor:
            cursor.execute(statement, [run_id, 0, ROWS])
            return len(cursor.fetchall())

    def page(after: int) -> int:
        wanted = reads.EventFilter(after=after)
        return len(reads.events(run_key=filled.LONG_RUN, wanted=wanted, limit=ROWS).items)

    assert bare() == page(0) == ROWS
    depths = [0, last // 4, last // 2, last * 9 // 10, last - ROWS]
    calls: dict[str, Callable[[], Any]] = {"bare SELECT": bare}
    calls |= {f"page behind event {at:,}": lambda at=at: page(at) for at in depths}
    found = in_turns(calls, turns)
    first = found["page behind event 0"]
    ratio = first.p95 / found["bare SELECT"].p95
    deepest = max(found[name].p50 for name in list(calls)[2:]) / first.p50
    table = Table(
        title=f"A run of {last:,} events, pages of {ROWS}",
        columns=("what", "p50 ms", "p95 ms"),
        rows=told_rows(found),
        note="On one connection in one process, in turns: the bare SELECT by the primary key, of"
        " the same columns; a page as the API reads it, with the look at the run's head before it,"
        " the bound of 1 MiB and rows made into events.",
    )
    goals = (
        Goal(
            what="first page of the story of a run with 100,000 events, p95 against a bare SELECT",
            asked=f"≤ {STORY_RATIO:g} times",
            found=f"{ratio:.2f} times ({ms(first.p95)} against {ms(found['bare SELECT'].p95)} ms)",
            reached=ratio <= STORY_RATIO,
        ),
        Goal(
            what="a page at any depth against the first, medians",
            asked="as fast (≤ 1.25 times)",
            found=f"{deepest:.2f} times",
            reached=deepest <= 1.25,
        ),
    )
    return Report(tables=(table,), goals=goals)


# --- lists ----------------------------------------------------------------------------------------


def measure_lists(ground: Ground, runs: int, turns: int) -> Report:
    """Every filter of the query bar, and the 5,000th page of two lists."""
    from bench.console import Page, ask, log_in

    name, password = f"bench-{secrets.token_hex(4)}", secrets.token_urlsafe(16)
    save_person(name, password)
    asked = {text: f"/runs?q={quote(text.format(some=runs // 2))}" for text in FILTERS}
    deep = {text: deep_address(text, runs) for text in ("", "status:completed")}
    pages = {text: Page() for text in (*asked, *(f"deep {text}" for text in deep))}
    with closing(log_in(ground.url, name, password)) as client:
        for turn in range(turns + WARM):
            for text, address in asked.items():
                ask(client, address, pages[text] if turn >= WARM else Page())
            for text, (_, address) in deep.items():
                ask(client, address, pages[f"deep {text}"] if turn >= WARM else Page())
            progress(f"lists, turn {turn + 1} of {turns + WARM}")
    bad = [text for text, page in pages.items() if page.status != 200]
    if bad:
        raise RuntimeError(f"no answer 200 for {bad}")
    return list_report(pages, deep)


def save_person(name: str, password: str) -> None:
    from agentstate.cli.people import save_user

    save_user(name=name, role="operator", password=password)


def deep_address(text: str, runs: int) -> tuple[int, str]:
    """Which page it is, and its address: the 5,000th, or the last whole one of a small store."""
    from agentstate.store import filters
    from agentstate.store.search import matching
    from dashboard.queries.clock import database_now
    from dashboard.queries.search import place

    number = min(DEEP_PAGE, runs * 9 // 10 // PAGE_ROWS)
    found = matching(filters.parse(text), now=database_now()).order_by("-created_at", "-id")
    before = found[(number - 1) * PAGE_ROWS - 1]
    return number, f"/runs?q={quote(text)}&after={quote(place(before))}"


def list_report(pages: dict[str, Any], deep: dict[str, tuple[int, str]]) -> Report:
    rows, late = [], []
    for text, page in pages.items():
        name = text.removeprefix("deep ")
        shown = f"`{name}`" if name else "all"
        if text.startswith("deep "):
            shown += f", page {deep[name][0]:,}"
        p95 = percentile(page.server, 0.95)
        late += [shown] if p95 >= LIST_MS else []
        rows.append((shown, ms(median(page.server)), ms(p95), f"{page.octets / 1000:.1f}"))
    worst = max(percentile(page.server, 0.95) for page in pages.values())
    named = ", ".join(late[:LATE_NAMED]) + (", …" if len(late) > LATE_NAMED else "")
    ratios = [median(pages[f"deep {t}"].server) / median(pages[t].server) for t in deep]
    table = Table(
        title="The console's list of runs by every filter: what the server took for the whole page",
        columns=("filter", "p50 ms", "p95 ms", "kB"),
        rows=tuple(rows),
        note="The whole page: who asks, the numbers above the list as far as they are there at"
        " once, 50 rows with their leases, budgets and refusals, and its HTML. What has no index is"
        " tried on a bounded number of runs a page.",
    )
    goals = (
        Goal(
            what="list with any filter of the console, p95 of server time",
            asked=f"< {LIST_MS:g} ms",
            found=f"{ms(worst)} ms at most"
            + (f"; {len(late)} of {len(pages)} above: {named}" if late else ""),
            reached=not late,
        ),
        Goal(
            what=f"page {max(n for n, _ in deep.values()):,} of a list against the first, medians",
            asked="as fast (≤ 1.25 times)",
            found=" and ".join(f"{ratio:.2f} times" for ratio in ratios),
            reached=max(ratios) <= 1.25,
        ),
    )
    return Report(tables=(table,), goals=goals)


# --- counts ---------------------------------------------------------------------------------------


def measure_counts(turns: int) -> Report:
    from agentstate.store import filters
    from agentstate.store.search import matching
    from dashboard.queries.clock import database_now
    from dashboard.queries.runs import COUNT_MAX

    now = database_now()

    def counted(text: str) -> Any:
        return matching(filters.parse(text), now=now).order_by().values("pk")

    calls: dict[str, Callable[[], Any]] = {
        "exact, `status:running`": lambda: counted("status:running").count(),
        "exact, `status:pending`": lambda: counted("status:pending").count(),
        "exact, `status:failed`": lambda: counted("status:failed").count(),
        f"`status:completed`, up to {COUNT_MAX:,}": (
            lambda: counted("status:completed")[: COUNT_MAX + 1].count()
        ),
        f"all, up to {COUNT_MAX:,}": lambda: counted("")[: COUNT_MAX + 1].count(),
        f"`tag:team:docs`, up to {COUNT_MAX:,}": (
            lambda: counted("tag:team:docs")[: COUNT_MAX + 1].count()
        ),
    }
    found = in_turns(calls, turns)
    rows = tuple(
        (name, f"{calls[name]():,}", ms(took.p50), ms(took.p95)) for name, took in found.items()
    )
    return Report(
        tables=(
            Table(title="Counts", columns=("of", "found", "p50 ms", "p95 ms"), rows=rows,
                  note="As the console counts them."),
        )
    )  # fmt: skip


# --- the feed -------------------------------------------------------------------------------------


def measure_feed(ground: Ground, changes: int, rounds: int) -> Report:
    """The store's own reader, one page by HTTP after the other, and a stream, in turns."""
    from django.db import connection

    from agentstate.store import feed

    with connection.cursor() as cursor:
        cursor.execute("SELECT min(position) - 1, max(position) FROM agentstate_feed")
        first, last = cursor.fetchone()
    wanted = min(changes, last - first)

    def within() -> float:
        began, at, read = time.perf_counter(), first, 0
        while read < wanted:
            page = feed.read(after=at, limit=FEED_PAGE)
            at, read = page.position, read + len(page.items)
        return read / (time.perf_counter() - began)

    ways: dict[str, Callable[[], float]] = {
        f"`feed.read`, pages of {FEED_PAGE:,}": within,
        f"GET /api/v1/feed, pages of {FEED_PAGE:,}": (
            lambda: asyncio.run(over_http(ground, first, wanted))
        ),
        "GET /live/v1/feed as a stream": lambda: asyncio.run(as_stream(ground, first, wanted)),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            rate = way()
            if turn or rounds == 1:
                rates[name].append(rate)
        progress(f"feed, turn {turn + 1} of {rounds + 1}")
    table = Table(
        title=f"The feed, {wanted:,} changes from the first that is kept",
        columns=("how", "changes a second", "lowest", "highest"),
        rows=tuple(
            (name, f"{median(own):,.0f}", f"{min(own):,.0f}", f"{max(own):,.0f}")
            for name, own in rates.items()
        ),
        note="One reader and one connection each.",
    )
    own = median(rates[next(iter(ways))])
    goal = Goal(
        what="feed reader, the store's own",
        asked=f"≥ {CHANGES_PER_SECOND:,} changes a second",
        found=f"{own:,.0f}",
        reached=own >= CHANGES_PER_SECOND,
    )
    return Report(tables=(table,), goals=(goal,))


async def over_http(ground: Ground, first: int, wanted: int) -> float:
    talk = Talk(ground.port, ground.key)
    began, at, read = time.perf_counter(), first, 0
    while read < wanted:
        answer = await talk.ask("GET", f"/api/v1/feed?after={at}&limit={FEED_PAGE}")
        if answer.status != 200:
            raise RuntimeError(f"the feed answered {answer.status}: {answer.body[:200]!r}")
        told = answer.json
        at, read = told["position"], read + len(told["items"])
    talk.close()
    return read / (time.perf_counter() - began)


async def as_stream(ground: Ground, first: int, wanted: int) -> float:
    """Counts the items; what is in them nobody reads here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", ground.port, limit=2**20)
    writer.write(
        f"GET /live/v1/feed?after={first}&limit={FEED_PAGE} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {ground.key}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the stream answered {head[:80]!r}")
    began, read, rest = time.perf_counter(), 0, b""
    async with asyncio.timeout(120):
        while read < wanted and (part := await reader.read(2**16)):
            read += (rest + part).count(b"\ndata: ")
            rest = (rest + part)[-6:]  # the beginning of one, perhaps; never a whole one
    writer.close()
    return read / (time.perf_counter() - began)


# --- all of it ------------------------------------------------------------------------------------


def report(options: Options) -> Report:
    # What is kept in the folder is the large store, which a quick run has no use for.
    home = None if options.home is None or options.quick else str(options.home)
    told = grounds.apart(measure, home=home, quick=options.quick, rounds=options.rounds)
    return read_report(told)


def measure(*, home: str | None, quick: bool, rounds: int) -> dict[str, Any]:
    """In a process of its own."""
    from bench.torture.trial import move_in

    size = filled.Size(runs=20_000, events=5, minute_days=0) if quick else filled.Size()
    turns = 3 if quick else 8 * rounds
    with grounds.folder(home) as where:
        move_in(Path(where))
        with grounds.site(background=False) as ground:
            filled.fill(size)
            parts = [
                measure_story(turns * 5),
                measure_lists(ground, size.runs, turns),
                measure_counts(turns),
                measure_feed(ground, 20_000 if quick else 500_000, 1 if quick else rounds),
            ]
    found = Report(
        tables=tuple(table for part in parts for table in part.tables),
        goals=tuple(goal for part in parts for goal in part.goals),
    )
    return asdict(found)
