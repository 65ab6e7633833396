"""A seeded random driver: commands decided by the rules and by the plain model, step by step.

    python -m tests.model.driver --commands 1000000 --seed 7

No database: this is about decisions. Two processes share the work; it stops at the first step on
which the two disagree and prints the steps that led there.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import Random

from agentstate.store.callers import Caller
from agentstate.store.commands import (
    AcquireLease,
    Append,
    Charge,
    CommitReservation,
    CreateRun,
    NewBudget,
    NewEvent,
    ReclaimLease,
    ReleaseLease,
    ReleaseReservation,
    RenewLease,
    Reserve,
    Transition,
)
from agentstate.store.errors import LeaseLost, Refusal
from agentstate.store.ids import uuid7
from agentstate.store.rules.decide import decide
from agentstate.store.rules.draft import Draft, Facts, Writes
from tests.model.plain import Plain

START = datetime(2026, 3, 2, tzinfo=UTC)
WHO = {name: Caller(kind="key", name=name, scopes=frozenset({"write"})) for name in ("a", "b")}
OPERATOR = Caller(kind="person", name="ana", scopes=frozenset({"operate", "override"}))
STATUSES = ("running", "paused", "pending", "completed", "failed", "cancelled")
LIVES = 100  # steps that a run is driven before a new one takes its place
append_event = lru_cache(1_000)(lambda event_id: NewEvent(type="x", id=event_id))


class Driver:
    """One run after another, each with few writers, ids and amounts, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.random, self.seed = Random(seed), seed
        self.outcomes: Counter[str] = Counter()
        self.steps: deque[tuple[object, ...]] = deque(maxlen=60)
        self.token = 0
        self.begin()

    def begin(self) -> None:
        self.facts = Facts(now=START, new_id=uuid7)
        self.draft, self.plain = Draft(self.facts), Plain()
        self.plain.given = {}
        self.key, self.seconds = "r", 0
        self.steps.clear()

    def run(self, commands: int) -> Counter[str]:
        done = 0
        while done < commands:
            self.begin()
            for _ in range(min(LIVES, commands - done)):
                self.step()
                done += 1
        return self.outcomes

    def step(self) -> None:
        random = self.random
        if random.random() < 0.1:
            self.seconds += random.choice((1, 5, 9, 10))
            self.plain.now, self.facts.now = self.seconds, START + timedelta(seconds=self.seconds)
        kind = random.choice(KINDS)
        held = self.plain.runs.get(self.key)
        who = held.holder if held and held.holder and random.random() < 0.7 else random.choice("ab")
        token = (held.token if held and random.random() < 0.85 else random.choice(
            (None, self.token, self.token - 1 or None)))  # fmt: skip
        token = token if token and token > 0 else None
        command, expected = getattr(self, kind)(who, token)
        by = OPERATOR if kind == "reclaim" else WHO[who]
        found = self.decide(command, by)
        self.steps.append((self.seconds, who, command, expected, found))
        self.outcomes[f"{kind} {found[0]}"] += 1
        if found != expected:
            story = "\n".join(map(str, self.steps))
            raise AssertionError(f"seed {self.seed}: model {expected}, rules {found}\n{story}")

    def decide(self, command, by):
        self.facts.tokens = [self.token + 1]
        fork = self.draft.fork()
        try:
            result = decide(command, fork, by=by)
        except LeaseLost as refused:
            return (refused.code, refused.facts["reason"])
        except Refusal as refused:
            return (refused.code,)
        finally:
            if not self.facts.tokens:
                self.token += 1
        self.draft.adopt(fork)
        self.draft.writes = Writes(holds=self.draft.writes.holds)
        return self.seen(command, result)

    def seen(self, command, result):
        match command:
            case CreateRun() | Transition() | AcquireLease() | ReclaimLease():
                return ("ok", result.last_seq, result.version)
            case Append():
                return ("ok", result.last_seq, result.version)
            case RenewLease():
                return ("ok", int((result.expires_at - START).total_seconds()))
            case ReleaseLease():
                return ("ok",)
            case Reserve() if result.replayed:
                return ("ok",)
            case _:
                return ("ok", result.spent, result.reserved)

    # --- one command of each kind, with what the model says of it --------------------------------

    def create(self, who, token):
        cap = self.random.choice((0, 10, 30, 1_000))
        attempts = self.random.choice((2, 50))
        budget = NewBudget(name="b", cap=cap)
        command = CreateRun(key=self.key, task="x", budgets=(budget,), max_attempts=attempts)
        return command, self.plain.create(self.key, cap, attempts)

    def append(self, who, token):
        random, run = self.random, self.plain.runs.get(self.key)
        seq = run.seq if run else 1
        expected = random.choice((None, None, seq, seq - 1 if seq else 0))
        event_id = random.choice((None, None, "e1", "e2", "e3"))
        add, charge = random.choice((0, 1)), random.choice((0, 0, 3, 7))
        command = Append(
            run=self.key,
            events=(append_event(event_id),),
            expected_seq=expected,
            add={"n": 1} if add else {},
            spend=(Charge(budget="b", amount=charge),) if charge else (),
            fence=token,
        )
        return command, self.plain.append(self.key, who, token, expected, event_id, add, charge)

    def move(self, who, token):
        to = self.random.choices(STATUSES, (16, 6, 4, 1, 1, 1))[0]
        return Transition(run=self.key, to=to, fence=token), self.plain.move(
            self.key, who, token, to
        )

    def acquire(self, who, token):
        ttl = self.random.choice((1, 10))
        expected = self.plain.acquire(self.key, who, ttl, self.token + 1)
        if expected[0] == "ok":
            self.plain.given[self.token + 1] = who
        return AcquireLease(unit=f"run:{self.key}", owner=who, ttl_seconds=ttl), expected

    def renew(self, who, token):
        ttl = self.random.choice((1, 10))
        command = RenewLease(unit=f"run:{self.key}", token=token or 1, ttl_seconds=ttl)
        return command, self.plain.renew(self.key, who, token or 1, ttl)

    def release(self, who, token):
        command = ReleaseLease(unit=f"run:{self.key}", token=token or 1)
        return command, self.plain.release(self.key, who, token or 1)

    def reclaim(self, who, token):
        owner, force = self.random.choice("ab"), self.random.random() < 0.3
        command = ReclaimLease(
            unit=f"run:{self.key}",
            expected_token=token or 1,
            expected_owner=owner,
            reason="x",
            force=force,
        )
        return command, self.plain.reclaim(self.key, owner, token or 1, force, self.token + 1)

    def reserve(self, who, token):
        amount, hold_id = self.random.choice((2, 5)), self.random.choice(("h1", "h2", "h3", "h4"))
        command = Reserve(run=self.key, budget="b", amount=amount, id=hold_id, fence=token)
        return command, self.plain.reserve(self.key, who, token, amount, 60, hold_id)

    def commit(self, who, token):
        hold_id, actual = (
            self.random.choice(("h1", "h2", "h3", "h4")),
            self.random.choice((0, 4, 9)),
        )
        command = CommitReservation(
            run=self.key, budget="b", id=hold_id, amount=actual, fence=token
        )
        return command, self.plain.settle(self.key, who, token, hold_id, actual)

    def give_back(self, who, token):
        hold_id = self.random.choice(("h1", "h2", "h3", "h4"))
        command = ReleaseReservation(run=self.key, budget="b", id=hold_id, fence=token)
        return command, self.plain.settle(self.key, who, token, hold_id, None)


KINDS = (
    ["create"] + ["append"] * 6 + ["move"] * 2 + ["acquire"] * 3 + ["renew"] * 2
    + ["release"] + ["reclaim"] + ["reserve"] * 2 + ["commit"] * 2 + ["give_back"]
)  # fmt: skip


def drive(seed: int, commands: int) -> Counter[str]:
    return Driver(seed).run(commands)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--commands", type=int, default=1_000_000)
    asked.add_argument("--seed", type=int, default=7)
    asked.add_argument("--processes", type=int, default=2)
    told = asked.parse_args()
    began = time.perf_counter()
    share = told.commands // told.processes
    seeds = range(told.seed, told.seed + told.processes)
    with ProcessPoolExecutor(told.processes) as pool:
        counts = sum(pool.map(drive, seeds, [share] * told.processes), Counter())
    seconds = time.perf_counter() - began
    for name, count in sorted(counts.items()):
        print(f"{count:>9,}  {name}")
    print(f"{counts.total():>9,}  commands, no difference, in {seconds:.1f} s")


if __name__ == "__main__":
    main()
