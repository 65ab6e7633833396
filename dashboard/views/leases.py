"""Leases: the stuck ones first, one unit's past, and taking a unit from its holder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentstate import store
from agentstate.store import proposed
from agentstate.store.commands import ReclaimLease
from agentstate.store.errors import HolderChanged, Invalid, LeaseHeld, NotAllowed, Refusal
from dashboard import cursors
from dashboard.access import Verdict, allowed_actions
from dashboard.forms import form_circumstances, key_again, one_line, whole
from dashboard.moments import NotThen
from dashboard.pages import (
    ConsoleRequest,
    asked_run,
    asking,
    denied,
    if_changed,
    is_partial,
    page,
    read_along,
    shared,
    shared_among_holders,
)
from dashboard.queries import leases as queries
from dashboard.queries.clock import database_now
from dashboard.queries.leases import UnitStory
from dashboard.queries.panels import Panel, read_panel, read_panels
from dashboard.queries.past import read_unit as read_past_unit
from dashboard.queries.together import Read
from dashboard.views import past, proposals

HOLD_OFF_SECONDS_MAX = 86_400


def refreshed(owner: str, after: str, only: str) -> dict[str, Any] | None:
    """What a refresh of the board shows, in few statements; None if that took too long: then each
    panel is read by itself, and fails alone."""
    read = partial(queries.read_refreshed, owner=owner, only=only)
    damaged = False
    try:
        found = read_panel(partial(read, after=after)).found
    except cursors.BadCursor:
        found, after, damaged = read_panel(read).found, "", True
    if found is None:
        return None
    board, strip, sweep = (Panel(found=one) for one in (found.board, found.strip, found.sweep))
    return {
        "now": found.now,
        "panel": board,
        "board": found.board,
        "owner": owner,
        "after": after,
        "damaged": damaged,
        "only": only,
        "strip": strip,
        "sweep": sweep,
        "proposals": Panel(found=found.proposals),
    }


def verdicts(request: ConsoleRequest) -> dict[str, Any]:
    """Of live leases and of lapsed ones."""
    by_live = {live: verdict_on(request, held=True, live=live) for live in (True, False)}
    return {"verdicts": by_live}


@require_safe
@page
@shared_among_holders
def show(request: ConsoleRequest) -> HttpResponseBase:
    """The board: `owner` how the holder's name begins, `only` those in one state, `after` the
    place among the live ones."""
    owner = request.GET.get("owner", "").strip().replace("\0", "")[:200]
    after, only = request.GET.get("after", ""), request.GET.get("only", "")
    only = only if only in queries.STATES else ""
    if is_partial(request, "board") and (context := refreshed(owner, after, only)):
        return render(request, "leases/board.html", context | verdicts(request))
    now = database_now()
    board = partial(queries.read_board, now=now, owner=owner, only=only)
    beside: dict[str, Callable[[], Any]]
    beside = {
        "strip": partial(queries.read_strip, now=now),
        "sweep": queries.read_last_sweep,
        "proposals": proposed.read_open,
    }
    damaged = False
    try:
        panels = read_panels({"board": partial(board, after=after)} | beside)
    except cursors.BadCursor:
        panels, after, damaged = read_panels({"board": board} | beside), "", True
    context = {
        "now": now,
        "panel": panels["board"],
        "board": panels["board"].found,
        "owner": owner,
        "after": after,
        "damaged": damaged,
        "only": only,
        "strip": panels["strip"],
        "sweep": panels["sweep"],
        "proposals": panels["proposals"],
    } | verdicts(request)
    if is_partial(request, "board"):
        return render(request, "leases/board.html", context)
    return render(request, "leases/list.html", context)


def unit_reads(request: ConsoleRequest, unit: str) -> dict[str, Read[Any]] | None:
    is_plain = "\0" not in unit and not past.is_asked(request)
    return queries.unit_reads(unit) if is_plain and is_partial(request, "unit") else None


@require_safe
@page
@shared
@asking(unit_reads)
def show_unit(request: ConsoleRequest, unit: str) -> HttpResponseBase:
    """One unit: who has it, who had it, what was done to it and what it refused; or all of that as
    it was at the moment `asof` (moments.py)."""
    if (found := found_along(request, unit)) is not None:
        return refresh_unit(request, unit, found)
    story = read_story(unit)
    if story is None:
        return render(request, "leases/unknown.html", {"unit": unit}, status=404)
    if past.is_asked(request):
        page_now = reverse("lease", args=[unit])
        try:
            story = past.as_of(request, partial(read_past_unit, story, page=page_now))
        except NotThen as wrong:
            return past.not_then(request, wrong, name=unit, page=page_now)
    context = describe(request, story) | {
        "takeover": queries.read_takeover(story),
        "refusals": queries.refusals_of_unit(story, limit=queries.UNIT_REFUSALS_SHOWN),
        "operator_actions": story.actions,
    }
    template = "leases/unit_refresh.html" if is_partial(request, "unit") else "leases/unit.html"
    return render(request, template, context)


def found_along(
    request: ConsoleRequest, unit: str, *, run: UUID | None = None
) -> dict[str, Any] | None:
    """What was read with the question who asks; None where it has to be read otherwise: a refresh
    that had not asked, or of a run that is no more or, with `run`, another than the page thinks."""
    found = read_along(request)
    if found is None:
        return None
    there = found["run"][0].id if found["run"] else None
    is_known = there is not None or unit[:4] != "run:"
    return found if is_known and (run is None or there == run) else None


def refresh_unit(request: ConsoleRequest, unit: str, found: dict[str, Any]) -> HttpResponseBase:
    story = queries.story_of(unit, found)
    if story is None:
        raise Http404
    context = describe(request, story) | {
        "takeover": queries.read_takeover(story, late=found["late"]),
        "refusals": found["refusals"],
        "operator_actions": story.actions,
    }
    return render(request, "leases/unit_refresh.html", context)


def read_story(unit: str) -> UnitStory | None:
    return None if "\0" in unit else queries.read_unit(unit, now=database_now())


def describe(request: ConsoleRequest, story: UnitStory) -> dict[str, Any]:
    lease, now = story.lease, story.now
    held, live = story.state != "free", story.state in ("live", "late")
    return {
        "story": story,
        "most": queries.TERMS_SHOWN,
        "unit": story.unit,
        "run": story.run,
        "lease": lease,
        "lease_state": story.state,
        "now": now,
        "verdict": verdict_on(request, held=held, live=live),
        "rhythm_seconds": queries.rhythm_seconds(lease),
        "asof": story.as_of,
    }


def verdict_on(request: ConsoleRequest, *, held: bool, live: bool) -> Verdict:
    """Whether this person may reclaim a unit that is so."""
    thing = {"kind": "unit", "held": held, "live": live}
    return allowed_actions(request.access, thing)["reclaim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the operator saw and says, as it came."""

    token: int | None
    owner: str
    reason: str
    hold_off: str
    force: bool
    typed: str
    proposal: str = ""


