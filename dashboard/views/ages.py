"""How long things are kept: each kind, and changing one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store import retention
from agentstate.store.ages import AGES, DAYS_MAX, KeptAge, word
from agentstate.store.commands import ChangeAge
from agentstate.store.errors import Invalid
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, page
from dashboard.queries.clock import database_now
from dashboard.queries.panels import Panel, read_panel

LOST = "The form has lost what you saw. Send it again."
A_NUMBER = "Days: a whole number such as 30, or nothing for the default."
# Counting what is past an age may have to look at a whole table.
PREVIEW_MS = 2_000


KINDS = {word(kind): kind for kind in AGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What stands in the field, and the days that it means, None for the default; error: what to
    mend."""

    text: str
    days: int | None = None
    error: str = ""


@require_safe
@page
def show(request: ConsoleRequest) -> HttpResponseBase:
    """Each kind, with how long it is kept and who said so."""
    kept = retention.ages()
    lines = [
        {"kind": kind, "word": word(kind), "age": age, "kept": kept.get(kind)}
        for kind, age in AGES.items()
    ]
    context = {
        "tab": "retention",
        "now": database_now(),
        "lines": lines,
        "retain_seconds": settings.DEFAULT_RETAIN_SECONDS,
        "session_seconds": settings.SESSION_COOKIE_AGE,
        "verdict": allowed_actions(request.access, {"kind": "age"})["change"],
    }
    return render(request, "system/ages.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def change(request: ConsoleRequest, kind: str) -> HttpResponseBase:
    """Show what would go with the days that are typed; then, if a reason is given and they are
    still as they were seen, keep it for so long.
    """
    if (name := KINDS.get(kind)) is None:
        raise Http404
    if not AGES[name].keep:  # each row has its own expiry: there is nothing to be said
        return redirect("retention")
    found = retention.find(name)
    typed = read_typed(request, found)
    if request.method != "POST" or "preview" in request.POST or typed.error:
        return ask(
            request, found, typed, Done(error=typed.error, beside=True) if typed.error else None
        )
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if error or version is None:
        return ask(request, found, typed, Done(error=error or LOST))
    done = carry_out(
        request,
        lambda: ChangeAge(kind=name, version=version, days=typed.days, reason=reason),
    )
    if done.result is None:
        return ask(request, retention.find(name), typed, done)
    told = f"{name.capitalize()}: kept for {retention.find(name).keep.days} days from now on."
    messages.success(request, told, extra_tags="check-circle")
    return redirect("retention")


def read_typed(request: ConsoleRequest, found: KeptAge) -> Typed:
    """The field, or at first the days that count now."""
    if request.method == "POST" and "default" in request.POST:
        return Typed(text="")
    sent = request.POST if request.method == "POST" else request.GET
    text = sent.get("days", str(found.days or "")).strip()[:20]
    days = whole(text)
    if text and days is None:
        return Typed(text=text, error=A_NUMBER)
    return Typed(text=text, days=None if days is None else min(days, DAYS_MAX + 1))


def ask(
    request: ConsoleRequest, found: KeptAge, typed: Typed, done: Done[Any] | None
) -> HttpResponseBase:
    panel, error = preview_of(found, typed)
    done = done or (Done(error=error, beside=True) if error and request.method == "POST" else None)
    mending = done is not None and bool(done.error)
    asked = KeptAge(kind=found.kind, days=typed.days)
    moved = done is not None and done.refused is not None
    context = form_context(request, done) | {
        "found": found,
        "now": (now := database_now()),
        "whole_since": found.whole_since(now),
        "typed": typed,
        "asked": asked,
        "differs": not typed.error and asked.keep != found.keep,
        "panel": panel,
        "preview_error": error,
        "due_max": retention.DUE_MAX,
        "seen_version": request.POST.get("seen_version", "") if mending else found.version,
        "seen_days": request.POST.get("seen_days", "") if mending else found.keep.days,
        "was": whole(request.POST.get("seen_days")) if moved else None,
        "verdict": allowed_actions(request.access, {"kind": "age"})["change"],
    }
    return render(request, "system/age.html", context, status=done.status if done else 200)


def preview_of(found: KeptAge, typed: Typed) -> tuple[Panel[retention.Preview] | None, str]:
    """What would go with what is typed, or why that is not told."""
    if typed.error:
        return None, typed.error
    try:
        return read_panel(
            lambda: retention.preview(found.kind, typed.days), milliseconds=PREVIEW_MS
        ), ""
    except Invalid as refused:
        return None, f"Days: {refused.rule}."
