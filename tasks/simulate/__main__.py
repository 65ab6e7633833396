"""`python -m tasks.simulate --url http://127.0.0.1:8000`, with the key in AGENTSTATE_KEY."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import Any

from tasks.drafts import RunDraft
from tasks.samples import read_samples
from tasks.simulate import scenario
from tasks.simulate.plan import Fault
from tasks.simulate.processes import Stop
from tasks.simulate.scenario import Scenario
from tasks.simulate.shift import Shift
from tasks.simulate.supervisor import Fleet, Supervisor

KEY_VARIABLE = "AGENTSTATE_KEY"
RATES = {
    Fault.CRASH: "workers killed",
    Fault.FREEZE: "workers stopped past their lease",
    Fault.SLOW: "workers that renew late",
    Fault.RACE: "two writers for one number",
    Fault.STAMPEDE: "a dozen writers for one number",
    Fault.SPREE: "workers that spend until a cap is met",
}


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        warn(f"{KEY_VARIABLE} is not set: an API key with the scopes write, read, payloads")
        return 2
    try:
        drafts, plan = samples(), changed(scenario.read(asked.scenario), asked)
    except (FileNotFoundError, scenario.BadScenario) as wrong:
        warn(str(wrong))
        return 2
    stop = Stop()
    stop.listen()
    shift = Shift(url=asked.url, key=key, speed=plan.speed, ttl_seconds=plan.lease_ttl_seconds)
    fleet = Fleet(shift=shift, drafts=drafts, scenario=plan, seconds=asked.seconds)
    say(f"{plan.workers} workers, {len(drafts)} kinds of runs, seed {plan.seed}: {plan.about}")
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
    add(
        "--scenario",
        default=scenario.DEFAULT,
        metavar="NAME",
        help=f"one of {', '.join(scenario.names())}, or a TOML file ({scenario.DEFAULT}); the"
        " options below go before what it says",
    )
    add("--workers", type=_whole(1, 200), metavar="N", help="processes")
    add("--backlog", type=_whole(0, 1_000), metavar="N", help="runs that wait, all day long")
    add("--speed", type=_positive, metavar="X", help="2 is twice as fast")
    add("--seed", type=int, metavar="N", help="of the faults and the order of runs")
    add("--ttl", type=_whole(1, 3_600), metavar="SECONDS", help="of each lease")
    add("--seconds", type=_positive, metavar="N", help="end by itself after so long")
    for fault in Fault:
        add(f"--{fault}-rate", type=_rate, metavar="R", help=f"{RATES[fault]} a minute")
    add("--tight-every", type=_whole(0, 10**6), metavar="N", help="each Nth has too small a budget")
    add("--quiet", action="store_true", help="only the last line")
    return options


def changed(plan: Scenario, asked: argparse.Namespace) -> Scenario:
    """The scenario with what was asked for on the command line."""
    rates = {fault: getattr(asked, f"{fault}_rate") for fault in Fault}
    given: dict[str, Any] = {
        "workers": asked.workers,
        "speed": asked.speed,
        "seed": asked.seed,
        "lease_ttl_seconds": asked.ttl,
        "backlog": asked.backlog,
        "phases": None if asked.backlog is None else (),
        "tight_every": asked.tight_every,
        "faults": dict(plan.faults) | {f: rate for f, rate in rates.items() if rate is not None},
    }
    return replace(plan, **{name: value for name, value in given.items() if value is not None})


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
