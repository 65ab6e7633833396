"""The bounds of a rule: what they are, what others would have said of a day, changing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from agentstate.store import bounds, made
from agentstate.store.alerting import RULES
from agentstate.store.bounds import Preview
from agentstate.store.commands import ChangeRule
from agentstate.store.errors import Invalid
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import bounds as queries
from dashboard.queries.clock import database_now

LOST = "The form has lost what you saw. Send it again."
A_NUMBER = "{name}: a number such as 12 or 0.5, or nothing for never."


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What stands in the fields, and the bounds that it means; error: what to mend."""

    warn: str
    alert: str
    bounds: dict[str, float | None]
    error: str = ""


@require_http_methods(["GET", "HEAD", "POST"])
@page
def change(request: ConsoleRequest, rule: str) -> HttpResponseBase:
    """Show the last day with the bounds that are typed; then, if a reason is given and they are
    still as they were seen, keep them.
    """
    if made.is_made(rule):  # of these all can be changed
        return redirect("rule-edit", rule=rule)
    if rule not in RULES:
        raise Http404
    found = bounds.find(rule)
    typed = read_typed(request, found)
    if request.method != "POST" or "preview" in request.POST or typed.error:
        return ask(request, found, typed, Done(error=typed.error) if typed.error else None)
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if error or version is None:
        return ask(request, found, typed, Done(error=error or LOST))
    done = carry_out(
        request,
        lambda: ChangeRule(
            rule=rule,
            version=version,
            warn=typed.bounds["warn"],
            alert=typed.bounds["alert"],
            reason=reason,
        ),
    )
    if done.result is None:
        return ask(request, bounds.find(rule), typed, done)
    told = f"{found.rule.title}: it {queries.in_words(bounds.rule(rule))}. Counts within 15 s."
    messages.success(request, told, extra_tags="check-circle")
    return redirect("alerts")


def read_typed(request: ConsoleRequest, found: bounds.Told) -> Typed:
    """The fields, or at first the bounds that count now."""
    texts: dict[str, str] = {}
    values: dict[str, float | None] = {}
    error = ""
    for name in ("warn", "alert"):
        counts = queries.typed(found.rule, getattr(found.rule, name))
        posted = request.method == "POST"
        text = (request.POST.get(name, "") if posted else request.GET.get(name, counts)).strip()
        texts[name], values[name] = text[:30], None
        if text and not queries.NUMBER.fullmatch(text):
            error = error or A_NUMBER.format(name=queries.LABELS[name])
        elif text:
            values[name] = queries.meant(found.rule, float(text))
    return Typed(**texts, bounds=values, error=error)


def ask(
    request: ConsoleRequest, found: bounds.Told, typed: Typed, done: Done[Any] | None
) -> HttpResponseBase:
    """The form. Refused because somebody was faster, it keeps what was typed and shows what is
    different."""
    seen, error = preview_of(found, typed)
    drawn = queries.drawn(seen, seen.asked, seen.then) if seen else {"preview_error": error}
    if is_partial(request, "preview"):
        return render(request, "alerts/preview.html", drawn | {"preview_span": bounds.PREVIEW})
    done = done or (Done(error=error) if error and request.method == "POST" else None)
    mending = done is not None and bool(done.error)
    version = request.POST.get("seen_version", "") if mending else found.bounds.version
    refused = done is not None and done.refused is not None
    now = {n: queries.typed(found.rule, getattr(found.rule, n)) for n in queries.LABELS}
    context = (
        {"preview_span": bounds.PREVIEW}
        | drawn
        | form_context(request, done)
        | {
            "found": found,
            "now": database_now(),
            "typed": typed,
            "differs": [
                (label, now[name], getattr(typed, name))
                for name, label in queries.LABELS.items()
                if refused and now[name] != getattr(typed, name)
            ],
            "unit": queries.unit_of(found.rule),
            "preview": seen and queries.read_preview(seen),
            "verdict": allowed_actions(request.access, {"kind": "alert"})["bounds"],
            "seen_version": version,
            "words": queries.in_words(found.rule),
            "own_words": queries.in_words(found.own),
        }
    )
    return render(request, "alerts/bounds.html", context, status=done.status if done else 200)


def preview_of(found: bounds.Told, typed: Typed) -> tuple[Preview | None, str]:
    """The last day with what is typed, or why there is none."""
    if typed.error:
        return None, typed.error
    try:
        return bounds.preview(found.rule.name, **typed.bounds), ""
    except Invalid as refused:
        return None, f"{queries.LABELS.get(refused.field, refused.field)}: {refused.rule}."
