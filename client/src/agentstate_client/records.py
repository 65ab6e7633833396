"""What goes in and what comes back, as frozen values.

Nested JSON is kept as its text and decoded anew for whoever asks, so that changing it reaches
nobody else. Members that a newer server adds are left alone; `document` has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from agentstate_client.errors import Problem, Refused, UnexpectedAnswer, refusal
from agentstate_client.payloads import RawJSON, read_items, read_members

# --- what goes in --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """An event to append. data: any JSON value, or RawJSON. id: unique in the run for its life.

    effect, effect_state: in place of an id, which effect is begun or has ended; `run.effect` does
    that.
    """

    type: str
    data: Any = None
    id: str | None = None
    effect: str | None = None
    effect_state: str | None = None

    def document(self) -> dict[str, Any]:
        effect = None if self.effect is None else {"key": self.effect, "state": self.effect_state}
        return _given(type=self.type, data=self.data, id=self.id, effect=effect)


@dataclass(frozen=True)
class NewBudget:
    """A cap to begin a run with, in whole `unit`s. parent: a shared budget, charged as well."""

    name: str
    cap: int
    unit: str = "tokens"
    parent: str | None = None

    def document(self) -> dict[str, Any]:
        return _given(name=self.name, cap=self.cap, unit=self.unit, parent=self.parent)


@dataclass(frozen=True)
class Charge:
    """An amount, at least 1, against a budget of the run. id: makes charging it again harmless."""

    budget: str
    amount: int
    id: str | None = None
    note: str | None = None

    def document(self) -> dict[str, Any]:
        return _given(budget=self.budget, amount=self.amount, id=self.id, note=self.note)


# --- what comes back -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Charged:
    """A budget after a charge; `version` is the budget's, amounts are in its unit."""

    budget: str
    spent: int
    reserved: int
    cap: int
    left: int
    version: int
    overdrawn: bool
    replayed: bool = False


@dataclass(frozen=True)
class Reserved:
    """A budget after an amount was set aside; `version` is the budget's.

    expires_at: when the hold runs out, by the database's clock.
    """

    budget: str
    id: str
    amount: int
    expires_at: datetime
    spent: int
    reserved: int
    cap: int
    left: int
    version: int


@dataclass(frozen=True)
class Settled:
    """How a reservation ended (committed, late, released, dropped), and the budget after it.

    actual: what was used. overdrawn: more was used than the cap allows, and nothing more is
    admitted until it does.
    """

    budget: str
    id: str
    state: str
    amount: int
    actual: int
    spent: int
    reserved: int
    cap: int
    left: int
    version: int
    overdrawn: bool
    replayed: bool = False

    @property
    def is_late(self) -> bool:
        """The hold had been dropped before what was used was told; it is recorded all the same."""
        return self.state == "late"


@dataclass(frozen=True)
class Changed:
    """A run after some of its fields were changed; replayed: the store had the change already."""

    version: int
    last_seq: int
    at: datetime
    replayed: bool = False


