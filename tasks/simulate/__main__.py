"""`python -m tasks.simulate --url http://127.0.0.1:8000`, with the key in AGENTSTATE_KEY."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tasks.drafts import RunDraft
from tasks.samples import read_samples
from tasks.simulate.processes import Stop
from tasks.simulate.supervisor import Fleet, Supervisor
from tasks.simulate.worker import Shift

KEY_VARIABLE = "AGENTSTATE_KEY"


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        warn(f"{KEY_VARIABLE} is not set: an API key with the scopes write, read, payloads")
        return 2
    try:
        drafts = samples()
    except FileNotFoundError as missing:
        warn(str(missing))
        return 2
    stop = Stop()
    stop.listen()
    fleet = Fleet(
        shift=Shift(url=asked.url, key=key, speed=asked.speed, ttl_seconds=asked.ttl),
        drafts=drafts,
        workers=asked.workers,
        backlog=asked.backlog,
        seed=asked.seed,
        crashes_per_minute=asked.crash_rate,
        freezes_per_minute=asked.freeze_rate,
        races_per_minute=asked.race_rate,
        tight_every=asked.tight_every,
        seconds=asked.seconds,
    )
    say(f"{asked.workers} workers, {len(drafts)} kinds of runs, seed {asked.seed}")
    tally = Supervisor(fleet=fleet, stop=stop, say=(lambda _: None) if asked.quiet else say).run()
    say(str(tally))
    return 0


def parser() -> argparse.ArgumentParser:
    """The options; rates are per minute over the whole fleet."""
    options = argparse.ArgumentParser(
        prog="python -m tasks.simulate",
        description="Workers that play real agent runs back over HTTP, and crash, freeze and race."
        f" The API key (scopes write, read, payloads) comes in the environment as {KEY_VARIABLE}.",
    )
    add = options.add_argument
    add("--url", required=True, help="where the server is, such as http://127.0.0.1:8000")
    add("--workers", type=_whole(1, 200), default=4, metavar="N", help="processes (4)")
    add("--backlog", type=_whole(0, 1_000), default=4, metavar="N", help="waiting runs (4)")
    add("--speed", type=_positive, default=1.0, metavar="X", help="2 is twice as fast (1)")
    add("--seed", type=int, default=1, metavar="N", help="of the faults and the order of runs (1)")
    add("--ttl", type=_whole(1, 3_600), default=6, metavar="SECONDS", help="of each lease (6)")
    add("--seconds", type=_positive, metavar="N", help="end by itself after so long")
    add("--crash-rate", type=_rate, default=8.0, metavar="R", help="workers killed a minute (8)")
    add("--freeze-rate", type=_rate, default=4.0, metavar="R", help="workers frozen a minute (4)")
    add("--race-rate", type=_rate, default=6.0, metavar="R", help="races for a number a minute (6)")
    add(
        "--tight-every",
        type=_whole(0, 10**6),
        default=5,
        metavar="N",
        help="each Nth run has too small a budget, 0: none (5)",
    )
    add("--quiet", action="store_true", help="only the last line")
    return options


def samples() -> dict[str, RunDraft]:
    """Everything that can be played back, by its key."""
    return {draft.key: draft for draft in read_samples(warn=warn) if draft.ended}


def say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  fleet  {line}\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    sys.stderr.write(f"fleet: {line}\n")


def _whole(least: int, most: int):  # type: ignore[no-untyped-def]
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}")
        return number

    return read


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError("a number above 0")
    return number


def _rate(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 600:
        raise argparse.ArgumentTypeError("a rate a minute, from 0 to 600")
    return number


if __name__ == "__main__":
    sys.exit(main())
