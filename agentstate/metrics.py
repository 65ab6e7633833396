"""What this process counts and measures, for Prometheus. docs/metrics.md explains each metric.

A registry of our own, so that nothing else of the process is told by accident. Each web process
answers for itself; what it reads from the database (store/vitals.py) is the same from each. No
label is a run's key or anything else of which there are as many as callers wish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agentstate.admission import Gate, Kind, kind_of
from agentstate.django_postgres.base import OPENED
from agentstate.store import feed, minutes, sizes, vitals
from agentstate.store.execute import AIO_LEASES, AIO_WRITES, LEASES, ROLLED_BACK, WRITES
from agentstate.store.spent import Spent

PREFIX = "agentstate_"
# A write takes some milliseconds, a page some tens; ten seconds is where a wait for a turn ends.
SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Callers can send any method.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOWHERE = "none"

disable_created_metrics()  # type: ignore[no-untyped-call]  # when each series began is told by nobody's dashboards
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

REQUESTS = Counter(
    f"{PREFIX}http_requests",
    "Answers, by the address's pattern, what the request is for, and status",
    ["method", "route", "kind", "status"],
    registry=REGISTRY,
)
DURATIONS = Histogram(
    f"{PREFIX}http_request_seconds",
    "From when a request was there until its answer was made, waiting for a thread included",
    ["method", "route"],
    buckets=SECONDS,
    registry=REGISTRY,
)
PARTS = Counter(
    f"{PREFIX}http_request_part_seconds",
    "Where the time of requests went, as Server-Timing tells it for each",
    ["part"],
    registry=REGISTRY,
)
PROBLEMS = Counter(
    f"{PREFIX}http_problems",
    "Refusals that a caller of the API was told, by code",
    ["code"],
    registry=REGISTRY,
)

SPANS = Counter(
    f"{PREFIX}spans",
    "Spans of OpenTelemetry that were sent here, by what became of them",
    ["outcome"],
    registry=REGISTRY,
)


@cache
def _children(method: str, route: str, status: int) -> tuple[Any, Any]:
    kind = kind_of(method, "/" + route, b"").label
    return (
        REQUESTS.labels(method, route, kind, str(status)),
        DURATIONS.labels(method, route),
    )


_QUEUE, _LOCK, _DB, _COMMIT = (PARTS.labels(part) for part in ("queue", "lock", "db", "commit"))


def note_request(
    *, method: str, route: str, status: int, spent: Spent, total_seconds: float
) -> None:
    """Count an answer. route: the address's pattern, never the address; NOWHERE: there is none."""
    route = NOWHERE if "^" in route else route  # a pattern that catches what is no address
    counted, measured = _children(method if method in METHODS else "other", route, status)
    counted.inc()
    measured.observe(total_seconds)
    _QUEUE.inc(spent.queue)
    _LOCK.inc(spent.lock)
    _DB.inc(spent.db)
    _COMMIT.inc(spent.commit)


def note_spans(*, kept: int, known: int, not_genai: int, refused: int) -> None:
    """Count the spans of a batch: written, there already, of nothing about agents, refused."""
    counts = {"kept": kept, "known": known, "not-genai": not_genai, "refused": refused}
    for outcome, count in counts.items():
        SPANS.labels(outcome).inc(count)


def note_problem(code: str) -> None:
    """Count a refusal; code: one of problems.py."""
    PROBLEMS.labels(code).inc()


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", about, labels=labels)


