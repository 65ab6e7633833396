"""The process that speaks to a service through apprise: one address, one message, one answer.

Reads JSON from standard input and writes JSON to standard output. Without a message it only says
what the address is. Every connection of this process is checked where it is made, whatever library
makes it: Python tells an audit hook the very address that is connected to.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import signal
import sys
from typing import Any

# A second line of defence: whoever started it ends it sooner.
SECONDS = 40
# They show it on this machine, or write into its log.
LOCAL = frozenset({
    "blink1", "dbus", "gio", "glib", "gnome", "kde", "macosx", "qt", "syslog", "windows",
})  # fmt: skip
UNKNOWN = "apprise knows no such address; its pages list them, as slack://… or mailto://…"
ON_THIS_MACHINE = "it would be shown on this machine, which nobody looks at"
_SENDING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


class NotAllowed(OSError):
    """Not a machine that may be reached."""


def main() -> None:
    signal.alarm(SECONDS)
    asked = json.load(sys.stdin)
    answer = speak(asked) if "text" in asked else describe(asked["address"])
    json.dump(answer, sys.stdout)


def describe(address: str) -> dict[str, str]:
    """scheme and service of the address; wrong: why it is none."""
    service, wrong = _load(address)
    if service is None:
        return {"wrong": wrong}
    return {"scheme": _scheme(address), "service": str(service.service_name)}


def speak(asked: dict[str, Any]) -> dict[str, Any]:
    """Send the message; whether it arrived, and what apprise had to say."""
    import apprise

    refused = guard([ipaddress.ip_network(network) for network in asked["networks"]])
    service, wrong = _load(asked["address"])
    if service is None:
        return {"arrived": False, "text": wrong}
    capture: Any = apprise.LogCapture
    with capture(level=logging.WARNING, fmt="%(message)s") as log:
        arrived = bool(
            service.notify(body=asked["text"], title=asked["title"], notify_type=asked["kind"])
        )
        said = " ".join(log.getvalue().split())
    if refused:
        said = f"{refused[0]} is not a public address"
    return {"arrived": arrived, "text": "" if arrived else without(asked["address"], said)}


def guard(allowed: list[Any]) -> list[str]:
    """From now on, connect to nothing that may not be reached; what was tried all the same."""
    from agentstate.outside.networks import may_reach

    refused: list[str] = []

    def look(event: str, told: tuple[Any, ...]) -> None:
        if event not in _SENDING:
            return
        where = told[1]
        host = where[0] if isinstance(where, tuple) and where else where
        if where is None or (isinstance(host, str) and may_reach(host, allowed)):
            return
        refused.append(str(host)[:100])
        raise NotAllowed("not a machine that may be reached")

    sys.addaudithook(look)
    return refused


def without(address: str, said: str) -> str:
    """What was said, without anything that stands in the address."""
    for part in sorted(set(re.split(r"[^A-Za-z0-9_+=-]+", address)), key=len, reverse=True):
        if len(part) >= 6:
            said = said.replace(part, "…")
    return said or "it was not taken"


def _load(address: str) -> tuple[Any, str]:
    """apprise's object for it; None, and why, for what is no address of a service."""
    import apprise

    if _scheme(address) in LOCAL:
        return None, ON_THIS_MACHINE
    return apprise.Apprise.instantiate(address, suppress_exceptions=True), UNKNOWN


def _scheme(address: str) -> str:
    return address.partition("://")[0].lower()


if __name__ == "__main__":
    main()
