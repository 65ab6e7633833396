"""A client process under torture: threads that work on few hot and many cold runs.

    python -m bench.torture.load --name load-1 --ports 8000,8001 --folder HISTORY --seed 7

The keys come in AGENTSTATE_KEY and AGENTSTATE_OPERATOR_KEY. Runs until SIGTERM; may be killed or
frozen at any time.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.torture.calls import (
    BUDGET_SEEN,
    RUN_SEEN,
    Calls,
    Told,
    of_budget,
    of_current,
    of_run,
    only,
)
from bench.torture.history import Writer
from bench.torture.streams import Streams
from bench.torture.wire import Wire

OPEN_RUNS = tuple(f"hot-{n}" for n in range(3))  # never leased: everybody writes
HELD_RUNS = tuple(f"held-{n}" for n in range(3))  # written by whoever holds them
UNITS = tuple(f"unit-{n}" for n in range(4))
# Shared; shared and soon used up; shared and in slots, soon used up; of each hot run.
FLEET, SMALL, SPLIT, OWN = "fleet", "small", "split", "own"
SHARED = (FLEET, SMALL, SPLIT)
PARENTS = dict(zip(OPEN_RUNS, (FLEET, FLEET, SPLIT), strict=True))
COLD = "cold"  # the task of runs that are made, claimed and ended
TIMEOUT_SECONDS = 5.0
CAP = 2**50
SMALL_CAP, SPLIT_CAP = 400, 600
SLOTS = 4
EVERYBODY = "everybody"  # the feed's consumer that all processes move on
SHORT_TTL_SECONDS = 2  # of leases that are outlived on purpose
# A lease that would last longer than anybody here asks for was given before the clock went back.
STUCK_SECONDS = 20


@dataclass(slots=True)
class Seen:
    """What this process last saw; only to have something to expect."""

    version: dict[str, int] = field(default_factory=dict)
    last_seq: dict[str, int] = field(default_factory=dict)
    cas: dict[str, str | None] = field(default_factory=dict)
    position: int = 0
    cap_version: dict[str, int] = field(default_factory=dict)
    consumed: dict[str, int] = field(default_factory=dict)


class Worker:
    """One thread: picks one thing to do after the other."""

    def __init__(
        self, calls: Calls, seen: Seen, operator: Calls, clock_off_seconds: float, process: str
    ) -> None:
        self.calls, self.seen, self.operator, self.process = calls, seen, operator, process
        self.random = calls.random
        self.clock_off = timedelta(seconds=clock_off_seconds)
        self.chances: list[tuple[Callable[[], object], float]] = [
            (self.append_any, 16),
            (self.append_expected, 10),
            (self.change, 6),
            (self.compare_and_set, 8),
            (self.write_version, 5),
            (self.read, 10),
            (self.read_page, 3),
            (self.work_on_claimed, 4),
            (self.make_run, 6),
            (self.hold_run, 3),
            (self.hold_unit, 5),
            (self.charge, 6),
            (self.hold_money, 4),
            (self.read_budget, 4),
            (self.batch, 6),
            (self.read_feed, 5),
            (self.consume, 2),
            (self.operate, 1),
        ]

    def work(self, stop: threading.Event) -> None:
        actions, weights = zip(*self.chances, strict=True)
        while not stop.is_set():
            self.random.choices(actions, weights)[0]()

    # --- runs that nobody holds -------------------------------------------------------------------

    def append(
        self,
        run: str,
        *,
        fence: int | None = None,
        expected_seq: int | None = None,
        to: str = "",
        spend: str = "",
    ) -> Told:
        """Events with ids, or with an idempotency key; sometimes a counter, a charge, a move."""
        id, count = self.calls.new_id(), self.random.choice((1, 1, 1, 2, 3))
        with_ids = self.random.random() < 0.5
        ask: dict[str, Any] = {"count": count}
        body: dict[str, Any] = {"events": events_of(id, count, with_ids)}
        if expected_seq is not None:
            ask["expected_seq"] = body["expected_seq"] = expected_seq
        if self.random.random() < 0.3:
            body["add"] = {"steps_done": 1}
        if spend:
            amount = self.random.randint(1, 5)
            body["spend"] = {"budget": spend, "amount": amount, "id": f"{id}$", "note": f"{id}$"}
            ask["spend"] = {"on": f"budget:{run}/{spend}", "amount": amount}
        if to:
            ask["to"] = body["to"] = to
        if fence is not None:
            ask["fence"] = fence
        told = self.calls.call(
            "append",
            f"run:{run}",
            "POST",
            f"/runs/{run}/events",
            body,
            id=id,
            ask=ask,
            pick=pick_appended,
            pick_refused=of_run,
            # A charge has an id of its own, the move has not.
            keyed=not with_ids or bool(to),
            headers=fence_header(fence),
        )
        self.note(run, told)
        return told

    def note(self, run: str, told: Told) -> None:
        if "version" in told.answer:
            self.seen.version[run] = told.answer["version"]
        if "last_seq" in told.answer:
            self.seen.last_seq[run] = told.answer["last_seq"]

    def append_any(self) -> None:
        spend = OWN if self.random.random() < 0.2 else ""
        self.append(self.random.choice(OPEN_RUNS), spend=spend)

    def append_expected(self) -> None:
        run = self.random.choice(OPEN_RUNS)
        self.append(run, expected_seq=self.seen.last_seq.get(run, 1))

    def change(self, run: str = "", fence: int | None = None) -> Told:
        """Notes and a counter, with a change id or an idempotency key."""
        run = run or self.random.choice(OPEN_RUNS)
        id, with_id = self.calls.new_id(), self.random.random() < 0.5
        body = {"set": {"notes": id}, "add": {"changes": 1}} | ({"id": id} if with_id else {})
        return self.patch("patch", run, body, {}, id=id, keyed=not with_id, fence=fence)

    def patch(
        self,
        kind: str,
        run: str,
        body: dict[str, Any],
        ask: dict[str, Any],
        *,
        id: str,
        keyed: bool,
        fence: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Told:
        told = self.calls.call(
            kind,
            f"run:{run}",
            "PATCH",
            f"/runs/{run}",
            body,
            id=id,
            ask=ask | ({} if fence is None else {"fence": fence}),
            pick=RUN_SEEN,
            pick_refused=of_run,
            keyed=keyed,
            headers=fence_header(fence) | (headers or {}),
        )
        self.note(run, told)
        return told

    def compare_and_set(self) -> None:
        run = self.random.choice(OPEN_RUNS)
        id, seen = self.calls.new_id(), self.seen.cas.get(run)
        body = {"set": {"notes": id, "attrs.reg": id}, "expect": {"attrs.reg": seen}}
        told = self.patch("cas", run, body, {"seen": seen}, id=id, keyed=True)
        if told.ok:
            self.seen.cas[run] = id
        elif told.code == "expectation-failed":
            self.read(run)

    def write_version(self) -> None:
        run = self.random.choice(OPEN_RUNS)
        id, version = self.calls.new_id(), self.seen.version.get(run, 1)
        body = {"set": {"notes": id}}
        ask, headers = {"if_match": version}, {"If-Match": f'"v{version}"'}
        self.patch("patch", run, body, ask, id=id, keyed=True, headers=headers)

    def read(self, run: str = "") -> None:
        run = run or self.random.choice(OPEN_RUNS + HELD_RUNS)
        path = f"/runs/{run}"
        told = self.calls.call("read", f"run:{run}", "GET", path, pick=pick_run)
        self.note(run, told)
        if told.ok:
            self.seen.cas[run] = told.answer["cas"]

    def read_page(self) -> None:
        run = self.random.choice(OPEN_RUNS + HELD_RUNS)
        after = max(0, self.seen.last_seq.get(run, 0) - self.random.randint(0, 40))
        path = f"/runs/{run}/events?origin=worker&limit=20&after={after}"
        self.calls.call("events", f"run:{run}", "GET", path, pick=pick_page)

    # --- leases -----------------------------------------------------------------------------------

    def make_run(self) -> None:
        id = self.calls.new_id()
        key = f"c-{id}"
        body: dict[str, Any] = {"key": key, "task": COLD, "tags": [id], "max_attempts": 1000}
        if self.random.random() < 0.5:
            parent = self.random.choice((FLEET, SPLIT))
            body["budgets"] = [{"name": OWN, "cap": 50, "parent": parent}]
        self.calls.call(
            "create", f"run:{key}", "POST", "/runs", body, id=id, keyed=True, pick=RUN_SEEN
        )

    def work_on_claimed(self) -> None:
        """Claim, write under the token, end it: or fall asleep, crash, or let it go."""
        id, ttl = self.calls.new_id(), self.random.choice((SHORT_TTL_SECONDS, 10))
        limit = self.random.choice((1, 1, 3))
        body = {"owner": f"w~{id}", "ttl_seconds": ttl, "task": COLD, "limit": limit}
        told = self.calls.call(
            "claim", "runs", "POST", "/leases/claim", body, id=id, keyed=True, pick=pick_claimed
        )
        for item in told.answer.get("items", []):
            self.hold_session(item["run"], item["token"], ttl, ends=True)

    def hold_run(self) -> None:
        run, ttl = self.random.choice(HELD_RUNS), self.random.choice((SHORT_TTL_SECONDS, 5))
        told = self.acquire(f"run:{run}", ttl)
        if told.ok:
            self.hold_session(run, told.answer["token"], ttl, ends=False)

    def acquire(self, unit: str, ttl_seconds: int) -> Told:
        id = self.calls.new_id()
        on = unit if unit.startswith("run:") else f"unit:{unit}"
        return self.calls.call(
            "acquire",
            on,
            "POST",
            f"/leases/{unit}/acquire",
            {"owner": f"w~{id}", "ttl_seconds": ttl_seconds},
            id=id,
            keyed=True,
            pick=only("token", "at", "expires_at", "version", "last_seq"),
            pick_refused=of_run,
        )

    def hold_session(self, run: str, token: int, ttl_seconds: int, *, ends: bool) -> None:
        unit = f"run:{run}"
        for _ in range(self.random.randint(1, 5)):
            step = self.random.choice((0, 0, 0, 1, 2, 3, 4))
            if step == 0:
                told = self.append(run, fence=token)
            elif step == 1:
                told = self.change(run, token)
            elif step == 2:
                told = self.renew(unit, token, ttl_seconds)
            elif step == 3:
                told = self.tell(run, token)
            else:
                # Half of them after the lease is over, which a slow machine does as well.
                self.sleep(ttl_seconds * 1.1 if ttl_seconds == SHORT_TTL_SECONDS else 0.01)
                told = self.append(run, fence=token)
            if told.code in ("stale-fence", "lease-lost", "already-terminal"):
                return
        chance = self.random.random()
        if ends and chance < 0.4:
            self.append(run, fence=token, to=self.random.choice(("completed", "failed")))
        elif ends and chance < 0.8:
            self.move(run, token, "completed")
        elif chance < 0.9:
            self.let_go(unit, token)
        # Else it is forgotten, as by a worker that crashed.

    def sleep(self, seconds: float) -> None:
        self.calls.stop.wait(seconds)

    def renew(self, unit: str, token: int, ttl_seconds: int) -> Told:
        return self.calls.call(
            "renew",
            unit if unit.startswith("run:") else f"unit:{unit}",
            "POST",
            f"/leases/{unit}/renew",
            {"token": token, "ttl_seconds": ttl_seconds},
            ask={"token": token},
            pick=only("token", "at", "expires_at"),
            pick_refused=only("reason"),
        )

    def let_go(self, unit: str, token: int) -> Told:
        return self.calls.call(
            "release",
            unit if unit.startswith("run:") else f"unit:{unit}",
            "POST",
            f"/leases/{unit}/release",
            {"token": token},
            ask={"token": token},
            pick=only("version", "last_seq"),
            pick_refused=only("reason"),
        )

    def move(self, run: str, token: int, to: str) -> Told:
        id = self.calls.new_id()
        return self.calls.call(
            "move",
            f"run:{run}",
            "POST",
            f"/runs/{run}/transitions",
            {"to": to, "reason": f"op {id}"},
            id=id,
            ask={"fence": token},
            keyed=True,
            pick=RUN_SEEN,
            pick_refused=of_run,
            headers=fence_header(token),
        )

    def tell(self, run: str, token: int) -> Told:
        """Telemetry, with the time of a worker whose clock is wrong by hours."""
        worker_time = (datetime.now(UTC) + self.clock_off).isoformat()
        return self.calls.call(
            "telemetry",
            "telemetry",
            "PUT",
            f"/runs/{run}/telemetry",
            {"host": self.calls.name, "worker_time": worker_time},
            headers=fence_header(token),
        )

    def hold_unit(self) -> None:
        unit, ttl = self.random.choice(UNITS), self.random.choice((1, SHORT_TTL_SECONDS, 5))
        told = self.acquire(unit, ttl)
        if not told.ok:
            return
        token = told.answer["token"]
        for _ in range(self.random.randint(0, 3)):
            self.renew(unit, token, ttl)
        chance = self.random.random()
        if chance < 0.2:
            self.sleep(ttl + 0.1)
            self.renew(unit, token, ttl)
        elif chance < 0.85:
            self.let_go(unit, token)

    # --- budgets ----------------------------------------------------------------------------------

    def some_budget(self) -> tuple[str, str, str]:
        """(address, name in the history, own name): a shared one, or a hot run's under one."""
        if self.random.random() < 0.5:
            name = self.random.choice(SHARED)
            return f"/budgets/{name}", f"budget:/{name}", name
        run = self.random.choice(OPEN_RUNS)
        return f"/runs/{run}/budgets/{OWN}", f"budget:{run}/{OWN}", OWN

    def charge(self) -> None:
        path, on, name = self.some_budget()
        id, amount = self.calls.new_id(), self.random.randint(1, 9)
        with_id = self.random.random() < 0.5
        body = {"amount": amount, "note": id} | ({"id": id} if with_id else {})
        self.calls.call(
            "spend",
            on,
            "POST",
            f"{path}/spend",
            body,
            id=id,
            ask={"amount": amount},
            keyed=not with_id,
            pick=BUDGET_SEEN,
            pick_refused=of_budget(name),
        )

    def hold_money(self) -> None:
        path, on, name = self.some_budget()
        id, amount = self.calls.new_id(), self.random.randint(1, 20)
        told = self.calls.call(
            "reserve",
            on,
            "POST",
            f"{path}/reserve",
            {"amount": amount, "id": id, "ttl_seconds": self.random.choice((1, 10))},
            id=id,
            ask={"amount": amount},
            pick=BUDGET_SEEN,
            pick_refused=of_budget(name),
        )
        if told.code == "budget-exhausted" or self.random.random() < 0.1:
            return
        if self.random.random() < 0.15:
            self.sleep(1.2)
        kind = self.random.choice(("commit", "commit", "let-go"))
        # Now and then more than was held: it is recorded all the same, and flagged.
        used = self.random.randint(0, amount + 2)
        self.calls.call(
            kind,
            on,
            "POST",
            f"{path}/reservations/{id}/{'commit' if kind == 'commit' else 'release'}",
            {"amount": used} if kind == "commit" else {},
            ask={"hold": id, "amount": used},
            pick=pick_settled,
            pick_refused=of_budget(name),
        )

    def read_budget(self) -> None:
        path, on, _ = self.some_budget()
        self.calls.call("budget", on, "GET", path, pick=BUDGET_SEEN)

    # --- many at once, the feed, operators --------------------------------------------------------

    def batch(self) -> None:
        """Two runs and a budget: all of it or nothing; now and then one part cannot be."""
        id = self.calls.new_id()
        first, second = self.random.sample(OPEN_RUNS, 2)
        doomed = self.random.random() < 0.2
        operations: list[dict[str, Any]] = [
            {"op": "append", "run": first, "events": events_of(f"{id}#0", 2, True)},
            {"op": "append", "run": second, "events": events_of(f"{id}#1", 1, True)},
            {"op": "spend", "budget": FLEET, "amount": 1, "note": f"{id}#2"},
        ]
        parts: list[dict[str, Any]] = [
            {"kind": "append", "on": f"run:{first}", "ask": {"count": 2}},
            {"kind": "append", "on": f"run:{second}", "ask": {"count": 1}},
            {"kind": "spend", "on": f"budget:/{FLEET}", "ask": {"amount": 1}},
        ]
        if doomed:
            operations.append({"op": "check", "run": first, "expected_seq": 2**40})
        self.calls.call(
            "batch",
            "batch",
            "POST",
            "/batch",
            {"operations": operations},
            id=id,
            ask={"parts": parts},
            keyed=True,
            pick=pick_batch,
        )

    def read_feed(self, after: int | None = None) -> Told:
        """On from where this process is; now and then from somewhere before."""
        if after is None:
            ahead = self.random.random() < 0.8
            after = self.seen.position if ahead else self.random.randint(0, self.seen.position)
        limit = self.random.choice((20, 100, 200))
        told = self.calls.call(
            "feed",
            "feed",
            "GET",
            f"/feed?after={after}&limit={limit}",
            ask={"after": after, "limit": limit},
            pick=pick_feed,
        )
        if told.ok:
            self.seen.position = max(self.seen.position, told.answer["position"])
        return told

    def consume(self) -> None:
        """The feed's next page, and how far it was worked off; now and then somewhere before."""
        name = self.random.choice((EVERYBODY, self.process))
        stands = self.seen.consumed.get(name)
        if stands is None or self.random.random() < 0.1:
            told = self.calls.call(
                "consumer", f"consumer:{name}", "GET", f"/feed/consumers/{name}",
                pick=only("position"),
            )  # fmt: skip
            stands = told.answer.get("position", 0)
        page = self.read_feed(stands)
        if not page.ok:
            return
        position = page.answer["position"] if self.random.random() < 0.9 else stands // 2
        told = self.calls.call(
            "checkpoint",
            f"consumer:{name}",
            "PUT",
            f"/feed/consumers/{name}",
            {"position": position},
            ask={"position": position},
            keyed=self.random.random() < 0.5,
            pick=only("position"),
            pick_refused=of_current(only("position")),
        )
        self.seen.consumed[name] = told.answer.get("position", stands)

    def operate(self) -> None:
        """Free what is stuck because the clock went back; change a cap."""
        if self.random.random() < 0.3:
            self.change_cap()
            return
        unit = self.random.choice([*UNITS, *(f"run:{run}" for run in HELD_RUNS)])
        seen = self.calls.call(
            "lease", "lease", "GET", f"/leases/{unit}", pick=only("token", "owner", "expires_in_ms")
        ).answer
        stuck = (seen.get("expires_in_ms") or 0) > STUCK_SECONDS * 1000
        if not seen.get("token") or not (stuck or self.random.random() < 0.3):
            return
        body = {"expected_token": seen["token"], "expected_owner": seen["owner"]}
        self.operator.call(
            "reclaim",
            unit if unit.startswith("run:") else f"unit:{unit}",
            "POST",
            f"/leases/{unit}/reclaim",
            body | {"reason": "torture", "force": True},
            ask={"token": seen["token"]},
            keyed=True,
            pick=only("version", "last_seq"),
        )

    def change_cap(self) -> None:
        name = self.random.choice((SMALL, SPLIT))
        cap = SMALL_CAP * self.random.randint(1, 200)
        if name == SPLIT:  # always a little more than is used, so that room has to move
            on = f"budget:/{name}"
            seen = self.calls.call("budget", on, "GET", f"/budgets/{name}", pick=BUDGET_SEEN)
            cap = seen.answer.get("spent", 0) + self.random.randint(100, SPLIT_CAP)
        id, version = self.operator.new_id(), self.seen.cap_version.get(name, 1)
        told = self.operator.call(
            "cap",
            f"budget:/{name}",
            "PATCH",
            f"/budgets/{name}",
            {"cap": cap, "reason": id},
            id=id,
            ask={"if_match": version},
            keyed=True,
            pick=BUDGET_SEEN,
            pick_refused=of_budget(name),
            headers={"If-Match": f'"b{version}"'} if self.random.random() < 0.3 else {},
        )
        self.seen.cap_version[name] = told.answer.get("version", version)


