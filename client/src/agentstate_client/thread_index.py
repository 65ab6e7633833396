"""What is known of a thread of LangGraph's, from the newest event of its run downward.

A thread is a run, and four types of events say everything about it:

    langgraph.checkpoint  ns, id, parent, run_id, checkpoint, metadata, values, ahead
    langgraph.writes      ns, checkpoint (its id), task, path, writes
    langgraph.hidden      what is not there any more, of all that was written before it
    langgraph.part        bytes of a large value (agentstate_client.packing)

The first three are small and form a chain: `prev` is the number of the one before, 0 for the
first, so whoever reads from the newest down knows when there is nothing more. The log is the
order: the newest checkpoint is the one that was written last, whatever a host's clock said.
Sends nothing: the thread's log reads, and notes here what it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentstate_client.packing import located

CHECKPOINT, WRITES, HIDDEN = "langgraph.checkpoint", "langgraph.writes", "langgraph.hidden"
KINDS = (CHECKPOINT, WRITES, HIDDEN)


@dataclass(frozen=True)
class Entry:
    """One event of the chain. document: its data, with the numbers of parts as `at`."""

    seq: int
    kind: str
    document: dict[str, Any]

    @property
    def prev(self) -> int:
        follows = self.document.get("follows")  # written in one request with the one before
        return self.seq - 1 if follows else int(self.document["prev"])


def entry_of(seq: int, kind: str, data: dict[str, Any]) -> Entry:
    return Entry(seq, kind, located(data, seq))


@dataclass(frozen=True)
class Write:
    """One pending write. Sorted as LangGraph applies them: path, task, place in the task."""

    path: str
    task: str
    place: int
    channel: str
    item: dict[str, Any]


class ThreadIndex:
    """Everything of a thread above `low`: whoever looks for more extends it downward first."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, list[Entry]] = {}  # by namespace, newest first
        self._writes: dict[tuple[str, str], list[Entry]] = {}
        self._hidden: list[Entry] = []
        self.high = 0  # the newest of the chain, 0 for none
        self.low: int | None = None  # the oldest that is known; None: nothing was read
        self._below = 0  # what the oldest names as the one before it

    @property
    def is_whole(self) -> bool:
        """Nothing of the thread is below what is known."""
        return self.low is not None and self._below == 0

    @property
    def was_read(self) -> bool:
        return self.low is not None

    def note_empty(self) -> None:
        """There is nothing of a thread in the run."""
        self.low, self._below = 0, 0

    def note_newer(self, entries: Iterable[Entry]) -> None:
        """What was written since, ascending."""
        for entry in entries:
            if entry.seq <= self.high:
                continue
            if not self.high:
                self.low, self._below = entry.seq, entry.prev
            self.high = entry.seq
            self._put(entry, newest=True)

    def note_older(self, entries: Iterable[Entry]) -> None:
        """What lies below, descending; of an index that was not read: from the newest on."""
        for entry in entries:
            self.high = self.high or entry.seq
            self.low, self._below = entry.seq, entry.prev
            self._put(entry, newest=False)

    def _put(self, entry: Entry, *, newest: bool) -> None:
        if entry.kind == HIDDEN:
            self._hidden.append(entry)
            return
        if entry.kind == CHECKPOINT:
            there = self._checkpoints.setdefault(entry.document["ns"], [])
        else:
            named = (entry.document["ns"], entry.document["checkpoint"])
            there = self._writes.setdefault(named, [])
        there.insert(0 if newest else len(there), entry)

    # --- checkpoints ---

    def newest(self, ns: str) -> Entry | None:
        """The newest visible checkpoint of a namespace, as far as is known."""
        return next((e for e in self._checkpoints.get(ns, ()) if self.is_visible(e)), None)

    def find(self, ns: str, id: str, *, hidden: bool = False) -> Entry | None:
        """The checkpoint of this id; hidden: also when a prune took it out of sight."""
        for entry in self._checkpoints.get(ns, ()):
            if entry.document["id"] == id:
                # Put twice: the later one replaced the one before.
                seen = self.is_visible(entry, prunes=not hidden)
                return entry if seen else None
        return None

    def is_replaced(self, entry: Entry) -> bool:
        """A later checkpoint has the same id."""
        newer = self._newer(entry)
        return any(other.document["id"] == entry.document["id"] for other in newer)

    def below(self, seq: int | None) -> list[Entry]:
        """Every known checkpoint under this number, newest first, visible or not."""
        found = (e for entries in self._checkpoints.values() for e in entries)
        return sorted(
            (e for e in found if seq is None or e.seq < seq), key=lambda e: e.seq, reverse=True
        )

    def is_visible(self, entry: Entry, *, at: int | None = None, prunes: bool = True) -> bool:
        """Whether nothing hides it. at: as of before this number. prunes: they count."""
        for hides in self._hidden:
            if not entry.seq < hides.seq or (at is not None and hides.seq >= at):
                continue
            what = hides.document["what"]
            if what == "thread":
                return False
            if what == "runs" and entry.document.get("run_id") in hides.document["run_ids"]:
                return False
            if what == "older" and prunes and self._has_newer(entry, before=hides.seq):
                return False
        return True

    def _has_newer(self, entry: Entry, *, before: int) -> bool:
        """Whether a newer one of its namespace was visible when the older ones were hidden."""
        return any(
            other.seq < before and self.is_visible(other, at=before) for other in self._newer(entry)
        )

    def _newer(self, entry: Entry) -> Iterator[Entry]:
        for other in self._checkpoints.get(entry.document["ns"], ()):
            if other.seq <= entry.seq:
                return
            yield other

    def end_of_thread(self) -> bool:
        """The thread was deleted somewhere in what is known: below that nothing counts."""
        return any(hides.document["what"] == "thread" for hides in self._hidden)

    # --- writes ---

    def lowest_of(self, entry: Entry) -> int:
        """The oldest number at which writes of a checkpoint may be: some came ahead of it."""
        return int(min([entry.seq, *entry.document.get("ahead", ())]))

    def ahead_of(self, ns: str, id: str) -> list[int]:
        """Numbers of writes for a checkpoint that is not put yet."""
        return [e.seq for e in self._writes.get((ns, id), ()) if self._counts(e)]

    def writes_of(self, entry: Entry) -> list[Write]:
        """The pending writes of a checkpoint, in the order in which LangGraph applies them.

        The first of a task's numbered writes stays; of its special ones (errors, interrupts),
        whose places are below 0, the last.
        """
        document = entry.document
        ahead = set(document.get("ahead", ()))
        found: dict[tuple[str, int], Write] = {}
        written = self._writes.get((document["ns"], document["id"]), ())
        for event in sorted(written, key=lambda e: e.seq):
            if event.seq < entry.seq and event.seq not in ahead:
                continue
            task, path = event.document["task"], event.document["path"]
            for one in event.document["writes"]:
                write = Write(path, task, one["i"], one["c"], one["v"])
                if write.place < 0 or (task, write.place) not in found:
                    found[task, write.place] = write
        return sorted(found.values(), key=lambda w: (w.path, w.task, w.place))

    def _counts(self, entry: Entry) -> bool:
        return not any(h.seq > entry.seq and h.document["what"] == "thread" for h in self._hidden)
