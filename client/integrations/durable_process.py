"""A durable function of three steps as a process: for the tests that harm it.

    python durable_process.py URL KEY FOLDER TTL_SECONDS sync|async

It writes down what it does in FOLDER/did. The step of a page waits for as long as there is a file
FOLDER/hold-<page>, or until an operator asks to cancel.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from agentstate_client import AgentStateError, AsyncClient, Client
from agentstate_client.durable import AsyncDurable, Durable

PAGES = ["a", "b", "c"]


class Folder:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def note(self, line: str) -> None:
        with (self._path / "did").open("a") as file:
            file.write(f"{line}\n")
        print(line)

    def is_held(self, page: str) -> bool:
        return (self._path / f"hold-{page}").exists()


def carry_out(url: str, key: str, folder: Folder, ttl_seconds: int) -> list[str]:
    with Client(url, key, worker="durable") as client:
        durable = Durable(client, ttl_seconds=ttl_seconds)

        @durable.step
        def fetch(page):
            print(f"in {page}")
            while folder.is_held(page) and not durable.run.lease.cancel_requested.is_set():
                time.sleep(0.02)
            folder.note(f"fetched {page}")
            return {"page": page, "by": os.getpid()}

        @durable
        def report(pages):
            return [fetch(page)["page"] for page in pages]

        return report(PAGES)


async def carry_out_async(url: str, key: str, folder: Folder, ttl_seconds: int) -> list[str]:
    async with AsyncClient(url, key, worker="durable") as client:
        durable = AsyncDurable(client, ttl_seconds=ttl_seconds)

        @durable.step
        async def fetch(page):
            print(f"in {page}")
            while folder.is_held(page) and not durable.run.lease.cancel_requested.is_set():
                await asyncio.sleep(0.02)
            folder.note(f"fetched {page}")
            return {"page": page, "by": os.getpid()}

        @durable(name="areport")
        async def report(pages):
            return [(await fetch(page))["page"] for page in pages]

        return await report(PAGES)


def main(url: str, key: str, folder: str, ttl_seconds: str, way: str) -> int:
    given = (url, key, Folder(folder), int(ttl_seconds))
    try:
        found = carry_out(*given) if way == "sync" else asyncio.run(carry_out_async(*given))
    except AgentStateError as failure:
        print(f"refused {type(failure).__name__}")
        return 3
    print(f"returned {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
