"""The client: one address, one API key, one worker."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from agentstate_client import clock
from agentstate_client._async.buffering import AsyncBuffer
from agentstate_client._async.following import AsyncChange, AsyncFeedReader, check_types
from agentstate_client._async.leases import AsyncLease
from agentstate_client._async.runs import AsyncRun
from agentstate_client._async.swapping import AsyncAttrsChange, applied, swap, swapped
from agentstate_client._async.transport import AsyncCall, AsyncTransport
from agentstate_client._async.waiting import AsyncTaking, carried_through, taking
from agentstate_client._async.workers import AsyncJob, AsyncWorkers
from agentstate_client.calls import Answer, Departure, log, path_of
from agentstate_client.errors import AgentStateError, LeaseLost, NotFound, Unreachable, Unsendable
from agentstate_client.holding import Holding
from agentstate_client.payloads import RawJSON, encode
from agentstate_client.records import (
    Applied,
    Duplicate,
    Event,
    Grant,
    NewBudget,
    Receipt,
    Signal,
    Swapped,
    read_grant,
    read_grants,
    read_receipt,
    read_run,
    read_signals,
)
from agentstate_client.renewals import Renewals
from agentstate_client.retry import RetryPolicy

GIVE_BACK_SECONDS = 2.0
GIVE_BACK_ALL_SECONDS = 4.0  # of many leases at a store that is slow

W = TypeVar("W", bound=Callable[..., Any])


class AsyncClient:
    """Speaks with one agentstate server, as one worker. Safe to use from many tasks.

    url: where the server is, such as http://127.0.0.1:8000. key: an API key with the scope write.
    worker: a name that operators will see (default: this machine's). owner: that name with `~` and
    a random part, so that a worker that was started again is another one; leases are in this name.
    retry: see RetryPolicy. timeout_seconds: for each step of one attempt.

    Leases are renewed by a daemon thread of this client for as long as their handle is in use:
    until it is released or ended, until the last reference to it goes, or until `close`, which
    gives everything back that is still held. Use it as a context manager. Not supported: using a
    client in a child process after a fork (ClientClosed); make one there.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        worker: str | None = None,
        retry: RetryPolicy | None = None,
        timeout_seconds: float = 15.0,
    ) -> None:
        if not timeout_seconds > 0:
            raise ValueError("timeout_seconds: more than 0")
        self.owner = f"{worker or _machine()}~{secrets.token_hex(2)}"
        self._transport = AsyncTransport(
            url=url,
            key=key,
            worker=self.owner,
            retry=retry or RetryPolicy(),
            timeout_seconds=timeout_seconds,
        )
        self._renewals = Renewals(url=url, key=key, worker=self.owner)
        self._unsent: set[AsyncBuffer] = set()
        self._workers = AsyncWorkers(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.owner} of {self._transport.base}>"

    async def create(
        self,
        *,
        task: str,
        key: str | None = None,
        status: str | None = None,
        tags: Iterable[str] = (),
        attrs: Mapping[str, Any] | RawJSON | None = None,
        parent: str | AsyncRun | None = None,
        deadline_at: datetime | None = None,
        deadline_policy: str | None = None,
        max_attempts: int | None = None,
        budgets: Iterable[NewBudget] = (),
        events: Iterable[Event] = (),
        retain_seconds: int | None = None,
    ) -> AsyncRun:
        """Make a run, its budgets and its first events, all or nothing.

        key: made by the store when it is left out. status: pending (default) or running.
        parent: a run's key, or the handle of a leased one, whose token then goes along.
        deadline_policy: report, fail or cancel. Raises Exists, NotFound (parent), Invalid.
        """
        if isinstance(tags, str):
            raise Unsendable("tags: several texts, not one")
        document = {
            "task": task,
            "key": key,
            "status": status,
            "tags": list(tags),
            "attrs": attrs,
            "parent": parent.key if isinstance(parent, AsyncRun) else parent,
            "deadline_at": None if deadline_at is None else deadline_at.isoformat(),
            "deadline_policy": deadline_policy,
            "max_attempts": max_attempts,
            "budgets": [budget.document() for budget in budgets],
            "events": [event.document() for event in events],
            "retain_seconds": retain_seconds,
        }
        given = {name: value for name, value in document.items() if value not in (None, [])}
        fence = parent.lease if isinstance(parent, AsyncRun) else None
        if isinstance(parent, AsyncRun):
            await parent.flush()
        answer = await self._transport.send(
            AsyncCall("POST", "/runs", encode(given), fence=fence, keyed=True),
        )
        created = answer.document()
        return self._handle(read_run(answer.text, created).key, None, created)

    def run(self, key: str) -> AsyncRun:
        """A handle without a lease on a run that exists; sends nothing."""
        return self._handle(key, None, {})

    async def claim(
        self,
        *,
        limit: int = 1,
        ttl_seconds: int = 60,
        task: str | None = None,
        tag: str | None = None,
    ) -> list[AsyncRun]:
        """Lease up to `limit` (at most 100) runs that wait for a worker; oldest first.

        Each comes as a fenced handle and is renewed from now on. Pending ones are running now.
        Empty when there is nothing to do.
        """
        return await self.claim_within(
            None, limit=limit, ttl_seconds=ttl_seconds, task=task, tag=tag
        )

    async def claim_within(
        self,
        seconds: float | None,
        *,
        limit: int,
        ttl_seconds: int,
        task: str | None,
        tag: str | None,
    ) -> list[AsyncRun]:
        """`claim`, with so much time for all its attempts; None: as the retry policy says."""
        document = {
            "owner": self.owner,
            "limit": limit,
            "ttl_seconds": ttl_seconds,
            **{name: value for name, value in (("task", task), ("tag", tag)) if value is not None},
        }
        return await carried_through(self._claim(document, ttl_seconds, seconds), _release_all)

    async def announce_within(self, seconds: float, body: bytes) -> tuple[Signal, ...]:
        """Tell the store of this worker (`PUT /workers/…`), and hear what is asked of it."""
        call = AsyncCall("PUT", path_of("workers", self.owner), body, total_seconds=seconds)
        return read_signals((await self._transport.send(call)).document())

    def worker(
        self,
        *,
        task: str | None = None,
        tag: str | None = None,
        concurrency: int = 1,
        ttl_seconds: int = 60,
        retry_on: tuple[type[BaseException], ...] = (),
    ) -> Callable[[W], W]:
        """Have a function carry out runs, up to `concurrency` at once; `work` begins with it.

            @client.worker(task="audit", concurrency=8)
            async def audit(run):
                text = await run.step("fetch").run(fetch, run.task)
                return {"verdict": "clean"}  # the run is completed with it

        task, tag: which runs; None: any. The function is called with a fenced run, which is
        renewed until it is over. What becomes of the run, unless the function ended it or gave it
        back by itself:

        * it returns: completed, with what it returned (any JSON value);
        * CancelRequested (from `run.checkpoint`, a step or an effect): cancelled;
        * its lease is lost, the store is not to be reached, this process is to end: given back, or
          left to run out; whoever claims it next goes on, and finished steps are not done again;
        * an exception of `retry_on`: given back for another attempt, at most max_attempts in all;
        * any other exception: failed, with the exception's class and text as the result.
        """

        def keep(function: W) -> W:
            self._workers.add(
                AsyncJob(
                    work=function,
                    task=task,
                    tag=tag,
                    concurrency=concurrency,
                    ttl_seconds=ttl_seconds,
                    retry_on=retry_on,
                )
            )
            return function

        return keep

    async def work(self, *, drain_seconds: float = 8.0, until_idle: bool = False) -> None:
        """Claim runs for the functions of `worker` and carry them out, until told to stop.

        By SIGTERM or SIGINT (in the main thread), or by `stop`: nothing more is claimed, and
        `run.checkpoint`, a new step or a new effect raises StopRequested, which gives the run back.
        What has not ended after drain_seconds is given back as it stands, and nothing that it
        writes leaves any more; that takes 4 s at most, so all of it ends within 15 s unless more
        is asked for. A second signal ends the process at once. An operator's drain:
        nothing more is claimed, everything that is held is finished, and this returns.

        until_idle: return when there is nothing to claim and nothing is being carried out.
        While the store does not answer it goes on trying. Raises Refused when the store says no to
        claiming at all (NotAllowed, Unauthenticated), after the same end.
        """
        await self._workers.work(drain_seconds=drain_seconds, until_idle=until_idle)

    def stop(self) -> None:
        """Have `work` come to its end. From any thread."""
        self._workers.stop()

    def lease(self, unit: str, *, ttl_seconds: int = 60) -> AsyncTaking[AsyncLease]:
        """Take a unit and keep it: `async with client.lease("crawl:example.org") as lease: …`.

        Raises LeaseHeld (owner, expires_in_ms) while another lease is live, also one of this
        worker. For a run use `client.run(key).acquire()`: its handle writes under the lease.
        """
        return taking(self._lease(unit, ttl_seconds))

    def feed(
        self,
        *,
        after: int | None = None,
        consumer: str | None = None,
        types: Sequence[str] = (),
        patience_seconds: float = 300,
    ) -> AsyncIterator[AsyncChange]:
        """Every change of every run behind the position `after`, in the feed's order, for ever.

        consumer: a name under which the store keeps how far one has come; `change.ack()` says so,
        and without `after` it goes on from there: what was not acknowledged comes again. types:
        only changes with events of these types; `run.*` stands for all that begin with `run.`.
        What they pass over is acknowledged by itself while all that was given out is, unless
        `after` is said. Each (run, number) is given out once. While the store does not answer it
        asks again for patience_seconds. Raises CursorExpired when what follows is no longer kept.
        """
        check_types(types)
        reader = AsyncFeedReader(
            self._transport, consumer=consumer, patience_seconds=patience_seconds
        )
        return reader.changes(after=after, types=types)

    async def cas(
        self,
        run: str | AsyncRun,
        change: AsyncAttrsChange,
        *,
        attempts: int = 5,
    ) -> Swapped:
        """Compare and set: replace a run's attrs by what `change` makes of the run as it is.

        run: a key, or a handle, whose lease the write then goes under. change: given the run, it
        returns the new attrs; when somebody else wrote meanwhile it is asked again, with the run
        as it is then. Raises GaveUp after so many attempts, ValueError for a change that returns
        None, and whatever `change` raises.
        """
        return swapped(await self._swap(run, change, attempts))

    async def apply(
        self,
        change_id: str,
        run: str | AsyncRun,
        change: AsyncAttrsChange,
        *,
        attempts: int = 5,
    ) -> Applied | Duplicate:
        """`cas` under a change id, which the store knows for as long as the run: applied once.

        The same id again changes nothing, also from another process, under another lease or with
        what `change` makes of a later state: it is a Duplicate with the version at which it was
        applied. `change` may be asked for nothing then: it must have no effect of its own.
        Raises what `cas` raises.
        """
        result = await self._swap(run, change, attempts, change_id=change_id)
        return applied(result)

    async def _swap(
        self,
        run: str | AsyncRun,
        change: AsyncAttrsChange,
        attempts: int,
        *,
        change_id: str | None = None,
    ) -> tuple[Mapping[str, Any], Answer, int]:
        handle = run if isinstance(run, AsyncRun) else self.run(run)
        await handle.flush()
        result = await swap(
            self._transport,
            handle.key,
            change,
            read=handle.read,
            lease=handle.lease,
            attempts=attempts,
            change_id=change_id,
        )
        handle.note_swap(result[1])
        return result

    async def receipt(self, key: str | None = None, /, *, request_id: str | None = None) -> Receipt:
        """What became of a request: by its Idempotency-Key, which is this client's only to ask
        for, or by its request id. What this client sends has both alike; `Unreachable.request_id`
        is one, for whoever was left without an answer. Needs the scope read.
        """
        asked = {"key": key, "request_id": request_id}
        query = {name: value for name, value in asked.items() if value is not None}
        if len(query) != 1:
            raise ValueError("a key, or request_id=")
        answer = await self._transport.send(AsyncCall("GET", "/receipts", query=query))
        return read_receipt(answer.text, answer.document())

    async def close(self) -> None:
        """Write what is gathered, give back what is still held, in a few seconds at most, and send
        nothing more. Raises, at the end of all that, what kept gathered events from being written.
        """
        unwritten = await self._flush_all()
        await self._give_all_back()
        await self._transport.close()
        if unwritten is not None:
            raise unwritten

    async def _flush_all(self) -> AgentStateError | None:
        """The first failure, if any; a store that does not answer is not waited for again."""
        first: AgentStateError | None = None
        buffers = tuple(self._unsent)
        for buffer in buffers:
            try:
                await buffer.flush(within_seconds=GIVE_BACK_SECONDS)
            except AgentStateError as failure:
                log.warning("%d events are not acknowledged: %s", len(buffer.events()), failure)
                first = first or failure
                if isinstance(failure, Unreachable):
                    break
        for buffer in buffers:
            buffer.close()
        return first

    async def _give_all_back(self) -> None:
        await self._tell_given_back(self._renewals.close())

    async def give_back_soon(self, leases: Sequence[AsyncLease]) -> None:
        """Give leases back in 4 s at most, all of them. Nothing is written under them any more."""
        await self._tell_given_back([lease for lease in leases if lease.note_release()])
        self._renewals.wake()

    async def _tell_given_back(self, leases: Sequence[Holding[Any]]) -> None:
        ends_at = clock.now() + GIVE_BACK_ALL_SECONDS
        for number, lease in enumerate(leases):
            if (left := ends_at - clock.now()) <= 0:
                log.warning("%d leases were not given back: they run out", len(leases) - number)
                break
            try:
                await self._transport.send_once(
                    _release_of(lease),
                    Departure(),
                    attempt=1,
                    timeout_seconds=min(GIVE_BACK_SECONDS, left),
                )
            except AgentStateError as failure:
                log.warning("%s was not given back and will run out: %s", lease.unit, failure)
                if not isinstance(failure, (LeaseLost, NotFound)):
                    break

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except AgentStateError:
            if raised is None:
                raise

    def _handle(self, key: str, lease: AsyncLease | None, seen: Mapping[str, Any]) -> AsyncRun:
        return AsyncRun(
            transport=self._transport,
            key=key,
            acquire=self._acquire,
            unsent=self._unsent,
            lease=lease,
            seen=seen,
        )

    async def _claim(
        self, document: Mapping[str, Any], ttl_seconds: int, within_seconds: float | None
    ) -> list[AsyncRun]:
        try:
            answer = await self._ask("/leases/claim", document, ttl_seconds, within_seconds)
        except LeaseLost as late:
            # The answer to the first attempt was lost, and what it granted is over by now.
            log.warning("what was claimed came too late: %s", late)
            return []
        return [
            self._handle(str(grant.run), self._hold(grant, ttl_seconds, answer), grant.seen)
            for grant in read_grants(answer.text)
        ]

    async def _lease(self, unit: str, ttl_seconds: int) -> AsyncLease:
        return (await self._acquire(unit, ttl_seconds))[0]

    async def _acquire(self, unit: str, ttl_seconds: int) -> tuple[AsyncLease, Mapping[str, Any]]:
        return await carried_through(self._take(unit, ttl_seconds), _release_taken)

    async def _take(self, unit: str, ttl_seconds: int) -> tuple[AsyncLease, Mapping[str, Any]]:
        document = {"owner": self.owner, "ttl_seconds": ttl_seconds}
        answer = await self._ask(path_of("leases", unit, "acquire"), document, ttl_seconds)
        grant = read_grant(answer.text)
        return self._hold(grant, ttl_seconds, answer), grant.seen

    async def _ask(
        self,
        path: str,
        document: Mapping[str, Any],
        ttl_seconds: int,
        within_seconds: float | None = None,
    ) -> Answer:
        # Waiting for a grant until it has run out would be of no use.
        useful = ttl_seconds if type(ttl_seconds) is int and ttl_seconds > 0 else None
        return await self._transport.send(
            AsyncCall(
                "POST",
                path,
                encode(document),
                keyed=True,
                attempt_seconds=useful,
                total_seconds=within_seconds,
            )
        )

    def _hold(self, grant: Grant, ttl_seconds: int, answer: Answer) -> AsyncLease:
        lease = AsyncLease(
            grant, ttl_seconds=ttl_seconds, sent_at=answer.sent_at, give_back=self._give_back
        )
        self._renewals.add(lease)
        return lease

    async def _give_back(self, lease: AsyncLease, within_seconds: float) -> None:
        try:
            await self._transport.send(_release_of(lease, within_seconds))
        except NotFound:
            log.debug("%s: nothing to give back", lease.unit)
        self._renewals.wake()


async def _release_all(runs: list[AsyncRun]) -> None:
    for run in runs:
        await run.release()


async def _release_taken(taken: tuple[AsyncLease, Mapping[str, Any]]) -> None:
    await taken[0].release()


def _release_of(lease: Holding[Any], within_seconds: float | None = None) -> AsyncCall:
    path = path_of("leases", lease.unit, "release")
    return AsyncCall("POST", path, encode({"token": lease.token}), total_seconds=within_seconds)


def _machine() -> str:
    """This machine's name as far as it can be a worker's."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100].strip(".-") or "worker"
