"""A client that does not read is cut off: what waits for it may not wait for ever."""

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

# The server lets a stream go on once the client has read all but some tens of kB of it.
SEND_SECONDS = 20.0

log = logging.getLogger(__name__)


def cutting_off(application: ASGI3Application) -> ASGI3Application:
    """The application, each part of whose answers has to be taken within SEND_SECONDS."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_in_time(event: ASGISendEvent) -> None:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await send(event)
            except TimeoutError:
                log.info("cut off: a client that did not read for %g s", SEND_SECONDS)
                raise RequestAborted from None

        await application(scope, receive, send_in_time)

    return answer