def events_of(id: str, count: int, with_ids: bool) -> list[dict[str, Any]]:
    """Events that carry the call's mark, each its own."""
    return [
        {"type": "step", "data": {"op": f"{id}.{n}"}} | ({"id": f"{id}.{n}"} if with_ids else {})
        for n in range(count)
    ]


def fence_header(token: int | None) -> dict[str, str]:
    return {} if token is None else {"Agentstate-Fence": str(token)}


# --- what of an answer is written down ------------------------------------------------------------


def pick_appended(document: dict[str, Any]) -> dict[str, Any]:
    kept = only("first_seq", "last_seq", "version")(document)
    charged = [BUDGET_SEEN(one) for one in document.get("spent", [])]
    return kept | ({"spent": charged} if charged else {})


def pick_run(document: dict[str, Any]) -> dict[str, Any]:
    kept = only("version", "last_seq", "status", "token", "counters")(document)
    return kept | {"cas": (document.get("attrs") or {}).get("reg")}


def pick_page(document: dict[str, Any]) -> dict[str, Any]:
    items = [[e["seq"], e["version"], e["data"]["op"]] for e in document["items"]]
    return {"items": items}


def pick_claimed(document: dict[str, Any]) -> dict[str, Any]:
    keep = only("run", "token", "version", "last_seq", "expires_at")
    at = only("at")(document)
    return {"items": [keep(item) | at for item in document["items"]]}


