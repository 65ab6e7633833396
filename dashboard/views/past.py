"""Pages as of a moment: what the address asks for, and the page that says why there is none."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpResponseBase
from django.shortcuts import render

from dashboard import moments
from dashboard.moments import Moment, NotThen
from dashboard.pages import ConsoleRequest
from dashboard.queries.clock import TooSlow
from dashboard.queries.states import Strange, TooMany

SLOW = "To tell how it stood then took longer than a page may."
OFTEN = "It changed too often to be told on a page. Export it, or look at its events."
STRANGE = "An event of this run, which was imported, says what cannot be told."


def is_asked(request: ConsoleRequest) -> bool:
    """Whether the page is wanted as of a moment. An empty field of the form means now."""
    return bool(request.GET.get(moments.NAME, "").strip())


def as_of[R](request: ConsoleRequest, read: Callable[[Moment], R]) -> R:
    """What `read` makes of the moment that is asked for. Raises NotThen, whatever went wrong."""
    try:
        return read(moments.read(request.GET.get(moments.NAME, "")))
    except TooSlow:
        raise NotThen("This took too long", SLOW, HTTPStatus.SERVICE_UNAVAILABLE) from None
    except TooMany:
        raise NotThen("This cannot be told here", OFTEN, HTTPStatus.CONFLICT) from None
    except Strange:
        raise NotThen("This cannot be told", STRANGE, HTTPStatus.CONFLICT) from None


def not_then(
    request: ConsoleRequest, wrong: NotThen, *, name: str, page: str, first: str = ""
) -> HttpResponseBase:
    """Why there is no page of then. page: as it is now; first: its first moment, if it is known."""
    context = {
        "wrong": wrong,
        "name": name,
        "page": page,
        "asked": request.GET.get(moments.NAME, "")[:200],
        "first_address": moments.address(page, first) if first else "",
        "grammar": moments.GRAMMAR,
    }
    return render(request, "asof/not_then.html", context, status=wrong.status)
