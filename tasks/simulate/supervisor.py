"""Keeps a fleet of worker processes going while it kills, freezes and races them by plan.

A worker that is killed is started again, as another one. A frozen one is replaced at once and woken
when somebody else has its run, so that its next write comes too late; then it is let go. A slow one
is woken before its lease is over. The one that feeds runs keeps as many of them waiting as the
scenario says.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tasks.drafts import RunDraft
from tasks.simulate.feeder import Feeder
from tasks.simulate.plan import Due, Fault, faults
from tasks.simulate.processes import Deeds, Reports, Stop, end_all, fork, gone, send
from tasks.simulate.scenario import Scenario
from tasks.simulate.shift import Shift
from tasks.simulate.worker import Worker

TICK_SECONDS, RESTART_SECONDS, END_SECONDS = 0.05, 0.5, 2.5
# How long a frozen worker sleeps when nobody takes its run, in lease ttls.
FREEZE_TTLS_MAX = 4
# How much of its lease a slow one is stopped for: later than it should renew, and in time.
SLOW_TTL_PART = 0.7
# After the takeover: long enough for the successor to write, short enough to watch.
WAKE_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What to run. seconds: for how long, None: until it is stopped."""

    shift: Shift
    drafts: Mapping[str, RunDraft]
    scenario: Scenario
    seconds: float | None = None


@dataclass(slots=True)
class Tally:
    """What has happened, counted from the reports of the processes."""

    created: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    killed: int = 0
    frozen: int = 0
    slowed: int = 0
    stampedes: int = 0
    sprees: int = 0
    poisoned: int = 0
    taken_over: int = 0
    fenced: int = 0
    conflicts: int = 0
    charges_refused: int = 0
    troubles: int = 0

    def __str__(self) -> str:
        counts = ((f.name.replace("_", " "), getattr(self, f.name)) for f in fields(self))
        return ", ".join(f"{count} {name}" for name, count in counts)


@dataclass(slots=True)
class Member:
    """A worker process. run, token, step: what it is in the middle of, if anything.

    deeds: what it is told to do. replaced: it was frozen and another has its slot.
    wake_at, let_go_at: seconds after the start.
    """

    pid: int
    slot: int
    name: str
    deeds: Deeds
    run: str | None = None
    token: int | None = None
    step: int | None = None
    killed: bool = False
    replaced: bool = False
    wake_at: float | None = None
    let_go_at: float | None = None


