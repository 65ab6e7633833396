"""The pages for what went wrong. None of them needs the database."""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

RETRY_SECONDS = "5"


def not_allowed(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    text = str(exception) if exception and str(exception) else "Your role does not allow this."
    return _page(request, 403, "Not allowed", f"{text[:300]} Nothing was changed.")


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(request, 404, "Not found", "There is no page at this address.")


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _page(request, 400, "Not understood", "The request is not one that this page can read.")


def forged(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form without its token: an old page, cookies switched off, or another site's form."""
    text = "The form was too old, or your browser keeps no cookies. Nothing was changed."
    return _page(request, 403, "Please send the form again", text, again=True)


def broken(request: HttpRequest) -> HttpResponse:
    """Something of ours failed. A database that cannot be reached is told apart."""
    context = {"request_id": getattr(request, "request_id", "")}
    status, headers = 500, {}
    if isinstance(sys.exception(), OperationalError | InterfaceError):
        status, headers = 503, {"Retry-After": RETRY_SECONDS}
        context |= {
            "code": "503",
            "title": "The database cannot be reached",
            "text": "Nothing was changed. Workers are told to try again; so can you, in a moment.",
        }
    return HttpResponse(render_to_string("500.html", context), status=status, headers=headers)


def _page(
    request: HttpRequest, code: int, title: str, text: str, *, again: bool = False
) -> HttpResponse:
    context = {"code": code, "title": title, "text": text, "again": again}
    return render(request, "components/wrong.html", context, status=code)
