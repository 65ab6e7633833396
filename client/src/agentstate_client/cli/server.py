"""The server's commands, where the server is installed beside the client.

Both packages are called by one word, `agentstate`, and two packages cannot own one script: the
client has it, since the server requires the client. What the server does (demo, serve, key, …) it
names under an entry point, and is handed the rest of the command line unread.
Why: docs/decisions/0056-wheels.md in the project's repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

GROUP = "agentstate_client.commands"
# What it is told by when it is not there; more may come with a newer server.
KNOWN = frozenset(
    ("backup", "bundle", "celery", "demo", "doctor", "export", "import", "key", "keys", "manage",
     "prepare", "restore", "serve", "setup-code", "user")
)  # fmt: skip


def server() -> Any:
    """Its module: `names()` and `main(argv)`. None where the server is not installed."""
    for found in entry_points(group=GROUP):
        return found.load()
    return None


def hand_over(words: Sequence[str]) -> int | None:
    """The server's exit code when the first word is a command of its own; None when it is not."""
    if not words or words[0].startswith("-"):
        return None
    there = server()
    if there is None or words[0] not in there.names():
        return None
    code: int = there.main(list(words))
    return code


def is_missing(words: Sequence[str]) -> bool:
    """Whether a command of the server's was asked for, and only the server is not there."""
    return bool(words) and words[0] in KNOWN
