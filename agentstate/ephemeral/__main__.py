"""The site in a process of its own, for a caller that cannot have it in theirs.

    python -m agentstate.ephemeral

Line by line, JSON: a call such as {"do": "advance_clock", "seconds": 61} on the standard input, and
{"done": …} or {"failed": text} on the standard output. It ends when its input does, so also when
the caller was killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from datetime import datetime
from typing import Any, TextIO

from agentstate.embedded import EmbeddedFailure
from agentstate.ephemeral.configuration import Unfit
from agentstate.ephemeral.site import Site

CALLS = frozenset(
    ("start", "make_key", "empty", "sweep", "now", "set_clock", "advance_clock", "release_clock")
)


def main() -> int:
    """Answer calls until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who ends our input
    told = own_output()
    site = Site()
    try:
        for line in sys.stdin:
            answer = answered(site, json.loads(line))
            told.write(json.dumps(answer, default=plain) + "\n")
            told.flush()
    except BrokenPipeError:
        return 0
    finally:
        site.stop()
    return 0


def own_output() -> TextIO:
    """The standard output for answers alone; what anything else prints goes to the other one."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return told


def answered(site: Site, call: dict[str, Any]) -> dict[str, Any]:
    name = call.pop("do")
    if name not in CALLS:
        return {"failed": f"no such call: {name}"}
    if "at" in call:
        call["at"] = datetime.fromisoformat(call["at"])
    try:
        return {"done": getattr(site, name)(**call)}
    except (Unfit, EmbeddedFailure) as failure:
        return {"failed": str(failure)}
    except Exception as failure:  # the caller's test has to hear of it, whatever it is
        return {"failed": f"{type(failure).__name__}: {failure}"}


def plain(value: Any) -> Any:
    """What json has no word for."""
    return value.isoformat() if isinstance(value, datetime) else dataclasses.asdict(value)


if __name__ == "__main__":
    sys.exit(main())
