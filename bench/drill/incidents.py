"""The incidents: how each is staged, where it is seen, and what ends it.

Each yields its moments in order. The clock of an incident begins when it is staged; whatever is
waited for has a limit, and one that is passed fails the drill.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.drill.ground import Ground, NotDone, unit_of

ROOT = Path(__file__).resolve().parent.parent.parent
TTL_SECONDS = 4
WRITERS = 12
CAP, CHARGE = 1_000, 300
# How long each may take. An alert has to be judged first: a lapsed lease by its minute, a silent
# evaluator by its three periods, and each by the next evaluation.
START_SECONDS, SHOWN_SECONDS, TOLD_SECONDS, ENDED_SECONDS = 60.0, 60.0, 180.0, 90.0


@dataclass(slots=True)
class Course:
    """What came of an incident: seconds after it was staged, None: not in time.

    resolved_by: who ended it. before: its alert was firing already, so it tells nothing.
    """

    incident: str
    staged: str = ""
    shown_after: float | None = None
    told_after: float | None = None
    resolved_after: float | None = None
    resolved_by: str = ""
    before: bool = False
    trouble: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        seen = (self.shown_after, self.told_after, self.resolved_after)
        return None not in seen and not self.trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Where an incident is seen: a page with a part of its HTML, and alerts."""

    page: str
    part: str
    rules: tuple[str, ...]


