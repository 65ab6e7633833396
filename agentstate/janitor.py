"""Ends what a killed supervisor left. Started by supervisor.py; standard library only.

Its input is a pipe from the supervisor: "+123" when a process group begins, "-123" when it is
over, and "!" with a command as JSON that is to be carried out last. When the pipe closes without
"bye", the supervisor was killed: whatever still runs is asked to end, and made to, and then the
command stops the database. So a `kill -9` of the parent leaves nothing behind, on any Unix.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 8.0


def main() -> None:
    """Read until the pipe closes, then clean up unless the supervisor took its leave."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor's to act on
    groups: set[int] = set()
    last: list[str] = []
    for line in sys.stdin:
        word = line.strip()
        if word == "bye":
            return
        if word.startswith("!"):
            last = json.loads(word[1:])
        elif word.startswith("+"):
            groups.add(int(word[1:]))
        else:
            groups.discard(int(word[1:]))
    end_groups(groups)
    if last:
        subprocess.run(last, check=False)


def end_groups(groups: set[int]) -> None:
    """SIGTERM to each group, then SIGKILL to those that are still there after the grace."""
    deadline = time.monotonic() + GRACE_SECONDS
    alive = {group for group in groups if send(group, signal.SIGTERM)}
    while alive and time.monotonic() < deadline:
        time.sleep(0.1)
        alive = {group for group in alive if send(group, 0)}
    for group in alive:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """False when nobody is left in the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
