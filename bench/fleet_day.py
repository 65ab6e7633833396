"""A day of the fleet with every fault: what console and alerts showed, and that all adds up.

`.venv/bin/python -m bench.fleet_day --minutes 10 [--seed N] [--scenario storm]` on a scratch site:

1. so many minutes with every fault of the scenario; each has to appear on a page of the console
   and in an alert;
2. as many minutes without Celery: workers go on, pages and alerts say that nobody sweeps; started
   again, everything has to be caught up within a minute;
3. the whole fleet is killed with kill -9: what it held is shown as lapsed and told, and taken over
   by the next fleet;
4. every invariant is derived anew from the events.

Exit code 0: all of it was so.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentstate.cli.output import progress, result
from agentstate.cli.site import (
    FLEET_STOP_SECONDS,
    INTERRUPTED,
    Site,
    background_children,
    fleet_child,
    running_site,
)
from agentstate.supervisor import Child
from bench.drill.command import SCOPES, new_folder
from bench.drill.ground import Ground
from bench.drill.incidents import in_panel
from bench.torture.trial import move_in, scratch

LOOK_SECONDS = 3.0
CAUGHT_UP_SECONDS = 60.0
ALERT_SECONDS = 240.0
BUSY_PART = 0.5  # of the runs that ended a minute before: so many must end without Celery


@dataclass(slots=True)
class Sign:
    """A fault and where it shows: part, as HTML of a page, and rules, one of which has to fire.
    Times are seconds of the day; it began at begun_at.
    """

    fault: str
    page: str
    part: str
    rules: tuple[str, ...]
    begun_at: float = 0.0
    seen_after: float | None = None
    told_after: float | None = None

    @property
    def complete(self) -> bool:
        return self.seen_after is not None and self.told_after is not None


def signs() -> list[Sign]:
    return [
        Sign("crash", "/leases", in_panel("lapsed-title", "mark-lapsed"), ("lost-holders",)),
        Sign("freeze", "/workers", in_panel("overtaken-title", r"\?tab=refused"), ("fenced",)),
        Sign("slow renewals", "/leases", "mark-late", ("late-renewals",)),
        Sign(
            "race, stampede", "/contention", r"\?tab=refused",
            ("conflict-share", "retries-per-success"),
        ),
        Sign("spree", "/budgets", r"\?tab=refused", ("refused-charges",)),
        Sign("shared budget", "/budgets", r"[0-9a-f]{4}-\d+\.tokens", ("budget-nearly-used",)),
        Sign(
            "poison", "/runs?q=status:failed+tag:poison", r'<tr id="run-[^"]+-\d+"',
            ("poison-runs",),
        ),
        Sign("old release", "/workers", r"0\.9\.4", ("old-workers",)),
    ]  # fmt: skip


@dataclass(slots=True)
class Day:
    """A site, its console, and what is noticed."""

    site: Site
    ground: Ground
    options: argparse.Namespace
    key: str
    began: float

    def fleet(self) -> Child:
        made = fleet_child(self.options, self.site.url, self.key)
        return self.site.supervisor.add(made)

    def turn(self, until: float, look: Callable[[float], None]) -> None:
        """Look after the site until then, and look at the console now and then."""
        next_look = 0.0
        for _ in self.site.supervisor.turns():
            now = time.monotonic()
            if now >= until:
                return
            if now >= next_look:
                look(now - self.began)
                next_look = time.monotonic() + LOOK_SECONDS
        raise KeyboardInterrupt

    def wait(self, what: Callable[[], bool], *, within_seconds: float) -> float | None:
        """How long it took, while the site is looked after."""
        began = time.monotonic()
        for _ in self.site.supervisor.turns():
            if what():
                return time.monotonic() - began
            if time.monotonic() - began > within_seconds:
                return None
        raise KeyboardInterrupt

    def look_at(self, wanted: list[Sign]) -> Callable[[float], None]:
        def look(at: float) -> None:
            for sign in wanted:
                if sign.seen_after is None and self.ground.shows(sign.page, sign.part):
                    sign.seen_after = at
                    progress(f"{at:6.0f} s  {sign.fault}: on {sign.page}")
                if sign.told_after is None and self.ground.fires(*sign.rules):
                    sign.told_after = at
                    progress(f"{at:6.0f} s  {sign.fault}: alert {' or '.join(sign.rules)}")

        return look


@dataclass(slots=True)
class Outcome:
    """What came of the day, as lines for people, and whether it is as it should be."""

    lines: list[str]
    failed: list[str]

    def note(self, line: str, *, fine: bool) -> None:
        self.lines.append(f"  {'✓' if fine else '✗'} {line}")
        if not fine:
            self.failed.append(line)


def main() -> int:
    options = read_options()
    folder = new_folder("fleet-day")
    move_in(folder)
    outcome = Outcome([], [])
    host = argparse.Namespace(host="127.0.0.1", port=0)
    with scratch(folder), running_site(host) as site:
        day = open_day(site, options)
        try:
            live(day, outcome)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            day.ground.close()
    for line in outcome.lines:
        result(line)
    result(f"\nlogs in {folder}" if outcome.failed else "\nAll as it should be.")
    return 1 if outcome.failed else 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_day", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="with faults, then without Celery"
    )
    parser.add_argument("--off-minutes", type=float, help="without Celery, when not as many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", default="storm")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--speed", type=float)
    return parser.parse_args()


def open_day(site: Site, options: argparse.Namespace) -> Day:
    from django.db import connections

    from agentstate.cli import people

    password = people.make_password()
    people.save_user(name="onlooker", role="viewer", password=password)
    key = people.make_key(name="fleet-day", scopes=SCOPES)
    connections.close_all()
    ground = Ground(url=site.url, key=key, name="onlooker", password=password)
    ground.log_in()
    return Day(site=site, ground=ground, options=options, key=key, began=time.monotonic())


def live(day: Day, outcome: Outcome) -> None:
    wanted, minutes = signs(), day.options.minutes
    off_minutes = minutes if day.options.off_minutes is None else day.options.off_minutes
    fleet = day.fleet()
    day.turn(time.monotonic() + minutes * 60, day.look_at(wanted))
    for sign in wanted:
        outcome.note(told_of(sign), fine=sign.complete)
    before = ended_since(day.site.since) / minutes
    outcome.note(f"{before:.1f} runs ended a minute", fine=before > 0)

    without_celery(day, outcome, off_minutes, before)
    dead_fleet(day, outcome, fleet)
    add_up(day, outcome)


def without_celery(day: Day, outcome: Outcome, minutes: float, before: float) -> None:
    """Workers go on; the console and the alerts say it; then all is caught up within a minute."""
    progress(f"Celery is stopped for {minutes:g} min")
    day.site.supervisor.stop(day.site.background)
    since, stopped_at = database_now(), time.monotonic() - day.began
    silent = Sign("silent sweeper", "/system", SILENT, ("evaluator-silent",), stopped_at)
    day.turn(time.monotonic() + minutes * 60, day.look_at([silent]))
    outcome.note(told_of(silent), fine=silent.complete)
    meanwhile = ended_since(since) / minutes
    outcome.note(
        f"{meanwhile:.1f} runs ended a minute without Celery", fine=meanwhile >= BUSY_PART * before
    )
    for child in background_children():
        day.site.supervisor.add(child)
    started = database_now()
    back = day.wait(lambda: is_back(started), within_seconds=5 * CAUGHT_UP_SECONDS)
    took = day.wait(is_caught_up, within_seconds=5 * CAUGHT_UP_SECONDS)
    outcome.note(
        f"caught up {told(took)} after Celery began its first job again,"
        f" {told(back)} after it was started",
        fine=took is not None and took <= CAUGHT_UP_SECONDS,
    )


SILENT = in_panel("jobs-title", "[0-9]+ of [0-9]+ silent")


def is_back(started: object) -> bool:
    """Whether one of Celery's jobs has begun since: on a busy machine its start takes longest."""
    from django.db import connection

    from agentstate.store.models import Heartbeat

    try:
        # The feed has movers in the web processes, too.
        return Heartbeat.objects.exclude(name="move feed").filter(started_at__gt=started).exists()
    finally:
        connection.close()


