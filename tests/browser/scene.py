"""A small fleet with everything that a page can show, at a clock that the scene sets itself."""

from __future__ import annotations

import json
from datetime import timedelta

from agentstate.store.commands import (
    AnnounceWorker,
    CreateBudget,
    DrainWorker,
    NewBudget,
    NewEvent,
    Patch,
    PutTelemetry,
    Reserve,
    SignalRun,
)
from agentstate.store.errors import Refusal
from agentstate.store.payloads import RawJSON
from tests.clock import Clock
from tests.store.asking import SENIOR, Asking, event

THOUGHT = (
    "The failing test builds its window from the local time zone, so it only breaks where the"
    " runner is not in UTC.\n\n1. find who calls parse_window\n2. run it with TZ=Asia/Kolkata\n"
    "3. mend it, and keep the case as a test"
)
DIFF = (
    "diff --git a/app/window.py b/app/window.py\n--- a/app/window.py\n+++ b/app/window.py\n"
    "@@ -12,7 +12,7 @@ def parse_window(text):\n     start, end = text.split('/')\n"
    "-    return datetime.fromisoformat(start), datetime.fromisoformat(end)\n"
    "+    return in_utc(start), in_utc(end)\n"
)
TASKS = (
    "fix the upload test that fails at night",
    "triage issue 4812",
    "upgrade the dependencies",
    "reconcile the invoices of March",
    "review pull request 977",
    "find the slow query of the orders page",
)
BUDGET = (NewBudget(name="tokens", cap=48_000),)


def step(number: int) -> NewEvent:
    """What a worker writes at its n-th step."""
    match number % 3:
        case 0:
            data = {"model": "large-2", "thought": THOUGHT, "tokens": {"in": 4096, "out": 212}}
            return NewEvent(type="model.responded", data=_raw(data))
        case 1:
            action = "TZ=Asia/Kolkata python -m pytest tests/test_window.py -q"
            return NewEvent(
                type="tool.called", data=_raw({"tool": "shell", "action": action, "step": number})
            )
        case _:
            data = {
                "tool": "shell",
                "exit_code": number % 2,
                "observation": f"1 failed, 41 passed in 2.13s\n{DIFF}",
                "ticket": 1970670598291982290,
            }
            return NewEvent(type="tool.returned", data=_raw(data))


def _raw(data: object) -> RawJSON:
    return RawJSON(json.dumps(data))


