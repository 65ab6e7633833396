"""Cases that need minutes of load.

    .venv/bin/python -m bench.cases.pressure locks [--minutes 5] [--pooler]
    .venv/bin/python -m bench.cases.pressure open-transaction [--minutes 30] [--hurry]

locks (O-41): 50 callers renew, append and charge on 20 runs below one budget, beside Celery's
sweeps and an operator who reclaims lapsed leases. Nobody hears of a deadlock, and no lease is lost.
With --pooler (O-43) all of it goes through PgBouncer in transaction mode, as deploy/ has it.

open-transaction (O-44): 500 leases are renewed every 2 s, a hundred in a call, one of them by
itself as well, and one unit is acquired and released, while a session of somebody's stays in a
transaction: how long each takes, minute by minute, and the sizes, then and after it has ended. With
--hurry nobody waits between two rounds: as many renewals in a tenth of the time.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from agentstate.cli.output import result
from agentstate.store.errors import Refusal
from bench import grounds
from bench.cases import Verdict, site
from bench.cases.rounds import Api
from bench.grounds import Ground
from bench.minutes import percentile

CALLERS, RUNS, LEASES = 50, 20, 500
RENEW_EVERY_SECONDS, BATCH = 2.0, 100
# Of a renewal and of an acquire. A call of a hundred is little else than what the database does.
SLOWER_MAX = 3.0
SIZES = """
SELECT pg_total_relation_size('agentstate_lease'), n_dead_tup FROM pg_stat_user_tables
WHERE relname = 'agentstate_lease'
"""


def session() -> psycopg.Connection[Any]:
    from django.conf import settings

    from agentstate import postgres

    return psycopg.connect(postgres.conninfo(settings.DATABASE_PARTS), autocommit=True)


def locks(ground: Ground, minutes: float, verdict: Verdict) -> None:
    from agentstate.store.commands import AcquireLease, CreateBudget, NewBudget, ReclaimLease

    api, codes, until = Api(ground), Counter[str](), time.monotonic() + minutes * 60
    grounds.ask(CreateBudget(run=None, budget=NewBudget(name="all", cap=2**50)))
    held = {}
    for number in range(RUNS):
        key = f"busy-{number}"
        budgets = [{"name": "tokens", "cap": 2**40, "parent": "all"}]
        api.post("/runs", {"task": "t", "key": key, "budgets": budgets}).raise_for_status()
        ask = {"owner": "w", "ttl_seconds": 60}
        held[key] = str(api.post(f"/leases/run:{key}/acquire", ask).json()["token"])

    def call(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < until:
            key = chance.choice(list(held))
            token = {"Agentstate-Fence": held[key]}
            match chance.randrange(3):
                case 0:
                    ask: dict[str, Any] = {"token": int(held[key]), "ttl_seconds": 60}
                    answer = api.post(f"/leases/run:{key}/renew", ask)
                case 1:
                    ask = {"events": [{"type": "a"}], "spend": {"budget": "tokens", "amount": 1}}
                    answer = api.post(f"/runs/{key}/events", ask, **token)
                case _:
                    answer = api.post(f"/runs/{key}/budgets/tokens/spend", {"amount": 1}, **token)
            said = answer.json()
            codes[said["code"] if answer.status_code >= 400 else "ok"] += 1

    def operate() -> None:
        number = 0
        while time.monotonic() < until:
            number += 1
            unit = f"stuck-{number}"
            lease = grounds.ask(AcquireLease(unit=unit, owner="gone", ttl_seconds=1))
            threading.Event().wait(1.1)
            reclaim = ReclaimLease(unit=unit, expected_token=lease.token, expected_owner="gone",
                                   reason="lapsed")  # fmt: skip
            try:
                grounds.ask(reclaim)
            except Refusal as refused:
                codes[f"operator: {refused.code}"] += 1

    with ThreadPoolExecutor(CALLERS + 1) as pool:
        working = [pool.submit(call, number) for number in range(CALLERS)]
        working.append(pool.submit(operate))
        for one in working:
            one.result()
    with session() as asked:
        (deadlocks,) = asked.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone() or (-1,)
    verdict.say("O-41", f"{dict(codes)}, deadlocks in the database: {deadlocks}",
                set(codes) == {"ok"} and deadlocks == 0)  # fmt: skip


def open_transaction(
    ground: Ground, minutes: float, verdict: Verdict, *, hurry: bool = False
) -> None:
    api = Api(ground)
    held = grounds.make_held(LEASES, prefix="kept", key_name=ground.key_name, ttl_seconds=3_600)
    items = [{"unit": f"run:{key}", "token": token} for key, token in held]
    figures: list[tuple[float, ...]] = []
    rounds = round(min(60.0, minutes * 60 / 4) / RENEW_EVERY_SECONDS)
    stopped = threading.Event()

    def renew_all() -> list[float]:
        took = []
        for first in range(0, LEASES, BATCH):
            ask = {"items": items[first : first + BATCH], "ttl_seconds": 3_600}
            began = time.monotonic()
            api.post("/leases/renew", ask).raise_for_status()
            took.append((time.monotonic() - began) * 1_000)
        return took

    def acquire() -> float:
        began = time.monotonic()
        lease = api.post("/leases/one/acquire", {"owner": "w"}).json()
        took = (time.monotonic() - began) * 1_000
        api.post("/leases/one/release", {"token": lease["token"]}).raise_for_status()
        return took

    def renew_one() -> float:
        began = time.monotonic()
        ask = {"token": items[0]["token"], "ttl_seconds": 3_600}
        api.post(f"/leases/{items[0]['unit']}/renew", ask).raise_for_status()
        return (time.monotonic() - began) * 1_000

    def minute() -> tuple[float, ...]:
        many: list[float] = []
        one: list[float] = []
        acquired: list[float] = []
        for _ in range(rounds):
            began = time.monotonic()
            many += renew_all()
            one += [renew_one() for _ in range(5)]
            acquired += [acquire() for _ in range(5)]
            if not hurry:
                stopped.wait(max(0.0, RENEW_EVERY_SECONDS - (time.monotonic() - began)))
        return tuple(percentile(took, 0.95) for took in (one, acquired, many))

    with session() as looking, session() as idle:
        idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT count(*) FROM agentstate_lease")
        result("| minute | renew one | acquire | renew 100, p95 ms | lease table, kB | dead rows |")
        result("|---|---|---|---|---|---|")
        for number in range(round(minutes * 60 / (rounds * RENEW_EVERY_SECONDS))):
            figures.append(minute())
            told(str(number + 1), figures[-1], looking)
        idle.execute("ROLLBACK")
        looking.execute("VACUUM agentstate_lease")
        told("after it", minute(), looking)
    slower = [last / first for first, last in zip(figures[0], figures[-1], strict=True)]
    names = zip(("renew one", "acquire", "renew 100"), slower, strict=True)
    verdict.say("O-44", ", ".join(f"{name} x {times:.2f}" for name, times in names),
                max(slower[:2]) <= SLOWER_MAX)  # fmt: skip


def told(minute: str, figures: tuple[float, ...], looking: psycopg.Connection[Any]) -> None:
    size, dead = looking.execute(SIZES).fetchone() or (0, 0)
    times = " | ".join(f"{figure:.1f}" for figure in figures)
    result(f"| {minute} | {times} | {size // 1024} | {dead} |")


PARTS: dict[str, tuple[Callable[..., None], float]] = {
    "locks": (locks, 5.0),
    "open-transaction": (open_transaction, 30.0),
}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("part", choices=PARTS)
    asked.add_argument("--minutes", type=float)
    asked.add_argument("--hurry", action="store_true", help="without pauses (open-transaction)")
    asked.add_argument("--pooler", action="store_true", help="behind PgBouncer")
    options = asked.parse_args()
    part, minutes = PARTS[options.part]
    more = {"hurry": True} if options.hurry else {}
    verdict = Verdict()
    with ExitStack() as stack:
        pooled = stack.enter_context(behind_a_pooler()) if options.pooler else {}
        ground = stack.enter_context(site(background=True, **pooled))
        part(ground, options.minutes or minutes, verdict, **more)
    return int(verdict.failed)


@contextmanager
def behind_a_pooler() -> Iterator[dict[str, str]]:
    """The environment of a site behind PgBouncer, while the block lasts."""
    from tests import pooler

    with tempfile.TemporaryDirectory(prefix="agentstate-pooler-") as folder:
        Path(folder).chmod(0o755)  # the server's user has to get in
        with pooler.running(Path(folder)) as environment:
            yield environment


if __name__ == "__main__":
    sys.exit(main())
