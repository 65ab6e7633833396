"""Bytes in events: small ones in the event that names them, large ones in events of their own.

A value is what a serializer made: a word for how to read it, and bytes. In JSON it is

    {"t": "msgpack", "b": "<base64>"}            at most INLINE_BYTES
    {"t": "msgpack", "n": 1500000, "at": [7, 8]} in the parts that are the events 7 and 8

A part is an event of the type `langgraph.part` with `{"b": "<base64>"}`, PART_BYTES of the value
or what is left of it. In place of `at` an event says `back`: how many numbers before itself each
part is, when the parts were written in the same request, whose numbers nobody knows before.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentstate_client.errors import Unsendable
from agentstate_client.payloads import RawJSON
from agentstate_client.records import Event

PART = "langgraph.part"
INLINE_BYTES = 512
INLINE_BYTES_MAX = 128 * 1024  # of all values in one event together
PART_BYTES = 720 * 1024  # in base64 less than 1 MiB, the contract's limit for one payload
REQUEST_BYTES = 3 * 1024 * 1024  # of one request, of which the contract takes 4 MiB
VALUE_BYTES_MAX = 64 * 1024 * 1024
PLAIN = (
    "json"  # the member of a document that is the caller's own JSON, in which nothing is looked for
)


class Typed(NamedTuple):
    """What a serializer made of a value."""

    kind: str
    data: bytes


@dataclass
class Packing:
    """The events of one write: parts in `parts`, and what names them by their place there.

    An item that refers to parts has `parts`: places in this list, from 0.
    """

    parts: list[bytes] = field(default_factory=list)
    inline_bytes: int = 0

    def add(self, typed: Typed, *, name: str, inline_bytes: int = INLINE_BYTES) -> dict[str, Any]:
        """The item that stands for a value. Raises Unsendable when it is too large."""
        size = len(typed.data)
        if size > VALUE_BYTES_MAX:
            raise Unsendable(
                f"{name} is {size:,} bytes; one value has at most {VALUE_BYTES_MAX:,}: keep it "
                "elsewhere and put its address in the state"
            )
        if size <= inline_bytes and self.inline_bytes + size <= INLINE_BYTES_MAX:
            self.inline_bytes += size
            return {"t": typed.kind, "b": base64.b64encode(typed.data).decode()}
        first = len(self.parts)
        self.parts += [typed.data[at : at + PART_BYTES] for at in range(0, size, PART_BYTES)]
        return {"t": typed.kind, "n": size, "parts": list(range(first, len(self.parts)))}

    def early(self) -> list[list[Event]]:
        """The parts that do not fit in one request with the event that names them, by request."""
        requests: list[list[Event]] = []
        keep = len(self.parts)
        room = REQUEST_BYTES
        while keep and room >= _encoded_bytes(self.parts[keep - 1]):
            room -= _encoded_bytes(self.parts[keep - 1])
            keep -= 1
        room = 0
        for data in self.parts[:keep]:
            if room < _encoded_bytes(data):
                requests.append([])
                room = REQUEST_BYTES
            room -= _encoded_bytes(data)
            requests[-1].append(part(data))
        return requests

    def late(self) -> list[Event]:
        """The other parts: they go in the request of the event that names them."""
        gone = sum(map(len, self.early()))
        return [part(data) for data in self.parts[gone:]]


def part(data: bytes) -> Event:
    return Event(PART, RawJSON(f'{{"b":"{base64.b64encode(data).decode()}"}}'))


def _encoded_bytes(data: bytes) -> int:
    return len(data) * 4 // 3 + 100


def placed(document: Any, seqs: list[int], *, own: int | None) -> Any:
    """The document with the numbers of parts in place of their places in `seqs`.

    own: the number of the event that is to say it, for those that are told as `back`; its first
    part written in the same request is the first one that is None in `seqs`.
    """
    if isinstance(document, dict):
        if "parts" in document and "t" in document:
            item = {name: value for name, value in document.items() if name != "parts"}
            return item | _told([seqs[place] for place in document["parts"]], own)
        return {
            name: value if name == PLAIN else placed(value, seqs, own=own)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [placed(value, seqs, own=own) for value in document]
    return document


def _told(numbers: list[int], own: int | None) -> dict[str, list[int]]:
    # Above 0: a number of the log. Below: so many before the event itself.
    if own is not None:
        return {"at": [own + number if number < 0 else number for number in numbers]}
    before = [-number for number in numbers if number < 0]
    known = [number for number in numbers if number > 0]
    return ({"at": known} if known else {}) | ({"back": before} if before else {})


def located(document: Any, own: int) -> Any:
    """A document as it was read from the event `own`, with `back` told as `at`."""
    if isinstance(document, dict):
        if "back" in document and "t" in document:
            item = {name: value for name, value in document.items() if name != "back"}
            later = [own - before for before in document["back"]]
            return item | {"at": [*document.get("at", ()), *later]}
        return {
            name: value if name == PLAIN else located(value, own)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [located(value, own) for value in document]
    return document


def parts_of(items: Iterable[Mapping[str, Any]]) -> list[int]:
    """The numbers of all parts that these items need, ascending."""
    return sorted({seq for item in items for seq in item.get("at", ())})


def unpacked(item: Mapping[str, Any], parts: Mapping[int, bytes]) -> Typed:
    """The value of an item, with the parts that it needs."""
    if "at" not in item:
        return Typed(item["t"], base64.b64decode(item["b"]))
    return Typed(item["t"], b"".join(parts[seq] for seq in item["at"]))


def ranges(seqs: list[int], *, gap: int = 8) -> list[tuple[int, int]]:
    """First and last of the stretches in which these numbers lie close to each other."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and seq - found[-1][1] <= gap:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found
