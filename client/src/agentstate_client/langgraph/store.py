"""LangGraph's store, on a Client or on an AsyncClient."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from agentstate_client._async import namespaces as _namespaces
from agentstate_client._async.client import AsyncClient
from agentstate_client._sync.client import Client
from agentstate_client._sync.namespaces import Namespaces, newest_first

Path = tuple[str, ...]
ORDERED = {
    "$gt": lambda one, other: one > other,
    "$gte": lambda one, other: one >= other,
    "$lt": lambda one, other: one < other,
    "$lte": lambda one, other: one <= other,
}


class AgentStateStore(BaseStore):
    """LangGraph's store on a `Client`: a namespace is a run, and each put an event of it.

    client: its key needs the scopes read, payloads and write. name: of two stores with different
    names neither sees the other's items. Not leased: everybody may put at any time, and the later
    put stays. Times are the database's. A value is a JSON object of at most 1 MiB. A search finds
    by namespace and filter, newest first; there are no embeddings: `query` and `index` change
    nothing. No ttl. What was overwritten or deleted stays in the run's log for as long as the run.
    """

    def __init__(self, client: Client, *, name: str = "store") -> None:
        self._namespaces = Namespaces(client, name=name)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Every read sees what was there before the batch; then the puts."""
        results: list[Result] = []
        puts: Puts = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, GetOp):
                results.append(item_of(self._namespaces.get(op.namespace, op.key)))
            elif isinstance(op, SearchOp):
                results.append(searched(op, self._namespaces.under(op.namespace_prefix)))
            elif isinstance(op, ListNamespacesOp):
                results.append(listed(op, self._namespaces.under(prefix_of(op))))
            else:
                note_put(puts, op)
                results.append(None)
        for path, values in puts.items():
            self._namespaces.put(path, values)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))


class AsyncAgentStateStore(BaseStore):
    """AgentStateStore on an `AsyncClient`. Make it in the event loop in which it is used."""

    def __init__(self, client: AsyncClient, *, name: str = "store") -> None:
        self._namespaces = _namespaces.AsyncNamespaces(client, name=name)
        self._loop = asyncio.get_running_loop()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Every read sees what was there before the batch; then the puts."""
        results: list[Result] = []
        puts: Puts = {}
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, GetOp):
                results.append(item_of(await self._namespaces.get(op.namespace, op.key)))
            elif isinstance(op, SearchOp):
                results.append(searched(op, await self._namespaces.under(op.namespace_prefix)))
            elif isinstance(op, ListNamespacesOp):
                results.append(listed(op, await self._namespaces.under(prefix_of(op))))
            else:
                note_put(puts, op)
                results.append(None)
        for path, values in puts.items():
            await self._namespaces.put(path, values)
        return results

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """From another thread than the loop's."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise RuntimeError("this store's event loop runs in this thread: use aget, aput, …")
        return asyncio.run_coroutine_threadsafe(self.abatch(list(ops)), self._loop).result()


Puts = dict[Path, "dict[str, Mapping[str, Any] | None]"]


def note_put(puts: Puts, op: PutOp) -> None:
    if not isinstance(op, PutOp):
        raise TypeError(f"{type(op).__name__} is not an operation of a store")
    if op.ttl is not None:
        raise NotImplementedError("ttl: items of this store stay until they are deleted")
    puts.setdefault(op.namespace, {})[op.key] = op.value


def item_of(stored: Any) -> Item | None:
    return None if stored is None else Item(**_members(stored))


def _members(stored: Any) -> dict[str, Any]:
    return {
        "value": json.loads(stored.raw),
        "key": stored.key,
        "namespace": stored.namespace,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
    }


def searched(op: SearchOp, found: Sequence[Any]) -> list[SearchItem]:
    items = (SearchItem(**_members(stored)) for stored in newest_first(found))
    asked = op.filter or {}
    matching = [i for i in items if all(matches(i.value.get(n), v) for n, v in asked.items())]
    return matching[op.offset : op.offset + op.limit]


def prefix_of(op: ListNamespacesOp) -> Path:
    """The longest prefix that every namespace asked for has: so much need not be looked at."""
    prefixes: list[Path] = [()]
    for condition in op.match_conditions or ():
        if condition.match_type == "prefix":
            path = tuple(condition.path)
            prefixes.append(path[: path.index("*")] if "*" in path else path)
    return max(prefixes, key=len)


def listed(op: ListNamespacesOp, found: Sequence[Any]) -> list[Path]:
    conditions = op.match_conditions or ()
    paths = {there.path for there in found if all(_fits(c, there.path) for c in conditions)}
    cut = {path[: op.max_depth] for path in paths} if op.max_depth is not None else paths
    return sorted(cut)[op.offset : op.offset + op.limit]


def _fits(condition: MatchCondition, path: Path) -> bool:
    asked, labels = tuple(condition.path), path
    if condition.match_type == "suffix":
        asked, labels = asked[::-1], path[::-1]
    elif condition.match_type != "prefix":
        raise ValueError(f"match_type: prefix or suffix, not {condition.match_type!r}")
    return len(labels) >= len(asked) and all(
        want in ("*", label) for want, label in zip(asked, labels, strict=False)
    )


def matches(value: Any, asked: Any) -> bool:
    """Whether a value is what a filter asks for: equal, or as its operators say.

    $eq, $ne, $gt, $gte, $lt, $lte; what cannot be compared does not match. Members of an object
    are asked for one by one.
    """
    if isinstance(asked, dict) and any(str(name).startswith("$") for name in asked):
        return all(_compares(value, operator, other) for operator, other in asked.items())
    if isinstance(asked, dict):
        return isinstance(value, dict) and all(matches(value.get(n), v) for n, v in asked.items())
    return bool(value == (list(asked) if isinstance(asked, tuple) else asked))


def _compares(value: Any, operator: str, other: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return bool((value == other) is (operator == "$eq"))
    if operator not in ORDERED:
        raise ValueError(f"{operator} is not one of $eq, $ne, {', '.join(ORDERED)}")
    try:
        return bool(ORDERED[operator](value, other))
    except TypeError:
        return False
