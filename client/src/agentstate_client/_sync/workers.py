# Made from _async/workers.py by make_sync.py. Change it there.

"""Functions that carry out runs: claimed for them, kept, ended, and given back."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from agentstate_client import clock
from agentstate_client._sync.waiting import Flag, Spawned, abandon, resolved, spawn
from agentstate_client.calls import log
from agentstate_client.contents import clean
from agentstate_client.ending import told_to_end
from agentstate_client.errors import (
    AgentStateError,
    AlreadyTerminal,
    CancelRequested,
    ClientClosed,
    Invalid,
    LeaseLost,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    RunHot,
    StaleFence,
    StopRequested,
    Unavailable,
    Unreachable,
    Unsendable,
    UnstorableText,
)
from agentstate_client.payloads import encode
from agentstate_client.retry import is_repeatable
from agentstate_client.version import VERSION

if TYPE_CHECKING:
    from agentstate_client._sync.client import Client
    from agentstate_client._sync.runs import Run

ANNOUNCE_EVERY_SECONDS = 10.0
# A claim, or being announced, is not waited for longer: who is told to end is to hear of it.
ASK_SECONDS = 5.0
IDLE_SECONDS_MIN, IDLE_SECONDS_MAX = 0.1, 5.0
CLAIM_MAX = 100
DETAIL_CHARS, NAME_CHARS = 2_000, 200

# The run is not over for this worker's trouble: somebody else, or a later attempt, goes on with it.
NOT_THE_RUNS_FAULT = (
    AlreadyTerminal,
    ClientClosed,
    LeaseLost,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    RunHot,
    StaleFence,
    StopRequested,
    Unavailable,
    Unreachable,
)
OF_THE_RESULT = (Invalid, PayloadTooLarge, Unsendable, UnstorableText)


@dataclass(frozen=True)
class Job:
    """A function and which runs it is for. running: those that it is carrying out now."""

    work: Callable[[Run], Any]
    task: str | None
    tag: str | None
    concurrency: int
    ttl_seconds: int
    retry_on: tuple[type[BaseException], ...]
    running: dict[Run, Spawned | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError("concurrency: at least 1")


class Workers:
    """Claims runs for the functions of a client, and carries them out until told to stop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._jobs: list[Job] = []
        self._stopping, self._wake = Flag(), Flag()
        self._lock = threading.Lock()
        self._is_working = self._is_drained = self._is_answered = False
        self._announce_at = 0.0
        self._idle_rounds = 0

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def stop(self) -> None:
        """From any thread: take nothing more, and end as `work` says."""
        self._stopping.set()
        self._wake.set()

    def work(self, *, drain_seconds: float, until_idle: bool) -> None:
        if not self._jobs:
            raise RuntimeError("there is no function to carry out runs: @client.worker()")
        if self._is_working:
            raise RuntimeError("this client is working already")
        self._is_working, self._announce_at = True, 0.0
        self._stopping.clear()
        try:
            with told_to_end(self.stop):
                try:
                    self._take_and_carry_out(until_idle)
                finally:
                    self._end(drain_seconds)
        finally:
            self._is_working = False

    def _take_and_carry_out(self, until_idle: bool) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._announce()
            taken = 0 if self._is_drained else self._take()
            at_end = (until_idle and self._is_answered) or self._is_drained
            if self._stopping.is_set() or (at_end and not taken and not self._running()):
                return
            self._idle_rounds = 0 if taken else self._idle_rounds + 1
            self._wake.wait(self._idle_seconds())

    def _running(self) -> list[Run]:
        with self._lock:
            return [run for job in self._jobs for run in job.running]

    def _idle_seconds(self) -> float:
        """Full jitter: many workers that have nothing to do should not ask in step. Whoever ends a
        run wakes the loop."""
        most = min(IDLE_SECONDS_MAX, IDLE_SECONDS_MIN * 2 ** min(self._idle_rounds, 10))
        return random.uniform(0, most)

    def _take(self) -> int:
        """Claim as many runs as there are places for; how many there were."""
        taken = 0
        for job in self._jobs:
            free = job.concurrency - len(job.running)
            if free < 1 or self._stopping.is_set():
                continue
            for run in self._claim(job, min(free, CLAIM_MAX)):
                taken += 1
                self._start(job, run)
        return taken

    def _claim(self, job: Job, limit: int) -> list[Run]:
        try:
            runs = self._client.claim_within(
                ASK_SECONDS,
                limit=limit,
                ttl_seconds=job.ttl_seconds,
                task=job.task,
                tag=job.tag,
            )
        except AgentStateError as failure:
            if not _may_pass(failure):
                raise
            log.warning("nothing could be claimed, it is tried again: %s", failure)
            self._is_answered = False
            return []
        self._is_answered = True
        return runs

    def _start(self, job: Job, run: Run) -> None:
        if self._stopping.is_set():
            run.release()
            return
        run.stop_with(self._stopping)

        def carry_out() -> None:
            try:
                _carry_out(job, run)
            finally:
                with self._lock:
                    job.running.pop(run, None)
                self._wake.set()

        with self._lock:
            job.running[run] = None
        try:
            spawned = spawn(carry_out, name=f"agentstate-run-{run.key}")
        except RuntimeError as failure:  # the system has no thread left
            log.warning("%s is given back: %s", run.key, failure)
            with self._lock:
                del job.running[run]
            run.release()
            return
        with self._lock:
            if run in job.running:
                job.running[run] = spawned

    def _announce(self) -> None:
        """Tell the store that this worker is there; hear whether it is to be drained. Nothing
        depends on it, so a failure is no trouble.
        """
        if clock.now() < self._announce_at:
            return
        self._announce_at = clock.now() + ANNOUNCE_EVERY_SECONDS
        document = {
            "version": f"agentstate-client {VERSION}",
            "host": socket.gethostname() or None,
            "slots": sum(job.concurrency for job in self._jobs),
            "worker_time": datetime.now(timezone.utc).isoformat(),
        }
        given = {name: value for name, value in document.items() if value is not None}
        try:
            signals = self._client.announce_within(ASK_SECONDS, encode(given))
        except AgentStateError as failure:
            log.info("this worker was not announced: %s", failure)
            return
        drained = any(signal.name == "drain" for signal in signals)
        if drained and not self._is_drained:
            log.warning("an operator asks to drain: finishing %d runs", len(self._running()))
        self._is_drained = drained

    def _end(self, drain_seconds: float) -> None:
        """Wait for what is still being carried out; what is not done in time is given back."""
        self._stopping.set()
        ends_at = clock.now() + drain_seconds
        while (left_seconds := ends_at - clock.now()) > 0:
            self._wake.clear()
            if not self._running():
                return
            self._wake.wait(left_seconds)
        with self._lock:
            left = [(run, spawned) for job in self._jobs for run, spawned in job.running.items()]
        for run, _ in left:
            log.warning("%s did not end in %g s and is given back", run.key, drain_seconds)
        self._client.give_back_soon([run.lease for run, _ in left if run.lease is not None])
        for _, spawned in left:
            abandon(spawned)


