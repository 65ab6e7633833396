"""The web process of `./run`: uvicorn on a socket that the supervisor holds open.

    python -m agentstate.web FD [--when-told]

While this process is away, connections wait in the socket's queue instead of being refused. With
--when-told it loads everything and begins at a line of its input: loading takes two seconds of a
processor, and on a busy machine many more, that nobody waits for when it was done beforehand.
"""

import gc
import socket
import sys

import uvicorn

from agentstate import files
from agentstate.store.feed import MOVER

STREAMS_GRACE_SECONDS = 3
# A thread that wants to go on waits so long for one that computes. At Python's own 5 ms a request's
# way between the event loop and its thread is mostly waiting (bench/bridge.py: a third more calls).
SWITCH_SECONDS = 0.001


def make_config() -> uvicorn.Config:
    """How this product is served, wherever it is."""
    from agentstate.asgi import application
    from agentstate.wire import Wire

    return uvicorn.Config(
        application,
        http=Wire,
        ws="none",  # an upgrade is not offered; the request is answered as it is
        lifespan="off",
        access_log=False,
        log_config=None,  # its entries go where ours go, in the same form
        log_level="warning",
        timeout_graceful_shutdown=STREAMS_GRACE_SECONDS,
        server_header=False,
        # Else whoever connects from this machine is who X-Forwarded-For says. What is taken of such
        # headers is said by AGENTSTATE_PROXIES and AGENTSTATE_HTTPS alone.
        proxy_headers=False,
    )


def main(descriptor: int, *, when_told: bool = False) -> None:
    """Serve until SIGTERM. when_told: not before a line of the input; its end means never."""
    from django.urls import get_resolver

    files.raise_limit()
    config = make_config()
    from agentstate.api import shortcuts

    sys.setswitchinterval(SWITCH_SECONDS)
    # Read now, not while the first callers wait.
    get_resolver().url_patterns  # noqa: B018
    shortcuts.calls()
    # What is loaded stays: looking through it for garbage each time would be for nothing.
    gc.collect()
    gc.freeze()
    if when_told and not sys.stdin.buffer.readline():
        return
    # Readers of the feed hear of what this process writes at once, not at Celery's next second.
    MOVER.start()
    try:
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])
    finally:
        MOVER.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), when_told="--when-told" in sys.argv[2:])