def pick_settled(document: dict[str, Any]) -> dict[str, Any]:
    # A release of what was dropped is answered, and leaves no line of its own.
    return BUDGET_SEEN(document) | {"dropped": document["state"] == "dropped"}


def pick_batch(document: dict[str, Any]) -> dict[str, Any]:
    first, second, charged = document["results"][:3]
    return {"results": [pick_appended(first), pick_appended(second), BUDGET_SEEN(charged)]}


def pick_feed(document: dict[str, Any]) -> dict[str, Any]:
    items = [
        [c["position"], c["run"], c["first_seq"], c["last_seq"], c["version"]]
        for c in document["items"]
    ]
    return {"items": items, "position": document["position"]}


# --- the process ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until SIGTERM; every thread ends its call first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--ports", required=True, type=lambda t: [int(p) for p in t.split(",")])
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--threads", type=int, default=12)
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    life = f"{options.name}x{secrets.token_hex(3)}"
    writer = Writer(options.folder / f"{life}.jsonl")
    seen = Seen()
    threads = [
        threading.Thread(target=work, args=(f"{life}x{n}", options, writer, seen, stop))
        for n in range(options.threads)
    ]
    threads.append(threading.Thread(target=follow, args=(life, options, writer, seen, stop)))
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    writer.close()
    return 0


