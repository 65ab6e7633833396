"""Rules that people make: a form with a preview of the last hours, changing one, deleting one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from agentstate.store import bounds
from agentstate.store.alerting import check_bounds
from agentstate.store.bounds import Told
from agentstate.store.commands import DeleteRule, PutRule
from agentstate.store.errors import Invalid, NotFound
from agentstate.store.made import METRICS, Definition, rule_of
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import one_line, whole
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import bounds as queries
from dashboard.queries.clock import database_now

LOST = "The form has lost what you saw. Send it again."
NO_DATA = {
    "no-data": "no data, which it says",
    "ok": "fine",
    "warn": "a warning",
    "alert": "an alert",
}
LABELS = {
    "name": "Name",
    "title": "Title",
    "metric": "Looks at",
    "run": "Run",
    "worker": "Worker",
    "operation": "Operation",
    "window": "Over the last minutes",
    "warn": "Warns from",
    "alert": "Alerts from",
    "no_data": "Without data",
    "hold": "Over after minutes",
    "again": "Told again after minutes",
}
# What the store calls them.
FIELDS = {
    "rule": "name",
    "window_seconds": "window",
    "hold_seconds": "hold",
    "again_seconds": "again",
}
FIRST = {
    "name": "own-", "title": "", "metric": "conflict-share", "run": "", "worker": "",
    "operation": "", "window": "5", "warn": "10", "alert": "20", "no_data": "no-data", "hold": "1",
    "again": "0",
}  # fmt: skip

type Texts = dict[str, str]
type Meant = tuple[Definition, dict[str, float | None]]


@require_http_methods(["GET", "HEAD", "POST"])
@page
def make(request: ConsoleRequest) -> HttpResponseBase:
    """Ask for a rule, with what it would have said; then make it."""
    if request.method != "POST":
        return ask(request, None, FIRST)
    return _put(request, None)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def edit(request: ConsoleRequest, rule: str) -> HttpResponseBase:
    """The same for one that there is, as it was seen."""
    found = _find(rule)
    if request.method != "POST":
        return ask(request, found, texts_of(found))
    return _put(request, found)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def delete(request: ConsoleRequest, rule: str) -> HttpResponseBase:
    """Ask why; then delete it, if it is still as it was seen."""
    found = _find(rule)
    if request.method != "POST":
        return ask_delete(request, found)
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if error or version is None:
        return ask_delete(request, found, Done(error=error or LOST))
    done = carry_out(request, lambda: DeleteRule(rule=rule, version=version, reason=reason))
    if done.result is None:
        return ask_delete(request, _find(rule), done)
    messages.success(request, f"{found.rule.title}: deleted.", extra_tags="check-circle")
    return redirect("alerts")


def _find(rule: str) -> Told:
    try:
        found = bounds.find(rule)
    except NotFound:
        raise Http404 from None
    if found.bounds.definition is None:
        raise Http404
    return found


def _put(request: ConsoleRequest, found: Told | None) -> HttpResponseBase:
    texts = {name: one_line(request.POST.get(name, ""))[:200] for name in FIRST}
    meant, errors = read(texts)
    if "preview" in request.POST:
        return ask(request, found, texts, errors=errors, preview_alone=True)
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    if error or version is None:
        errors |= {"": error or LOST}
    if errors or meant is None or version is None:
        return ask(request, found, texts, errors=errors)
    name = found.rule.name if found else texts["name"]
    definition, values = meant
    done = carry_out(
        request,
        lambda: PutRule(rule=name, version=version, definition=definition, reason=reason, **values),
    )
    if done.result is None:
        told = {"name": f"Name: {done.error}."} if done.error else {}
        return ask(request, _find(name) if found else None, texts, errors=told, done=done)
    said = f"{definition.title}: kept. It is judged within 15 s."
    messages.success(request, said, extra_tags="check-circle")
    return redirect("alerts")


def read(texts: Texts) -> tuple[Meant | None, dict[str, str]]:
    """What the fields mean, and what is to be mended, by field."""
    errors: dict[str, str] = {}
    numbers = {name: whole(texts[name] or "0") for name in ("window", "hold", "again")}
    for name, number in numbers.items():
        if number is None or number > 10_080:
            errors[name] = f"{LABELS[name]}: a whole number."
    values: dict[str, float | None] = {}
    for name in ("warn", "alert"):
        if texts[name] and not queries.NUMBER.fullmatch(texts[name]):
            errors[name] = f"{LABELS[name]}: a number such as 12 or 0.5, or nothing for never."
    if errors:
        return None, errors
    try:
        definition = Definition(
            title=texts["title"] or "untitled",
            metric=texts["metric"],
            run=texts["run"],
            worker=texts["worker"],
            operation=texts["operation"],
            window_seconds=60 * (numbers["window"] or 0),
            hold_seconds=60 * (numbers["hold"] or 0),
            no_data=texts["no_data"],
            again_seconds=60 * (numbers["again"] or 0),
        )
        bare = rule_of("own-", definition, warn=None, alert=None)
        for name in ("warn", "alert"):
            values[name] = queries.meant(bare, float(texts[name])) if texts[name] else None
        check_bounds(replace(bare, warn=values["warn"], alert=values["alert"]))
    except Invalid as refused:
        field = FIELDS.get(refused.field, refused.field)
        return None, {field: f"{LABELS.get(field, field)}: {refused.rule}."}
    if not texts["title"]:
        errors["title"] = "Title: say what it is about."
    return (definition, values), errors


def texts_of(found: Told) -> Texts:
    """The fields as they are kept."""
    rule, definition = found.rule, found.bounds.definition
    assert definition is not None
    return {
        "name": rule.name,
        "title": definition.title,
        "metric": definition.metric,
        "run": definition.run,
        "worker": definition.worker,
        "operation": definition.operation,
        "window": str(definition.window_seconds // 60),
        "warn": queries.typed(rule, rule.warn),
        "alert": queries.typed(rule, rule.alert),
        "no_data": definition.no_data,
        "hold": str(definition.hold_seconds // 60),
        "again": str(definition.again_seconds // 60),
    }


def ask(
    request: ConsoleRequest,
    found: Told | None,
    texts: Texts,
    *,
    errors: dict[str, str] | None = None,
    done: Done[Any] | None = None,
    preview_alone: bool = False,
) -> HttpResponseBase:
    """The form. Refused because somebody was faster, it keeps what was typed and shows what is
    different; mended, it still has the version that was seen.
    """
    told = preview_context(texts)
    if preview_alone and is_partial(request, "preview"):
        return render(request, "alerts/preview.html", told)
    errors = {} if preview_alone else errors or {}
    mending = bool(errors) or preview_alone
    version = found.bounds.version if found else 0
    refused = done is not None and done.refused is not None
    metric = METRICS.get(texts["metric"])
    now = texts_of(found) if found and refused else {}
    context = (
        form_context(request, None if preview_alone else done)
        | told
        | {
            "found": found,
            "now": database_now(),
            "typed": texts,
            "errors": errors,
            "error": "" if request.POST.get("reason") else errors.get("", ""),
            "differs": [
                (LABELS[name], value, texts[name])
                for name, value in now.items()
                if value != texts[name] and name != "name"
            ],
            "metrics": METRICS,
            "no_data": NO_DATA,
            "unit": queries.UNITS[metric.unit] if metric else "",
            "falling": bool(metric and metric.falling),
            "verdict": allowed_actions(request.access, {"kind": "alert"})["bounds"],
            "seen_version": request.POST.get("seen_version", "") if mending else version,
            "words": queries.in_words(found.rule) if found else "",
        }
    )
    status = 422 if errors else done.status if done else 200
    return render(request, "alerts/rule.html", context, status=status)


def preview_context(texts: Texts) -> dict[str, Any]:
    """What the part with the chart shows, or why it shows nothing."""
    meant, errors = read(texts)
    context: dict[str, Any] = {"preview_span": bounds.PREVIEW_MADE}
    if meant is None:
        return context | {"preview_error": " ".join(errors.values())}
    definition, values = meant
    rule = rule_of("own-", definition, warn=values["warn"], alert=values["alert"])
    seen = bounds.preview_made(rule, definition)
    return context | queries.drawn(seen, rule, seen.now)


def ask_delete(
    request: ConsoleRequest, found: Told, done: Done[Any] | None = None
) -> HttpResponseBase:
    mending = done is not None and bool(done.error)
    version = request.POST.get("seen_version", "") if mending else found.bounds.version
    context = form_context(request, done) | {
        "found": found,
        "now": database_now(),
        "verdict": allowed_actions(request.access, {"kind": "alert"})["bounds"],
        "seen_version": version,
        "words": queries.in_words(found.rule),
    }
    return render(request, "alerts/rule_delete.html", context, status=done.status if done else 200)
