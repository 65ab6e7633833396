"""How answers leave: to clients who read them. One that does not is cut off."""

from __future__ import annotations

import asyncio
import logging

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from django.core.exceptions import RequestAborted

# The server lets an answer go on once the client has read all but some tens of kB of it.
SEND_SECONDS = 20.0

log = logging.getLogger(__name__)


class Gone(RequestAborted):
    """The client is no longer there, or does not take what it asked for."""


async def send_in_time(send: ASGISendCallable, event: ASGISendEvent) -> None:
    """Raises Gone when the client does not take it within SEND_SECONDS."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send(event)
    except TimeoutError:
        log.info("cut off: a client that did not read for %g s", SEND_SECONDS)
        raise Gone from None


def cutting_off(application: ASGI3Application) -> ASGI3Application:
    """Django's ASGI application, each part of whose answers has to be taken in time."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def in_time(event: ASGISendEvent) -> None:
            await send_in_time(send, event)

        await application(scope, receive, in_time)

    return answer
