"""What can be followed: one run's events, or the feed of all changes.

A source looks at the database and keeps nothing: where a follower is, the follower says. Its items
are JSON texts already, written in the thread that reads, so that the loop has only to send them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentstate.api.feed import change_members
from agentstate.api.replies import event_members
from agentstate.live.hub import Hint
from agentstate.store import feed, following
from agentstate.store.callers import Caller
from agentstate.store.payloads import write


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is behind a position. items: number and JSON text of each; position: where to go on.

    more: there may be more at once. ended: nothing will come any more. beside: the members that
    stand beside `items` in the answer to a long poll.
    """

    items: tuple[tuple[int, str], ...]
    position: int
    more: bool
    ended: bool
    beside: Mapping[str, Any]


class Source(Protocol):
    """Something to follow."""

    @property
    def run(self) -> str | None:
        """The run that hints have to be about; None: any."""

    def look(self, after: int) -> Look:
        """What is behind `after`. Raises Refusal."""

    def is_news(self, hint: Hint, after: int) -> bool:
        """Whether a hint tells of something behind `after`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """The events of one run; positions are their numbers."""

    run: str
    caller: Caller
    limit: int

    def look(self, after: int) -> Look:
        """Raises NotFound, RunExpired, Invalid."""
        tail = following.read_tail(
            run_key=self.run,
            after=after,
            limit=self.limit,
            with_payloads=self.caller.may("payloads"),
        )
        items = tuple(
            (event.seq, write(event_members(event, size, self.caller)))
            for event, size in zip(tail.items, tail.sizes, strict=True)
        )
        position = items[-1][0] if items else after
        return Look(
            items=items,
            position=position,
            more=position < tail.last_seq,
            ended=tail.ended,
            beside={"last_seq": tail.last_seq},
        )

    def is_news(self, hint: Hint, after: int) -> bool:
        return hint.runs is None or hint.runs.get(self.run, 0) > after


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFeed:
    """The feed; what a batch wrote for a run is one item."""

    types: tuple[str, ...]
    limit: int
    run: None = None

    def look(self, after: int) -> Look:
        """Raises CursorExpired, Invalid."""
        page = feed.read(after=after, types=self.types, limit=self.limit)
        items = tuple((change.position, write(change_members(change))) for change in page.items)
        return Look(
            items=items,
            position=page.position,
            more=page.position < page.latest,
            ended=False,
            beside={"position": page.position},
        )

    def is_news(self, hint: Hint, after: int) -> bool:
        return hint.position is None or hint.position > after
