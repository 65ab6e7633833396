"""Pages and the API, for a WSGI server: `granian --interface wsgi agentstate.wsgi:application`."""

import os
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

_pages = get_wsgi_application()

from agentstate.live.hub import listen_in_background  # noqa: E402


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer; and hear of what pages are made of beside the store, such as who looks at them."""
    listen_in_background()
    return _pages(environ, start_response)