def work(
    name: str, options: argparse.Namespace, writer: Writer, seen: Seen, stop: threading.Event
) -> None:
    """One thread. Each has a wall clock that is off by up to a day, which must not matter."""

    def calls(of: str, key: str) -> Calls:
        wire = Wire(ports=options.ports, key=os.environ[key], timeout_seconds=TIMEOUT_SECONDS)
        number = of.rpartition("x")[2]  # not of this life: the seed decides, whoever was killed
        seed = f"{options.seed} {options.name} {number}"
        return Calls(name=of, wire=wire, writer=writer, stop=stop, seed=seed)

    worker = calls(name, "AGENTSTATE_KEY")
    off_seconds = worker.random.uniform(-86_400, 86_400)
    operator = calls(f"{name}o", "AGENTSTATE_OPERATOR_KEY")
    Worker(worker, seen, operator, off_seconds, options.name).work(stop)


def follow(
    life: str, options: argparse.Namespace, writer: Writer, seen: Seen, stop: threading.Event
) -> None:
    """One thread of each process reads runs by stream; half of the time what comes next."""
    streams = Streams(
        name=f"{life}s", ports=options.ports, key=os.environ["AGENTSTATE_KEY"], writer=writer,
        seed=f"{options.seed} {options.name} streams",
    )  # fmt: skip
    while not stop.wait(streams.random.uniform(0, 0.5)):
        run = streams.random.choice(OPEN_RUNS + HELD_RUNS)
        if streams.random.random() < 0.5:
            last = seen.last_seq.get(run, 0)
            streams.came_to[run] = max(streams.came_to.get(run, 0), last - 20)
        streams.follow(run, stop)


if __name__ == "__main__":
    raise SystemExit(main())
