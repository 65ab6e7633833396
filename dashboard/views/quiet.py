"""Quiet hours: a target's, which an admin sets, and one's own."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from agentstate.store import deliveries, targets
from agentstate.store.commands import SetQuiet
from agentstate.store.errors import Invalid
from agentstate.store.quiet import PERSON, TARGET, THEN, WEEK, KeptQuiet, Quiet
from dashboard import zones
from dashboard.access import NEEDS_ADMIN, Verdict, allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, page
from dashboard.queries.clock import database_now

LOST = "The form has lost what you saw. Send it again."
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
NO_TIME = "{name}: a time of the day such as 22:00."
LABELS = {"begins": "From", "ends": "To", "zone": "Zone", "days": "Days", "then": "Afterwards"}


@require_http_methods(["GET", "HEAD", "POST"])
@page
def of_target(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """When this target is not to be told."""
    if targets.find(name) is None:
        raise Http404
    back = reverse("target", args=[name])
    verdict = allowed_actions(request.access, {"kind": "target"})["change"]
    return _answer(request, f"{TARGET}{name}", back=back, verdict=verdict)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def of_person(request: ConsoleRequest) -> HttpResponseBase:
    """When oneself is not to be told; it counts for the targets that are one's own."""
    verdict = Verdict(action="quiet", allowed=True)
    whose = f"{PERSON}{request.access.name}"
    return _answer(request, whose, back=reverse("settings"), verdict=verdict)


def _answer(
    request: ConsoleRequest, whose: str, *, back: str, verdict: Verdict
) -> HttpResponseBase:
    kept = kept_of(whose)
    if request.method != "POST":
        return ask(request, kept, fields_of(kept, request), back, verdict)
    fields = typed(request)
    quiet, error = read(fields)
    reason, reasonless = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if whose.startswith(TARGET):
        error = error or reasonless
    error = error or (LOST if version is None else "")
    if error or version is None:
        return ask(request, kept, fields, back, verdict, Done(error=error))
    done = carry_out(
        request,
        lambda: SetQuiet(whose=whose, version=version, quiet=quiet, reason=reason),
    )
    if done.result is None:
        return ask(request, kept_of(whose), fields, back, verdict, done)
    messages.success(request, f"Quiet hours: {in_words(quiet)}.", extra_tags="check-circle")
    return redirect(back)


def kept_of(whose: str) -> KeptQuiet:
    none = KeptQuiet(whose=whose, quiet=None, version=0)
    return deliveries.read_quiets(whose=[whose]).get(whose, none)


def fields_of(kept: KeptQuiet, request: ConsoleRequest) -> dict[str, Any]:
    """What the form shows at first: what is kept, or a night in the zone of whoever looks."""
    quiet = kept.quiet or Quiet(zone=request.chosen.zone, begins=22 * 60, ends=7 * 60)
    return {
        "on": kept.quiet is not None,
        "zone": quiet.zone,
        "begins": clock(quiet.begins),
        "ends": clock(quiet.ends),
        "days": [str(day) for day in quiet.days],
        "critical": quiet.critical,
        "then": quiet.then,
    }


def typed(request: ConsoleRequest) -> dict[str, Any]:
    post = request.POST
    texts = {name: post.get(name, "").strip()[:64] for name in ("zone", "begins", "ends", "then")}
    return texts | {
        "on": post.get("on") == "yes",
        "critical": post.get("critical") == "yes",
        "days": post.getlist("days")[:20],
    }


def read(fields: dict[str, Any]) -> tuple[Quiet | None, str]:
    """The hours that are meant, None for none; and what is to be mended."""
    if not fields["on"]:
        return None, ""
    times = {name: _TIME.fullmatch(fields[name]) for name in ("begins", "ends")}
    for name, found in times.items():
        if found is None:
            return None, NO_TIME.format(name=LABELS[name])
    days = [whole(day) for day in fields["days"]]
    if not days:
        return None, "Days: choose one at least, or switch them off."
    try:
        quiet = Quiet(
            zone=fields["zone"],
            begins=_minutes(times["begins"]),
            ends=_minutes(times["ends"]),
            days=tuple(sorted({-1 if day is None else day for day in days})),
            critical=fields["critical"],
            then=fields["then"],
        )
    except Invalid as refused:
        return None, f"{LABELS.get(refused.field, refused.field)}: {refused.rule}."
    return quiet, ""


def _minutes(found: re.Match[str] | None) -> int:
    assert found is not None
    return int(found[1]) * 60 + int(found[2])


def clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def in_words(quiet: Quiet | None) -> str:
    """`22:00 to 07:00 Europe/Berlin, Mon to Sun; what is at alert goes through`, or none."""
    if quiet is None:
        return "none"
    days = "every day" if len(quiet.days) == len(WEEK) else ", ".join(DAYS[d] for d in quiet.days)
    through = "what is at alert goes through" if quiet.critical else "alerts as well"
    then = "what is held back is dropped" if quiet.then == "drop" else "the rest is sent afterwards"
    hours = f"{clock(quiet.begins)} to {clock(quiet.ends)} {quiet.zone}"
    return f"{hours}, {days}; {through}, {then}"


def ask(
    request: ConsoleRequest,
    kept: KeptQuiet,
    fields: dict[str, Any],
    back: str,
    verdict: Verdict,
    done: Done[Any] | None = None,
) -> HttpResponseBase:
    """The page. Refused, it shows what stands there now beside what was typed."""
    mending = done is not None and bool(done.error)
    now = database_now()
    kind, _, name = kept.whose.partition(":")
    context = form_context(request, done) | {
        "now": now,
        "kept": kept,
        "kept_words": in_words(kept.quiet),
        "until": kept.quiet.until(now) if kept.quiet else None,
        "of_target": kind == "target",
        "name": name,
        "back": back,
        "fields": fields,
        "day_names": [(str(day), DAYS[day]) for day in WEEK],
        "thens": THEN,
        "zones": zones.names(),
        "verdict": verdict,
        "needs_admin": NEEDS_ADMIN,
        "own_targets": [t.name for t in targets.read() if kind == "person" and t.person == name],
        "seen_version": request.POST.get("seen_version", "") if mending else kept.version,
    }
    return render(request, "settings/quiet.html", context, status=done.status if done else 200)
