"""Everything in one process on one port: streams on ASGI, the rest on WSGI in lasting threads.

Under plain ASGI Django hops between threads for each request and each middleware, which costs ten
times what the request does. `application` is for `./run`; a larger site runs wsgi.py and, for
/live/, `streams`, each with a server of its own.
"""

import os

from asgiref.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, Scope
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
os.environ.setdefault("AGENTSTATE_PROCESS", "streams")

_streams = get_asgi_application()

from agentstate import metrics  # noqa: E402
from agentstate.api import shortcuts  # noqa: E402
from agentstate.bridge import Bridge  # noqa: E402
from agentstate.live.hub import hub  # noqa: E402
from agentstate.sending import cutting_off  # noqa: E402
from agentstate.wsgi import application as pages  # noqa: E402

_cut_off = cutting_off(_streams)  # type: ignore[arg-type]

# Each keeps a connection of its own to the database. One is left for pages, whatever the API does.
WSGI_THREADS = 10

_pages = Bridge(
    pages, threads=WSGI_THREADS, places=settings.REQUESTS_MAX, shortcut=shortcuts.SHORTCUT
)
metrics.GATE.gate, metrics.GATE.held_bytes = _pages.gate, lambda: _pages.held_bytes


async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Send /live/ to Django's ASGI side, all other HTTP to the WSGI threads."""
    if scope["type"] == "http" and not scope["path"].startswith("/live/"):
        hub().stay()
        await _pages(scope, receive, send)
    else:
        await streams(scope, receive, send)


async def streams(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Streams and long polls alone, and what a load balancer asks: for a server beside wsgi.py."""
    if scope["type"] != "http":
        return
    hub().stay()
    is_live = scope["path"].startswith("/live/")
    await _cut_off(scope, without_body(receive) if is_live else receive, send)


# What agentstate/wire.py offers a request to before it becomes a task.
application.at_once = _pages  # type: ignore[attr-defined]


def without_body(receive: ASGIReceiveCallable) -> ASGIReceiveCallable:
    """A stream takes none; Django would read all of it, to a file, before it looks who asks."""
    told = False

    async def receive_nothing() -> ASGIReceiveEvent:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while (event := await receive())["type"] != "http.disconnect":
            pass  # whatever is sent is dropped as it comes
        return event

    return receive_nothing
