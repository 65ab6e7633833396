"""Everything in one process on one port: streams on ASGI, the rest on WSGI in lasting threads.

Under plain ASGI Django hops between threads for each request and each middleware, which costs ten
times what the request does. `application` is for `./run`; a larger site runs wsgi.py and, for
/live/, `streams`, each with a server of its own.
"""

import os

from a2wsgi import WSGIMiddleware
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

_streams = get_asgi_application()

from agentstate.live.hub import hub  # noqa: E402
from agentstate.live.sending import cutting_off  # noqa: E402
from agentstate.wsgi import application as pages  # noqa: E402

streams = cutting_off(_streams)  # type: ignore[arg-type]

WSGI_THREADS = 8  # each keeps a connection of its own to the database

_pages = WSGIMiddleware(pages, workers=WSGI_THREADS)  # type: ignore[arg-type]


async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Send /live/ to Django's ASGI side, all other HTTP to the WSGI threads."""
    if scope["type"] != "http":
        return
    hub().stay()
    handler = streams if scope["path"].startswith("/live/") else _pages
    await handler(scope, receive, send)  # type: ignore[arg-type]
