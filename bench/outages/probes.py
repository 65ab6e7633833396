"""Who asks each part all the time, and writes down when it was asked and when it worked."""

from __future__ import annotations

import http.client
import json
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from agentstate_client import Client, Event, RetryPolicy
from celery import Celery

from bench.outages import clock
from bench.outages.site import QUEUE, Site

EVERY_SECONDS = 0.25
ANSWER_SECONDS = 60.0  # longer than anything may take: what takes longer is told as that
MARK_SECONDS = 0.5
SEND_SECONDS = 1.0
STREAM_SECONDS = 60.0
CLIENT_TTL_SECONDS = 600


@dataclass(slots=True)
class Part:
    """One part that is asked. worked: (asked at, answered at) by the monotonic clock."""

    name: str
    worked: list[tuple[float, float]] = field(default_factory=list)
    # What was answered instead, and how long the slowest of all took.
    said: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0

    def works(self, asked_at: float) -> None:
        self.worked.append((asked_at, clock.now()))

    def again_after(self, at: float) -> float | None:
        """Seconds from then until the first answer to something that was asked since."""
        found = [done for asked, done in list(self.worked) if asked >= at]
        return min(found) - at if found else None


class Probe(threading.Thread, ABC):
    """A thread that asks one part or several."""

    def __init__(self, name: str, stopping: threading.Event, *parts: str) -> None:
        super().__init__(name=name, daemon=True)
        self.parts = [Part(part) for part in parts or (name,)]
        self.stopping = stopping
        self.trouble: list[str] = []

    def run(self) -> None:
        try:
            self.work()
        except Exception as failed:  # whatever it is, the verdict tells it
            self.trouble.append(f"{self.name}: {failed!r}")

    @abstractmethod
    def work(self) -> None:
        """Ask until `stopping` is set."""


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    members: dict[str, Any]
    retry_after: str | None


def ask(url: str, key: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One call on a connection of its own. Raises OSError and http.client.HTTPException."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_SECONDS)
    try:
        told = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        text = None if body is None else json.dumps(body)
        connection.request(method, f"/api/v1{path}", text, told)
        answer = connection.getresponse()
        members = json.loads(answer.read() or b"{}")
        return Answer(answer.status, members, answer.headers.get("Retry-After"))
    finally:
        connection.close()


class Calls(Probe):
    """Reads a run and appends to it, by turns, over one process.

    sent: the numbers of all events. acknowledged, refused: of them; the rest is unknown.
    """

    def __init__(self, name: str, stopping: threading.Event, *, url: str, key: str, run: str):
        super().__init__(name, stopping, f"{name}: read", f"{name}: write")
        self.url, self.key, self.into = url, key, run
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self.wrong: list[str] = []

    def work(self) -> None:
        number = 0
        while not self.stopping.wait(EVERY_SECONDS):
            self._ask(self.parts[0], "GET", f"/runs/{self.into}")
            number += 1
            event = {"type": "probe.written", "data": {"n": number}}
            path = f"/runs/{self.into}/events"
            asked = {"Idempotency_Key": f"{self.into}-{number}"}
            answer = self._ask(self.parts[1], "POST", path, {"events": [event]}, **asked)
            if answer is not None and answer.status < 300:
                self.acknowledged.append(number)
            elif answer is not None and answer.members.get("code") != "outcome-unknown":
                self.refused.append(number)

    def _ask(
        self, part: Part, method: str, path: str, body: Any = None, **headers: str
    ) -> Answer | None:
        asked_at = clock.now()
        try:
            answer = ask(self.url, self.key, method, path, body, **headers)
        except (OSError, http.client.HTTPException) as failed:
            part.said[type(failed).__name__] += 1
            self.wrong.append(f"{part.name}: no answer ({failed!r})")
            return None
        finally:
            part.slowest_seconds = max(part.slowest_seconds, clock.now() - asked_at)
        if answer.status < 300:
            part.works(asked_at)
            return answer
        part.said[f"{answer.status} {answer.members.get('code')}"] += 1
        if answer.status != 503 or not answer.retry_after:
            self.wrong.append(f"{part.name}: {answer.status} {answer.members}")
        return answer


class Worker(Probe):
    """Appends numbered events under a lease with the Python client, one after the other."""

    def __init__(self, stopping: threading.Event, *, url: str, key: str, run: str) -> None:
        super().__init__("client", stopping, "the Python client")
        self.url, self.key, self.into = url, key, run
        self.acknowledged: list[int] = []
        self.tokens: set[int] = set()

    def work(self) -> None:
        retry = RetryPolicy(total_seconds=300, attempts=10_000)
        with (
            Client(self.url, self.key, worker="steady", retry=retry) as client,
            client.run(self.into).acquire(ttl_seconds=CLIENT_TTL_SECONDS) as held,
        ):
            while not self.stopping.wait(EVERY_SECONDS):
                number = len(self.acknowledged) + 1
                held.append(Event("probe.written", {"n": number}))
                # It repeats by itself: what counts is when it got through.
                self.parts[0].works(clock.now())
                self.acknowledged.append(number)
                self.tokens.add(held.lease.token if held.lease else 0)


# --- streams --------------------------------------------------------------------------------------


class Stream(Probe):
    """Reads a run's events as server-sent events, and connects again only when it has to.

    The part works when an event comes whose write was answered since.
    """

    def __init__(self, name: str, stopping: threading.Event, *, url: str, key: str, calls: Calls):
        super().__init__(name, stopping)
        self.url, self.key, self.calls = url, key, calls
        self.connected, self.numbers = 0, [0]

    def work(self) -> None:
        while not self.stopping.is_set():
            host, _, port = self.url.removeprefix("http://").partition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=STREAM_SECONDS)
            try:
                self._follow(connection)
            except (OSError, http.client.HTTPException) as failed:
                self.parts[0].said[type(failed).__name__] += 1
            finally:
                connection.close()
            self.stopping.wait(EVERY_SECONDS)

    def _follow(self, connection: http.client.HTTPConnection) -> None:
        path = f"/live/v1/runs/{self.calls.into}/events?after={self.numbers[-1]}"
        told = {"Authorization": f"Bearer {self.key}", "Accept": "text/event-stream"}
        connection.request("GET", path, headers=told)
        answer = connection.getresponse()
        if answer.status != 200:
            self.parts[0].said[f"{answer.status}"] += 1
            return
        self.connected += 1
        while not self.stopping.is_set() and (line := answer.readline()):
            if line.startswith(b"data: {") and b"probe.written" in line:
                event = json.loads(line[6:])
                self.numbers.append(event["seq"])
                self._note(event["data"]["n"])

    def _note(self, number: int) -> None:
        """When the write that it tells of was answered; of one that was not yet, now."""
        written = self.calls.parts[1].worked
        acknowledged = self.calls.acknowledged
        asked_at = clock.now()
        if number in acknowledged[-50:]:
            place = len(acknowledged) - acknowledged[::-1].index(number) - 1
            if place < len(written):
                asked_at = written[place][0]
        self.parts[0].works(asked_at)


