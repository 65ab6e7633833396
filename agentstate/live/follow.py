"""Following a source: as a stream of server-sent events, or by waiting for one page.

A hint says that something may be new, and then the source is looked at; behind the hints it is
looked at every few seconds anyway, so a hint that is lost only delays. While nothing is new nothing
is held but a place in the hub.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from django.db import InterfaceError, OperationalError

from agentstate.live.hub import Hint, Message, Notice, Subscription, hub
from agentstate.live.sessions import Keys, Watched, watch
from agentstate.live.sources import Look, Source
from agentstate.live.threads import in_thread
from agentstate.store.callers import Caller
from agentstate.store.errors import CursorExpired, Invalid, NotFound, Refusal, RunExpired
from agentstate.store.keys import Unauthenticated

RETRY_MS = 2_000
PING_SECONDS = 10.0
# Longer: a lost hint delays more. Shorter: an idle stream costs more.
POLL_SECONDS = 3.0

SHUTDOWN, RUN_ENDED = "shutdown", "run-ended"
REASONS: dict[type[Refusal], str] = {
    Unauthenticated: "key-revoked",
    RunExpired: "run-expired",
    NotFound: "run-expired",  # its rows are gone, too
    CursorExpired: "cursor-expired",
    # The log is behind what was read: another database answers, which lacks the last of it.
    Invalid: "cursor-expired",
}

log = logging.getLogger(__name__)


class Follower:
    """One caller who follows one source."""

    def __init__(self, source: Source, caller: Caller) -> None:
        self.source = source
        self.caller = caller
        self.watched: Watched | None = None

    async def look(self, after: int) -> Look:
        """What is behind `after`. Raises what the source does, and Unauthenticated once the
        caller's key is revoked or over."""
        return await in_thread(lambda: self._look(after))

    def _look(self, after: int) -> Look:
        if self.watched is not None and self.watched.over:
            raise Unauthenticated("this key was revoked, or was valid for a time")
        return self.source.look(after)

    def is_told(self, heard: list[Message], after: int) -> bool:
        """Whether one of the messages is a reason to look."""
        return any(
            self.source.is_news(message, after) if isinstance(message, Hint) else True
            for message in heard
        )


async def wait_for_page(follower: Follower, after: int, *, seconds: float) -> Look:
    """A page as soon as there is something behind `after`; an empty one when the time is over, or
    when the server is to stop.
    """
    look = await follower.look(after)
    if look.items or not seconds:
        return look
    ends_at = time.monotonic() + seconds
    async with _subscribed(follower) as subscription:
        while True:
            look = await follower.look(look.position)
            left = ends_at - time.monotonic()
            if look.items or left <= 0:
                return look
            heard = [] if look.more else await _news(follower, subscription, look.position, left)
            if Notice.BYE in heard:
                return look


async def stream(follower: Follower, first: Look) -> AsyncGenerator[str]:
    """Server-sent events from what was found first, until there is a reason to end.

    Each item is one event with its number as `id:`; a comment at least every 10 s; at the end an
    event `bye` with the reason.
    """
    look, told, told_at, listened = first, first.position, time.monotonic(), False
    async with _subscribed(follower) as subscription:
        yield f"retry: {RETRY_MS}\n\n"
        while True:
            if look.items:
                yield "".join(_event(number, text) for number, text in look.items)
                told, told_at = look.items[-1][0], time.monotonic()
            if look.ended:
                yield _bye(RUN_ENDED)
                return
            # What was written before anybody listened here left no hint: look once more at once.
            silence = PING_SECONDS - (time.monotonic() - told_at) if listened else 0.0
            heard = await _news(
                follower, subscription, look.position, 0 if look.more else max(0.0, silence)
            )
            listened = True
            if Notice.BYE in heard:
                yield _bye(SHUTDOWN)
                return
            if time.monotonic() - told_at >= PING_SECONDS:
                # With the place to resume from, when a filter has let it move on unseen.
                yield _ping(look.position if look.position > told else None)
                told, told_at = look.position, time.monotonic()
            try:
                look = await follower.look(look.position)
            except Refusal as refusal:
                yield _bye(REASONS.get(type(refusal), refusal.code))
                return
            except (OperationalError, InterfaceError) as lost:
                # It is looked at again: whoever follows need not notice.
                log.info("a stream could not look: %s", type(lost).__name__)
                look = _nothing_at(look.position)


def _nothing_at(position: int) -> Look:
    return Look(items=(), position=position, more=False, ended=False, beside={})


@asynccontextmanager
async def _subscribed(follower: Follower) -> AsyncIterator[Subscription]:
    hints, watched = hub(), watch(Keys)
    subscription = await hints.subscribe(follower.source.run)
    who = (follower.caller.name, 0)
    follower.watched = watched.enter(who, lambda: subscription.put(Notice.RESYNC))
    try:
        yield subscription
    finally:
        watched.leave(follower.watched)
        hints.unsubscribe(subscription)


async def _news(
    follower: Follower, subscription: Subscription, after: int, seconds: float
) -> list[Message]:
    """Wait for a reason to look, at most `seconds` and no longer than until the next poll."""
    # Not all at the same moment after a restart.
    poll_seconds = POLL_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
    ends_at = time.monotonic() + min(seconds, poll_seconds)
    while True:
        heard = await _hear(subscription, ends_at - time.monotonic())
        if not heard or Notice.BYE in heard or follower.is_told(heard, after):
            return heard


async def _hear(subscription: Subscription, seconds: float) -> list[Message]:
    """All that was said by now; waits at most so long for the first of it."""
    queue, heard = subscription.queue, []
    if queue.empty() and seconds > 0:
        try:
            heard.append(await asyncio.wait_for(queue.get(), seconds))
        except TimeoutError:
            return []
    while not queue.empty():
        heard.append(queue.get_nowait())
    return heard


def _event(number: int, text: str) -> str:
    # Between the tokens of a payload there may be line breaks, and each would end the field. Within
    # its texts JSON has none, so this changes no value.
    line = text.replace("\r", " ").replace("\n", " ")
    return f"id: {number}\ndata: {line}\n\n"


def _ping(position: int | None) -> str:
    return ": still here\n" + ("\n" if position is None else f"id: {position}\n\n")


def _bye(reason: str) -> str:
    return f"event: bye\ndata: {json.dumps({'reason': reason})}\n\n"
