"""A call of a client under torture: written down, sent, repeated where that is safe."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any

from bench.torture.history import BUSY, OK, REFUSED, SILENT, Writer
from bench.torture.wire import Silent, Wire

API = "/api/v1"
# Answers after which nothing was done, and the same request may be sent again.
NOTHING_DONE = frozenset(
    {"unavailable", "idempotency-in-flight", "run-hot", "rate-limited", "overloaded"}
)
TRIES = 4
PAUSE_SECONDS = 0.15

type Pick = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """What a call came to for the client that made it. id: of the call."""

    id: str
    said: str
    code: str = ""
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.said == OK


def only(*names: str) -> Pick:
    """Keeps these members of an answer, where they are there; times as seconds."""

    def pick(document: dict[str, Any]) -> dict[str, Any]:
        return {name: plain(name, document[name]) for name in names if name in document}

    return pick


def plain(name: str, value: Any) -> Any:
    if name in ("at", "expires_at") and isinstance(value, str):
        return datetime.fromisoformat(value).timestamp()
    return value


RUN_SEEN = only("version", "last_seq", "status")
BUDGET_SEEN = only("version", "cap", "spent", "reserved", "left")
NOTHING: Pick = only()


class Calls:
    """The calls of one thread. name: of this thread in this life of its process; ids begin with
    it. Ids have no `~`, `.`, `#` and `$`: those are put behind them for parts of a call.
    """

    def __init__(
        self, *, name: str, wire: Wire, writer: Writer, stop: threading.Event, seed: str
    ) -> None:
        self.name, self.wire, self._writer, self.stop = name, wire, writer, stop
        self.random = random.Random(seed)
        self._numbers = count(1)

    def new_id(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    def call(
        self,
        kind: str,
        on: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        id: str = "",
        ask: Mapping[str, Any] | None = None,
        pick: Pick = NOTHING,
        pick_refused: Pick = NOTHING,
        keyed: bool = False,
        repeatable: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Told:
        """Make a call of up to TRIES requests. keyed: with its id as Idempotency-Key.

        repeatable: sending it again after no answer has no second effect (it has a key or ids, or
        changes nothing).
        """
        id = id or self.new_id()
        sent = dict(headers or {})
        if keyed:
            sent["Idempotency-Key"] = id
        text = None if body is None else json.dumps(body).encode()
        self._writer.write(op=id, at=time.monotonic(), kind=kind, on=on, ask=ask or {})
        told = Told(id, SILENT)
        for attempt in range(1, TRIES + 1):
            sent["Agentstate-Attempt"] = str(attempt)
            told = self._try(id, method, path, text, sent, pick, pick_refused)
            again = told.said == BUSY or (told.said == SILENT and repeatable)
            if not again or self.stop.wait(self.random.uniform(0, PAUSE_SECONDS * attempt)):
                break
        return told

    def _try(
        self,
        id: str,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        pick: Pick,
        pick_refused: Pick,
    ) -> Told:
        sent_at = time.monotonic()
        try:
            answer = self.wire.ask(method, API + path, body, headers)
            document = json.loads(answer.body)
        except Silent as silent:
            return self._note(id, sent_at, SILENT if silent.sent else BUSY, "no-answer", {})
        except ValueError:
            return self._note(id, sent_at, SILENT, "unreadable", {})
        if answer.status < 300:
            return self._note(id, sent_at, OK, "", pick(document), replayed=answer.replayed)
        code = str(document.get("code", answer.status))
        if code in NOTHING_DONE:
            return self._note(id, sent_at, BUSY, code, {})
        if answer.status >= 500:
            return self._note(id, sent_at, SILENT, code, {})
        return self._note(
            id, sent_at, REFUSED, code, pick_refused(document), replayed=answer.replayed
        )

    def _note(
        self,
        id: str,
        sent_at: float,
        said: str,
        code: str,
        answer: dict[str, Any],
        *,
        replayed: bool = False,
    ) -> Told:
        line: dict[str, Any] = {"op": id, "at": time.monotonic(), "said": said, "sent": sent_at}
        if code:
            line["code"] = code
        if answer:
            line["answer"] = answer
        if replayed:
            line["replayed"] = True
        self._writer.write(**line)
        return Told(id, said, code, answer)


def of_current(pick: Pick) -> Pick:
    """What a refusal saw under its lock."""
    return lambda problem: pick(problem.get("current") or {})


def of_run(problem: dict[str, Any]) -> dict[str, Any]:
    """What a refusal saw of the run; nothing when it is about something else, such as a budget."""
    seen = problem.get("current") or {}
    return RUN_SEEN(seen) if "last_seq" in seen else {}


def of_budget(name: str) -> Pick:
    """What a refused charge saw of this very budget, and not of one above it."""

    def pick(problem: dict[str, Any]) -> dict[str, Any]:
        seen = problem.get("current") or {}
        return BUDGET_SEEN(seen) if seen.get("budget") == name else {}

    return pick
