"""Between LangGraph's values and what a thread keeps: by LangGraph's own serializer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentstate_client.errors import Unsendable
from agentstate_client.packing import Typed
from agentstate_client.payloads import encode
from agentstate_client.thread_records import (
    ChannelHistory,
    NewCheckpoint,
    NewWrites,
    StoredCheckpoint,
    Value,
)

PLAIN_METADATA_BYTES = 16 * 1024


class Serializing(BaseCheckpointSaver[str]):
    """What both savers have in common: nothing here sends."""

    def get_next_version(self, current: Any, channel: None) -> str:
        """Of two branches of a thread no version is the same, and each grows."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:016}.{secrets.token_hex(4)}"


def place_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """thread_id, checkpoint_ns, checkpoint_id of a config. Raises ValueError without the first."""
    named = config.get("configurable") or {}
    if named.get("thread_id") is None:
        raise ValueError('config: {"configurable": {"thread_id": "…"}} is needed')
    id = named.get("checkpoint_id")
    return str(named["thread_id"]), str(named.get("checkpoint_ns") or ""), id and str(id)


def listed_place(config: RunnableConfig | None) -> tuple[str | None, str | None, str | None]:
    """The same for a list: None is any."""
    if config is None:
        return None, None, None
    thread_id, ns, id = place_of(config)
    return thread_id, ns if "checkpoint_ns" in config["configurable"] else None, id


def before_of(before: RunnableConfig | None) -> str | None:
    return None if before is None else (before.get("configurable") or {}).get("checkpoint_id")


def config_of(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def new_checkpoint(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> tuple[str, NewCheckpoint]:
    """The thread, and what to put there. A value is serialized only if it is new."""
    thread_id, ns, parent = place_of(config)
    rest: dict[str, Any] = {k: v for k, v in checkpoint.items() if k != "channel_values"}
    versions = checkpoint["channel_versions"]
    told = dict(get_serializable_checkpoint_metadata(config, metadata))
    run_id = told.get("run_id")
    return thread_id, NewCheckpoint(
        ns=ns,
        id=checkpoint["id"],
        parent=parent,
        checkpoint=Typed(*serde.dumps_typed(rest)),
        metadata=told if _is_plain(told) else Typed(*serde.dumps_typed(told)),
        run_id=run_id if isinstance(run_id, str) else None,
        values={
            channel: Value(
                # What the graph says is new is written, whatever version it has.
                None if channel in new_versions else versions.get(channel),
                versions.get(channel),
                partial(_dumped, serde, value),
            )
            for channel, value in checkpoint["channel_values"].items()
        },
    )


def _dumped(serde: SerializerProtocol, value: Any) -> Typed:
    return Typed(*serde.dumps_typed(value))


def _is_plain(metadata: dict[str, Any]) -> bool:
    """Whether JSON says exactly this, in a size that fits beside a checkpoint."""
    try:
        text = encode(metadata)
    except Unsendable:
        return False
    return (
        len(text) <= PLAIN_METADATA_BYTES
        and b"\\u0000" not in text
        and _same(json.loads(text), metadata)
    )


def _same(one: Any, other: Any) -> bool:
    """Equal and of the same types: a tuple is no list, True no 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def new_writes(
    serde: SerializerProtocol,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
) -> tuple[str, NewWrites]:
    thread_id, ns, id = place_of(config)
    if id is None:
        raise ValueError("config: writes belong to a checkpoint_id")
    typed = [
        (WRITES_IDX_MAP.get(channel, place), channel, Typed(*serde.dumps_typed(value)))
        for place, (channel, value) in enumerate(writes)
    ]
    return thread_id, NewWrites(ns=ns, id=id, task=task_id, path=task_path, writes=typed)


def tuple_of(serde: SerializerProtocol, stored: StoredCheckpoint) -> CheckpointTuple:
    rest = serde.loads_typed(tuple(stored.checkpoint))  # type: ignore[arg-type]
    values = {c: serde.loads_typed((t.kind, t.data)) for c, t in stored.values.items()}
    place = (stored.thread_id, stored.ns)
    return CheckpointTuple(
        config=config_of(*place, stored.id),
        checkpoint={**rest, "channel_values": values},
        metadata=metadata_of(serde, stored.metadata),
        parent_config=None if stored.parent is None else config_of(*place, stored.parent),
        pending_writes=[
            (task, channel, serde.loads_typed((t.kind, t.data)))
            for task, channel, t in stored.writes
        ],
    )


def metadata_of(serde: SerializerProtocol, metadata: dict[str, Any] | Typed) -> Any:
    if isinstance(metadata, Typed):
        return serde.loads_typed((metadata.kind, metadata.data))
    return dict(metadata)


def matches_of(
    serde: SerializerProtocol, filter: Mapping[str, Any] | None
) -> Callable[[dict[str, Any] | Typed], bool] | None:
    """Whether metadata has all these members; None when everything does."""
    if not filter:
        return None

    def matches(metadata: dict[str, Any] | Typed) -> bool:
        found = metadata_of(serde, metadata)
        return all(found.get(name) == wanted for name, wanted in filter.items())

    return matches


def history_of(
    serde: SerializerProtocol, found: Mapping[str, ChannelHistory]
) -> dict[str, DeltaChannelHistory]:
    told: dict[str, DeltaChannelHistory] = {}
    for name, history in found.items():
        told[name] = {
            "writes": [
                (task, channel, serde.loads_typed((t.kind, t.data)))
                for task, channel, t in history.writes
            ]
        }
        if history.seed is not None:
            told[name]["seed"] = serde.loads_typed((history.seed.kind, history.seed.data))
    return told
