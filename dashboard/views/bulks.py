"""Bulks: one thing to many runs. It is tried dry, asked, begun, watched and stopped here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from agentstate.store import bulking
from agentstate.store.bulking import KINDS, OUTCOMES, Work
from agentstate.store.commands import CreateBulk, Picked, StopBulk
from agentstate.store.errors import Invalid
from agentstate.store.filters import Filter
from agentstate.store.rules.names import check_tags
from dashboard import listing, sheets
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, is_partial, page, shared, while_allowed
from dashboard.queries import bulks as queries
from dashboard.queries.bulks import Dry, Line
from dashboard.queries.clock import TooSlow, database_now
from dashboard.queries.panels import read_panels
from dashboard.views.exports import chosen

LOST = "The form has lost what you saw. Look at the numbers and send it again."
TYPE_IT = "Type {typed} to do it to so many."
NO_TAGS = "Name at least one tag."
SECONDS_WRONG = f"Whole seconds from 0 to {bulking.HOLD_OFF_SECONDS_MAX}."
SLOW = "Looking at what matches took too long. Add a status, or a time such as since:24h."
NONE_LEFT = "There is none to which it can be done."


# --- begin one -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be done and to which runs, as it was chosen. kind "": not chosen yet.

    wanted None: the runs of `keys`. wrong: what cannot be meant of the tags or seconds.
    """

    wanted: Filter | None
    keys: list[str]
    kind: str
    tags: str
    hold_off: str
    work: Work | None
    wrong: str = ""


@require_http_methods(["GET", "HEAD", "POST"])
@page
def begin(request: ConsoleRequest) -> HttpResponseBase:
    """`q` the filter, or with POST `keys`: choose what to do, see what it would do, begin it.

    A POST without `begin` only shows: a selection is too long for an address.
    """
    now = database_now()
    asked = _read(request, now)
    if asked is None:
        return render(request, "bulk/how.html", {"now": now})
    if request.method == "POST" and "begin" in request.POST:
        return _begin(request, asked, now)
    return _ask(request, asked, now)


def _read(request: ConsoleRequest, now: datetime) -> Asked | None:
    """What the address or the form asks for; None: it names no runs."""
    told = request.POST if request.method == "POST" else request.GET
    keys = chosen(request) or [one.run for one in _picked(request) or ()]
    if not keys and "q" not in told:
        return None
    payloads = request.access.may_see_payloads
    wanted = None if keys else listing.read({"q": told["q"]}, payloads=payloads).wanted
    kind = told.get("kind", "")
    kind = kind if kind in KINDS else ""
    tags, hold_off = told.get("tags", "")[:1_000], told.get("hold_off", "").strip()[:20]
    work, wrong = _work(kind, tags, hold_off, now)
    return Asked(
        wanted=wanted, keys=keys, kind=kind, tags=tags, hold_off=hold_off, work=work, wrong=wrong
    )


def _work(kind: str, tags: str, hold_off: str, now: datetime) -> tuple[Work | None, str]:
    """What is to be done, or what is wrong with it."""
    if not kind:
        return None, ""
    named: tuple[str, ...] = ()
    if KINDS[kind].tags:
        try:
            named = check_tags("tags", tuple(t for part in tags.split(",") if (t := part.strip())))
        except Invalid as wrong:
            return None, wrong.rule
        if not named:
            return None, NO_TAGS
    seconds = whole(hold_off) if hold_off and kind == "reclaim" else 0
    if seconds is None or seconds > bulking.HOLD_OFF_SECONDS_MAX:
        return None, SECONDS_WRONG
    return Work(kind=kind, at=now, tags=named, hold_off_seconds=seconds), ""


def _try(request: ConsoleRequest, asked: Asked) -> tuple[Dry | None, str]:
    """What it would do; or None, and why that cannot be told."""
    work, scopes = asked.work, request.access.scopes
    if work is None or (asked.wanted is not None and asked.wanted.problems):
        return None, ""
    # Whoever may not begin it sees what it would do all the same.
    scopes = scopes | {"operate"}
    try:
        if asked.wanted is None:
            return queries.try_keys(asked.keys, work, scopes=scopes), ""
        return queries.try_filter(asked.wanted, work, scopes=scopes), ""
    except TooSlow:
        return None, SLOW


def _ask(
    request: ConsoleRequest, asked: Asked, now: datetime, *, done: Done[Any] | None = None
) -> HttpResponseBase:
    """The page that asks, with what it would do as it stands now."""
    dry, slow = _try(request, asked)
    error = done.error if done else ""
    context = form_context(request, done) | {
        "now": now,
        "asked": asked,
        "kinds": KINDS.values(),
        "kind": KINDS.get(asked.kind),
        "dry": dry,
        "slow": slow,
        "picked": queries.write_picked(dry.picked) if dry and dry.picked is not None else None,
        "actions": allowed_actions(request.access, {"kind": "bulk"}),
        "others": queries.read_at_work(now=now),
        "typed": request.POST.get("typed", ""),
        "typed_wrong": error if error.startswith("Type ") else "",
        "error": "" if error.startswith("Type ") else error,
        "wrong": asked.wrong,
    }
    status = done.status if done else 422 if asked.wrong else 200
    return render(request, "bulk/new.html", context, status=status)


