"""One run: its head, its timeline, its events as they come, and what an operator may do to it."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.http import content_disposition_header, urlencode
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_http_methods, require_safe

from agentstate import store
from agentstate.caching import copies
from agentstate.store import errors
from agentstate.store.commands import Transition
from agentstate.store.models import Event, LeaseTerm, OperatorAction, Refusal, Run
from agentstate.store.states import TERMINAL
from dashboard import payloads, sentences, timeline
from dashboard.access import MOVES, allowed_actions
from dashboard.forms import WHOLE_MAX, form_circumstances, one_line, whole
from dashboard.pages import ConsoleRequest, is_partial, page
from dashboard.queries import story as queries
from dashboard.queries.clock import database_now
from dashboard.queries.story import EventFilter, Head, Mark
from dashboard.queries.terms import Term
from dashboard.templatetags.console import stamp

TABS = (
    ("events", "Events"),
    ("ownership", "Ownership"),
    ("refused", "Refused"),
    ("budget", "Budget"),
    ("audit", "Audit"),
)


@require_safe
@page
def show(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The page: `tab`, and on events `origin`, `type`, `before` or `after` a number, `event`."""
    head = read_head(key)
    if head is None:
        return not_there(request, key)
    if is_partial(request, "pane"):
        return render(
            request, "story/run.html#pane", here(request, head) | open_event(request, head)
        )
    context = describe(request, head) | read_tab(request, head)
    template = "story/run.html#tab" if is_partial(request, "tab") else "story/run.html"
    return render(request, template, context)


def read_head(key: str) -> Head | None:
    """The run, unless its retention is over: then it is hidden, as it is for workers."""
    now = database_now()
    head = queries.read_head(key, now=now) if "\0" not in key else None
    return None if head is not None and is_over(head.run, now) else head


def is_over(run: Run, now: datetime) -> bool:
    return run.expires_at is not None and run.expires_at <= now and not run.hold


def not_there(request: ConsoleRequest, key: str) -> HttpResponseBase:
    nearest = [] if "\0" in key else queries.nearest_keys(key)
    expired_at = None if "\0" in key else queries.expiry_of(key)
    context = {"key": key, "nearest": nearest, "expired_at": expired_at, "now": database_now()}
    return render(request, "story/unknown.html", context, status=410 if expired_at else 404)


