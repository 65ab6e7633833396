# Made from _async/threads.py by make_sync.py. Change it there.

"""The threads of LangGraph's that a saver reads and writes, each under the lease of its run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from agentstate_client import clock
from agentstate_client._sync.client import Client
from agentstate_client._sync.runs import Run
from agentstate_client._sync.thread_log import ThreadLog
from agentstate_client._sync.transport import Call
from agentstate_client._sync.waiting import Flag, Spawned, abandon, spawn
from agentstate_client.calls import log
from agentstate_client.errors import AgentStateError, Exists, LeaseHeld, NotFound
from agentstate_client.packing import Typed
from agentstate_client.thread_index import Entry
from agentstate_client.thread_records import (
    MANY_RUNS_TAG,
    RUN_TAG,
    RUN_TAGS_MAX,
    ChannelHistory,
    Matches,
    NewCheckpoint,
    NewWrites,
    StoredCheckpoint,
    ThreadMoved,
    Value,
    key_of,
    run_tag,
)

MAX_ATTEMPTS = 1_000_000  # each taking of a thread is an attempt of its run
LOGS_KEPT, SEEN_KEPT = 256, 100_000
LIST_AT_ONCE, ALL = 16, 1_000_000
LOOK_SECONDS_MAX = 5.0


@dataclass
class Held:
    """The lease of a thread. is_ours: taken by a write, and given back when it is idle."""

    run: Run
    is_ours: bool
    used_at: float


@dataclass
class Listing:
    """How far a list has come. below: the number that it goes on from; left: how many more."""

    ns: str | None
    id: str | None
    before: str | None
    left: int | None
    matches: Matches | None
    below: int | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        self.is_over = self.left is not None and self.left <= 0

    def names(self, entry: Entry) -> bool:
        """Whether it is asked for, but for its metadata. before: of an id that nobody knows."""
        document = entry.document
        return (
            self.ns in (None, document["ns"])
            and self.id in (None, document["id"])
            and (self.before is None or document["id"] < self.before)
        )


class Threads:
    """Reads and writes threads; see agentstate_client.langgraph for what it promises."""

    def __init__(self, client: Client, *, task: str, ttl_seconds: int, idle_seconds: float) -> None:
        self.client, self.task = client, task
        self._ttl_seconds, self._idle_seconds = ttl_seconds, idle_seconds
        self._transport = client._transport
        self._logs: OrderedDict[str, ThreadLog] = OrderedDict()
        self._held: dict[str, Held] = {}
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._tags: dict[str, set[str]] = {}
        self._closed = Flag()
        self._looking: Spawned | None = None

    # --- leases ---

    def hold(
        self, thread: str | Run, *, wait_seconds: float, ttl_seconds: int | None
    ) -> ThreadHold:
        """A block in which writes of the thread go under one lease, which is kept for all of it."""
        return ThreadHold(self, thread, wait_seconds, ttl_seconds or self._ttl_seconds)

    def take(self, thread_id: str, *, wait_seconds: float, ttl_seconds: int) -> Run:
        """Take a thread, made if it is not there. Raises LeaseHeld after so long a wait."""
        until = clock.now() + wait_seconds
        while True:
            try:
                return self._acquired(thread_id, ttl_seconds)
            except LeaseHeld as held:
                left = until - clock.now()
                if left <= 0:
                    raise
                in_ms = held.expires_in_ms
                soon = 1.0 if in_ms is None else in_ms / 1000 + 0.05
                self._transport.sleep(min(soon, left, 1.0))

    def _acquired(self, thread_id: str, ttl_seconds: int) -> Run:
        key = key_of(thread_id)
        try:
            return self.client.run(key).acquire(ttl_seconds=ttl_seconds)
        except NotFound:
            self._make(key, thread_id)
            return self.client.run(key).acquire(ttl_seconds=ttl_seconds)

    def _make(self, key: str, thread_id: str) -> None:
        named = {"langgraph": {"thread_id": thread_id}}
        try:
            self.client.create(
                key=key, task=self.task, status="running", attrs=named, max_attempts=MAX_ATTEMPTS
            )
        except Exists:
            log.debug("%s was made by somebody else just now", key)

    def adopt(self, thread_id: str, run: Run) -> None:
        """From now on writes of the thread go under the lease of this handle."""
        thread = self._log(thread_id)
        with thread.lock:
            held = self._held.get(thread_id)
            if held is not None and held.run.lease is not None and held.run.lease.state == "held":
                raise ValueError(f"this saver holds the thread {thread_id} already")
            self._held[thread_id] = Held(run, False, clock.now())
            self._seen.pop(thread_id, None)
            thread.catch_up()

    def leave(self, thread_id: str) -> None:
        """Forget the lease of a thread; whoever took it gives it back."""
        thread = self._log(thread_id)
        with thread.lock:
            self._held.pop(thread_id, None)
            self._seen.pop(thread_id, None)

    def release(self, thread_id: str) -> None:
        """Give a thread back that was taken by a write."""
        held = self._held.get(thread_id)
        if held is None or not held.is_ours:
            return
        thread = self._log(thread_id)
        with thread.lock:
            if self._held.get(thread_id) is held:
                self._give_back(thread_id, held)

    def _give_back(self, thread_id: str, held: Held) -> None:
        del self._held[thread_id]
        try:
            held.run.release()
        except AgentStateError as failure:
            log.warning("%s was not given back and will run out: %s", held.run.key, failure)

    def close(self) -> None:
        """Give back every thread that was taken by a write."""
        self._closed.set()
        abandon(self._looking)
        for thread_id in tuple(self._held):
            self.release(thread_id)

    def _writing(self, thread: ThreadLog) -> Run:
        """The handle under whose lease to write; what is known of the thread is as it is.

        Raises LeaseHeld, ThreadMoved, and once the lease was lost LeaseLost, until the thread is
        read anew: who was overtaken in the middle of a graph must not go on by itself.
        """
        name = thread.thread_id
        held = self._held.get(name)
        if held is not None and held.run.lease is not None:
            held.run.lease.guard()
            held.used_at = clock.now()
            if not thread.index.was_read:
                thread.catch_up()
            return held.run
        if thread.exists or thread.index.was_read is False:
            run = self._acquired(name, self._ttl_seconds)
        else:
            self._make(thread.key, name)
            run = self.client.run(thread.key).acquire(ttl_seconds=self._ttl_seconds)
        try:
            thread.catch_up()
            seen = self._seen.get(name)
            if seen is not None and thread.index.high > seen:
                raise ThreadMoved(name, seen, thread.index.high)
        except BaseException:
            run.release()
            raise
        self._held[name] = Held(run, True, clock.now())
        self._look_after()
        return run

    def _look_after(self) -> None:
        if self._looking is None:
            self._looking = spawn(self._give_back_idle, name="agentstate-threads")

    def _give_back_idle(self) -> None:
        """While anything is held by itself: give back what nobody used for so long."""
        every = min(LOOK_SECONDS_MAX, self._idle_seconds / 2)
        while not self._closed.wait(every):
            for name, held in self._ours():
                if clock.now() - held.used_at >= self._idle_seconds:
                    self._give_back_if_idle(name, held)
            if not self._ours():
                self._looking = None
                if not self._ours():  # what is taken from now on begins this anew
                    return

    def _give_back_if_idle(self, name: str, held: Held) -> None:
        with self._log(name).lock:
            # Who wrote meanwhile is not idle.
            idle_seconds = clock.now() - held.used_at
            if self._held.get(name) is held and idle_seconds >= self._idle_seconds:
                self._give_back(name, held)

    def _ours(self) -> list[tuple[str, Held]]:
        return [(name, held) for name, held in tuple(self._held.items()) if held.is_ours]

    # --- reading ---

    def get(self, thread_id: str, ns: str, id: str | None) -> StoredCheckpoint | None:
        """A checkpoint by its id, or the newest of a namespace."""
        thread = self._log(thread_id)
        with thread.lock:
            self._look(thread, begins=ns == "")
            entry = thread.newest(ns) if id is None else thread.find(ns, id)
            return None if entry is None else thread.loaded(entry)

    def _look(self, thread: ThreadLog, *, begins: bool) -> None:
        """Have what is known of the thread as it is. begins: a graph begins with what it reads.

        Who holds the lease is the only one to write, and knows it already.
        """
        held = self._held.get(thread.thread_id)
        state = None if held is None or held.run.lease is None else held.run.lease.state
        if begins and held is not None and held.is_ours and state == "lost":
            del self._held[thread.thread_id]
        if held is not None and held.is_ours and state == "held":
            held.used_at = clock.now()
        if state != "held" or not thread.index.was_read:
            thread.catch_up()
        if begins:
            self._note_seen(thread)

    def _note_seen(self, thread: ThreadLog) -> None:
        self._seen[thread.thread_id] = thread.index.high
        self._seen.move_to_end(thread.thread_id)
        if len(self._seen) > SEEN_KEPT:
            self._seen.popitem(last=False)

    def listed(
        self,
        thread_id: str | None,
        *,
        ns: str | None,
        id: str | None,
        before: str | None,
        limit: int | None,
        matches: Matches | None,
    ) -> Iterator[StoredCheckpoint]:
        """Checkpoints, newest first; of every thread, newest thread first, when none is named.

        before: a checkpoint's id. matches: is asked with the metadata, before values are read.
        """
        left = limit
        for name in self._named(thread_id):
            listing = Listing(ns=ns, id=id, before=before, left=left, matches=matches)
            thread = self._log(name)
            while not listing.is_over:
                # Nothing is locked while the caller looks at what it got.
                with thread.lock:
                    self._look(thread, begins=False)
                    found = self._next(thread, listing)
                yield from found
            left = listing.left

    def _next(self, thread: ThreadLog, listing: Listing) -> list[StoredCheckpoint]:
        """The next few of a thread. Their values are read last, once they are known to be asked."""
        if listing.before is not None and listing.below is None:
            last = thread.find(listing.ns or "", listing.before, hidden=True)
            if last is not None:
                listing.below, listing.before = last.seq, None
        found: list[StoredCheckpoint] = []
        entries = thread.checkpoints(listing.below, LIST_AT_ONCE)
        listing.is_over = len(entries) < LIST_AT_ONCE
        for entry in entries:
            if listing.left is not None and listing.left <= 0:
                break
            listing.below = entry.seq
            if listing.names(entry) and (
                listing.matches is None or listing.matches(thread.metadata(entry))
            ):
                found.append(thread.loaded(entry))
                listing.left = None if listing.left is None else listing.left - 1
        listing.is_over = listing.is_over or (listing.left is not None and listing.left <= 0)
        return found

    def _named(self, thread_id: str | None) -> Iterator[str]:
        if thread_id is not None:
            yield thread_id
            return
        for key in self._runs({"task": self.task}):
            yield self.thread_of(key)

    def _runs(self, wanted: dict[str, str]) -> Iterator[str]:
        """Keys of the runs of this filter, newest first."""
        cursor: str | None = None
        while True:
            query: dict[str, str | int | list[str]] = {**wanted, "limit": 200}
            if cursor is not None:
                query["cursor"] = cursor
            answer = self._transport.send(Call("GET", "/runs", query=query))
            page = answer.document()
            for item in page["items"]:
                yield item["key"]
            cursor = page.get("next")
            if cursor is None:
                return

    def thread_of(self, key: str) -> str:
        """The id of the thread whose run this is."""
        if not key.startswith("thread-"):
            return key
        attrs = (self.client.run(key).read()).attrs
        named = attrs.get("langgraph")
        found = named.get("thread_id") if isinstance(named, dict) else None
        return found if isinstance(found, str) and key_of(found) == key else key

    def history(
        self, thread_id: str, ns: str, id: str | None, channels: Sequence[str]
    ) -> dict[str, ChannelHistory]:
        thread = self._log(thread_id)
        with thread.lock:
            self._look(thread, begins=False)
            return thread.history(ns, id, channels)

    # --- writing ---

    def put(self, thread_id: str, new: NewCheckpoint) -> None:
        thread = self._log(thread_id)
        with thread.lock:
            run = self._writing(thread)
            if new.run_id is not None:
                self._tag(thread, run, new.run_id)
            self._written(thread, lambda: thread.put(run, new))

    def put_writes(self, thread_id: str, new: NewWrites) -> None:
        thread = self._log(thread_id)
        with thread.lock:
            run = self._writing(thread)
            self._written(thread, lambda: thread.put_writes(run, new))

    def _hide(self, thread: ThreadLog, what: str, **more: Any) -> None:
        """Under a lease, which is given back at once if it was taken for this alone."""
        name = thread.thread_id
        with thread.lock:
            was_held = name in self._held
            run = self._writing(thread)
            self._written(thread, lambda: thread.hide(run, what, **more))
            if not was_held:
                self._give_back(name, self._held[name])

    def _written(self, thread: ThreadLog, write: Callable[[], None]) -> None:
        try:
            write()
        except AgentStateError as failure:
            if failure.outcome_unknown:
                self._logs.pop(thread.thread_id, None)  # read it anew: it may be there
            raise
        self._held[thread.thread_id].used_at = clock.now()
        self._note_seen(thread)

    def _tag(self, thread: ThreadLog, run: Run, run_id: str) -> None:
        """Mark the thread as one that has checkpoints of this run of LangGraph's."""
        tags = self._tags.get(thread.key)
        if tags is None:
            tags = self._tags[thread.key] = set((run.read()).tags)
        wanted = run_tag(run_id)
        if wanted in tags:
            return
        if sum(tag.startswith(RUN_TAG) for tag in tags) >= RUN_TAGS_MAX:
            wanted = MANY_RUNS_TAG
        if wanted not in tags:
            run.tag(wanted)
            tags.add(wanted)

    def delete(self, thread_id: str) -> None:
        """Hide all of a thread. The log keeps it for as long as the run."""
        thread = self._log(thread_id)
        with thread.lock:
            self._look(thread, begins=True)
            is_there = thread.index.high > 0 and not thread.index.end_of_thread()
        if is_there:
            self._hide(thread, "thread")

    def delete_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints that these runs of LangGraph's made, in whatever thread."""
        if not run_ids:
            return
        keys: dict[str, None] = {}
        for tag in [*map(run_tag, run_ids), MANY_RUNS_TAG]:
            for key in self._runs({"tag": tag}):
                keys[key] = None
        for key in keys:
            thread = self._log(self.thread_of(key))
            with thread.lock:
                self._look(thread, begins=True)
            self._hide(thread, "runs", run_ids=list(run_ids))

    def prune(self, thread_ids: Sequence[str], *, strategy: str) -> None:
        """keep_latest: of each namespace the newest checkpoint; delete: nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy: keep_latest or delete, not {strategy!r}")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete(thread_id)
                continue
            thread = self._log(thread_id)
            with thread.lock:
                self._look(thread, begins=True)
                is_there = thread.index.high > 0
            if is_there:
                self._hide(thread, "older")

    def copy(self, source: str, target: str) -> None:
        """Put all checkpoints of a thread, with their writes, into another one."""
        thread, was_held = self._log(source), target in self._held
        with thread.lock:
            self._look(thread, begins=False)
            entries = thread.checkpoints(None, ALL)
        for entry in reversed(entries):
            with thread.lock:
                stored = thread.loaded(entry)
            self.put(target, _again(stored, entry, thread))
            for new in _writes_again(stored, entry, thread):
                self.put_writes(target, new)
        if not was_held:
            self.release(target)

    def _log(self, thread_id: str) -> ThreadLog:
        """The log of a thread; of those that are not in use the latest are kept."""
        found = self._logs.get(thread_id)
        if found is None:
            found = ThreadLog(transport=self._transport, thread_id=thread_id)
            self._logs[thread_id] = found
            while len(self._logs) > LOGS_KEPT:
                oldest = next((n for n in self._logs if n not in self._held), None)
                if oldest is None or oldest == thread_id:
                    break
                del self._logs[oldest]
                self._tags.pop(key_of(oldest), None)
        self._logs.move_to_end(thread_id)
        return found


class ThreadHold:
    """`with saver.hold("42"):`: one lease of a thread, from the first line to the last."""

    def __init__(
        self, threads: Threads, thread: str | Run, wait_seconds: float, ttl_seconds: int
    ) -> None:
        self._threads, self._thread = threads, thread
        self._wait_seconds, self._ttl_seconds = wait_seconds, ttl_seconds
        self._thread_id = ""
        self._taken: Run | None = None

    def __enter__(self) -> Run:
        if isinstance(self._thread, str):
            self._thread_id = self._thread
            run = self._taken = self._threads.take(
                self._thread, wait_seconds=self._wait_seconds, ttl_seconds=self._ttl_seconds
            )
        else:
            run = self._thread
            if run.lease is None:
                raise ValueError("hold a thread by its id, or by a run that is leased")
            self._thread_id = self._threads.thread_of(run.key)
        try:
            self._threads.adopt(self._thread_id, run)
        except BaseException:
            if self._taken is not None:
                self._taken.release()
            raise
        return run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.leave(self._thread_id)
        if self._taken is not None:
            self._taken.__exit__(kind, raised, trace)


def _again(stored: StoredCheckpoint, entry: Entry, thread: ThreadLog) -> NewCheckpoint:
    """What puts a checkpoint once more, in another thread."""
    above = stored.parent and thread.index.find(stored.ns, stored.parent, hidden=True)
    there = {v["c"]: v for v in above.document["values"]} if above else {}
    values = {}
    for value in entry.document["values"]:
        channel, version = value["c"], value["n"]
        same_as = version if there.get(channel) == value else None
        values[channel] = Value(same_as, version, partial(_itself, stored.values[channel]))
    return NewCheckpoint(
        ns=stored.ns,
        id=stored.id,
        parent=stored.parent,
        checkpoint=stored.checkpoint,
        metadata=stored.metadata,
        run_id=entry.document.get("run_id"),
        values=values,
    )


def _itself(typed: Typed) -> Typed:
    return typed


def _writes_again(stored: StoredCheckpoint, entry: Entry, thread: ThreadLog) -> list[NewWrites]:
    """What puts its writes once more, task by task."""
    by_task: dict[tuple[str, str], list[tuple[int, str, Typed]]] = {}
    written = thread.index.writes_of(entry)
    for write, (task, channel, typed) in zip(written, stored.writes, strict=False):
        by_task.setdefault((task, write.path), []).append((write.place, channel, typed))
    return [
        NewWrites(ns=stored.ns, id=stored.id, task=task, path=path, writes=writes)
        for (task, path), writes in by_task.items()
    ]
