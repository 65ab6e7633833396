"""Slack, e-mail, PagerDuty and the others that apprise knows: each try in a process of its own.

apprise brings the code of a hundred services, which would be in every worker's memory, keep the
address in its objects and its log, and could not be stopped in time. So a process
(`speaking.py`) gets the address by its standard input, connects only to what may be reached, and
is ended when its time is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from agentstate.outside.webhooks import one_line
from agentstate.store.alerting import What
from agentstate.store.delivering import Answer

SECONDS, DESCRIBE_SECONDS = 25.0, 30.0
OUTPUT_BYTES = 65_536
# What calls people in a chat wherever it stands, and may be part of a name: @everyone of Discord,
# <!channel> of Slack. A word joiner behind its first sign is not seen, and calls nobody.
_CALLS = re.compile(r"@(?=everyone|here|channel|all\b)|<(?=[@!#])", re.IGNORECASE)
NO_ANSWER = f"no whole answer within {SECONDS:.0f} s"
BROKEN = "the process that should have sent it failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What apprise makes of an address. wrong: why it is none, else the others are set."""

    scheme: str = ""
    service: str = ""
    wrong: str = ""


def describe(address: str) -> Description:
    """What the address is; nothing is sent."""
    asked = json.dumps({"address": address}).encode()
    try:
        done = subprocess.run(
            _command(), input=asked, capture_output=True, timeout=DESCRIBE_SECONDS, env=_nothing()
        )
        told = json.loads(done.stdout[:OUTPUT_BYTES])
    except (subprocess.TimeoutExpired, ValueError):
        return Description(wrong="it could not be looked at in time: try again")
    return Description(**told)


async def send(*, address: str, title: str, text: str, kind: str) -> Answer:
    """Try it once. kind: apprise's word for it: info, success, warning or failure."""
    asked = {
        "address": address,
        "title": uncalled(title),
        "text": uncalled(text),
        "kind": kind,
        "networks": [str(network) for network in settings.DELIVERY_NETWORKS],
    }
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_nothing(),
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate(json.dumps(asked).encode())
        told = json.loads(output[:OUTPUT_BYTES])
        arrived, said = bool(told["arrived"]), one_line(told["text"])
    except TimeoutError:
        arrived, said = False, NO_ANSWER
    except (ValueError, KeyError):
        arrived, said = False, BROKEN
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Answer(arrived=arrived, text=said, took_ms=int((time.monotonic() - began) * 1_000))


def kind_of(message: Mapping[str, Any]) -> str:
    """apprise's word for what a message tells."""
    what = message["type"].removeprefix("alert.")
    if what in (What.OVER, What.TEST):
        return "success" if what == What.OVER else "info"
    return "failure" if message["data"]["state"] == "alert" else "warning"


def uncalled(text: str) -> str:
    """The text, by which nobody is called who did not ask for it: a run may be named x@everyone."""
    return _CALLS.sub(lambda found: f"{found[0]}\u2060", text)


def _command() -> list[str]:
    """-I: neither the environment nor the folder that it is started in decides what it imports."""
    return [sys.executable, "-I", "-c", _START, str(settings.BASE_DIR)]


_START = (
    "import sys; sys.path.append(sys.argv[1]); from agentstate.outside.speaking import main; main()"
)


def _nothing() -> dict[str, str]:
    """The environment of that process: no proxy, no setting of ours."""
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