@dataclass(frozen=True)
class Receipt:
    """What became of a request. state: applied, refused (nothing of it was applied), or unknown:
    the store has never seen it, or it was one that leaves nothing, as a read.

    Each list has what the store keeps of it, decoded anew for whoever asks.
    """

    state: str
    raw: str

    def document(self) -> dict[str, Any]:
        """Everything that the store said."""
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def writes(self) -> list[dict[str, Any]]:
        """run, first_seq, last_seq, version, types, actor, at: events that it added."""
        return self.document().get("writes") or []

    @property
    def charges(self) -> list[dict[str, Any]]:
        """budget, run, n, kind, amount, actor, at: lines that it made in ledgers."""
        return self.document().get("charges") or []

    @property
    def refusals(self) -> list[dict[str, Any]]:
        """code, operation, run, unit, budget, actor, attempt, at."""
        return self.document().get("refusals") or []

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The answer that is kept for the key: code, detail, replays, at, expires_at, …."""
        return self.document().get("kept") or []


@dataclass(frozen=True)
class Appended:
    """The numbers of the caller's events; version and status are the run's, after everything.

    spent: the budgets after the charges that rode along. replayed: the store had it already.
    """

    first_seq: int
    last_seq: int
    version: int
    at: datetime
    status: str | None = None
    spent: tuple[Charged, ...] = ()
    replayed: bool = False


@dataclass(frozen=True)
class Moved:
    """A run after a transition."""

    status: str
    version: int
    last_seq: int
    at: datetime
    replayed: bool = False


@dataclass(frozen=True)
class Grant:
    """A lease as the store granted it. run: the key, for the items of a claim. seen: everything
    else that was said, of the run too. progress: what the holder before had reported last.
    open_effects: what former holders began and did not end, the first ones.
    """

    unit: str
    owner: str
    token: int
    expires_at: datetime
    taken_from: str | None
    progress: RawJSON | None
    run: str | None
    seen: Mapping[str, Any]
    open_effects: tuple[Begun, ...] = ()


@dataclass(frozen=True)
class Signal:
    """What an operator asked of the holder: cancel, pause, resume, drain, or a newer word."""

    name: str
    reason: str = ""
    by: str = ""
    at: datetime | None = None


@dataclass(frozen=True)
class RunRecord:
    """A run as it was read. owner, token: of the present lease, None when nobody holds it."""

    key: str
    task: str
    status: str
    version: int
    last_seq: int
    attempt: int
    owner: str | None
    token: int | None
    tags: tuple[str, ...]
    raw: str

    def document(self) -> dict[str, Any]:
        """Everything that the store said, decoded anew each time."""
        found: dict[str, Any] = json.loads(self.raw)
        return found

    @property
    def counters(self) -> dict[str, int]:
        return self.document().get("counters") or {}

    @property
    def attrs(self) -> dict[str, Any]:
        return self.document().get("attrs") or {}

    @property
    def budgets(self) -> list[dict[str, Any]]:
        return self.document().get("budgets") or []

    @property
    def result(self) -> Any:
        """What the terminal move left; None before."""
        return self.document().get("result")


@dataclass(frozen=True)
class RecordedEvent:
    """An event as it is stored. origin: store or worker.

    raw: the payload's text, exactly as it was sent; None when the key may not see payloads.
    effect, effect_state: which effect it is about, in place of an id; begun or ended.
    """

    seq: int
    type: str
    origin: str
    at: datetime
    id: str | None
    token: int | None
    raw: str | None
    effect: str | None = None
    effect_state: str | None = None

    @property
    def data(self) -> Any:
        """The payload, decoded anew each time: integers exact, other numbers as floats."""
        return None if self.raw is None else json.loads(self.raw)


@dataclass(frozen=True)
class Begun:
    """An effect that was begun, by the event at `seq`. raw: the payload's text; None when it was
    not told (it is large, or the key may not see payloads), and for none.
    """

    name: str
    seq: int
    at: datetime
    token: int | None
    raw: str | None


@dataclass(frozen=True)
class ChangeRecord:
    """What one batch wrote for a run: its events first_seq to last_seq, of these types."""

    position: int
    run: str
    first_seq: int
    last_seq: int
    version: int
    types: tuple[str, ...]
    at: datetime


class Swapped(NamedTuple):
    """What a compare-and-set wrote: the attrs, the run's version since, and the attempts."""

    record: Mapping[str, Any]
    version: int
    attempts: int


class Applied(NamedTuple):
    """A change id that was new: the run's version since it was applied, and the attempts."""

    version: int
    attempts: int


class Duplicate(NamedTuple):
    """A change id that had been applied before, at this version; nothing was written now."""

    version: int


# --- reading answers -----------------------------------------------------------------------------


def read_charged(document: Mapping[str, Any], *, replayed: bool = False) -> Charged:
    with _shape("a charge"):
        return Charged(
            budget=document["budget"],
            spent=document["spent"],
            reserved=document["reserved"],
            cap=document["cap"],
            left=document["left"],
            version=document["version"],
            overdrawn=document["overdrawn"],
            replayed=replayed,
        )


def read_reserved(document: Mapping[str, Any]) -> Reserved:
    with _shape("a reservation"):
        return Reserved(
            budget=document["budget"],
            id=document["id"],
            amount=document["amount"],
            expires_at=read_moment(document["expires_at"]),
            spent=document["spent"],
            reserved=document["reserved"],
            cap=document["cap"],
            left=document["left"],
            version=document["version"],
        )


def read_settled(document: Mapping[str, Any], *, replayed: bool = False) -> Settled:
    with _shape("a settled reservation"):
        return Settled(
            budget=document["budget"],
            id=document["id"],
            state=document["state"],
            amount=document["amount"],
            actual=document["actual"],
            spent=document["spent"],
            reserved=document["reserved"],
            cap=document["cap"],
            left=document["left"],
            version=document["version"],
            overdrawn=document["overdrawn"],
            replayed=replayed,
        )


def read_changed(document: Mapping[str, Any], *, replayed: bool = False) -> Changed:
    with _shape("a change"):
        return Changed(
            version=document["version"],
            last_seq=document["last_seq"],
            at=read_moment(document["at"]),
            replayed=replayed,
        )


def read_receipt(text: str, document: Mapping[str, Any]) -> Receipt:
    with _shape("a receipt"):
        return Receipt(state=document["state"], raw=text)


def read_appended(document: Mapping[str, Any], *, replayed: bool = False) -> Appended:
    with _shape("an append"):
        return Appended(
            first_seq=document["first_seq"],
            last_seq=document["last_seq"],
            version=document["version"],
            at=read_moment(document["at"]),
            status=document.get("status"),
            spent=tuple(read_charged(c, replayed=replayed) for c in document.get("spent") or ()),
            replayed=replayed,
        )


def read_moved(document: Mapping[str, Any], *, replayed: bool = False) -> Moved:
    with _shape("a transition"):
        return Moved(
            status=document["status"],
            version=document["version"],
            last_seq=document["last_seq"],
            at=read_moment(document["at"]),
            replayed=replayed,
        )


