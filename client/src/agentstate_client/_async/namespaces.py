"""Items by namespace and key, for LangGraph's store: a namespace is a run, a put an event of it.

The run is never leased, so that everybody may put at any time; of two puts the one that is later in
the log stays. What was read of a namespace is kept, and only what came since is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentstate_client._async.client import AsyncClient
from agentstate_client._async.transport import AsyncCall
from agentstate_client._async.waiting import AsyncLock
from agentstate_client.calls import path_of
from agentstate_client.errors import Exists, NotFound, Problem, Unsendable, refusal
from agentstate_client.payloads import read_members
from agentstate_client.records import Event, RecordedEvent, read_events

ITEM = "langgraph.item"
PAGE = 500
LABELS_MAX, NAME_CHARS_MAX = 40, 500
NAMESPACES_KEPT = 1_000

Path = tuple[str, ...]


@dataclass(frozen=True)
class StoredItem:
    """An item. raw: its value as it was sent; times are the database's."""

    namespace: Path
    key: str
    raw: str
    created_at: datetime
    updated_at: datetime
    seq: int


class AsyncNamespace:
    """What is known of one namespace: its items, as of the run's number `high`."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.lock = AsyncLock()
        self.items: dict[str, StoredItem] = {}
        self.high = 0

    def note(self, event: RecordedEvent) -> None:
        if event.raw is None:
            raise refusal(Problem("not-allowed", "the store needs the scope payloads as well"))
        members = {name: event.raw[start:end] for name, start, end in read_members(event.raw)}
        key, raw = json.loads(members["key"]), members.get("value")
        before = self.items.pop(key, None)
        if raw is not None:
            created_at = event.at if before is None else before.created_at
            self.items[key] = StoredItem(self.path, key, raw, created_at, event.at, event.seq)


class AsyncNamespaces:
    """The namespaces of one store, by its name."""

    def __init__(self, client: AsyncClient, *, name: str) -> None:
        self._client, self._transport, self.name = client, client._transport, name
        self._known: OrderedDict[Path, AsyncNamespace] = OrderedDict()

    async def get(self, path: Path, key: str) -> StoredItem | None:
        there = self._namespace(path)
        async with there.lock:
            await self._catch_up(there)
            return there.items.get(key)

    async def put(self, path: Path, values: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Put or delete (None) several items of a namespace, all or none of them."""
        events = [
            Event(ITEM, {"key": key} if value is None else {"key": key, "value": value})
            for key, value in values.items()
        ]
        if len(events) > PAGE:
            raise Unsendable(f"{len(events)} items of a namespace at once; at most {PAGE}")
        there = self._namespace(path)
        try:
            await self._client.run(there.run).append(*events)
            return
        except NotFound:
            if all(value is None for value in values.values()):
                return
        await self._make(there)
        await self._client.run(there.run).append(*events)

    async def _make(self, there: AsyncNamespace) -> None:
        named = _named(there.path)
        if len(named) > NAME_CHARS_MAX or len(there.path) > LABELS_MAX:
            raise Unsendable(
                f"the namespace {there.path!r}: at most {LABELS_MAX} labels, and {NAME_CHARS_MAX} "
                "characters as JSON"
            )
        prefixes = [there.path[:length] for length in range(len(there.path) + 1)]
        try:
            await self._client.create(
                key=there.run,
                task=named,
                status="running",
                tags=[self._tag(prefix) for prefix in prefixes],
            )
        except Exists:
            return

    async def under(self, prefix: Path) -> list[AsyncNamespace]:
        """Every namespace below a prefix that has items, as it is now."""
        found = []
        async for path, last_seq in self._listed(prefix):
            there = self._namespace(path)
            async with there.lock:
                if there.high < last_seq:
                    await self._catch_up(there)
            if there.items:
                found.append(there)
        return found

    async def _listed(self, prefix: Path) -> AsyncIterator[tuple[Path, int]]:
        cursor: str | None = None
        while True:
            query: dict[str, str | int | list[str]] = {"tag": self._tag(prefix), "limit": 200}
            if cursor is not None:
                query["cursor"] = cursor
            call = AsyncCall("GET", "/runs", query=query)
            page = (await self._transport.send(call)).document()
            for item in page["items"]:
                yield tuple(json.loads(item["task"])), item["last_seq"]
            cursor = page.get("next")
            if cursor is None:
                return

    async def _catch_up(self, there: AsyncNamespace) -> None:
        while True:
            query: dict[str, str | int | list[str]] = {
                "after": there.high, "limit": PAGE, "type": ITEM, "order": "oldest",
            }  # fmt: skip
            call = AsyncCall("GET", path_of("runs", there.run, "events"), query=query)
            try:
                answer = await self._transport.send(call)
            except NotFound:
                there.items.clear()
                there.high = 0
                return
            page, last_seq = read_events(answer.text), answer.document().get("last_seq", 0)
            for event in page:
                there.note(event)
                there.high = event.seq
            if not page or there.high >= last_seq:
                there.high = max(there.high, last_seq)
                return

    def _namespace(self, path: Path) -> AsyncNamespace:
        found = self._known.get(path)
        if found is None:
            run = f"store-{_digest([self.name, *path])[:40]}"
            found = self._known[path] = AsyncNamespace(path, run)
            if len(self._known) > NAMESPACES_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(path)
        return found

    def _tag(self, prefix: Path) -> str:
        return f"lg-store:{_digest([self.name, *prefix])[:32]}"


def newest_first(found: Sequence[AsyncNamespace]) -> list[StoredItem]:
    items = [item for there in found for item in there.items.values()]
    return sorted(items, key=lambda item: (item.updated_at, item.seq), reverse=True)


def _named(path: Path) -> str:
    return json.dumps(list(path))


def _digest(labels: list[str]) -> str:
    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()
