"""Pages and the API, for a WSGI server: `granian --interface wsgi agentstate.wsgi:site`."""

import atexit
import os
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
os.environ.setdefault("AGENTSTATE_PROCESS", "web")

_pages = get_wsgi_application()

from agentstate.live.hub import listen_in_background  # noqa: E402
from agentstate.store.feed import MOVER  # noqa: E402


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer; and hear of what pages are made of beside the store, such as who looks at them."""
    listen_in_background()
    return _pages(environ, start_response)


def site(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """The same for a process that has nobody else to move the feed: as soon as it has written.

    Begun with the first request, since a server may fork after it has loaded this.
    """
    if not MOVER.running:
        MOVER.start()
        atexit.register(MOVER.stop)
    return application(environ, start_response)