def describe(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """What the head of the page shows."""
    return describe_live(request, head) | {"drawing": draw(head)}


def here(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """What every part of the page needs: the run, the clock, and the address without its place."""
    kept = {name: request.GET[name] for name in ("origin", "type") if request.GET.get(name)}
    tab = request.GET.get("tab", "events")
    return {
        "head": head,
        "run": head.run,
        "lease": head.lease,
        "now": head.now,
        "tab": tab if tab in dict(TABS) else "events",
        "kept": urlencode(kept),
        "wanted": wanted_events(request),
        "terms": {},
        "ended": head.run.status in TERMINAL,
    }


def wanted_events(request: ConsoleRequest) -> EventFilter:
    origin = request.GET.get("origin", "")
    type_ = request.GET.get("type", "").strip().replace("\0", "")
    return EventFilter(origin=origin if origin in ("worker", "store") else "", type=type_[:100])


def read_tab(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    run, tab = head.run, request.GET.get("tab", "events")
    if tab == "ownership":
        terms = queries.read_terms(f"run:{run.key}")
        return {"ownership": list(enumerate(terms))[::-1]}
    if tab == "refused":
        return {"refusals": queries.read_refusals(run.id)}
    if tab == "budget":
        return {"ledger": queries.read_ledger(head.budgets)}
    if tab == "audit":
        return {"operator_actions": queries.read_actions(run.id)}
    return read_events(request, head) | open_event(request, head)


def read_events(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """A page of events; `at_tail` when it ends with the newest, so that it can be followed."""
    after, before = whole(request.GET.get("after")), whole(request.GET.get("before"))
    opened = whole(request.GET.get("event"))
    if after is None and before is None and opened is not None:
        newest = head.run.last_seq - queries.EVENTS_SHOWN
        after = max(0, opened - queries.EVENTS_SHOWN // 2) if opened <= newest else None
    shown = show_rows(request, head, after=after, before=before, opened=opened)
    at_tail = not shown.later and before is None
    return {
        "events": shown,
        "at_tail": at_tail,
        "last_seq": shown.last_seq or after or 0,
        "followed": at_tail and head.run.status not in TERMINAL,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A page of events, written out. first_seq, last_seq: 0 when there is none."""

    rows: SafeString
    first_seq: int
    last_seq: int
    earlier: bool
    later: bool


def show_rows(
    request: ConsoleRequest,
    head: Head,
    *,
    after: int | None,
    before: int | None,
    opened: int | None,
) -> Rows:
    """Events of the version of the head, none newer; so they are the same whenever it is asked."""

    def fill() -> list[Any]:
        return write_rows(request, head, after=after, before=before)

    if opened is not None:  # its row is marked
        return rows_of(fill())
    # Whoever may see more than another gets a copy of their own.
    asked = [here(request, head)["kept"], after, before, sorted(request.access.scopes)]
    variant = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
    run = head.run
    return copies.of_run("rows", run.id, run.version, fill=fill, read=rows_of, variant=variant)


def write_rows(
    request: ConsoleRequest, head: Head, *, after: int | None, before: int | None
) -> list[Any]:
    found = queries.read_events(
        head.run.id,
        wanted=wanted_events(request),
        after=after,
        before=before,
        newest=head.run.last_seq,
    )
    context = here(request, head) | open_event(request, head)
    context |= {"events": found, "colours": term_colours(head), "request": request}
    rows = render_to_string("story/rows.html", context)
    ends = (found.lines[0].seq, found.lines[-1].seq) if found.lines else (0, 0)
    return [rows, *ends, found.earlier, found.later]


def rows_of(found: list[Any]) -> Rows:
    rows, first, last, earlier, later = found
    return Rows(
        rows=mark_safe(rows),  # noqa: S308  what our own template wrote
        first_seq=int(first),
        last_seq=int(last),
        earlier=bool(earlier),
        later=bool(later),
    )


def term_colours(head: Head) -> dict[int, int]:
    """Token → the colour of its lane."""
    tokens = LeaseTerm.objects.filter(unit=f"run:{head.run.key}").order_by("-token")
    newest = list(tokens.values_list("token", flat=True)[: queries.TERMS_SHOWN])[::-1]
    return {token: at % timeline.TERM_COLOURS for at, token in enumerate(newest)}


def open_event(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """The event that is open beside the list, if one is."""
    seq = whole(request.GET.get("event"))
    if seq is None:
        return {"opened": None}
    event = queries.read_event(head.run.id, seq)
    if event is None:
        return {"opened": None, "missing": seq}
    return {"opened": event} | show_payload(request, event)


def show_payload(request: ConsoleRequest, event: Event) -> dict[str, Any]:
    """The payload as far as it is shown, and as what: read, json, head (too large) or hidden."""
    octets = len(event.data.encode())
    if not request.access.may("payloads"):
        return {"view": "hidden", "octets": octets}
    if octets > payloads.SHOWN_OCTETS_MAX:
        return {"view": "head", "octets": octets, "text": event.data[: payloads.HEAD_CHARS]}
    readable = payloads.members(event.data)
    view = "json" if request.GET.get("view") == "json" or readable is None else "read"
    return {
        "view": view,
        "octets": octets,
        "members": readable,
        "pretty": payloads.pretty(event.data) if view == "json" else "",
    }


@require_safe
@page
def payload(request: ConsoleRequest, key: str, seq: int) -> HttpResponseBase:
    """A payload as it was sent, as a file."""
    head = read_head(key)
    event = queries.read_event(head.run.id, seq) if head and seq <= WHOLE_MAX else None
    if event is None:
        raise Http404
    if not request.access.may("payloads"):
        raise PermissionDenied("Your role does not show payloads.")
    disposition = content_disposition_header(True, f"{key}-{seq}.json")
    return HttpResponse(
        event.data,
        content_type="application/json",
        headers={"Content-Disposition": disposition or "attachment"},
    )


@require_safe
@page
def refresh(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """What is new on an open page: the head, and the events after a number."""
    head = read_head(key)
    if head is None:
        raise Http404
    context = describe_live(request, head)
    if (after := whole(request.GET.get("after"))) is not None:
        found = queries.read_events(head.run.id, wanted=wanted_events(request), after=after)
        context |= {"events": found, "colours": term_colours(head)}
    return render(request, "story/refresh.html", context)


def describe_live(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """What of it changes while the page is open."""
    thing = {"kind": "run", "status": head.run.status, "held": head.held, "live": head.live}
    return here(request, head) | {
        "actions": allowed_actions(request.access, thing),
        "lease_state": sentences.lease_state(head.lease, head.now),
        "sentence": sentences.waiting_for(head.run, head.lease, head.now),
        "counts": queries.count_story(head.run.id, f"run:{head.run.key}"),
        "tabs": TABS,
        "moves": MOVES,
        "telemetry": head.telemetry,
        "signals": queries.read_signals(head.lease),
        "open_effects": queries.read_open_effects(head.run.id),
    }


@require_safe
@page
def show_timeline(request: ConsoleRequest, key: str) -> HttpResponseBase:
    """The timeline alone, for an open page."""
    head = read_head(key)
    if head is None:
        raise Http404
    return render(request, "story/timeline.html", here(request, head) | {"drawing": draw(head)})


def draw(head: Head) -> timeline.Drawing:
    """The timeline of a run: its terms, its events, what was refused, what operators did."""
    run = head.run
    actions = queries.read_actions(run.id)
    reclaimed = {action.before.get("token"): action.at for action in actions}
    return timeline.draw(
        start=run.created_at,
        now=head.now,
        ended_at=run.ended_at if run.status in TERMINAL else None,
        spans=[
            span_of(term, head, reclaimed.get(term.token))
            for term in queries.read_terms(f"run:{run.key}")
        ],
        dots=[
            *(event_dot(mark) for mark in queries.read_marks(run)),
            *(
                refusal_dot(refusal)
                for refusal in queries.read_refusals(run.id, limit=queries.REFUSALS_DRAWN)
                if refusal.at >= run.created_at
            ),
            *(action_dot(action) for action in actions),
        ],
    )


def event_dot(mark: Mark) -> timeline.Dot:
    alone = f"{mark.first_seq} {mark.type} at {stamp(mark.at)}"
    many = f"{mark.count} events from number {mark.first_seq} on"
    return timeline.Dot(
        at=mark.at,
        token=mark.token,
        kind="store" if mark.origin == "store" else "worker",
        title=alone if mark.count == 1 else many,
        seq=mark.first_seq,
        count=mark.count,
    )


def refusal_dot(refusal: Refusal) -> timeline.Dot:
    who = refusal.worker or refusal.actor
    title = f"{refusal.code}: {who} {refusal.operation} at {stamp(refusal.at)}"
    return timeline.Dot(at=refusal.at, token=refusal.token_sent, kind="refused", title=title)


def action_dot(action: OperatorAction) -> timeline.Dot:
    reason = f" “{action.reason}”" if action.reason else ""
    title = f"{action.actor.removeprefix('person:')}: {action.action}{reason}"
    return timeline.Dot(at=action.at, token=None, kind="action", title=title)


def span_of(term: Term, head: Head, reclaimed_at: datetime | None) -> timeline.Span:
    """A term as it is drawn. A lapsed one that was reclaimed later is overdue until then."""
    ends_at, lapsed_at, ended = term.ends_at, None, term.ended or ""
    if head.lease is not None and head.lease.token == term.token:
        ends_at = None
        lapsed_at = None if head.live else head.lease.expires_at
    if ended == "reclaimed" and ends_at and reclaimed_at and ends_at < reclaimed_at:
        lapsed_at, ends_at = ends_at, reclaimed_at
    how = f"reclaimed by {(term.ended_by or '').removeprefix('person:')}"
    told = how if ended == "reclaimed" else ended or ("lapsed" if lapsed_at else "holds it")
    return timeline.Span(
        token=term.token,
        owner=term.owner,
        starts_at=term.starts_at,
        ends_at=ends_at,
        lapsed_at=lapsed_at,
        ended=ended,
        title=f"{term.owner}, token {term.token}: {told}",
    )


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
    error: str = "",
    status: int = 200,
) -> HttpResponseBase:
    thing = {"kind": "run", "status": head.run.status, "held": head.held, "live": head.live}
    context = here(request, head) | {
        "action": action,
        "verdict": allowed_actions(request.access, thing)[action],
        "sentence": sentences.waiting_for(head.run, head.lease, head.now),
        "lease_state": sentences.lease_state(head.lease, head.now),
        "form_key": request.POST.get("form_key") or uuid.uuid4().hex,
        "reason": request.POST.get("reason", ""),
        "refused": refused,
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
        raise PermissionDenied(refused.detail) from None
    except errors.Invalid as refused:
        return ask(request, head, action, error=refused.rule, status=422)
    except errors.Refusal as refused:
        fresh = read_head(head.run.key) or head
        return ask(request, fresh, action, refused=refused, status=409)
    messages.success(request, DONE[action].format(key=head.run.key), extra_tags="check-circle")
    return redirect(reverse("run", args=[head.run.key]))


DONE = {
    "pause": "{key} is paused. Its holder learns of it when it next asks.",
    "resume": "{key} goes on: a worker can claim it.",
    "cancel": "{key} is cancelled. Whatever its holder still sends is refused.",
}
