"""The first-run page: it makes the first admin, and is gone when there is one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from agentstate import store
from agentstate.store.callers import Caller
from agentstate.store.errors import Exists, Invalid, NotAllowed
from agentstate.store.people import MakeFirstAdmin
from dashboard import first_run, tries
from dashboard.forms import one_line
from dashboard.pages import ConsoleRequest, circumstances
from dashboard.tries import OF_SETUP
from dashboard.usernames import new_name

WRONG_CODE = "This is not the code that the last start printed."
NO_CODE = "The code is missing. It stands in the output of the last start."
TAKEN = "Somebody is called that already."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("code", "password", "again")
def show(request: ConsoleRequest) -> HttpResponseBase:
    """Ask for a name, a password and the code; then make the admin and let them in. 404 as soon as
    there is one, for the second of two as well."""
    if not first_run.is_open():
        raise Http404
    if request.method != "POST":
        return ask(request)
    name = User.normalize_username(one_line(request.POST.get("name", "")))
    password = request.POST.get("password", "")
    try:
        # Before anything slow: counted for the address and for all of them together.
        counters = tries.take((OF_SETUP, tries.address_of(request)), (OF_SETUP, ""))
    except tries.TooMany as refusal:
        return ask(request, {"code": str(refusal.message)}, status=429)
    errors = check(name, password, request.POST.get("again", ""))
    if not request.POST.get("code", "").strip():
        errors["code"] = NO_CODE
    if errors:
        tries.give_back(counters)
        return ask(request, errors)
    return make(request, name, password)


def make(request: ConsoleRequest, name: str, password: str) -> HttpResponseBase:
    code = first_run.digest_of(request.POST.get("code", ""))
    command = MakeFirstAdmin(name=name, password=make_password(password), code=code)
    try:
        by = Caller(kind="person", name=name)
        store.execute(command, by=by, under=circumstances(request))
    except Exists:
        raise Http404 from None
    except NotAllowed:
        return ask(request, {"code": WRONG_CODE}, status=403)
    except Invalid as refused:
        return ask(request, {"name": TAKEN if refused.field == "name" else refused.rule})
    login(request, User.objects.get(username=name), backend="dashboard.sessions.Backend")
    messages.success(request, "You are the first admin.", extra_tags="check-circle")
    return redirect("home")


def check(name: str, password: str, again: str) -> dict[str, str]:
    """What is wrong with what was typed, by field."""
    errors: dict[str, str] = {}
    try:
        new_name(name)
    except ValidationError as refused:
        errors["name"] = " ".join(refused.messages)
    try:
        validate_password(password, User(username=name))
    except ValidationError as refused:
        errors["password"] = " ".join(refused.messages)
    if not errors and password != again:
        errors["again"] = "The two differ."
    return errors


def ask(
    request: ConsoleRequest, errors: dict[str, str] | None = None, *, status: int = 422
) -> HttpResponseBase:
    context: dict[str, Any] = {
        "errors": errors or {},
        "name": request.POST.get("name", ""),
        "code": request.POST.get("code", ""),
    }
    return render(request, "session/setup.html", context, status=status if errors else 200)
