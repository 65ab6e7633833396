"""One simulated worker: claims runs over HTTP and plays their drafts back, step by step.

An outside client like any other, made with agentstate-client: its lease is renewed beside the work,
each finished step is one write (events, counters, charge), and it goes on where the log says that
the worker before it came to. What it does is told to the supervisor.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
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
from tasks.simulate.processes import Stop

TAG = "fleet"
IDLE_SECONDS, TROUBLE_SECONDS, LOOK_SECONDS = 0.4, 1.0, 0.2
STEP_SECONDS_MIN, STEP_SECONDS_MAX, TOKENS_PER_SECOND = 0.5, 3.0, 1_000
LATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How to work. speed: 2 is twice as fast. ttl_seconds: of each lease."""

    url: str
    key: str = field(repr=False)
    speed: float = 1.0
    ttl_seconds: int = 6
    tag: str = TAG


class Stopped(Exception):
    """This worker was told to end; the run goes back."""


class Worker:
    """Works until `stop` is set.

    race_next: its next write meets a second writer. was_frozen: this process was stopped and goes
    on. Both are set by signals of the supervisor's.
    """

    def __init__(
        self,
        *,
        shift: Shift,
        name: str,
        drafts: Mapping[str, RunDraft],
        tell: Callable[..., None],
        stop: Stop,
    ) -> None:
        self.shift, self.name, self.drafts, self.tell, self.stop = shift, name, drafts, tell, stop
        self.race_next = self.was_frozen = False

    def work(self) -> None:
        with Client(self.shift.url, self.shift.key, worker=self.name) as client:
            self.tell("started", worker=client.owner)
            while not self.stop.is_set:
                for run in self._claim(client):
                    self._take(run)

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

    def _take(self, run: Run) -> None:
        lease = run.lease
        assert lease is not None, "what is claimed has a lease"
        self.tell("claimed", run=run.key, token=lease.token, taken_from=lease.taken_from)
        playing = Playing(self, run, token=lease.token)
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

    def __init__(self, worker: Worker, run: Run, *, token: int) -> None:
        self.worker, self.run, self.token = worker, run, token
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
        try:
            for at in range(seen.counters.get("steps_done", 0), len(draft.steps)):
                self._do(draft, at)
        except BudgetExhausted as refused:
            self._stop_for_money(refused)
            return
        self.end(draft.status, RawJSON(draft.result.text) if draft.result else None)

    def end(self, status: str, result: RawJSON | None) -> None:
        self.run.transition(status, result=result)
        self.tell("ended", run=self.run.key, status=status)

    def write_too_late(self) -> None:
        """Send the step all the same, past the client's own check: as a worker that was stopped
        just between that check and its sending, or one that has no such check. The store decides.
        """
        if self.unwritten is None or self.worker.stop.is_set:
            return
        try:
            answer = httpx.post(
                f"{self.shift.url.rstrip('/')}/api/v1/runs/{quote(self.run.key, safe='')}/events",
                content=encode(_document(self.unwritten)),
                headers={
                    "Authorization": f"Bearer {self.shift.key}",
                    "Content-Type": "application/json",
                    "Agentstate-Fence": str(self.token),
                    "Idempotency-Key": str(uuid.uuid4()),
                },
                timeout=LATE_SECONDS,
                trust_env=False,
            )
            code = "accepted" if answer.is_success else str(answer.json().get("code"))
        except (httpx.HTTPError, ValueError) as failure:
            code = type(failure).__name__
        self.tell("late", run=self.run.key, token=self.token, code=code)

    def _do(self, draft: RunDraft, at: int) -> None:
        """Think for a while, then write the finished step. The pause is where faults hit."""
        step = self.unwritten = draft.steps[at]
        self.run.checkpoint({"step": at + 1, "of": len(draft.steps)})
        self.tell("step", run=self.run.key, token=self.token, step=at + 1)
        self._think(step_seconds(step) / self.shift.speed)
        if self.worker.race_next:
            self.worker.race_next = False
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

    def _write(self, step: Step, *, expected_seq: int | None = None) -> None:
        self.run.append(
            *(_event(event.type, event.data.text, event.id) for event in step.events),
            expected_seq=expected_seq,
            add={"steps_done": 1} | step.add,
            spend=Charge(step.spend.budget, step.spend.amount) if step.spend else (),
        )

    def _race(self, step: Step, at: int) -> None:
        """Two writers want the same number; the one that is refused takes the next."""
        expected = self.run.read().last_seq
        both_ready = threading.Barrier(2)
        note = _event("note.written", f'{{"step":{at + 1},"text":"written beside the step"}}', None)

        def write_note() -> None:
            both_ready.wait()
            try:
                self._until_it_fits(lambda seq: self.run.append(note, expected_seq=seq), expected)
            except AgentStateError as failure:
                self.tell("trouble", run=self.run.key, detail=str(failure)[:300])

        other = threading.Thread(target=write_note, daemon=True)
        other.start()
        both_ready.wait()
        try:
            self._until_it_fits(lambda seq: self._write(step, expected_seq=seq), expected)
        finally:
            other.join()

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