# --- background -----------------------------------------------------------------------------------


class Marks(Probe):
    """Sends tasks to a worker and looks for the files that they leave."""

    def __init__(self, name: str, stopping: threading.Event, *, app: Celery, folder: Path) -> None:
        super().__init__(name, stopping)
        self.app, self.folder = app, folder
        folder.mkdir()

    def work(self) -> None:
        number, sent = 0, dict[int, float]()
        while not self.stopping.wait(MARK_SECONDS):
            number += 1
            sent[number] = clock.now()
            file = str(self.folder / str(number))
            try:
                self._send(file)
            except Exception as failed:  # the broker is away, whatever it is called there
                self.parts[0].said[type(failed).__name__] += 1
            for found in list(self.folder.iterdir()):
                self.parts[0].works(sent.pop(int(found.name), 0.0))
                found.unlink(missing_ok=True)

    def _send(self, file: str) -> None:
        """On a connection of its own: what is timed is the worker, and not what one that was cut
        takes here."""
        options = {**self.app.conf.broker_transport_options, "pool_timeout": SEND_SECONDS}
        with self.app.connection_for_write(transport_options=options) as way:
            self.app.send_task(
                "outages.mark", kwargs={"file": file}, queue=QUEUE, expires=300, retry=False,
                connection=way,
            )  # fmt: skip


class Grows(Probe):
    """A number in the database that a part makes grow: looked at past the wire."""

    def __init__(self, name: str, stopping: threading.Event, *, site: Site, question: str) -> None:
        super().__init__(name, stopping)
        self.site, self.question = site, question

    def work(self) -> None:
        last, session, before = -1, None, 0.0
        while not self.stopping.wait(EVERY_SECONDS):
            try:
                session = session or self.site.session()
                row = session.execute(self.question).fetchone()
            except psycopg.Error:
                session = None
                continue
            if row and row[0] != last:
                last = row[0]
                self.parts[0].works(before)  # it grew after that look
            before = clock.now()


def until(
    what: Callable[[], bool], seconds: float, stopping: threading.Event | None = None
) -> bool:
    """Whether it came true within the time."""
    deadline = clock.now() + seconds
    while not what():
        if clock.now() > deadline or (stopping is not None and stopping.is_set()):
            return False
        time.sleep(0.05)
    return True