def facts_reads(request: ConsoleRequest, unit: str) -> dict[str, Read[Any]] | None:
    if "\0" in unit or request.method == "POST" or not is_partial(request, "facts"):
        return None
    return queries.facts_reads(unit, run=asked_run(request))


@require_http_methods(["GET", "HEAD", "POST"])
@page
@if_changed
@asking(facts_reads)
def reclaim(request: ConsoleRequest, unit: str) -> HttpResponseBase:
    """Ask with the facts; then free the unit, if its holder is still who the operator saw. `of` the
    run that the page is about, so that its facts are found in one statement. `proposal`: whose
    reclaim it is, when somebody proposed it."""
    if (found := found_along(request, unit, run=asked_run(request))) is not None:
        return refresh_facts(request, unit, found)
    story = read_story(unit)
    if story is None:
        raise Http404
    if request.method != "POST":
        return ask(request, story)
    form = Form(
        token=whole(request.POST.get("expected_token")),
        owner=request.POST.get("expected_owner", ""),
        reason=one_line(request.POST.get("reason", "")),
        hold_off=request.POST.get("hold_off_seconds", "").strip(),
        force=request.POST.get("force") == "yes",
        typed=request.POST.get("typed_owner", "").strip(),
        proposal=proposals.asked(request),
    )
    return carry_out(request, story, form)


