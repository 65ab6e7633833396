"""A client of server-sent events on a plain socket's worth of HTTP, as strict as a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Site:
    """A running server and a key for it."""

    url: str
    key: str
    http: httpx.Client

    def get(self, path: str, *, key: str = "", **headers: str) -> httpx.Response:
        auth = {"Authorization": f"Bearer {key or self.key}"}
        return self.http.get(f"/live/v1{path}", headers=auth | headers)


@dataclass
class Sent:
    """One server-sent event as a browser would give it to a page."""

    event: str
    data: str
    id: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Stream:
    """An open stream. `comments` and `last_id` are as far as it was read."""

    site: Site
    path: str
    after: int | None = None
    last_id: str = ""
    key: str = ""
    more: str = ""
    seconds: float = 20
    comments: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Reading certificates takes longer than all the rest.
        self.http = httpx.Client(base_url=self.site.url, timeout=self.seconds, verify=False)
        query = [self.more] if self.more else []
        query += [f"after={self.after}"] if self.after is not None else []
        headers = {
            "Authorization": f"Bearer {self.key or self.site.key}",
            "Accept": "text/event-stream",
        }
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        address = f"/live/v1{self.path}" + ("?" + "&".join(query) if query else "")
        request = self.http.build_request("GET", address, headers=headers)
        self.response = self.http.send(request, stream=True)
        self._chunks = self.response.iter_raw()
        self._rest = b""

    def close(self) -> None:
        self.response.close()
        self.http.close()

    def __iter__(self) -> Iterator[Sent]:
        """Events until the server ends the stream."""
        event, data = "message", []
        for line in self._lines():
            if not line:
                if data:
                    yield Sent(event, "\n".join(data), self.last_id)
                event, data = "message", []
            elif line.startswith(":"):
                self.comments.append(line[1:].strip())
            else:
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    data.append(value)
                elif name == "id":
                    self.last_id = value
                elif name == "event":
                    event = value

    def take(self, count: int) -> list[Sent]:
        events = iter(self)
        return [next(events) for _ in range(count)]

    def until_bye(self) -> tuple[list[Sent], str]:
        """All events, and the reason that ended the stream."""
        *events, last = list(self)
        assert last.event == "bye", last
        return events, last.json["reason"]

    def _lines(self) -> Iterator[str]:
        """Lines end as a browser ends them: at CR, LF or both."""
        while True:
            for at, byte in enumerate(self._rest):
                if byte in b"\r\n":
                    line, self._rest = self._rest[:at], self._rest[at + 1 :]
                    yield line.decode()
                    break
            else:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._rest += chunk


def seconds_since(moment: float) -> float:
    return time.monotonic() - moment