class Scene:
    """Plays the story; afterwards the clock stands still at `clock.now`."""

    def __init__(self, store: Asking, clock: Clock) -> None:
        self.store, self.clock = store, clock

    def play(self, *, others: int = 24) -> None:
        self.takeover()
        for number in range(others):
            self.ordinary(number)
        self.store.acquire("mailbox:support@example.org", "w-1~10cc", ttl_seconds=90)
        self.clock.advance(seconds=34)

    def takeover(self) -> None:
        """checkout-42: w-3 freezes, ana reclaims, w-9 goes on, w-3 wakes up and is fenced."""
        store, clock = self.store, self.clock
        store.create("checkout-42", task="audit the checkout flow", tags=("nightly", "checkout"),
                     budgets=BUDGET)  # fmt: skip
        clock.advance(seconds=12)
        frozen = store.hold("checkout-42", "w-3~07fe")
        self.work("checkout-42", "w-3~07fe", frozen.token, steps=11, pause=7)
        clock.advance(seconds=160)
        store.sweep()
        clock.advance(minutes=36)
        store.as_caller(SENIOR).reclaim(
            "run:checkout-42",
            token=frozen.token,
            owner="w-3~07fe",
            reason="w-3 has been frozen since the deploy",
        )
        clock.advance(seconds=14)
        second = store.hold("checkout-42", "w-9~c41a")
        for number in range(4):
            self.work("checkout-42", "w-9~c41a", second.token, steps=5, pause=9)
            if number != 2:
                self.refused(lambda: store.append("checkout-42", [event()], fence=frozen.token))
        clock.advance(seconds=25)
        self.work("checkout-42", "w-9~c41a", second.token, steps=2, pause=11)

    def company(self) -> None:
        """What the pages of budgets and workers show: shared caps, holds, a drain, a signal."""
        store, clock = self.store, self.clock
        store.ask(CreateBudget(run=None, budget=NewBudget(name="company", cap=2_000_000)))
        team = NewBudget(name="team-checkout", cap=400_000, parent="company")
        store.ask(CreateBudget(run=None, budget=team))
        tokens = (NewBudget(name="tokens", cap=90_000, parent="team-checkout"),)
        store.create("ticket-77", task="answer the ticket", tags=("support",), budgets=tokens,
                     deadline_at=clock.now + timedelta(minutes=3))  # fmt: skip
        store.ask(AnnounceWorker(worker="w-4~beef", version="1.4.2", host="node-a", slots=4))
        lease = store.hold("ticket-77", "w-4~beef", ttl_seconds=3_600)
        for number in range(12):
            clock.advance(seconds=20)
            store.spend("ticket-77", 6_000 + 150 * number, budget="tokens", fence=lease.token)
        self.refused(lambda: store.spend("ticket-77", 60_000, budget="tokens", fence=lease.token))
        hold = {"run": "ticket-77", "budget": "tokens", "fence": lease.token}
        store.ask(Reserve(amount=3_000, id="h-1", ttl_seconds=10, **hold))
        store.ask(Reserve(amount=1_000, id="h-2", ttl_seconds=3_600, **hold))
        clock.advance(seconds=30)
        store.renew("run:ticket-77", lease.token, ttl_seconds=3_600)
        said = PutTelemetry(run="ticket-77", host="node-a", model="large-2", fence=lease.token)
        store.ask(said)
        boss = store.as_caller(SENIOR)
        boss.ask(SignalRun(run="ticket-77", signal="pause", reason="the shop is closed"))
        boss.ask(DrainWorker(worker="w-4", reason="the node is replaced"))
        store.ask(Patch(run="ticket-77", notes="Called twice.\nCall back.", fence=lease.token))

    def work(self, run: str, owner: str, token: int, *, steps: int, pause: float) -> None:
        for number in range(steps):
            self.clock.advance(seconds=pause)
            self.store.append(run, [step(number)], fence=token, add={"steps_done": 1})
            self.store.spend(run, 800 + 37 * number, budget="tokens", fence=token)
            if number % 3 == 1:
                self.store.renew(f"run:{run}", token)

    def refused(self, ask) -> None:
        try:
            ask()
        except Refusal:
            return
        raise AssertionError("it was not refused")

    def ordinary(self, number: int) -> None:
        """One of the others: waiting, at work, silent, or at an end of some kind."""
        store, key = self.store, f"{('inv', 'issue', 'deps', 'pr')[number % 4]}-{1000 + number}"
        cap = (6_000, 9_000, 30_000)[number % 3]
        budgets = (NewBudget(name="tokens", cap=cap),)
        store.create(key, task=TASKS[number % len(TASKS)], budgets=budgets)
        if number % 9 == 0:
            return
        lease = store.hold(key, f"w-{number % 7 + 1}~{number * 977 % 4096:03x}", ttl_seconds=60)
        self.work(key, "", lease.token, steps=number % 5 + 2, pause=1.5)
        match number % 8:
            case 1 | 2:
                store.move(key, "completed", result={"ok": True}, fence=lease.token)
            case 3:
                store.move(key, "failed", fence=lease.token)
            case 4:
                store.as_caller(SENIOR).move(key, "cancelled", reason="another run has done it")
            case 5:
                self.refused(
                    lambda: store.append(key, [event()], fence=lease.token, expected_seq=1)
                )
                self.refused(lambda: store.acquire(f"run:{key}", "w-2~aaa"))
                store.renew(f"run:{key}", lease.token, ttl_seconds=600)
            case 6:
                self.refused(lambda: store.spend(key, 500_000, budget="tokens", fence=lease.token))
                store.renew(f"run:{key}", lease.token, ttl_seconds=120)
            case _:
                return