class Supervisor:
    """Runs a fleet until `stop` is set or its seconds are over. say: told a line for people."""

    def __init__(self, *, fleet: Fleet, stop: Stop, say: Callable[[str], None]) -> None:
        self.fleet, self.stop, self.say = fleet, stop, say
        self.tally = Tally()
        self._reports = Reports()
        self._members: dict[int, Member] = {}
        self._restarts: list[tuple[float, int]] = []
        self._due: list[Due] = []
        self._plan = faults(seed=fleet.scenario.seed, per_minute=fleet.scenario.faults)
        self._next_due = next(self._plan, None)
        self._wish_read, self._wish_write = os.pipe()
        os.set_blocking(self._wish_read, False)
        self._open_runs = 0
        self._feeder = 0

    def run(self) -> Tally:
        """What has happened. Every process of the fleet has ended when this returns."""
        self._started_at, born_of = time.monotonic(), os.getppid()
        self._feeder = fork(self._feed)
        try:
            for slot in range(1, self.fleet.scenario.workers + 1):
                self._start(slot)
            while not (self.stop.is_set or self._is_over() or os.getppid() != born_of):
                self._tick()
        finally:
            end_all({self._feeder, *self._members}, within_seconds=END_SECONDS)
            self._take_reports(within_seconds=0)
        return self.tally

    def _is_over(self) -> bool:
        return self.fleet.seconds is not None and self._now() >= self.fleet.seconds

    def _now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    def _tick(self) -> None:
        self._take_reports(within_seconds=TICK_SECONDS)
        self._reap()
        self._wish_for_runs()
        self._break_things()
        self._wake_sleepers()
        while self._restarts and self._restarts[0][0] <= self._now():
            self._start(self._restarts.pop(0)[1])

    # --- processes -----------------------------------------------------------------------------

    def _feed(self) -> None:
        stop = Stop()
        stop.listen()
        fleet = self.fleet
        Feeder(
            shift=fleet.shift,
            drafts=fleet.drafts,
            scenario=fleet.scenario,
            wishes=self._wish_read,
            tell=self._reports.tell,
            stop=stop,
        ).feed()

    def _start(self, slot: int) -> None:
        deeds = Deeds()
        pid = fork(lambda: self._work(slot, deeds))
        self._members[pid] = Member(pid=pid, slot=slot, name=self._machine(slot), deeds=deeds)

    def _machine(self, slot: int) -> str:
        return f"sim-{(slot - 1) // self.fleet.scenario.workers_per_machine + 1}"

    def _work(self, slot: int, deeds: Deeds) -> None:
        stop = Stop()
        stop.listen()
        worker = Worker(
            shift=self.fleet.shift,
            name=self._machine(slot),
            drafts=self.fleet.drafts,
            tell=self._reports.tell,
            stop=stop,
            is_old=slot <= self.fleet.scenario.old_workers,
            deeds=deeds,
        )
        signal.signal(signal.SIGCONT, lambda *_: setattr(worker, "was_frozen", True))
        worker.work()

    def _reap(self) -> None:
        for member in list(self._members.values()):
            status = gone(member.pid)
            if status is None:
                continue
            del self._members[member.pid]
            member.deeds.close()
            if not member.replaced:
                self._restarts.append((self._now() + RESTART_SECONDS, member.slot))
                if not member.killed:
                    self.say(f"{member.name} ended by itself with status {status}; started again")
        if gone(self._feeder) is not None:
            self._feeder = fork(self._feed)

    def _wish_for_runs(self) -> None:
        """Keep some more runs open than there are workers; when in doubt, one more."""
        missing = self._wanted_runs() - self._open_runs
        if missing > 0:
            self._open_runs += missing
            os.write(self._wish_write, b"." * missing)

    def _wanted_runs(self) -> int:
        scenario = self.fleet.scenario
        return scenario.workers + scenario.backlog_at(self._now() * self.fleet.shift.speed)

    # --- faults --------------------------------------------------------------------------------

    def _break_things(self) -> None:
        while self._next_due is not None and self._next_due.at_seconds <= self._now():
            self._due.append(self._next_due)
            self._next_due = next(self._plan, None)
        self._due = [due for due in self._due if not self._hit(due)]

    def _hit(self, due: Due) -> bool:
        """Let a worker that is in the middle of a step have it; False when none is, for now."""
        busy = [m for m in self._members.values() if m.step is not None and m.wake_at is None]
        if not busy:
            return False
        member = sorted(busy, key=lambda m: m.slot)[int(due.draw * len(busy))]
        if due.fault is Fault.CRASH:
            self._kill(member)
        elif due.fault is Fault.FREEZE:
            self._freeze(member)
        elif due.fault is Fault.SLOW:
            self._slow(member)
        else:
            member.deeds.add(due.fault)
        return True

    def _kill(self, member: Member) -> None:
        send(member.pid, signal.SIGKILL)
        self.tally.killed += 1
        self.say(f"{member.name} killed in step {member.step} of {member.run}")
        member.killed, member.step = True, None

    def _freeze(self, member: Member) -> None:
        send(member.pid, signal.SIGSTOP)
        self.tally.frozen += 1
        self.say(f"{member.name} frozen in step {member.step} of {member.run}")
        member.wake_at = self._now() + FREEZE_TTLS_MAX * self.fleet.shift.ttl_seconds
        member.replaced, member.step = True, None
        self._start(member.slot)

    def _slow(self, member: Member) -> None:
        send(member.pid, signal.SIGSTOP)
        self.tally.slowed += 1
        member.wake_at = self._now() + SLOW_TTL_PART * self.fleet.shift.ttl_seconds

    def _wake_sleepers(self) -> None:
        for member in self._members.values():
            if member.wake_at is not None and member.wake_at <= self._now():
                member.wake_at = None
                if not member.replaced:
                    send(member.pid, signal.SIGCONT)
                    continue
                member.let_go_at = self._now() + FREEZE_TTLS_MAX * self.fleet.shift.ttl_seconds
                send(member.pid, signal.SIGCONT)
                self.say(f"{member.name} wakes up and goes on with {member.run}")
            if member.let_go_at is not None and member.let_go_at <= self._now():
                member.let_go_at = None
                send(member.pid, signal.SIGTERM)

    # --- reports -------------------------------------------------------------------------------

    def _take_reports(self, *, within_seconds: float) -> None:
        for report in self._reports.read(within_seconds=within_seconds):
            member = self._members.get(report["pid"])
            take = getattr(self, f"_on_{report['what'].replace('-', '_')}", None)
            if take is not None:
                take(member, report)

    def _on_created(self, _: Member | None, report: dict[str, Any]) -> None:
        self.tally.created += 1
        if "parent" in report:  # nobody wished for it
            self._open_runs += 1

    def _on_started(self, member: Member | None, report: dict[str, Any]) -> None:
        if member is not None:
            member.name = report["worker"]

    def _on_idle(self, member: Member | None, report: dict[str, Any]) -> None:
        """There was nothing to claim, whatever was counted: make another run."""
        self._clear(member)
        self._open_runs = min(self._open_runs, self._wanted_runs() - 1)

    def _on_claimed(self, member: Member | None, report: dict[str, Any]) -> None:
        if member is not None:
            member.run, member.token, member.step = report["run"], report["token"], None
        if report["taken_from"]:
            self.tally.taken_over += 1
            by = member.name if member else "a worker"
            self.say(f"{by} took {report['run']} over from {report['taken_from']}")
        for sleeper in self._members.values():
            if sleeper.wake_at is not None and sleeper.run == report["run"]:
                sleeper.wake_at = min(sleeper.wake_at, self._now() + WAKE_SECONDS)

    def _on_step(self, member: Member | None, report: dict[str, Any]) -> None:
        if member is not None and not member.replaced and not member.killed:
            member.step = report["step"]

    def _on_wrote(self, member: Member | None, report: dict[str, Any]) -> None:
        if member is not None:
            member.step = None

    def _on_late(self, member: Member | None, report: dict[str, Any]) -> None:
        name = member.name if member else "a worker"
        if report["code"] == "stale-fence":
            self.tally.fenced += 1
        self.say(
            f"{name} wrote to {report['run']} too late under token {report['token']}: "
            f"{report['code']}"
        )
        if member is not None and member.replaced:
            member.let_go_at = self._now()

    def _on_conflict(self, member: Member | None, report: dict[str, Any]) -> None:
        self.tally.conflicts += 1

    def _on_stampeded(self, member: Member | None, report: dict[str, Any]) -> None:
        self.tally.stampedes += 1
        self.say(f"{member.name if member else 'a worker'} and others stampede on {report['run']}")

    def _on_spree(self, member: Member | None, report: dict[str, Any]) -> None:
        self.tally.sprees += 1
        self.say(f"{member.name if member else 'a worker'} spends freely in {report['run']}")

    def _on_poisoned(self, member: Member | None, report: dict[str, Any]) -> None:
        self.tally.poisoned += 1
        self.say(f"{report['run']} killed {member.name if member else 'a worker'}")
        if member is not None:
            member.killed, member.step = True, None

    def _on_charge_refused(self, member: Member | None, report: dict[str, Any]) -> None:
        self.tally.charges_refused += 1

    def _on_trouble(self, member: Member | None, report: dict[str, Any]) -> None:
        self._clear(member)
        self.tally.troubles += 1
        name = member.name if member else "the feeder"
        self.say(f"{name}: {report['detail']}")

    def _on_ended(self, member: Member | None, report: dict[str, Any]) -> None:
        self._clear(member)
        self._open_runs -= 1
        status = report["status"]
        setattr(self.tally, status, getattr(self.tally, status) + 1)

    def _clear(self, member: Member | None) -> None:
        if member is not None:
            member.step = None