def _carry_out(job: Job, run: Run) -> None:
    """Whatever happens is logged here, and the run ended or given back."""
    try:
        with run:
            _work_and_end(job, run)
    except AgentStateError as failure:
        log.warning("%s was left: %s", run.key, failure)


def _work_and_end(job: Job, run: Run) -> None:
    try:
        result = resolved(job.work(run))
    except NOT_THE_RUNS_FAULT as trouble:
        log.info("%s is given back: %s", run.key, trouble)
    except CancelRequested as asked:
        if is_held(run):
            run.cancel({"reason": asked.reason})
    except job.retry_on as trouble:
        log.warning("%s is given back for another attempt: %r", run.key, trouble)
    except Exception as error:
        log.exception("%s failed", run.key)
        if is_held(run):
            run.fail(told_of(error))
    else:
        if is_held(run):
            _complete(run, result)


def _complete(run: Run, result: Any) -> None:
    """Another refusal, as of a run that was paused meanwhile, does not make it a failure."""
    try:
        run.complete(result)
    except OF_THE_RESULT as wrong:
        log.warning("what %s returned cannot be kept: %s", run.key, wrong)
        run.fail(told_of(wrong))


def _may_pass(failure: AgentStateError) -> bool:
    """The store, or what is before it, may answer otherwise in a while."""
    status = getattr(failure, "status", None)
    return is_repeatable(failure) or (isinstance(status, int) and status >= 500)


def is_held(run: Run) -> bool:
    """The function has neither ended the run nor given it back."""
    return run.lease is not None and run.lease.state == "held"


def told_of(error: BaseException) -> dict[str, str]:
    """What a failed run keeps of an error: its class and text, as far as they can be stored."""
    try:
        detail = str(error)
    except Exception as failed:  # its own method; the run has to end all the same
        detail = f"its text cannot be told: {type(failed).__name__}"
    name = clean(type(error).__name__)[:NAME_CHARS]
    return {"error": name, "detail": clean(detail[:DETAIL_CHARS])}
