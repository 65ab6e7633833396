# Made from _async/thread_log.py by make_sync.py. Change it there.

"""The log of one thread of LangGraph's: what is read of it once is kept, and added to."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any

from agentstate_client._sync.runs import Run
from agentstate_client._sync.transport import Call, Transport
from agentstate_client._sync.waiting import Lock
from agentstate_client.calls import path_of
from agentstate_client.errors import NotFound, Problem, Unsendable, refusal
from agentstate_client.packing import PART, Packing, Typed, parts_of, placed, ranges, unpacked
from agentstate_client.records import Event, RecordedEvent, read_events
from agentstate_client.thread_index import (
    CHECKPOINT,
    HIDDEN,
    KINDS,
    WRITES,
    Entry,
    ThreadIndex,
    entry_of,
)
from agentstate_client.thread_records import (
    ChannelHistory,
    NewCheckpoint,
    NewWrites,
    StoredCheckpoint,
    key_of,
)

FIRST_PAGE, PAGE = 40, 500
# A page has at most 1 MiB, and no event of the chain is as large as the rest of that.
PAGE_CHARS = 256 * 1024
METADATA_BYTES = 16 * 1024
CHECKPOINT_BYTES = 16 * 1024  # of a checkpoint without its values: more is stored in parts
WRITES_BYTES_MAX = 64 * 1024  # of the inline values in one event of writes

Query = dict[str, "str | int | list[str]"]


class ThreadLog:
    """One thread. lock: whoever reads or writes has it, so that what is known stays in step."""

    def __init__(self, *, transport: Transport, thread_id: str) -> None:
        self.thread_id, self.key = thread_id, key_of(thread_id)
        self.lock = Lock()
        self.index = ThreadIndex()
        self.exists = False
        self._transport = transport

    # --- reading the chain ---

    def catch_up(self) -> None:
        """Read what was written since; of a thread that was not read yet, its newest events."""
        if not self.index.was_read:
            self._read_older(FIRST_PAGE)
            return
        while True:
            query: Query = {"after": self.index.high, "order": "oldest", "limit": PAGE}
            page, is_full = self._page({**query, "type": list(KINDS)})
            self.index.note_newer(_entries(page))
            if not is_full:
                return

    def _read_older(self, limit: int = PAGE) -> None:
        query: Query = {
            "order": "newest", "limit": limit, "type": list(KINDS),
        }  # fmt: skip
        if self.index.low is not None:
            query["before"] = self.index.low
        page, _ = self._page(query)
        self.index.note_older(_entries(page))
        if not page:
            self.index.note_empty()

    def _extend(self) -> bool:
        """Read further down; False when there is nothing that could count."""
        if self.index.is_whole or self.index.end_of_thread():
            return False
        self._read_older()
        return True

    def newest(self, ns: str) -> Entry | None:
        while (entry := self.index.newest(ns)) is None:
            if not self._extend():
                return None
        return entry

    def find(self, ns: str, id: str, *, hidden: bool = False) -> Entry | None:
        while (entry := self.index.find(ns, id, hidden=hidden)) is None:
            if not self._extend():
                return None
        return entry

    def checkpoints(self, below: int | None, count: int) -> list[Entry]:
        """Up to so many visible checkpoints under a number, newest first; fewer: there are no
        more. Reads as far down as that takes.
        """
        while True:
            found = [
                entry
                for entry in self.index.below(below)
                if self.index.is_visible(entry) and not self.index.is_replaced(entry)
            ]
            if len(found) >= count or not self._extend():
                return found[:count]

    # --- reading checkpoints ---

    def loaded(self, entry: Entry) -> StoredCheckpoint:
        """A checkpoint with its values and writes."""
        while self.index.lowest_of(entry) < (self.index.low or 0) and self._extend():
            pass
        document, writes = entry.document, self.index.writes_of(entry)
        metadata = document["metadata"]
        items = [document["checkpoint"], *(value["v"] for value in document["values"])]
        items += [write.item for write in writes]
        if "json" not in metadata:
            items.append(metadata["typed"])
        parts = self._parts(items)
        return StoredCheckpoint(
            thread_id=self.thread_id,
            ns=document["ns"],
            id=document["id"],
            parent=document["parent"],
            checkpoint=unpacked(document["checkpoint"], parts),
            metadata=metadata["json"] if "json" in metadata else unpacked(metadata["typed"], parts),
            values={v["c"]: unpacked(v["v"], parts) for v in document["values"]},
            writes=[(w.task, w.channel, unpacked(w.item, parts)) for w in writes],
        )

    def metadata(self, entry: Entry) -> dict[str, Any] | Typed:
        """Its metadata alone."""
        found: dict[str, Any] = entry.document["metadata"]
        if "json" in found:
            plain: dict[str, Any] = found["json"]
            return plain
        return unpacked(found["typed"], self._parts([found["typed"]]))

    def history(
        self, ns: str, id: str | None, channels: Sequence[str]
    ) -> dict[str, ChannelHistory]:
        """What each channel was written along the ancestors of a checkpoint, back to a value.

        Also by ancestors that a prune took out of sight: what is left needs them.
        """
        found = {channel: ChannelHistory() for channel in channels}
        wanted = set(channels)
        target = self.newest(ns) if id is None else self.find(ns, id)
        parent = None if target is None else target.document["parent"]
        while parent is not None and wanted:
            entry = self.find(ns, parent, hidden=True)
            if entry is None:
                break
            stored = self.loaded(entry)
            for task, channel, typed in reversed(stored.writes):
                if channel in wanted:
                    found[channel].writes.insert(0, (task, channel, typed))
            for channel in wanted & stored.values.keys():
                found[channel].seed = stored.values[channel]
            wanted -= stored.values.keys()
            parent = stored.parent
        return found

    def _parts(self, items: Iterable[dict[str, Any]]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for first, last in ranges(parts_of(items)):
            after = first - 1
            while after < last:
                query: Query = {"after": after, "before": last + 1, "limit": PAGE, "type": PART}
                page, _ = self._page({**query, "order": "oldest"})
                if not page:
                    break
                found |= {event.seq: base64.b64decode(event.data["b"]) for event in page}
                after = page[-1].seq
        return found

    def _page(self, query: Query) -> tuple[tuple[RecordedEvent, ...], bool]:
        """Events, and whether more may come."""
        call = Call("GET", path_of("runs", self.key, "events"), query=query)
        try:
            text = (self._transport.send(call)).text
        except NotFound:
            self.exists = False
            return (), False
        page = read_events(text)
        self.exists = True
        if any(event.raw is None for event in page):
            raise refusal(Problem("not-allowed", "threads need the scope payloads as well"))
        return page, len(page) == query["limit"] or len(text) > PAGE_CHARS

    # --- writing ---

    def put(self, run: Run, new: NewCheckpoint) -> None:
        """Append a checkpoint, with what changed since its parent."""
        packing = Packing()
        parent = None if new.parent is None else self.index.find(new.ns, new.parent, hidden=True)
        there = {} if parent is None else {v["c"]: v for v in parent.document["values"]}
        values = []
        for channel, value in new.values.items():
            known = there.get(channel)
            # Of the same version it is the same value: named again, not written again.
            if known is None or value.same_as is None or known["n"] != value.same_as:
                item = packing.add(value.dump(), name=f"the channel {channel}")
                known = {"c": channel, "n": value.version, "v": item}
            values.append(known)
        metadata: dict[str, Any] = {"json": new.metadata}
        if isinstance(new.metadata, Typed):
            item = packing.add(new.metadata, name="the metadata", inline_bytes=METADATA_BYTES)
            metadata = {"typed": item}
        document: dict[str, Any] = {
            "ns": new.ns,
            "id": new.id,
            "parent": new.parent,
            "run_id": new.run_id,
            "metadata": metadata,
            "checkpoint": packing.add(
                new.checkpoint, name="the checkpoint", inline_bytes=CHECKPOINT_BYTES
            ),
            "values": values,
        }
        if ahead := self.index.ahead_of(new.ns, new.id):
            document["ahead"] = ahead
        self._append(run, packing, [(CHECKPOINT, document)])

    def put_writes(self, run: Run, new: NewWrites) -> None:
        """Append what a task wrote, in one event if it is small."""
        packing, documents, room = Packing(), list[dict[str, Any]](), 0
        for place, channel, typed in new.writes:
            if room < len(typed.data) or not documents:
                room = WRITES_BYTES_MAX
                documents.append({
                    "ns": new.ns, "checkpoint": new.id, "task": new.task, "path": new.path,
                    "writes": [],
                })  # fmt: skip
            item = packing.add(typed, name=f"a write to the channel {channel}")
            documents[-1]["writes"].append({"i": place, "c": channel, "v": item})
            room -= 100 + min(len(typed.data), 1024)
        self._append(run, packing, [(WRITES, document) for document in documents])

    def hide(self, run: Run, what: str, **more: Any) -> None:
        """Append that what was written so far is not there any more."""
        self._append(run, Packing(), [(HIDDEN, {"what": what, **more})])

    def _append(
        self, run: Run, packing: Packing, documents: list[tuple[str, dict[str, Any]]]
    ) -> None:
        """Parts first, and in the last request what names them: it is there as a whole or not."""
        seqs: list[int] = []
        for events in packing.early():
            first = (run.append(*events)).first_seq
            seqs += range(first, first + len(events))
        late = packing.late()
        known, events, prev = list(seqs), list(late), self.index.high
        ahead = len(late)
        for place, (kind, document) in enumerate(documents):
            own = ahead + place
            at = known + [part - own for part in range(len(late))]
            # Numbers are not known before; those of one request follow each other.
            chain = {"prev": prev} if place == 0 else {"follows": True}
            events.append(Event(kind, {**chain, **placed(document, at, own=None)}))
        if len(events) > PAGE:
            raise Unsendable(f"{len(events)} events in one write; at most {PAGE}")
        first = (run.append(*events)).first_seq
        written = [
            entry_of(first + ahead + place, event.type, event.data)
            for place, event in enumerate(events[ahead:])
        ]
        self.index.note_newer(written)


def _entries(page: Iterable[RecordedEvent]) -> list[Entry]:
    return [entry_of(e.seq, e.type, e.data) for e in page if e.origin == "worker"]