def ask(
    request: ConsoleRequest,
    story: UnitStory,
    *,
    form: Form | None = None,
    errors: dict[str, str] | None = None,
    refused: Refusal | None = None,
    status: int = 200,
) -> HttpResponseBase:
    """The page that asks. After a refusal it shows what changed, and carries the new facts."""
    keep = form is not None and refused is None
    lease = story.lease
    facts = is_partial(request, "facts")
    seen_token = form.token if keep and form else lease and lease.token
    context = describe(request, story) | {
        "form": form,
        "errors": errors or {},
        "refused": refused,
        "changed": isinstance(refused, HolderChanged),
        # What the form carries: as it was while only its own fields are mended, else as it is now.
        # The facts alone are told which token the page shows that is open.
        "seen_token": whole(request.GET.get("seen")) if facts else seen_token,
        "seen_owner": form.owner if keep and form else lease and lease.owner,
        "holding": queries.read_holding(story),
        "form_key": key_again(request, refused),
        "proposal": None if facts else proposals.shown(request, story),
    }
    if facts:
        return render(request, "leases/reclaim_refresh.html", context)
    return render(request, "leases/reclaim.html", context, status=status)


def refresh_facts(request: ConsoleRequest, unit: str, found: dict[str, Any]) -> HttpResponseBase:
    """The facts alone, which carry nothing: what is sent is what the page showed when it came."""
    story = queries.story_of(unit, found)
    if story is None:
        raise Http404
    context = describe(request, story) | {
        "seen_token": whole(request.GET.get("seen")),
        "holding": queries.holding_of(found),
    }
    return render(request, "leases/reclaim_refresh.html", context)


def carry_out(request: ConsoleRequest, story: UnitStory, form: Form) -> HttpResponseBase:
    """One command; the effect, its event and the audit row commit together, or nothing does."""
    errors = check(form)
    if errors or form.token is None:
        return ask(request, story, form=form, errors=errors, status=422)
    try:
        command = ReclaimLease(
            unit=story.unit,
            expected_token=form.token,
            expected_owner=form.owner,
            reason=form.reason,
            force=form.force,
            hold_off_seconds=whole(form.hold_off) or 0,
            proposal=proposals.number_of(form.proposal),
        )
        done = store.execute(command, by=request.access.caller, under=form_circumstances(request))
    except NotAllowed as refused:
        raise denied(refused) from None
    except Invalid as refused:
        return ask(request, story, form=form, errors={"reason": refused.rule}, status=422)
    except (HolderChanged, LeaseHeld, Refusal) as refused:
        fresh = read_story(story.unit) or story
        return ask(request, fresh, form=form, refused=refused, status=409)
    told = f"{story.unit} is free. {form.owner} is fenced by token {done.token}."
    if done.replayed:
        told = f"This was done already: {story.unit} was freed by token {done.token}."
    messages.success(request, told, extra_tags="check-circle")
    return redirect(reverse("lease", args=[story.unit]))


def check(form: Form) -> dict[str, str]:
    """What is wrong with the operator's own fields, by field."""
    errors: dict[str, str] = {}
    if form.token is None or not form.owner:
        errors["form"] = "The form has lost what you saw. Look at the facts and send it again."
    if not form.reason:
        errors["reason"] = "Say why: the next operator will want to know."
    elif len(form.reason) > 500:
        errors["reason"] = "At most 500 characters."
    seconds = whole(form.hold_off) if form.hold_off else 0
    if seconds is None or seconds > HOLD_OFF_SECONDS_MAX:
        errors["hold_off"] = f"Whole seconds from 0 to {HOLD_OFF_SECONDS_MAX}."
    if form.force and form.typed != form.owner:
        errors["typed"] = f"Type {form.owner} to take the unit from a live holder."
    return errors
