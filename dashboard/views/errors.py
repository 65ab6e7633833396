"""The pages for what went wrong. None of them needs the database."""

from __future__ import annotations

import sys

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from agentstate import where
from agentstate.store import outages
from agentstate.store.errors import Refusal
from agentstate.store.payloads import BODY_BYTES_MAX
from dashboard.refused import IN_A_MOMENT, told

RETRY_SECONDS = "5"
WAYS_IN = ("login", "mfa_authenticate", "setup")


def not_allowed(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    text = str(exception) if exception and str(exception) else "Your role does not allow this."
    # Whoever only wanted to look need not be told that nothing was changed.
    more = "" if request.method in ("GET", "HEAD") else " Nothing was changed."
    access = getattr(request, "access", None)
    no_role = access is not None and not access.may("read")
    return _page(request, 403, "Not allowed", f"{text[:300]}{more}", no_role=no_role)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    if request.method not in ("GET", "HEAD"):
        gone = "What this form is about is not there, or not any more. Nothing was done."
        return _page(request, 404, "Not found", gone)
    return _page(request, 404, "Not found", "There is no page at this address.")


def too_large(request: HttpRequest) -> HttpResponse | None:
    """Of a form that was not read because it is larger than whatever is taken."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if not (length.isdigit() and int(length) > BODY_BYTES_MAX):
        return None
    text = f"At most {BODY_BYTES_MAX // 2**20} MiB are taken here. Nothing was changed."
    detail = f"A larger bundle is checked with {where.COMMAND} bundle --check FILE, on any machine."
    return _page(request, 413, "Too large", text, detail=detail)


def too_slow(request: HttpRequest, text: str) -> HttpResponse:
    """Of a page that ran into its time limit as a whole."""
    return _page(request, 503, "This took too long", text, again=True)


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    if (answer := too_large(request)) is not None:
        return answer
    if isinstance(exception, RequestDataTooBig):
        most = (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 0) / 2**20
        text = f"The fields of a form have at most {most:g} MiB together. Nothing was changed."
        return _page(request, 413, "Too large", text)
    if isinstance(exception, TooManyFieldsSent):
        most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS or 0
        text = f"A form has at most {most:,} fields. Nothing was changed."
        return _page(request, 400, "Too many fields", text)
    return _page(request, 400, "Not understood", "The request is not one that this page can read.")


def forged(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form without its token: an old page, cookies switched off, or another site's form; or one
    that was too large to be read."""
    if (answer := too_large(request)) is not None:
        return answer
    if request.path in map(reverse, WAYS_IN) and request.user.is_authenticated:
        return redirect("home")  # sent twice: the first one let them in, with another token
    text = "The form was too old, or your browser keeps no cookies. Nothing was changed."
    return _page(request, 403, "Please send the form again", text, again=True)


def broken(request: HttpRequest) -> HttpResponse:
    """Something of ours failed. A database that cannot be reached is told apart."""
    context = {"request_id": getattr(request, "request_id", "")}
    status, headers = 500, {}
    failed = sys.exception()
    if isinstance(failed, Refusal):  # no fault of ours but what the store says, to whoever asks
        return _refused(request, failed)
    if failed is not None and outages.is_one(failed):
        status, headers = 503, {"Retry-After": RETRY_SECONDS}
        context |= {
            "code": "503",
            "title": outages.TITLES.get(outages.state_of(failed), "The database cannot be reached"),
            "text": "Nothing was changed. Workers are told to try again; so can you, in a moment.",
        }
    return HttpResponse(render_to_string("500.html", context), status=status, headers=headers)


def _refused(request: HttpRequest, refused: Refusal) -> HttpResponse:
    said, later = told(refused), refused.code in IN_A_MOMENT
    status = 503 if later else 409
    response = _page(request, status, said.title.rstrip("."), said.text, again=later)
    if later:
        response["Retry-After"] = RETRY_SECONDS
    return response


def _page(
    request: HttpRequest,
    code: int,
    title: str,
    text: str,
    *,
    again: bool = False,
    detail: str = "",
    no_role: bool = False,
) -> HttpResponse:
    """no_role: they may look at nothing but their own account, so that is where it leads."""
    context = {"code": code, "title": title, "text": text, "again": again, "detail": detail}
    context["no_role"] = no_role
    response = render(request, "components/wrong.html", context, status=code)
    add_never_cache_headers(response)  # who asks stands on it, and a 404 is kept by default
    return response
