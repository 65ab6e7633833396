"""A worker whose runs take an hour, and that asks for no more time than the client gives by itself:
`python -m tests.client.stubborn sync|async URL KEY`. It says each run that it begins."""

import asyncio
import logging
import sys
import threading

from agentstate_client import AsyncClient, AsyncRun, Client, Run

HOUR_SECONDS = 3_600
TASK = "stubborn"


def tell(key: str) -> None:
    """In one write: four threads do it at once."""
    sys.stdout.write(f"{key}\n")
    sys.stdout.flush()


def work(url: str, key: str) -> None:
    with Client(url, key, worker="stubborn") as client:

        @client.worker(task=TASK, concurrency=4)
        def wait(run: Run) -> None:
            tell(run.key)
            threading.Event().wait(HOUR_SECONDS)

        client.work()


async def work_async(url: str, key: str) -> None:
    async with AsyncClient(url, key, worker="stubborn") as client:

        @client.worker(task=TASK, concurrency=4)
        async def wait(run: AsyncRun) -> None:
            tell(run.key)
            await asyncio.sleep(HOUR_SECONDS)

        await client.work()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    flavour, address, api_key = sys.argv[1:]
    if flavour == "async":
        asyncio.run(work_async(address, api_key))
    else:
        work(address, api_key)