def read_run(text: str, document: Mapping[str, Any]) -> RunRecord:
    with _shape("a run"):
        return RunRecord(
            key=document["key"],
            task=document["task"],
            status=document["status"],
            version=document["version"],
            last_seq=document["last_seq"],
            attempt=document.get("attempt") or 0,
            owner=document.get("owner"),
            token=document.get("token"),
            tags=tuple(document.get("tags") or ()),
            raw=text,
        )


def read_renewal(document: Mapping[str, Any]) -> tuple[datetime, tuple[Signal, ...]]:
    """The new expiry by the database's clock, and what the store tells the holder."""
    with _shape("a renewal"):
        signals = tuple(_signal(s) for s in document.get("signals") or ())
        return read_moment(document["expires_at"]), signals


def read_signals(document: Mapping[str, Any]) -> tuple[Signal, ...]:
    """What the store asks of a worker that announced itself."""
    with _shape("an announcement"):
        return tuple(_signal(s) for s in document.get("signals") or ())


def read_renewals(
    document: Mapping[str, Any], *, count: int
) -> list[tuple[datetime, tuple[Signal, ...]] | Refused]:
    """For each of `count` units, in the order asked: what `read_renewal` gives, or the refusal."""
    with _shape("renewals"):
        items = document["items"]
        if len(items) != count:
            raise ValueError(f"{len(items)} items for {count} units")
        problems = [Problem.read(item) for item in items]
        return [
            refusal(problem) if problem is not None else read_renewal(item)
            for item, problem in zip(items, problems, strict=True)
        ]


def read_events(text: str) -> tuple[RecordedEvent, ...]:
    """The events of one page, each with the exact text of its payload."""
    with _shape("a page of events"):
        return tuple(_event(text, at) for at in _item_starts(text))


def read_changes(document: Mapping[str, Any]) -> tuple[tuple[ChangeRecord, ...], int]:
    """The changes of one page of the feed, and the position to go on from."""
    with _shape("a page of the feed"):
        changes = tuple(
            ChangeRecord(
                position=item["position"],
                run=item["run"],
                first_seq=item["first_seq"],
                last_seq=item["last_seq"],
                version=item["version"],
                types=tuple(item["types"]),
                at=read_moment(item["at"]),
            )
            for item in document["items"]
        )
        return changes, int(document["position"])


def read_grant(text: str, at: int = 0) -> Grant:
    with _shape("a grant"):
        raw = {name: text[start:end] for name, start, end in read_members(text, at)}
        progress = raw.pop("progress", "null")
        effects = raw.pop("open_effects", "[]")
        seen = {name: json.loads(value) for name, value in raw.items()}
        return Grant(
            unit=seen["unit"],
            owner=seen["owner"],
            token=seen["token"],
            expires_at=read_moment(seen["expires_at"]),
            taken_from=seen.get("taken_from"),
            progress=None if progress == "null" else RawJSON(progress),
            run=seen.get("run"),
            seen=seen,
            open_effects=tuple(_begun(effects, at) for at, _ in read_items(effects, 0)),
        )


def read_grants(text: str) -> list[Grant]:
    """The leases of a claim."""
    with _shape("a claim"):
        return [read_grant(text, at) for at in _item_starts(text)]


def read_moment(text: str) -> datetime:
    """An RFC 3339 instant, by the database's clock."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _item_starts(text: str) -> Iterator[int]:
    """Where each member of `items` starts, in the text of a page."""
    for name, at, _ in read_members(text):
        if name == "items":
            yield from (start for start, _ in read_items(text, at))


def _begun(text: str, at: int) -> Begun:
    raw = {name: text[start:end] for name, start, end in read_members(text, at)}
    data = raw.pop("data", None)
    found = {name: json.loads(value) for name, value in raw.items()}
    return Begun(
        name=found["key"],
        seq=found["seq"],
        at=read_moment(found["at"]),
        token=found.get("token"),
        raw=data,
    )


def _event(text: str, at: int) -> RecordedEvent:
    raw = {name: text[start:end] for name, start, end in read_members(text, at)}
    data = raw.pop("data", None)
    found = {name: json.loads(value) for name, value in raw.items()}
    effect = found.get("effect") or {}
    return RecordedEvent(
        seq=found["seq"],
        type=found["type"],
        origin=found["origin"],
        at=read_moment(found["at"]),
        id=found.get("id"),
        token=found.get("token"),
        raw=data,
        effect=effect.get("key"),
        effect_state=effect.get("state"),
    )


def _signal(document: Any) -> Signal:
    if isinstance(document, str):
        return Signal(document)
    at = document.get("at")
    return Signal(
        name=document["signal"],
        reason=document.get("reason") or "",
        by=document.get("by") or "",
        at=None if at is None else read_moment(at),
    )


def _given(**members: Any) -> dict[str, Any]:
    """Only what the caller said: what is left out is the server's to decide."""
    return {name: value for name, value in members.items() if value is not None}


@contextmanager
def _shape(what: str) -> Iterator[None]:
    """Turns a missing member, or one of another type, into UnexpectedAnswer."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as wrong:
        raise UnexpectedAnswer(f"this is not the answer to {what}: {wrong!r}") from None