def watch(ground: Ground, sight: Sight, course: Course, began: float) -> None:
    """Wait for page and alert at once, each for itself."""
    waits = {
        "shown_after": (lambda: ground.shows(sight.page, sight.part), SHOWN_SECONDS),
        "told_after": (lambda: is_told(ground, sight), TOLD_SECONDS),
    }
    late = time.monotonic() - began

    def look(name: str) -> None:
        what, within_seconds = waits[name]
        found = ground.wait(what, within_seconds=within_seconds)
        setattr(course, name, None if found is None else found + late)

    threads = [threading.Thread(target=look, args=(name,)) for name in waits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_panel(title: str, part: str) -> str:
    """The part within the panel of that title."""
    return f'id="{title}"(?:(?!</section>).)*{part}'


def is_told(ground: Ground, sight: Sight) -> bool:
    if sight.rules == ("silent",):
        return bool(ground.ask("GET", "alerts")["silent"])
    return ground.fires(*sight.rules)


def name_of(incident: str) -> str:
    return f"drill-{incident}-{secrets.token_hex(3)}"


@contextmanager
def holder(ground: Ground, run: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process in the middle of the run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.drill.holder", ground.url, run, str(TTL_SECONDS)],
        cwd=ROOT,
        env=os.environ | {"AGENTSTATE_KEY": ground.key},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("step 1"):
            raise NotDone("the worker of the drill did not begin")
        yield process
    finally:
        for number in (signal.SIGKILL, signal.SIGCONT):
            if process.poll() is None:
                process.send_signal(number)
        process.communicate()


def finish(ground: Ground, run: str) -> None:
    """Take the run as another worker, and end it."""
    ask = {"owner": "drill-other~0001", "ttl_seconds": 30}
    grant = ground.ask("POST", f"{unit_of(run)}/acquire", ask)
    fence = {"Agentstate-Fence": str(grant["token"])}
    ground.ask("POST", f"runs/{run}/transitions", {"to": "completed"}, **fence)


def begin(ground: Ground, run: str) -> None:
    ground.create(run, status="running")


# --- the incidents -------------------------------------------------------------------------------


def dead_holder(ground: Ground) -> Course:
    """A worker dies; nobody takes its run until an operator takes it back."""
    run = name_of("dead-holder")
    sight = Sight(
        page="/leases",
        part=in_panel("lapsed-title", re.escape(run)),
        rules=("lapsed-unclaimed",),
    )
    course = Course("dead-holder", f"the holder of {run} is killed", before=is_told(ground, sight))
    begin(ground, run)
    with holder(ground, run) as process:
        lease = ground.ask("GET", unit_of(run))
        process.kill()
        began = time.monotonic()
        watch(ground, sight, course, began)
    ground.ask(
        "POST",
        f"{unit_of(run)}/reclaim",
        {"expected_token": lease["token"], "expected_owner": lease["owner"], "reason": "a drill"},
    )
    finish(ground, run)
    course.resolved_after = time.monotonic() - began
    course.resolved_by = "the operator took it back, another worker ended it"
    return course


def frozen_holder(ground: Ground) -> Course:
    """A worker stands still past its lease; another takes over, and the first one wakes up."""
    run = name_of("frozen-holder")
    sight = Sight(
        page="/workers", part=in_panel("overtaken-title", re.escape(run)), rules=("fenced",)
    )
    course = Course(
        "frozen-holder", f"the holder of {run} is frozen", before=is_told(ground, sight)
    )
    begin(ground, run)
    with holder(ground, run) as process:
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        if ground.wait(lambda: is_lapsed(ground, run), within_seconds=START_SECONDS) is None:
            course.trouble.append("its lease did not run out")
        finish(ground, run)
        course.resolved_after = time.monotonic() - began
        course.resolved_by = "the system: its lease ran out, its late write was refused"
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=START_SECONDS)
        if (last := out.split()[-1]) not in ("stale-fence", "already-terminal"):
            course.trouble.append(f"its late write was answered with {last}")
        watch(ground, sight, course, began)
    return course


def is_lapsed(ground: Ground, run: str) -> bool:
    return bool(ground.ask("GET", unit_of(run))["state"] == "lapsed")


def hot_run(ground: Ground) -> Course:
    """A dozen writers want every number of one run; an operator puts a brake on it."""
    run = name_of("hot-run")
    sight = Sight(
        page="/contention",
        part=rf"{re.escape(run)}\?tab=refused",
        rules=("conflict-share", "retries-per-success"),
    )
    course = Course("hot-run", f"{WRITERS} writers on {run}", before=is_told(ground, sight))
    begin(ground, run)
    stop, refusals = threading.Event(), set[str]()
    writers = [
        threading.Thread(target=storm, args=(ground, run, stop, refusals)) for _ in range(WRITERS)
    ]
    began = time.monotonic()
    for writer in writers:
        writer.start()
    try:
        watch(ground, sight, course, began)
        ground.ask(
            "PUT", f"runs/{run}/brake", {"per_second": 1, "seconds": 60, "reason": "a drill"}
        )
        if ground.wait(lambda: "run-hot" in refusals, within_seconds=ENDED_SECONDS) is not None:
            course.resolved_after = time.monotonic() - began
        course.resolved_by = "the operator's brake: more than that is refused"
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    ground.ask("POST", f"runs/{run}/transitions", {"to": "cancelled"})
    return course


def storm(ground: Ground, run: str, stop: threading.Event, refusals: set[str]) -> None:
    """Read the last number, want the next one, as fast as it goes."""
    while not stop.is_set():
        try:
            seq = ground.ask("GET", f"runs/{run}")["last_seq"]
            document = {"events": [{"type": "drill.note"}], "expected_seq": seq}
            refusals.add(ground.refusal("POST", f"runs/{run}/events", document))
        except (NotDone, httpx.HTTPError):
            stop.wait(0.2)
        stop.wait(0.02)


def dry_budget(ground: Ground) -> Course:
    """A run has used up its budget; an operator raises the cap."""
    run = name_of("dry-budget")
    sight = Sight(
        page="/budgets",
        part=rf"{re.escape(run)}\?tab=refused",
        rules=("refused-charges", "budget-nearly-used"),
    )
    course = Course("dry-budget", f"{run} has used up its cap", before=is_told(ground, sight))
    ground.create(run, status="running", budgets=[{"name": "tokens", "unit": "tokens", "cap": CAP}])
    spend = f"runs/{run}/budgets/tokens/spend"
    while not (code := ground.refusal("POST", spend, {"amount": CHARGE})):
        pass
    began = time.monotonic()
    if code != "budget-exhausted":
        course.trouble.append(f"the charge beyond the cap was refused with {code}")
    watch(ground, sight, course, began)
    ground.ask("PATCH", f"runs/{run}/budgets/tokens", {"cap": 10 * CAP, "reason": "a drill"})
    ground.ask("POST", spend, {"amount": CHARGE})
    course.resolved_after = time.monotonic() - began
    course.resolved_by = "the operator raised the cap, the charge was admitted"
    ground.ask("POST", f"runs/{run}/transitions", {"to": "completed"})
    return course


def silent_sweeper(ground: Ground) -> Course:
    """Celery's worker and its clock stand still; workers go on; then they run again."""
    if not ground.background:
        raise NotDone("silent-sweeper stops Celery: on a scratch site only (without --url)")
    sight = Sight(
        page="/system", part=in_panel("jobs-title", "[0-9]+ of [0-9]+ silent"), rules=("silent",)
    )
    course = Course(
        "silent-sweeper", "Celery's worker and beat are frozen", before=is_told(ground, sight)
    )
    run = name_of("silent-sweeper")
    signal_all(ground, signal.SIGSTOP)
    began = time.monotonic()
    try:
        begin(ground, run)
        finish(ground, run)  # nothing of a worker's needs Celery
        watch(ground, sight, course, began)
    finally:
        signal_all(ground, signal.SIGCONT)
    back = time.monotonic()

    def is_well() -> bool:
        return not is_told(ground, sight) and not ground.shows(sight.page, sight.part)

    if ground.wait(is_well, within_seconds=ENDED_SECONDS) is not None:
        course.resolved_after = time.monotonic() - began
    course.resolved_by = f"it ran again, and had caught up {time.monotonic() - back:.0f} s later"
    return course


def signal_all(ground: Ground, number: signal.Signals) -> None:
    for child in ground.background:
        if child.pid is not None:
            os.killpg(child.pid, number)


INCIDENTS: dict[str, Callable[[Ground], Course]] = {
    "dead-holder": dead_holder,
    "frozen-holder": frozen_holder,
    "hot-run": hot_run,
    "dry-budget": dry_budget,
    "silent-sweeper": silent_sweeper,
}
