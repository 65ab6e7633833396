"""One run: its head, its timeline, its events as they come, and what an operator may do to it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseBase, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header, urlencode
from django.views.decorators.http import require_http_methods, require_safe

from agentstate import store
from agentstate.store import errors
from agentstate.store.commands import Transition
from agentstate.store.models import Run
from agentstate.store.states import TERMINAL
from dashboard import moments, sentences
from dashboard.access import MOVES, allowed_actions
from dashboard.audit_filter import OfRun
from dashboard.cursors import BadCursor
from dashboard.forms import WHOLE_MAX, form_circumstances, key_again, one_line, whole
from dashboard.moments import NotThen
from dashboard.pages import (
    ConsoleRequest,
    asked_run,
    asking,
    denied,
    is_partial,
    page,
    read_along,
    shared,
    shown_address,
)
from dashboard.queries import actions, marks
from dashboard.queries import events as event_queries
from dashboard.queries import story as queries
from dashboard.queries.clock import TooSlow, database_now
from dashboard.queries.events import read_event
from dashboard.queries.past import read_run as read_past_run
from dashboard.queries.states import read_open_effects as read_past_effects
from dashboard.queries.story import Head
from dashboard.queries.together import Read
from dashboard.views import drawing, events, past, states
from dashboard.views.runs import describe_neighbours

DRAWN = "drawn"
TABS = (
    ("events", "Events"),
    ("state", "State"),
    ("ownership", "Ownership"),
    ("refused", "Refused"),
    ("budget", "Budget"),
    ("audit", "Audit"),
)
# What of the address stays when something else of the page is asked for.
STAYS = ("from", "to", "gaps", "list", moments.NAME)  # whichever tab is open
KEPT = ("origin", "type", "find", "errors", "show", *STAYS)


@require_safe
@page
def show(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The page: `tab`, its timeline `from`, `to`, `gaps`; on events `origin`, `type`, `find`,
    `errors`, `show`, `before` or `after` a number, `event`; on the state `seq` and `with`; on the
    audit `audit_after` or `audit_before` a place. All of it as it was at the moment `asof`
    (moments.py), if there is one."""
    head = read_head(key)
    if head is None:
        return not_there(request, key)
    if past.is_asked(request):
        try:
            head = read_past(request, head)
        except NotThen as wrong:
            page_now, first = reverse("run", args=[key]), moments.of_event(1)
            return past.not_then(request, wrong, name=key, page=page_now, first=first)
    if is_partial(request, "pane"):
        return render(
            request, "story/run.html#pane", here(request, head) | events.open_event(request, head)
        )
    context = describe_live(request, head)
    context |= read_tab(request, head, context)
    if is_partial(request, "tab"):
        return render(request, "story/run.html#tab", context)
    if head.as_of is None:
        context |= describe_neighbours(request, head.run, head.now)
    return render(request, "story/run.html", context | drawing.draw(head, kept_query(request)))


def read_head(key: str) -> Head | None:
    """The run, unless its retention is over: then it is hidden, as it is for workers."""
    now = database_now()
    head = queries.read_head(key, now=now) if "\0" not in key else None
    return None if head is not None and is_over(head.run, now) else head


def read_past(request: ConsoleRequest, head: Head) -> Head:
    """The head as it was at the moment that is asked for. Raises NotThen."""
    page_now = reverse("run", args=[head.run.key])
    return past.as_of(request, lambda moment: read_past_run(head, moment, page=page_now))


def is_over(run: Run, now: datetime) -> bool:
    return run.expires_at is not None and run.expires_at <= now and not run.hold


def not_there(request: ConsoleRequest, key: str) -> HttpResponseBase:
    nearest = [] if "\0" in key else queries.nearest_keys(key)
    expired_at = None if "\0" in key else queries.expiry_of(key)
    context = {"key": key, "nearest": nearest, "expired_at": expired_at, "now": database_now()}
    return render(request, "story/unknown.html", context, status=410 if expired_at else 404)


def kept_query(request: ConsoleRequest) -> dict[str, str]:
    """What of the address the timeline's links keep."""
    return {name: request.GET[name] for name in (*KEPT, "tab", "event") if request.GET.get(name)}


def shown_query(request: ConsoleRequest) -> QueryDict:
    """The query of the page that is open: parts of it were exchanged since it was loaded."""
    shown = shown_address(request)
    if not shown:
        return request.GET
    query = QueryDict(shown.partition("?")[2].partition("#")[0], mutable=True)
    for name in ("before", "after", "event"):
        query.pop(name, None)
    if "after" in request.GET:
        query["after"] = request.GET["after"]
    return query


def as_shown(request: ConsoleRequest) -> None:
    """Go by that query from now on."""
    request.GET = shown_query(request)  # type: ignore[assignment]  # mutable only here


