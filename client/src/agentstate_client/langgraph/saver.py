"""The checkpointer, on a Client or on an AsyncClient."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentstate_client._async.client import AsyncClient
from agentstate_client._async.runs import AsyncRun
from agentstate_client._async.threads import AsyncThreadHold, AsyncThreads
from agentstate_client._sync.client import Client
from agentstate_client._sync.runs import Run
from agentstate_client._sync.threads import ThreadHold, Threads
from agentstate_client.langgraph.serde import (
    Serializing,
    before_of,
    config_of,
    history_of,
    listed_place,
    matches_of,
    new_checkpoint,
    new_writes,
    place_of,
    tuple_of,
)

T = TypeVar("T")
TASK = "langgraph"
TTL_SECONDS = 60
IDLE_SECONDS = 60.0


class AgentStateSaver(Serializing):
    """A checkpointer on a `Client`: each thread is a run, each checkpoint an event of it.

    client: its key needs the scopes read, payloads and write. serde: JsonPlusSerializer, or what
    LangGraph takes in its place (EncryptedSerializer). task: of the runs that this makes, and of
    those that a list of all threads looks at. ttl_seconds: of a thread's lease; so long at most
    nobody else goes on after a crash. idle_seconds: see below.

    Every write goes under the lease of its thread. `hold` takes it for a block. Outside of one
    the first write takes it, and it is given back once this saver has neither read nor written
    the thread for idle_seconds, at `release`, and at `close`. A write raises

    * LeaseHeld when somebody else holds the thread;
    * ThreadMoved when somebody else went on with it since this saver read it;
    * LeaseLost, StaleFence when it was taken from this saver: by its time running out during a
      pause, or by an operator. Nothing more is written then, until a graph begins anew.

    Two graphs on one thread at once, both with the same saver, are one holder to the store: they
    are not kept apart. `delete_thread`, `delete_for_runs` and `prune` hide what was written
    before; the log keeps it for as long as the run.

    Safe to use from many threads. The async methods do their work in threads: for many at once
    take AsyncAgentStateSaver.
    """

    def __init__(
        self,
        client: Client,
        *,
        serde: SerializerProtocol | None = None,
        task: str = TASK,
        ttl_seconds: int = TTL_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        super().__init__(serde=serde)
        if not idle_seconds > 0:
            raise ValueError("idle_seconds: more than 0")
        self._threads = Threads(
            client, task=task, ttl_seconds=ttl_seconds, idle_seconds=idle_seconds
        )

    def hold(
        self, thread: str | Run, *, wait_seconds: float = 0, ttl_seconds: int | None = None
    ) -> ThreadHold:
        """One lease of a thread for a whole block: `with saver.hold("42") as run: …`.

        thread: its id; its run is made if there is none. Or a run that this process holds already
        (`client.claim`, a worker's function), whose key is the thread's id; it stays the caller's
        to give back. wait_seconds: for somebody else's lease to end. Raises LeaseHeld after that.
        """
        return self._threads.hold(thread, wait_seconds=wait_seconds, ttl_seconds=ttl_seconds)

    def release(self, thread_id: str) -> None:
        """Give a thread back that was taken by a write."""
        self._threads.release(thread_id)

    def close(self) -> None:
        """Give back everything that was taken by a write. The client stays open."""
        self._threads.close()

    def __enter__(self) -> AgentStateSaver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint by its id, or the newest of its namespace."""
        stored = self._threads.get(*place_of(config))
        return None if stored is None else tuple_of(self.serde, stored)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints of a thread, newest first; read as they are asked for."""
        thread_id, ns, id = listed_place(config)
        for stored in self._threads.listed(
            thread_id,
            ns=ns,
            id=id,
            before=before_of(before),
            limit=limit,
            matches=matches_of(self.serde, filter),
        ):
            yield tuple_of(self.serde, stored)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Append a checkpoint. Raises Unsendable for a value above 64 MiB."""
        thread_id, new = new_checkpoint(self.serde, config, checkpoint, metadata, new_versions)
        self._threads.put(thread_id, new)
        return config_of(thread_id, new.ns, new.id)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Append what a task wrote; the same again changes nothing."""
        self._threads.put_writes(*new_writes(self.serde, config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Hide all of a thread."""
        self._threads.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints whose metadata has one of these run_ids, in whatever thread."""
        self._threads.delete_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Put all checkpoints and writes of a thread into another one."""
        self._threads.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hide all but the newest checkpoint of each namespace, or everything ("delete")."""
        self._threads.prune([str(id) for id in thread_ids], strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Writes of channels along a checkpoint's ancestors, those that a prune hid included."""
        return history_of(self.serde, self._threads.history(*place_of(config), channels))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(
            self.get_delta_channel_history, config=config, channels=channels
        )


class AsyncAgentStateSaver(Serializing):
    """AgentStateSaver on an `AsyncClient`, with the same names and promises, awaited.

    Make it in the event loop in which it is used. `invoke` and the other sync methods of a graph
    work from other threads than the loop's alone.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        serde: SerializerProtocol | None = None,
        task: str = TASK,
        ttl_seconds: int = TTL_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        super().__init__(serde=serde)
        if not idle_seconds > 0:
            raise ValueError("idle_seconds: more than 0")
        self._threads = AsyncThreads(
            client, task=task, ttl_seconds=ttl_seconds, idle_seconds=idle_seconds
        )
        self._loop = asyncio.get_running_loop()

    def hold(
        self, thread: str | AsyncRun, *, wait_seconds: float = 0, ttl_seconds: int | None = None
    ) -> AsyncThreadHold:
        """One lease of a thread for a whole block: `async with saver.hold("42") as run: …`."""
        return self._threads.hold(thread, wait_seconds=wait_seconds, ttl_seconds=ttl_seconds)

    async def release(self, thread_id: str) -> None:
        """Give a thread back that was taken by a write."""
        await self._threads.release(thread_id)

    async def aclose(self) -> None:
        """Give back everything that was taken by a write. The client stays open."""
        await self._threads.close()

    async def __aenter__(self) -> AsyncAgentStateSaver:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint by its id, or the newest of its namespace."""
        stored = await self._threads.get(*place_of(config))
        return None if stored is None else tuple_of(self.serde, stored)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints of a thread, newest first; read as they are asked for."""
        thread_id, ns, id = listed_place(config)
        async for stored in self._threads.listed(
            thread_id,
            ns=ns,
            id=id,
            before=before_of(before),
            limit=limit,
            matches=matches_of(self.serde, filter),
        ):
            yield tuple_of(self.serde, stored)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Append a checkpoint. Raises Unsendable for a value above 64 MiB."""
        thread_id, new = new_checkpoint(self.serde, config, checkpoint, metadata, new_versions)
        await self._threads.put(thread_id, new)
        return config_of(thread_id, new.ns, new.id)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Append what a task wrote; the same again changes nothing."""
        await self._threads.put_writes(*new_writes(self.serde, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Hide all of a thread."""
        await self._threads.delete(str(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints whose metadata has one of these run_ids, in whatever thread."""
        await self._threads.delete_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Put all checkpoints and writes of a thread into another one."""
        await self._threads.copy(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hide all but the newest checkpoint of each namespace, or everything ("delete")."""
        await self._threads.prune([str(id) for id in thread_ids], strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Writes of channels along a checkpoint's ancestors, those that a prune hid included."""
        return history_of(self.serde, await self._threads.history(*place_of(config), channels))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._waited(self.aget_tuple, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found = self.alist(config, filter=filter, before=before, limit=limit)
        while (one := self._waited(_next, found)) is not None:
            yield one

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._waited(self.aput, config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._waited(self.aput_writes, config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        self._waited(self.adelete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._waited(self.adelete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._waited(self.acopy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._waited(self.aprune, thread_ids, strategy=strategy)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._waited(self.aget_delta_channel_history, config=config, channels=channels)

    def _waited(self, work: Callable[..., Coroutine[Any, Any, T]], *given: Any, **named: Any) -> T:
        """Have the loop do it and wait, from another thread."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise RuntimeError(
                "this saver's event loop runs in this thread: use ainvoke, aget_state and the like"
            )
        return asyncio.run_coroutine_threadsafe(work(*given, **named), self._loop).result()


async def _next(found: AsyncIterator[T]) -> T | None:
    return await anext(found, None)
