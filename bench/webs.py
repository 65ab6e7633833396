"""Web processes as `./run` starts them, over the database at hand, for measurements alone.

Two on two ports, so that what calls them can spread itself evenly: of two that accept from one
socket the first to wake may take all connections.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentstate.cli.site import WEB_START_SECONDS, address, answers, listen
from bench.budget_slots import ROOT

STOP_SECONDS = 15


@contextmanager
def web_processes(home: str, count: int = 2) -> Iterator[list[Web]]:
    """As many, each with its address in `.url`; gone at the end of the block."""
    with ExitStack() as stack:
        running = [stack.enter_context(web_process(home, n)) for n in range(count)]
        for one in running:
            wait_for(one)
        yield running


class Web(subprocess.Popen[bytes]):
    url: str
    log: Path


@contextmanager
def web_process(home: str, number: int, *, code: Path = ROOT) -> Iterator[Web]:
    """code: the tree whose modules it runs."""
    log = Path(home) / f"web-{number}.log"
    with listen("127.0.0.1", 0) as listener, log.open("ab") as out:
        process = Web(
            [sys.executable, "-m", "agentstate.web", str(listener.fileno())],
            cwd=code, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            pass_fds=(listener.fileno(),),
            env=os.environ
            | {"AGENTSTATE_PROCESS": "web", "PYTHONPATH": f"{code}:{code}/client/src"},
        )  # fmt: skip
        process.url, process.log = address(listener), log
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(web: Web) -> None:
    """Raises RuntimeError with the end of its log when it does not start."""
    deadline = time.monotonic() + WEB_START_SECONDS
    while not answers(web.url):
        if web.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"web does not start: {web.log.read_text()[-2_000:]}")
        time.sleep(0.05)
