"""A run's events as rows, in three ways, and the one that is open beside them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from agentstate.caching import copies
from agentstate.store.models import Event, LeaseTerm
from agentstate.store.states import TERMINAL
from dashboard import payloads, timeline
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest
from dashboard.queries import events as queries
from dashboard.queries.events import EventFilter, EventPage
from dashboard.queries.story import TERMS_SHOWN, Head, read_terms

# all: a row each. compact: what belongs together in one row. raw: as it is kept.
WAYS = ("all", "compact", "raw")


def wanted_events(request: ConsoleRequest) -> EventFilter:
    """What the address asks for: `origin`, `type`, `find` and `errors=1`."""
    origin = request.GET.get("origin", "")
    return EventFilter(
        origin=origin if origin in ("worker", "store") else "",
        type=_typed(request, "type")[:100],
        text=_typed(request, "find")[: queries.SEARCH_CHARS_MAX],
        errors=request.GET.get("errors") == "1",
        payloads=request.access.may("payloads"),
    )


def _typed(request: ConsoleRequest, name: str) -> str:
    return request.GET.get(name, "").strip().replace("\0", "")


def wanted_way(request: ConsoleRequest) -> str:
    way = request.GET.get("show", "all")
    return way if way in WAYS else "all"


def read_list(request: ConsoleRequest, head: Head, context: dict[str, Any]) -> dict[str, Any]:
    """A page of events; `at_tail` when it ends with the newest, so that it can be followed."""
    after, before = whole(request.GET.get("after")), whole(request.GET.get("before"))
    opened = whole(request.GET.get("event"))
    wanted = wanted_events(request)
    if after is None and before is None and opened is not None and wanted.all:
        newest = head.run.last_seq - queries.EVENTS_SHOWN
        after = max(0, opened - queries.EVENTS_SHOWN // 2) if opened <= newest else None
    shown = show_rows(request, head, context, after=after, before=before, opened=opened)
    at_tail = not shown.later and before is None
    return {
        "events": shown,
        "at_tail": at_tail,
        "last_seq": max(shown.last_seq, head.run.last_seq if at_tail else 0),
        "followed": at_tail and head.run.status not in TERMINAL and head.as_of is None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A page of events, written out. count: of events. earlier, later: where others are, or 0.

    looked: the numbers that were looked at, if not all of them.
    """

    rows: SafeString
    count: int
    last_seq: int
    earlier: int
    later: int
    looked: tuple[int, int] | None


def show_rows(
    request: ConsoleRequest,
    head: Head,
    context: dict[str, Any],
    *,
    after: int | None,
    before: int | None,
    opened: int | None,
) -> Rows:
    """Events of the version of the head, none newer; so they are the same whenever it is asked."""

    def fill() -> list[Any]:
        return write_rows(request, head, context, after=after, before=before)

    # Of the open event the row is marked; of a moment that is over there are no copies.
    if opened is not None or head.as_of is not None:
        return rows_of(fill())
    # Whoever may see more than another gets a copy of their own.
    asked = [context["kept"], after, before, sorted(request.access.scopes)]
    variant = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:24]
    run = head.run
    return copies.of_run("rows", run.id, run.version, fill=fill, read=rows_of, variant=variant)


def write_rows(
    request: ConsoleRequest,
    head: Head,
    context: dict[str, Any],
    *,
    after: int | None,
    before: int | None,
) -> list[Any]:
    found = read_page(request, head, after=after, before=before)
    context = context | open_event(request, head) | row_context(request, head, found)
    rows = render_to_string("story/rows.html", context)
    last = found.lines[-1].seq if found.lines else 0
    looked = list(found.looked) if found.looked else None
    return [rows, len(found.lines), last, found.earlier or 0, found.later or 0, looked]


def asked_limit(way: str) -> int:
    return queries.EVENTS_GROUPED if way == "compact" else queries.EVENTS_SHOWN