def _counter(name: str, about: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", about, labels=labels)


# Those that threads bring and those that an event loop brings.
LANES = {"writes": (WRITES, AIO_WRITES), "leases": (LEASES, AIO_LEASES)}


class OfStore(Collector):
    """What the store counts in this process."""

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        waiting = _gauge("lane_waiting", "Commands that wait for their turn in a lane", "lane")
        batches = HistogramMetricFamily(
            f"{PREFIX}batch_commands", "Commands that a lane did in one go", labels=["lane"]
        )
        for name, lanes in LANES.items():
            waiting.add_metric([name], sum(lane.waiting for lane in lanes))
            counted, commands_in_all = sizes.together([lane.sizes for lane in lanes])
            batches.add_metric([name], buckets=counted, sum_value=commands_in_all)
        yield waiting
        yield batches
        commands = _counter(
            "commands", "Commands that were decided, by outcome", "operation", "outcome"
        )
        for (operation, outcome), number in list(minutes.TALLY.totals.items()):
            commands.add_metric([operation, outcome], number)
        yield commands
        retries = _counter("command_retries", "Commands that were not a first try", "operation")
        for operation, number in list(minutes.TALLY.retries.items()):
            retries.add_metric([operation], number)
        yield retries
        undone = _counter("rolled_back", "Transactions that the database rolled back", "why")
        for why, number in list(ROLLED_BACK.items()):
            undone.add_metric([why], number)
        yield undone
        mover = _gauge("mover_running", "1: this process moves the feed, too")
        mover.add_metric([], float(feed.MOVER.running))
        yield mover


class OfConnections(Collector):
    """What this process has open to the database: each of its threads has one of its own."""

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        now = OPENED.count()
        held = _gauge("connections", "Connections of this process's threads, by state", "state")
        held.add_metric(["busy"], now.busy)
        held.add_metric(["idle"], now.idle)
        held.add_metric(["connecting"], now.connecting)
        yield held
        made = _counter("connections_made", "Connections to the database that were made")
        made.add_metric([], now.made)
        yield made
        failed = _counter("connections_failed", "Tries to connect to the database that failed")
        failed.add_metric([], now.failed)
        yield failed


class OfGate(Collector):
    """Who is in work, who waits, who was turned away: of the bridge, where there is one."""

    def __init__(self) -> None:
        self.gate: Gate | None = None
        self.held_bytes: Callable[[], int] = lambda: 0

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        in_work = _gauge("requests_in_work", "Requests that have a place", "kind")
        working = _gauge("requests_working", "Requests in a thread", "kind")
        refused = _counter("requests_turned_away", "Requests that were not begun", "kind", "why")
        places = _gauge("places", "Places for requests of the API")
        threads = _gauge("threads", "Threads for requests")
        bodies = _gauge("bodies_bytes", "Bodies of requests that are held in memory")
        if self.gate is not None:
            for kind in Kind:
                in_work.add_metric([kind.label], self.gate.taken[kind])
                working.add_metric([kind.label], self.gate.busy[kind])
                for waited in (False, True):
                    why = "waited" if waited else "full"
                    refused.add_metric([kind.label, why], self.gate.refused[kind, waited])
            places.add_metric([], self.gate.room.places)
            threads.add_metric([], self.gate.room.threads)
            bodies.add_metric([], self.held_bytes())
        yield from (in_work, working, refused, places, threads, bodies)


class OfStreams(Collector):
    """How many look on: of the process that has the streams."""

    def __init__(self) -> None:
        self.count: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.count_waiting: Callable[[], int] = lambda: 0

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        streams = _gauge("streams", "Open streams and long polls, by whose they are", "whose")
        people, workers = self.count()
        streams.add_metric(["people"], people)
        streams.add_metric(["workers"], workers)
        yield streams
        looks = _gauge("looks_waiting", "Looks of streams and long polls that wait for a thread")
        looks.add_metric([], self.count_waiting())
        yield looks


# Of store/vitals.py: what each is, and its labels.
VITALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "feed_position": ("The last position of the feed", ()),
    "feed_waiting": ("Rows that wait to be moved to the feed, counted up to 100,000", ()),
    "feed_lag_seconds": ("How long the oldest of them has waited", ()),
    "feed_consumers": ("Consumers of the feed that have a checkpoint", ()),
    "feed_consumer_behind_max": ("Positions that the last of them is behind", ()),
    "runs": ("Runs that have not ended, counted up to 100,000", ("status",)),
    "leases": ("Leases that are held, counted up to 100,000 in all", ("state",)),
    "lease_lapsed_oldest_seconds": ("How long the oldest lapsed one has waited for somebody", ()),
    "database_connections": ("Connections to this database, of everybody", ()),
    "database_connections_max": ("Connections that the server allows", ()),
    "database_oldest_transaction_seconds": ("Age of the oldest transaction", ()),
    "database_bytes": ("Size of the database", ()),
    "table_dead_rows": ("Rows that were overwritten and are not cleaned up yet", ("table",)),
    "table_live_rows": ("Rows of the table, as PostgreSQL guesses", ("table",)),
    "job_started_timestamp_seconds": ("When a periodic job last began", ("job",)),
    "job_ended_timestamp_seconds": ("When it last ended", ("job",)),
    "job_age_seconds": ("How long ago it last began, by the database's clock", ("job",)),
    "job_took_seconds": ("How long its last pass took", ("job",)),
    "job_behind": ("What its last pass left for the next, where it can say", ("job",)),
    "job_silent": ("1: nothing heard of it for three periods", ("job",)),
    "job_failed": ("1: its last pass failed", ("job",)),
    "alert_state": ("0: fine, 1: warning, 2: alert; none: no data", ("rule",)),
    "alerts_silent": ("1: nobody evaluates the alerts", ()),
}


class OfDatabase(Collector):
    """The whole store, the same from every process."""

    def describe(self) -> Iterable[Metric]:
        yield from (_gauge(name, about, *labels) for name, (about, labels) in VITALS.items())
        yield _gauge("scrape_failed", "1: this part could not be read in time", "part")

    def collect(self) -> Iterable[Metric]:
        figures, failed = vitals.read()
        for name, (about, labels) in VITALS.items():
            family = _gauge(name, about, *labels)
            for values, number in figures.get(name, {}).items():
                family.add_metric(list(values), number)
            yield family
        parts = _gauge("scrape_failed", "1: this part could not be read in time", "part")
        for part in vitals.PARTS:
            parts.add_metric([part], float(part in failed))
        yield parts


GATE, STREAMS = OfGate(), OfStreams()
for _collector in (OfStore(), OfConnections(), GATE, STREAMS, OfDatabase()):
    REGISTRY.register(_collector)


def text(accept: str) -> tuple[bytes, str]:
    """All metrics in the format that was asked for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type
