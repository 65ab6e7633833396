"""Celery tasks whose messages may come twice: each is a run, carried out under its lease.

>>> from agentstate_client.celery import DurableTask, step
>>> @step
... def fetch(url): ...
>>> @app.task(base=DurableTask, bind=True, budgets=[NewBudget("tokens", cap=100_000)])
... def audit(self, url):
...     text = fetch(url)
...     with self.held.budget("tokens").reserve(8_000) as hold: ...
...     return {"verdict": "clean"}

Settings: `app.conf.agentstate_url` and `agentstate_key`, or AGENTSTATE_URL and AGENTSTATE_KEY.
How it behaves: docs/integrations/celery.md. Why: docs/decisions/0051-celery.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.states import FAILURE, SUCCESS

from agentstate_client import clock
from agentstate_client._sync import calling
from agentstate_client._sync.calling import step
from agentstate_client._sync.client import Client
from agentstate_client._sync.runs import TERMINAL, Run
from agentstate_client._sync.workers import told_of
from agentstate_client.calls import log
from agentstate_client.endings import CallEnded
from agentstate_client.errors import (
    AgentStateError,
    AlreadyTerminal,
    CancelRequested,
    LeaseHeld,
)
from agentstate_client.records import NewBudget, RunRecord

__all__ = ["CallEnded", "DurableTask", "step"]

# A message that comes too early asks again after so long, then after twice as long, and so on; and
# as soon as the lease that is in its way runs out.
ASK_AGAIN_SECONDS_MIN, ASK_AGAIN_SECONDS_MAX = 1.0, 60.0
ASKED = "agentstate_asked"  # a message's header: how often it has asked
DOUBLINGS_MAX = 6
# For so long behind its time what was sent again is taken to be under way.
SENT_SECONDS, SENT_MAX = 60.0, 10_000
KEY_CHARS_MAX = 196
KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@~-]*[A-Za-z0-9])?")
KEY_HASH_CHARS = 32
GIVEN_BACK = (Retry, Ignore, Reject)


class DurableTask(Task):  # type: ignore[type-arg]  # generic in its stubs only
    """Base of a task whose message is a run: `@app.task(base=DurableTask, bind=True)`.

    The run's key is `celery-` and the task's id, which stays the same however often the message is
    given out. A worker carries the task out under the lease of that run:

    * another one holds it, or it is paused, or the store is not reached: the message is sent again
      for later, under its own id, and nothing is done now;
    * the run has come to its end: its result is returned, or CallEnded raised, unless Celery has
      been told already;
    * the worker was killed: the broker gives the message out again, and finished steps come from
      the log once the lease has run out;
    * who was overtaken writes nothing any more, neither in the store nor as Celery's result.

    What the task returns is any JSON value, and the run is completed with it. An exception fails
    the run, except Retry, Ignore and Reject(requeue=True), which give it back; an operator's cancel
    ends it with CallEnded before the next step. Called directly, it is a plain function.

    budgets: what the run begins with. max_attempts: how often it may be begun in all, Celery's
    retries included. ttl_seconds: of the lease, so how long a worker's death goes unnoticed.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    budgets: ClassVar[Sequence[NewBudget]] = ()
    max_attempts: ClassVar[int] = 20
    ttl_seconds: ClassVar[int] = 60

    @property
    def held(self) -> Run:
        """The run of the message that is being carried out: its budgets, effects and counters.

        Raises RuntimeError when none is: the task was called directly.
        """
        run = calling.present_run()
        if run is None:
            raise RuntimeError(f"{self.name} is not carried out by a worker: there is no run")
        return run

    def run_key(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> str | None:
        """Overridden, it names the run by what the task is about: two messages are one call then.

        None: by the task's id. With a key of your own, arguments have to be JSON values, and the
        same key with other arguments is a ValueError.
        """
        return None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # What a worker calls. It goes on to `run`, not to super's: that would hide the message.
        if self.request.called_directly or not self.request.id:
            return super().__call__(*arguments, **named)
        own_key = self.run_key(arguments, named)
        key = _key_of(str(self.request.id)) if own_key is None else own_key
        client = client_of(self.app, self.request.hostname)
        try:
            run = self._take(client, key, arguments, named, is_compared=own_key is not None)
            if isinstance(run, RunRecord):
                return self._replayed(run)
        except calling.NOT_OVER as trouble:
            self._ask_again(key, trouble)
        return self._carry_out(client, run, arguments, named)

    def _take(
        self,
        client: Client,
        key: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        *,
        is_compared: bool,
    ) -> Run | RunRecord:
        """The run, fenced; or how it ended."""
        attrs: dict[str, Any] = {"celery": self._told_of()}
        if is_compared:
            text = calling.arguments_text(self.name, arguments, named)
            attrs["call"] = {"task": self.name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        found = calling.made(
            client, key, task=self.name, attrs=attrs, compared="call" if is_compared else None,
            budgets=self.budgets, max_attempts=self.max_attempts,
        )  # fmt: skip
        if found is not None and found.status in TERMINAL:
            return found
        try:
            return calling.taken(client, key, ttl_seconds=self.ttl_seconds)
        except AlreadyTerminal:
            return client.run(key).read()

    def _told_of(self) -> dict[str, Any]:
        """What operators see of the message: its arguments as Celery would show them."""
        request = self.request
        told = {
            "task_id": request.id,
            "arguments": request.get("argsrepr"),
            "named": request.get("kwargsrepr"),
        }
        return {name: value for name, value in told.items() if value is not None}

    def _carry_out(
        self, client: Client, run: Run, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        def work() -> Any:
            try:
                return self.run(*arguments, **named)
            except Retry as retry:
                # autoretry_for=(Exception,) takes this as well; a cancelled run ends all the same.
                if isinstance(retry.exc, CancelRequested):
                    raise retry.exc from retry
                raise
            except Reject as rejected:
                if not rejected.requeue:  # type: ignore[attr-defined]  # a failure, for Celery as well
                    run.fail(told_of(rejected))
                raise

        try:
            return calling.carried_out(
                run, work, what=self.name, max_attempts=self.max_attempts, retry_on=GIVEN_BACK
            )
        except CancelRequested as asked:
            raise CallEnded(run.key, "cancelled", {"reason": asked.reason}) from asked
        except calling.NOT_OVER as trouble:
            return self._look_what_became(client, run.key, trouble)

    def _look_what_became(self, client: Client, key: str, trouble: AgentStateError) -> Any:
        """The store tells whether the run is over; this worker's trouble alone does not."""
        try:
            record = calling.ended(client, key)
        except calling.NOT_OVER:
            record = None
        if record is None:
            self._ask_again(key, trouble)
        return self._replayed(record)

    def _replayed(self, record: RunRecord) -> Any:
        """How the run ended. Once Celery knows, what follows has been sent as well: then nothing is
        done. Else this delivery tells it, for the one that ended the run may be gone.
        """
        state = SUCCESS if record.status == "completed" else FAILURE
        if self._is_told(state):
            log.info("%s is %s, and Celery knows it", record.key, record.status)
            raise Ignore(f"{record.key} is {record.status}, and Celery knows it")
        return calling.outcome(record)

    def _is_told(self, state: str) -> bool:
        if self.request.is_eager:
            return False
        try:
            return bool(self.AsyncResult(str(self.request.id)).state == state)
        except Exception as unknown:  # no backend of results, or it cannot be reached
            log.debug("Celery's result of %s is not known: %r", self.request.id, unknown)
            return False

    def _ask_again(self, key: str, trouble: AgentStateError) -> NoReturn:
        """Send the message once more, for later, and be done with this one. Not `self.retry`: it is
        no attempt of the task's, and must not use up max_retries.
        """
        request = self.request
        if request.is_eager:
            raise trouble
        asked = int((request.headers or {}).get(ASKED) or 0)
        seconds = _seconds_until_asked_again(self.app, asked, trouble)
        message = (str(request.id), int(request.retries))
        if not _successors.may_send(message, asked, seconds):
            log.info("%s is asked for again already: %s", key, trouble)
            raise Ignore(f"{key} is asked for again already") from trouble
        log.info("%s is asked for again in %.1f s: %s", key, seconds, trouble)
        again = self.signature_from_request(
            request, countdown=seconds, retries=request.retries, expires=None,
            headers={**(request.headers or {}), ASKED: asked + 1},
        )  # fmt: skip
        try:
            again.apply_async()
        except Exception as failure:  # of the broker's; it keeps the message that it gave out
            _successors.forget(message)
            raise Reject(failure, requeue=True) from failure
        raise Ignore(f"{key} is asked for again") from trouble


def _seconds_until_asked_again(app: Any, asked: int, trouble: AgentStateError) -> float:
    seconds: float = ASK_AGAIN_SECONDS_MIN * 2 ** min(asked, DOUBLINGS_MAX)
    if isinstance(trouble, LeaseHeld) and trouble.expires_in_ms is not None:
        seconds = min(seconds, trouble.expires_in_ms / 1000 + 0.1)
    # A message waits in a worker for its time to come; with Redis and SQS not for longer than this.
    visible = (app.conf.broker_transport_options or {}).get("visibility_timeout")
    most = ASK_AGAIN_SECONDS_MAX if visible is None else float(visible) / 2
    return min(seconds, ASK_AGAIN_SECONDS_MAX, max(most, ASK_AGAIN_SECONDS_MIN))


class _Successors:
    """Which messages (task's id, retry) this process has sent again lately, and how often.

    Redis gives a message out once more when it has only waited for a place in a pool for longer
    than the visibility timeout. If each of those sent another one, they would double every time; so
    a process sends one for all deliveries of a message.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int], tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def may_send(self, message: tuple[str, int], asked: int, seconds: float) -> bool:
        """Whether the message that has asked so often is to be sent again; noted if it is."""
        now = clock.now()
        with self._lock:
            number, until = self._sent.get(message, (0, now))
            if asked < number and now < until:
                return False
            self._sent[message] = (asked + 1, now + seconds + SENT_SECONDS)
            self._sent.move_to_end(message)
            while len(self._sent) > SENT_MAX:
                self._sent.popitem(last=False)
        return True

    def forget(self, message: tuple[str, int]) -> None:
        with self._lock:
            self._sent.pop(message, None)


_successors = _Successors()


def _key_of(task_id: str) -> str:
    """A run's key for a task's id, whatever the sender chose for it."""
    key = f"celery-{task_id}"
    if KEY.fullmatch(key) and len(key) <= KEY_CHARS_MAX:
        return key
    return f"celery-{hashlib.sha256(task_id.encode()).hexdigest()[:KEY_HASH_CHARS]}"


_clients: dict[tuple[int, str, str], Client] = {}
_lock = threading.Lock()


def client_of(app: Any, hostname: str | None) -> Client:
    """The client of this process: a worker's children are forks, and each has its own.

    Raises RuntimeError when it is not told where the store is.
    """
    url = app.conf.get("agentstate_url") or os.environ.get("AGENTSTATE_URL")
    key = app.conf.get("agentstate_key") or os.environ.get("AGENTSTATE_KEY")
    if not url or not key:
        raise RuntimeError(
            "set agentstate_url and agentstate_key in Celery's configuration, or AGENTSTATE_URL "
            "and AGENTSTATE_KEY"
        )
    place = (os.getpid(), url, key)
    with _lock:
        if place not in _clients:
            worker = re.sub(r"[^A-Za-z0-9._:@-]", "-", hostname or "celery")[:100].strip("._:@-")
            _clients[place] = Client(url, key, worker=worker or "celery")
        return _clients[place]
