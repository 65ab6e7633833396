"""One simulated worker: claims runs over HTTP and plays their drafts back, step by step.

An outside client like any other, made with agentstate-client: its lease is renewed beside the work,
each finished step is one write (events, counters, charge), and it goes on where the log says that
the worker before it came to. What it does is told to the supervisor.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from agentstate_client import (
    AgentStateError,
    BudgetExhausted,
    CancelRequested,
    Charge,
    Client,
    Event,
    LeaseLost,
    RawJSON,
    Run,
    SeqConflict,
    StaleFence,
)
from agentstate_client.payloads import encode

from tasks.drafts import RunDraft, Step
from tasks.simulate import plain
from tasks.simulate.plan import Fault
from tasks.simulate.processes import Deeds, Stop
from tasks.simulate.runs import SUB_AGENTS, create_child
from tasks.simulate.shift import Shift

__all__ = ["Playing", "Shift", "Worker"]

IDLE_SECONDS, TROUBLE_SECONDS, LOOK_SECONDS = 0.4, 1.0, 0.2
STEP_SECONDS_MIN, STEP_SECONDS_MAX, TOKENS_PER_SECOND = 0.5, 3.0, 1_000
ANNOUNCE_SECONDS, ANNOUNCE_WITHIN_SECONDS = 10.0, 3.0
STAMPEDE_WRITERS, SPREE_PARTS, SPREE_CHARGES_MAX = 12, 3, 60
VERSION, OLD_VERSION = "2.1.0", "0.9.4"


class Stopped(Exception):
    """This worker was told to end; the run goes back."""


class Worker:
    """Works until `stop` is set.

    host: the machine that it says it is on. is_old: it writes what nobody knows any more.
    deeds: what it is told to do at its next step (RACE, STAMPEDE, SPREE). was_frozen: this process
    was stopped and goes on; set by a signal.
    """

    def __init__(
        self,
        *,
        shift: Shift,
        name: str,
        drafts: Mapping[str, RunDraft],
        tell: Callable[..., None],
        stop: Stop,
        host: str | None = None,
        is_old: bool = False,
        deeds: Deeds | None = None,
    ) -> None:
        self.shift, self.name, self.drafts, self.tell, self.stop = shift, name, drafts, tell, stop
        self.host, self.is_old, self.deeds = host or name, is_old, deeds or Deeds()
        self.was_frozen = False
        self._announce_at = 0.0

    def work(self) -> None:
        with Client(self.shift.url, self.shift.key, worker=self.name) as client:
            self.tell("started", worker=client.owner)
            while not self.stop.is_set:
                self.announce(client)
                for run in self._claim(client):
                    self._take(client, run)

    def announce(self, client: Client) -> None:
        """Say which process this is, now and then. Not being heard harms nothing."""
        if time.monotonic() < self._announce_at:
            return
        self._announce_at = time.monotonic() + ANNOUNCE_SECONDS
        version = OLD_VERSION if self.is_old else VERSION
        document = {"host": self.host, "version": version, "slots": 1}
        try:
            client.announce_within(ANNOUNCE_WITHIN_SECONDS, encode(document))
        except AgentStateError as failure:
            self._trouble(failure)

    def _claim(self, client: Client) -> list[Run]:
        try:
            runs = client.claim(ttl_seconds=self.shift.ttl_seconds, tag=self.shift.tag)
        except AgentStateError as failure:
            self._trouble(failure)
            self.stop.wait(TROUBLE_SECONDS)
            return []
        if not runs:
            self.tell("idle")
            self.stop.wait(IDLE_SECONDS)
        return runs

    def _take(self, client: Client, run: Run) -> None:
        lease = run.lease
        assert lease is not None, "what is claimed has a lease"
        self.tell("claimed", run=run.key, token=lease.token, taken_from=lease.taken_from)
        playing = Playing(self, run, token=lease.token, client=client)
        self.was_frozen = False
        try:
            playing.play()
        except Stopped:
            pass
        except CancelRequested as asked:
            playing.end("cancelled", RawJSON(encode({"reason": asked.reason}).decode()))
        except (LeaseLost, StaleFence) as loss:
            self.tell("lost", run=run.key, token=lease.token, code=loss.code, detail=loss.detail)
            if self.was_frozen or is_taken(loss):
                playing.write_too_late()
        except AgentStateError as failure:
            self._trouble(failure, run.key)
            self.stop.wait(TROUBLE_SECONDS)
        finally:
            self._give_back(run)

    def _give_back(self, run: Run) -> None:
        try:
            run.release()
        except AgentStateError as failure:
            self._trouble(failure, run.key)

    def _trouble(self, failure: AgentStateError, run: str | None = None) -> None:
        self.tell("trouble", run=run, detail=str(failure)[:300])


class Playing:
    """A claimed run on its way through the steps of its draft."""

    def __init__(self, worker: Worker, run: Run, *, token: int, client: Client) -> None:
        self.worker, self.run, self.token, self.client = worker, run, token, client
        self.shift, self.tell = worker.shift, worker.tell
        self.unwritten: Step | None = None

    def play(self) -> None:
        seen = self.run.read()
        if "attrs" not in seen.document():
            raise AgentStateError("the key of this fleet lacks the scope payloads")
        draft = self.worker.drafts.get(str(seen.attrs.get("draft")))
        if draft is None:
            self.end("failed", RawJSON('{"reason":"no worker here knows the draft of this run"}'))
            return
        poison = bool(seen.attrs.get("poison"))
        try:
            self._start_sub_agents(seen.attrs.get(SUB_AGENTS) or ())
            for at in range(seen.counters.get("steps_done", 0), len(draft.steps)):
                self.worker.announce(self.client)
                self._do(draft, at, poison=poison and at > 0)
        except BudgetExhausted as refused:
            self._stop_for_money(refused)
            return
        self.end(draft.status, RawJSON(draft.result.text) if draft.result else None)

    def _start_sub_agents(self, names: Sequence[str]) -> None:
        """Whoever plays it first; the next holder meets them."""
        for number, name in enumerate(names, start=1):
            draft = self.worker.drafts.get(name)
            if draft is not None and create_child(
                self.client, draft, number=number, parent=self.run, tag=self.shift.tag
            ):
                self.tell("created", run=f"{self.run.key}.{number}", parent=self.run.key)

    def end(self, status: str, result: RawJSON | None) -> None:
        self.run.transition(status, result=result)
        self.tell("ended", run=self.run.key, status=status)

    def write_too_late(self) -> None:
        """Send the step all the same, past the client's own check: as a worker that was stopped
        just between that check and its sending, or one that has no such check. The store decides.
        """
        if self.unwritten is None or self.worker.stop.is_set:
            return
        path = f"runs/{quote(self.run.key, safe='')}/events"
        code, _ = plain.send(self.shift, "POST", path, _document(self.unwritten), fence=self.token)
        self.tell("late", run=self.run.key, token=self.token, code=code)

    def _do(self, draft: RunDraft, at: int, *, poison: bool) -> None:
        """Think for a while, then write the finished step. The pause is where faults hit."""
        step = self.unwritten = draft.steps[at]
        self.run.checkpoint({"step": at + 1, "of": len(draft.steps)})
        self.tell("step", run=self.run.key, token=self.token, step=at + 1)
        self._think(step_seconds(step) / self.shift.speed)
        if poison:
            self._die()
        deeds = self.worker.deeds.take()
        if Fault.STAMPEDE in deeds:
            self._stampede(at)
        if Fault.SPREE in deeds:
            self._spree(draft)
        if Fault.RACE in deeds:
            self._race(step, at)
        else:
            self._write(step)
        self.unwritten = None
        self.tell("wrote", run=self.run.key)

    def _think(self, seconds: float) -> None:
        """As long as a model call; over early when the run is lost or the worker has to go."""
        while seconds > 0:
            if self.worker.stop.wait(min(seconds, LOOK_SECONDS)):
                raise Stopped
            self.run.checkpoint()
            seconds -= LOOK_SECONDS

    def _die(self) -> None:
        """What is in this run ends every process that works on it, as a bad input may."""
        self.tell("poisoned", run=self.run.key)
        os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, step: Step, *, expected_seq: int | None = None) -> None:
        # A release of long ago: its type is in no document, and its data is no object.
        old = [_event("x-progress.v0", '"1 more"', None)] if self.worker.is_old else []
        self.run.append(
            *(_event(event.type, event.data.text, event.id) for event in step.events),
            *old,
            expected_seq=expected_seq,
            add={"steps_done": 1} | step.add,
            spend=Charge(step.spend.budget, step.spend.amount) if step.spend else (),
        )

    def _race(self, step: Step, at: int) -> None:
        """Two writers want the same number; the one that is refused takes the next."""
        expected = self.run.read().last_seq
        ready = threading.Barrier(2)
        other = self._start_writer(at, expected, ready)
        ready.wait()
        try:
            self._until_it_fits(lambda seq: self._write(step, expected_seq=seq), expected)
        finally:
            other.join()

    def _stampede(self, at: int) -> None:
        """A dozen writers want the same number at once, and each goes on until it has one."""
        self.tell("stampeded", run=self.run.key)
        expected, ready = self.run.read().last_seq, threading.Barrier(STAMPEDE_WRITERS)
        writers = [self._start_writer(at, expected, ready) for _ in range(STAMPEDE_WRITERS)]
        for writer in writers:
            writer.join()

    def _start_writer(self, at: int, expected: int, ready: threading.Barrier) -> threading.Thread:
        note = _event("note.written", f'{{"step":{at + 1},"text":"written beside the step"}}', None)

        def write_note() -> None:
            ready.wait()
            try:
                self._until_it_fits(lambda seq: self.run.append(note, expected_seq=seq), expected)
            except AgentStateError as failure:
                self.tell("trouble", run=self.run.key, detail=str(failure)[:300])

        writer = threading.Thread(target=write_note, daemon=True)
        writer.start()
        return writer

    def _spree(self, draft: RunDraft) -> None:
        """Spend much at a time, until a cap says no: the run's own or one that it shares."""
        if not draft.budgets:
            return
        self.tell("spree", run=self.run.key)
        budget = draft.budgets[0]
        part = max(1, draft.spent(budget.name) // SPREE_PARTS)
        for _ in range(SPREE_CHARGES_MAX):
            self.run.budget(budget.name).spend(part, note="a spree")

    def _until_it_fits(self, write: Callable[[int], Any], seq: int) -> None:
        while True:
            try:
                write(seq)
            except SeqConflict as conflict:
                seq = conflict.last_seq if conflict.last_seq is not None else seq
                self.tell("conflict", run=self.run.key, token=self.token)
            else:
                return

    def _stop_for_money(self, refused: BudgetExhausted) -> None:
        """The charge of a step was refused, and with it the step: nothing of it was written."""
        facts = {name: refused.fact(name) for name in ("budget", "cap", "spent", "asked")}
        self.tell("charge-refused", run=self.run.key, token=self.token)
        data = RawJSON(encode({"reason": "budget-exhausted", **facts}).decode())
        self.run.append(Event("agent.stopped", data), to="failed", result=data)
        self.tell("ended", run=self.run.key, status="failed")


def is_taken(loss: LeaseLost | StaleFence) -> bool:
    """Whether somebody took the run away, and not just the client's own deadline passed."""
    return isinstance(loss, StaleFence) or loss.reason in ("taken", "reclaimed", "superseded")


def step_seconds(step: Step) -> float:
    """How long a step takes at speed 1: longer for more tokens, within bounds."""
    tokens = step.spend.amount if step.spend else 0
    return min(STEP_SECONDS_MAX, max(STEP_SECONDS_MIN, tokens / TOKENS_PER_SECOND))


def _event(type: str, data: str, id: str | None) -> Event:
    return Event(type, RawJSON(data), id)


def _document(step: Step) -> dict[str, Any]:
    """A step as the body of the request that would write it."""
    document: dict[str, Any] = {
        "events": [_event(e.type, e.data.text, e.id).document() for e in step.events],
        "add": {"steps_done": 1} | step.add,
    }
    if step.spend:
        document["spend"] = [Charge(step.spend.budget, step.spend.amount).document()]
    return document