def read_page(
    request: ConsoleRequest, head: Head, *, after: int | None, before: int | None
) -> EventPage:
    way = wanted_way(request)
    return queries.read_events(
        head.run.id,
        newest=head.run.last_seq,
        wanted=wanted_events(request),
        after=after,
        before=before,
        limit=asked_limit(way),
        chars=asked_chars(way),
    )


def asked_chars(way: str) -> int:
    return queries.RAW_CHARS if way == "raw" else queries.PREVIEW_CHARS


def page_of(request: ConsoleRequest, head: Head, found: dict[str, Any], *, after: int) -> EventPage:
    """The page after a number, of what `tail_reads` found where that is enough."""
    way = wanted_way(request)
    page = queries.tail_of(
        found["tail"],
        wanted=wanted_events(request),
        after=after,
        limit=asked_limit(way),
        chars=asked_chars(way),
    )
    return read_page(request, head, after=after, before=None) if page is None else page


def row_context(
    request: ConsoleRequest, head: Head, found: EventPage, *, tokens: list[int] | None = None
) -> dict[str, Any]:
    """What the rows' template needs beside the page's own context. tokens: of the terms, the newest
    first, if they are known."""
    way = wanted_way(request)
    return {
        "events": found,
        "way": way,
        "groups": queries.grouped(found.lines) if way == "compact" else [],
        "colours": term_colours(head) if tokens is None else colours_of(tokens),
        "request": request,
    }


def rows_of(found: list[Any]) -> Rows:
    rows, count, last, earlier, later, looked = found
    return Rows(
        rows=mark_safe(rows),  # noqa: S308  what our own template wrote
        count=int(count),
        last_seq=int(last),
        earlier=int(earlier),
        later=int(later),
        looked=(int(looked[0]), int(looked[1])) if looked else None,
    )


def term_colours(head: Head) -> dict[int, int]:
    """Token → the colour of its lane."""
    if head.as_of is not None:
        terms = read_terms(head)
        return {term.token: at % timeline.TERM_COLOURS for at, term in enumerate(terms)}
    tokens = LeaseTerm.objects.filter(unit=f"run:{head.run.key}").order_by("-token")
    return colours_of(list(tokens.values_list("token", flat=True)[:TERMS_SHOWN]))


def colours_of(newest: list[int]) -> dict[int, int]:
    return {token: at % timeline.TERM_COLOURS for at, token in enumerate(newest[::-1])}


def open_event(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """The event that is open beside the list, if one is."""
    seq = whole(request.GET.get("event"))
    if seq is None:
        return {"opened": None}
    later = head.as_of is not None and seq > head.run.last_seq
    event = None if later else queries.read_event(head.run.id, seq)
    if event is None:
        return {"opened": None, "missing": seq}
    return {"opened": event} | show_payload(request, event)


def show_payload(request: ConsoleRequest, event: Event) -> dict[str, Any]:
    """The payload as far as it is shown, and as what: read, json, head (too large) or hidden.

    mark: what is looked for in it; by itself what the list is searched for.
    """
    octets = len(event.data.encode())
    if not request.access.may("payloads"):
        return {"view": "hidden", "octets": octets}
    find = (_typed(request, "mark") or _typed(request, "find"))[: queries.SEARCH_CHARS_MAX]
    shown: dict[str, Any] = {"octets": octets, "find": find}
    if octets > payloads.SHOWN_OCTETS_MAX:
        head = payloads.visible(event.data[: payloads.HEAD_CHARS])
        places = payloads.excerpts(event.data, find)
        return shown | {"view": "head", "text": head, "places": places, "found": len(places)}
    readable = payloads.members(event.data, find)
    view = "json" if request.GET.get("view") == "json" or readable is None else "read"
    pretty = payloads.pretty(event.data, find) if view == "json" else ""
    return shown | {
        "view": view,
        "members": readable,
        "pretty": pretty,
        "found": pretty.count("<mark>") if view == "json" else payloads.marks_in(readable or []),
    }