def here(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """What every part of the page needs: the run, the clock, and the address without its place."""
    kept = {name: request.GET[name] for name in KEPT if request.GET.get(name)}
    tab = request.GET.get("tab", "events")
    return {
        "head": head,
        "run": head.run,
        "lease": head.lease,
        "now": head.now,
        "tab": tab if tab in dict(TABS) else "events",
        "kept": urlencode(kept),
        "kept_query": kept,
        "stays": {name: text for name, text in kept.items() if name in STAYS},
        "wanted": events.wanted_events(request),
        "way": events.wanted_way(request),
        "ended": head.run.status in TERMINAL,
        "asof": head.as_of,
    }


def read_tab(request: ConsoleRequest, head: Head, context: dict[str, Any]) -> dict[str, Any]:
    run = head.run
    match context["tab"]:
        case "state":
            return states.read_tab(request, head)
        case "ownership":
            terms = list(enumerate(queries.read_terms(head)))[::-1]
            return {"ownership": terms, "most": queries.TERMS_SHOWN}
        case "refused":
            refused = queries.read_refusals(run.id, until=head.until)
            return {"refusals": refused, "most": queries.ROWS_SHOWN}
        case "budget":
            ledger = queries.read_ledger(head.budgets, until=head.until)
            return {"ledger": ledger, "most": queries.ROWS_SHOWN}
        case "audit":
            return read_audit(request, OfRun(run=run.id, until=head.until))
        case _:
            shown = events.read_list(request, head, context)
            return shown | events.open_event(request, head)


def read_audit(request: ConsoleRequest, wanted: OfRun) -> dict[str, Any]:
    """A page of what was done to it and refused, the newest without a place that is understood
    (damaged); None when that took too long."""
    after, before = request.GET.get("audit_after", ""), request.GET.get("audit_before", "")
    damaged = False
    try:
        try:
            found = actions.read_page(wanted, after=after, before=before)
        except BadCursor:
            found, damaged = actions.read_page(wanted), True
    except TooSlow:
        return {"audit": None}
    is_end = bool(after and not before and not damaged and not found.rows)
    return {"audit": found, "damaged": damaged, "is_end": is_end}


@require_safe
@page
def payload(request: ConsoleRequest, key: str, seq: int) -> HttpResponseBase:
    """A payload as it was sent, as a file."""
    head = read_head(key)
    event = read_event(head.run.id, seq) if head and seq <= WHOLE_MAX else None
    if event is None:
        raise Http404
    disposition = content_disposition_header(True, f"{key}-{seq}.json")
    return HttpResponse(
        event.data,
        content_type="application/json",
        headers={"Content-Disposition": disposition or "attachment"},
    )


def refresh_reads(request: ConsoleRequest, key: str) -> dict[str, Read[Any]] | None:
    run = asked_run(request)
    if run is None or "\0" in key:
        return None
    reads = queries.head_reads(key, run) | queries.beside_reads(key, run)
    if (after := whole(request.GET.get("after"))) is not None:
        most = event_queries.EVENTS_GROUPED
        asked = shown_query(request)
        searched = bool(asked.get("find") or asked.get("errors"))
        reads |= event_queries.tail_reads(run, after=after, limit=most, searched=searched)
        reads |= {"tokens": queries.tokens_read(key)}
    if DRAWN in request.GET:
        reads |= queries.drawn_reads(key, run) | marks.tail_reads(run)
    return reads


@require_safe
@page
@shared
@asking(refresh_reads)
def refresh(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """What is new on an open page: the head, the events `after` a number, and with `drawn` the
    timeline. `of` the run that the page is about, so that all of it is found in one statement."""
    head, found = head_along(request, key)
    if head is None:
        raise Http404
    after, is_drawn = whole(request.GET.get("after")), DRAWN in request.GET
    as_shown(request)
    context = describe_live(request, head, found)
    if after is not None:
        shown = (
            events.read_page(request, head, after=after, before=None)
            if found is None
            else events.page_of(request, head, found, after=after)
        )
        tokens = None if found is None else [token for (token,) in found["tokens"]]
        context |= events.row_context(request, head, shown, tokens=tokens)
    if is_drawn:
        drawn = None if found is None else drawing.read_of(head, found)
        context |= drawing.draw(head, kept_query(request), drawn)
    return render(request, "story/refresh.html", context)


def head_along(request: ConsoleRequest, key: str) -> tuple[Head | None, dict[str, Any] | None]:
    """The head, and what was read with the question who asks: None where everything else has to be
    read by itself, because the key stands for no run, or for another than the page thinks."""
    found, run = read_along(request), asked_run(request)
    head = queries.head_of(found, run) if found is not None and run is not None else None
    if head is None:
        return read_head(key), None
    return (None if is_over(head.run, head.now) else head), found


def describe_live(
    request: ConsoleRequest, head: Head, found: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What of it changes while the page is open. Of a moment that is over nothing does, and nothing
    can be done to it. found: of `refresh_reads`."""
    thing = {"kind": "run", "status": head.run.status, "held": head.held, "live": head.live}
    return (
        here(request, head)
        | {
            "actions": {} if head.as_of else allowed_actions(request.access, thing),
            "lease_state": sentences.lease_state(head.lease, head.now),
            "sentence": sentences.waiting_for(head.run, head.lease, head.now),
            "tabs": TABS,
            "moves": MOVES,
            "telemetry": head.telemetry,
        }
        | (read_beside(head) if found is None else beside_of(found))
    )


def read_beside(head: Head) -> dict[str, Any]:
    return {
        "counts": queries.count_story(head),
        "signals": queries.read_signals(head.lease),
        "open_effects": read_open_effects(head),
    }


def beside_of(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "counts": queries.counts_of(found),
        "signals": queries.signals_of(found),
        "open_effects": queries.open_effects_of(found),
    }


def read_open_effects(head: Head) -> queries.OpenEffects:
    run = head.run
    if head.as_of is None:
        return queries.read_open_effects(run.id)
    most = queries.EFFECTS_SHOWN + 1
    return queries.effects_of(run.id, read_past_effects(run, run.last_seq, most=most))


def timeline_reads(request: ConsoleRequest, key: str) -> dict[str, Read[Any]] | None:
    run = asked_run(request)
    if run is None or "\0" in key:
        return None
    return queries.head_reads(key, run) | queries.drawn_reads(key, run) | marks.tail_reads(run)


@require_safe
@page
@shared
@asking(timeline_reads)
def show_timeline(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The timeline alone, for an open page. `of` as for `refresh`."""
    head, found = head_along(request, key)
    if head is None:
        raise Http404
    as_shown(request)
    drawn = None if found is None else drawing.read_of(head, found)
    context = here(request, head) | drawing.draw(head, kept_query(request), drawn)
    return render(request, "story/timeline.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def act(request: ConsoleRequest, key: str, action: str) -> HttpResponseBase:
    """Pause, resume or cancel: a page that asks, and the command."""
    head = read_head(key)
    if head is None or action not in MOVES:
        raise Http404
    if request.method == "POST":
        return carry_out(request, head, action)
    return ask(request, head, action)


def ask(
    request: ConsoleRequest,
    head: Head,
    action: str,
    *,
    refused: errors.Refusal | None = None,
    moved: queries.Move | None = None,
    error: str = "",
    status: int = 200,
) -> HttpResponseBase:
    """moved: who gave the run the status that it has, where that is not the one that was seen."""
    thing = {"kind": "run", "status": head.run.status, "held": head.held, "live": head.live}
    context = here(request, head) | {
        "action": action,
        "verdict": allowed_actions(request.access, thing)[action],
        "sentence": sentences.waiting_for(head.run, head.lease, head.now),
        "lease_state": sentences.lease_state(head.lease, head.now),
        "form_key": key_again(request, refused),
        "reason": request.POST.get("reason", ""),
        "refused": refused,
        "moved": moved,
        "error": error,
    }
    return render(request, "story/act.html", context, status=status)


def carry_out(request: ConsoleRequest, head: Head, action: str) -> HttpResponseBase:
    """One command. The status that the operator saw and the form's key go with it."""
    reason = one_line(request.POST.get("reason", ""))
    if not reason:
        return ask(request, head, action, error="Say why: it is kept with the action.", status=422)
    seen = request.POST.get("seen_status") or None
    try:
        command = Transition(run=head.run.key, to=MOVES[action], from_status=seen, reason=reason)
        store.execute(command, by=request.access.caller, under=form_circumstances(request))
    except errors.NotAllowed as refused:
        raise denied(refused) from None
    except errors.Invalid as refused:
        return ask(request, head, action, error=refused.rule, status=422)
    except errors.Refusal as refused:
        fresh = read_head(head.run.key) or head
        moved = queries.last_move(fresh.run) if seen not in (None, fresh.run.status) else None
        return ask(request, fresh, action, refused=refused, moved=moved, status=409)
    messages.success(request, DONE[action].format(key=head.run.key), extra_tags="check-circle")
    return redirect(reverse("run", args=[head.run.key]))


DONE = {
    "pause": "{key} is paused. Its holder learns of it when it next asks.",
    "resume": "{key} goes on: a worker can claim it.",
    "cancel": "{key} is cancelled. Whatever its holder still sends is refused.",
}
