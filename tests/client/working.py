"""A worker as a process of its own, for the tests that harm it: `python -m tests.client.working`.

It carries out runs whose task says how: `STEPS x SECONDS`, each step a wait of so long that blocks
everything in its thread or loop. What a step did is one line in the file DONE.
"""

import asyncio
import logging
import sys
import time
from pathlib import Path

from agentstate_client import AsyncClient, AsyncRun, Client, Run


def step_of(run_key: str, number: int, seconds: float, done: Path) -> int:
    with done.open("a") as file:
        file.write(f"{run_key} {number} begins\n")
    time.sleep(seconds)
    with done.open("a") as file:
        file.write(f"{run_key} {number} ends\n")
    return number


def plan_of(task: str | None) -> tuple[int, float]:
    steps, _, seconds = (task or "").partition(" x ")
    return int(steps), float(seconds)


def work(url: str, key: str, ttl_seconds: int, done: Path) -> None:
    with Client(url, key, worker="w-1") as client:

        @client.worker(ttl_seconds=ttl_seconds, concurrency=2)
        def count(run: Run) -> list[int]:
            steps, seconds = plan_of(run.task)
            names = [f"step-{number}" for number in range(steps)]
            return [
                run.step(name).run(step_of, run.key, number, seconds, done)
                for number, name in enumerate(names)
            ]

        client.work(drain_seconds=20)


async def work_async(url: str, key: str, ttl_seconds: int, done: Path) -> None:
    async with AsyncClient(url, key, worker="w-1") as client:

        @client.worker(ttl_seconds=ttl_seconds, concurrency=2)
        async def count(run: AsyncRun) -> list[int]:
            steps, seconds = plan_of(run.task)
            names = [f"step-{number}" for number in range(steps)]
            return [
                await run.step(name).run(step_of, run.key, number, seconds, done)
                for number, name in enumerate(names)
            ]

        await client.work(drain_seconds=20)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    flavour, address, api_key, ttl, path = sys.argv[1:]
    if flavour == "async":
        asyncio.run(work_async(address, api_key, int(ttl), Path(path)))
    else:
        work(address, api_key, int(ttl), Path(path))
