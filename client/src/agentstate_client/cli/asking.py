"""What the command line asks the store beside what a worker does: lists, page by page."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentstate_client import Client, RetryPolicy, UnexpectedAnswer
from agentstate_client._sync.transport import Call, Transport
from agentstate_client.calls import path_of
from agentstate_client.payloads import encode, read_items, read_members

URL, KEY, KEY_FILE = "AGENTSTATE_URL", "AGENTSTATE_API_KEY", "AGENTSTATE_API_KEY_FILE"
DEFAULT_URL = "http://127.0.0.1:8000"
# A person waits in front of it.
RETRY = RetryPolicy(attempts=4, total_seconds=8)
TIMEOUT_SECONDS = 15.0
PAGE_ROWS = 200
KEY_BYTES_MAX = 4_096

Query = Mapping[str, "str | int | list[str]"]


class Misuse(Exception):
    """The command line is not right. The text says what is."""


class Item:
    """A member of a list, with the text in which the store wrote it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.members: dict[str, Any] = json.loads(text)

    def __getitem__(self, name: str) -> Any:
        return self.members.get(name)


class Store:
    """One address and one key. The key stands in no text that this makes."""

    def __init__(self, *, url: str, key: str) -> None:
        try:
            self._transport = Transport(
                url=url, key=key, retry=RETRY, timeout_seconds=TIMEOUT_SECONDS
            )
        except ValueError as wrong:
            raise Misuse(str(wrong)) from None
        self._url, self._key = url, key
        self.more = False  # whether the list that was read last goes on beyond its limit

    def client(self) -> Client:
        """For what the library does itself: following, the feed, receipts."""
        return Client(
            self._url, self._key, worker="command line", retry=RETRY,
            timeout_seconds=TIMEOUT_SECONDS,
        )  # fmt: skip

    def close(self) -> None:
        self._transport.close()

    def one(self, *path: str, query: Query | None = None) -> Item:
        """One document. Raises Refused, Unreachable, UnexpectedAnswer."""
        return _item(self._transport.send(Call("GET", path_of(*path), query=query or {})).text)

    def write(self, *path: str, document: Mapping[str, Any], method: str = "POST") -> Item:
        """Ask for a change, under a key of its own, so that asking again is the same request."""
        call = Call(method, path_of(*path), encode(dict(document)), keyed=True)
        return _item(self._transport.send(call).text)

    def items(self, *path: str, query: Query | None = None, limit: int) -> Iterator[Item]:
        """Up to `limit` members of a list (0: all), as they come, by its cursors; then `more`."""
        left, cursor = limit or None, None
        while left is None or left > 0:
            page_rows = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
            asked: dict[str, str | int | list[str]] = {**(query or {}), "limit": page_rows}
            if cursor is not None:
                asked["cursor"] = cursor
            text = self._transport.send(Call("GET", path_of(*path), query=asked)).text
            page = _item(text)
            found = items_of(text)
            yield from found
            left = None if left is None else left - len(found)
            cursor = page["next"]
            self.more = cursor is not None
            if cursor is None or not found:
                return


def items_of(text: str, name: str = "items") -> list[Item]:
    """The members of a list in an answer, each in its own words."""
    for member, at, _ in read_members(text):
        if member == name:
            return [Item(text[start:end]) for start, end in read_items(text, at)]
    return []


def _item(text: str) -> Item:
    try:
        found = Item(text)
    except (ValueError, RecursionError):
        raise UnexpectedAnswer("the answer is not JSON: is this agentstate's address?") from None
    if not isinstance(found.members, dict):
        raise UnexpectedAnswer("the answer is not a JSON object: is this agentstate's address?")
    return found


def find_url(told: str | None) -> str:
    """What was told, else the environment's, else this machine's."""
    return told or os.environ.get(URL, "").strip() or DEFAULT_URL


def find_key(file: str | None) -> str:
    """The API key: of the file that was told, else of the environment. `-`: the standard input.

    Raises Misuse, never with the key in its text.
    """
    if file is None and (key := os.environ.get(KEY, "").strip()):
        return key
    file = file or os.environ.get(KEY_FILE, "").strip()
    if not file:
        raise Misuse(f"no API key: put it into the variable {KEY}, or name a file with --key-file")
    try:
        if file == "-":
            return sys.stdin.readline(KEY_BYTES_MAX).strip()
        with Path(file).expanduser().open(encoding="utf-8") as opened:
            return opened.read(KEY_BYTES_MAX).strip()
    except (OSError, UnicodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not text"
        raise Misuse(f"the key file {file} cannot be read: {reason}") from None