def is_caught_up() -> bool:
    """Each job has run again and nothing that it knows of is left: read, not decided."""
    from django.db import connection

    from agentstate.store import reads
    from agentstate.store.models import Outbox

    try:
        jobs = reads.heartbeats()
        idle = not any(job.silent or job.behind for job in jobs)
        # What was written in these very moments waits for the mover's next pass.
        return idle and Outbox.objects.count() < 50
    finally:
        connection.close()


def dead_fleet(day: Day, outcome: Outcome, fleet: Child) -> None:
    """Everything that holds a lease dies at once."""
    sign = Sign(
        "dead fleet", "/leases", in_panel("lapsed-title", "mark-lapsed"), ("lapsed-unclaimed",),
        time.monotonic() - day.began,
    )  # fmt: skip
    assert fleet.pid is not None
    day.site.supervisor.children.remove(fleet)  # it shall not be started again
    os.killpg(fleet.pid, signal.SIGKILL)
    look = day.look_at([sign])

    def noticed() -> bool:
        look(time.monotonic() - day.began)
        return sign.complete

    day.wait(noticed, within_seconds=ALERT_SECONDS)
    outcome.note(told_of(sign), fine=sign.complete)
    successor = day.fleet()
    took = day.wait(lambda: not lapsed(), within_seconds=ALERT_SECONDS)
    outcome.note(f"taken over by the next fleet within {told(took)}", fine=took is not None)
    day.site.supervisor.stop([successor], within_seconds=3 * FLEET_STOP_SECONDS)


def add_up(day: Day, outcome: Outcome) -> None:
    from tasks.summary import lines, summarize

    found = summarize(since=day.site.since)
    outcome.lines += ["", *lines(found), ""]
    outcome.note(f"{len(found.differences)} differences in the audit", fine=not found.differences)
    outcome.note(f"{len(found.overdrafts)} overdrafts", fine=not found.overdrafts)


# --- what is looked up ---------------------------------------------------------------------------


def ended_since(since: object) -> int:
    from agentstate.store.models import Run

    return Run.objects.filter(ended_at__gte=since).count()


def lapsed() -> int:
    from agentstate.store import reads
    from agentstate.store.models import Lease

    return Lease.objects.filter(token__isnull=False, expires_at__lt=reads.now()).count()


def database_now() -> object:
    from agentstate.store import reads

    return reads.now()


def told_of(sign: Sign) -> str:
    alert = told(sign.told_after, sign.begun_at)
    seen = told(sign.seen_after, sign.begun_at)
    rules = " or ".join(sign.rules)
    return f"{sign.fault}: on {sign.page} after {seen}; alert {rules} after {alert}"


def told(seconds: float | None, begun_at: float = 0.0) -> str:
    return "never" if seconds is None else f"{seconds - begun_at:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