def _begin(request: ConsoleRequest, asked: Asked, now: datetime) -> HttpResponseBase:
    reason, error = read_reason(request)
    shown, seen_at = whole(request.POST.get("shown")), _moment(request.POST.get("seen_at", ""))
    is_all = request.POST.get("is_all") == "yes"
    picked = _picked(request) if asked.wanted is None else ()
    if asked.work is None or shown is None or seen_at is None or picked is None:
        return _ask(request, asked, now, done=Done(error=asked.wrong or LOST))
    if not shown:
        return _ask(request, asked, now, done=Done(error=NONE_LEFT))
    size = max(shown, len(picked))
    typed = bulking.typed_for(size, is_all=is_all)
    if bulking.asks_for_more(size, is_all=is_all) and _typed(request) != typed:
        error = error or TYPE_IT.format(typed=typed)
    if error:
        return _ask(request, asked, now, done=Done(error=error))
    work, wanted = asked.work, asked.wanted
    done = carry_out(
        request,
        lambda: CreateBulk(
            kind=work.kind,
            filter=wanted.text if wanted is not None else None,
            picked=tuple(picked),
            seen_at=seen_at,
            shown=shown,
            is_all=is_all,
            tags=work.tags,
            hold_off_seconds=work.hold_off_seconds,
            reason=reason,
        ),
    )
    if done.result is None:
        return _ask(request, asked, now, done=done)
    if done.result.replayed:
        messages.info(request, "This was begun already. There is one of it.")
    return redirect("bulk", bulk=done.result.bulk.hex)


def _typed(request: ConsoleRequest) -> str:
    """However its digits are set apart."""
    return "".join(request.POST.get("typed", "").replace(",", "").split())


def _moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo is not None and 1970 <= at.year <= 9998 else None


def _picked(request: ConsoleRequest) -> list[Picked] | None:
    """Runs as the form says that they were seen; None: it does not say that so that it is read."""
    text = request.POST.get("picked", "")
    if not text:
        return None
    try:
        told = json.loads(text)
        return [
            Picked(run=run, status=status, owner=owner, token=token)
            for run, status, owner, token in told[: bulking.PICKED_MAX]
        ]
    except (ValueError, TypeError, KeyError, RecursionError, Invalid):
        return None


# --- look at them --------------------------------------------------------------------------------


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """All of them, the newest first; `before`: the one to go on from."""
    now = database_now()
    text = request.GET.get("before", "")
    before = read_id(text)
    found = read_panels({"list": partial(queries.read_list, now=now, before=before)})["list"]
    damaged = bool(text) and before is None
    context = {"now": now, "panel": found, "found": found.found, "damaged": damaged}
    parts = is_partial(request, "bulks")
    return render(request, "bulk/board.html" if parts else "bulk/list.html", context)


def read_id(text: str) -> UUID | None:
    """As addresses write it: 32 hexadecimal digits."""
    if len(text) != 32 or set(text) - set("0123456789abcdef"):
        return None
    return UUID(text)


def _find(bulk: str) -> Line:
    found = read_id(bulk)
    line = queries.find(found, now=database_now()) if found else None
    if line is None:
        raise Http404
    return line


@require_safe
@page
@shared
def show_one(request: ConsoleRequest, bulk: str) -> HttpResponseBase:
    """How it stands, and what became of each run: `outcome` only those, `after` the place."""
    line = _find(bulk)
    row = line.row
    outcome, after = request.GET.get("outcome", ""), whole(request.GET.get("after")) or 0
    outcome = outcome if outcome in OUTCOMES else ""
    after = min(after, bulking.ROWS_MAX)
    panels = read_panels(
        {
            "items": partial(queries.read_items, row.id, outcome=outcome, after=after),
            "whys": partial(queries.read_whys, row.id),
        }
    )
    context = {
        "now": line.now,
        "line": line,
        "bulk": row,
        "outcome": outcome,
        "after": after,
        "items": panels["items"],
        "whys": panels["whys"],
        "actions": allowed_actions(request.access, {"kind": "bulk", "at_work": line.at_work}),
    }
    part = is_partial(request, "bulk")
    return render(request, "bulk/progress.html" if part else "bulk/bulk.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def stop(request: ConsoleRequest, bulk: str) -> HttpResponseBase:
    """Ask why; then let it begin no more."""
    line = _find(bulk)
    if request.method != "POST":
        return _ask_stop(request, line)
    reason, error = read_reason(request)
    if error:
        return _ask_stop(request, line, done=Done(error=error))
    done = carry_out(request, lambda: StopBulk(bulk=line.row.id, reason=reason))
    if done.result is None:
        return _ask_stop(request, _find(bulk), done=done)
    if done.result.already:
        messages.info(request, "It had ended before: nothing was stopped.")
    else:
        told = "Stopped. What is in hand ends, and nothing more is begun."
        messages.success(request, told, extra_tags="check-circle")
    return redirect("bulk", bulk=bulk)


def _ask_stop(
    request: ConsoleRequest, line: Line, *, done: Done[Any] | None = None
) -> HttpResponseBase:
    context = form_context(request, done) | {
        "now": line.now,
        "line": line,
        "bulk": line.row,
        "actions": allowed_actions(request.access, {"kind": "bulk", "at_work": line.at_work}),
    }
    return render(request, "bulk/stop.html", context, status=done.status if done else 200)


@require_safe
@page
def export(request: ConsoleRequest, bulk: str) -> HttpResponseBase:
    """What became of each run as CSV; `outcome` only those."""
    line = _find(bulk)
    outcome = request.GET.get("outcome", "")
    rows = queries.export(line.row.id, outcome=outcome if outcome in OUTCOMES else "")
    parts: Iterator[str] = sheets.csv_lines(queries.COLUMNS, rows)
    return StreamingHttpResponse(
        while_allowed(request, parts),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{line.name}.csv"'},
    )
