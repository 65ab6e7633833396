"""What a saver of LangGraph's hands over and gets back: bytes and names, nothing of LangGraph."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentstate_client.errors import AgentStateError
from agentstate_client.packing import Typed

KEY_CHARS_MAX = 196
_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@~-]*[A-Za-z0-9])?")
TAG_CHARS_MAX = 64
RUN_TAGS_MAX = 30  # of 50 that a run may have
RUN_TAG, MANY_RUNS_TAG = "lg-run:", "lg-runs:many"


class ThreadMoved(AgentStateError):
    """Somebody else went on with the thread between this saver's look at it and its first write.

    Nothing was written. Invoke the graph again: it then begins with the thread as it is.
    """

    def __init__(self, thread_id: str, seen_seq: int, last_seq: int) -> None:
        super().__init__(thread_id, seen_seq, last_seq)
        self.thread_id, self.seen_seq, self.last_seq = thread_id, seen_seq, last_seq

    def __str__(self) -> str:
        return (
            f"somebody else went on with the thread {self.thread_id}: it was read up to event "
            f"{self.seen_seq} and is at {self.last_seq} now. Nothing was written; invoke it again"
        )


@dataclass(frozen=True)
class Value:
    """A channel's value in a checkpoint. same_as: the version in the parent that has the same
    value; None: it is new. dump: serializes it, when that is needed at all.
    """

    same_as: Any
    version: Any
    dump: Callable[[], Typed]


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint to put. checkpoint: without its values. metadata: JSON, or serialized.

    run_id: what `delete_for_runs` goes by.
    """

    ns: str
    id: str
    parent: str | None
    checkpoint: Typed
    metadata: dict[str, Any] | Typed
    run_id: str | None
    values: Mapping[str, Value]


@dataclass(frozen=True)
class NewWrites:
    """What one task wrote for a checkpoint: place, channel and value of each."""

    ns: str
    id: str
    task: str
    path: str
    writes: Sequence[tuple[int, str, Typed]]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint as it was read. writes: task, channel, value, in LangGraph's order."""

    thread_id: str
    ns: str
    id: str
    parent: str | None
    checkpoint: Typed
    metadata: dict[str, Any] | Typed
    values: Mapping[str, Typed]
    writes: Sequence[tuple[str, str, Typed]]


@dataclass
class ChannelHistory:
    """Writes of one channel, oldest first, since its stored value at an ancestor, if any."""

    writes: list[tuple[str, str, Typed]] = field(default_factory=list)
    seed: Typed | None = None


Matches = Callable[["dict[str, Any] | Typed"], bool]


def key_of(thread_id: str) -> str:
    """The run of a thread: the thread's own id where that can be a run's key, else made of it."""
    if len(thread_id) <= KEY_CHARS_MAX and _KEY.fullmatch(thread_id):
        return thread_id
    text = thread_id.encode("utf-8", "surrogatepass")
    return f"thread-{hashlib.sha256(text).hexdigest()[:40]}"


def run_tag(run_id: str) -> str:
    """The tag by which threads with checkpoints of this run of LangGraph's are found."""
    # A tag ends without a space.
    is_whole = run_id.isprintable() and run_id == run_id.strip()
    if is_whole and len(run_id) + len(RUN_TAG) <= TAG_CHARS_MAX:
        return RUN_TAG + run_id
    return RUN_TAG + hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]
