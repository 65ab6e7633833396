"""What every page has in common: who may see it, whole page or part, and how it is cached."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import tzinfo
from functools import cache, wraps
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.utils.functional import SimpleLazyObject
from django_htmx.middleware import HtmxDetails

from agentstate import store
from agentstate.caching import CACHES_OF, answers, copies
from agentstate.store.alerts import count_firing
from agentstate.store.callers import Circumstances
from agentstate.store.commands import NoteRefused
from agentstate.store.errors import NotAllowed, Refusal
from agentstate.store.rules import names
from agentstate.store.rules.names import legal
from dashboard import rights, timings, zones
from dashboard.access import ROLE_OF, Access, access_of
from dashboard.queries import together
from dashboard.queries.clock import database_now
from dashboard.queries.leases import count_lapsed
from dashboard.queries.preferences import Chosen, chosen_by
from dashboard.queries.still import scopes_of_session
from dashboard.sessions import SessionStore

ACTION_CHARS = 100
LOOK_AGAIN_SECONDS = 1.0
# Of an address, what names the thing that it is about.
THINGS = ("name", "rule", "bulk", "delivery", "number", "kind")


class ConsoleRequest(HttpRequest):
    """A request after the console's middleware and `page`."""

    access: Access
    htmx: HtmxDetails
    places: Any
    request_id: str
    chosen: Chosen
    session: SessionStore
    reads: Callable[[], Mapping[str, together.Read[Any]] | None]
    read_under: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An entry of the navigation. badge: how many things there need somebody.

    first: stands in the bar of a small screen; the others are behind More there.
    """

    label: str
    address: str
    icon: str
    current: bool
    first: bool = False
    badge: str = ""
    badge_title: str = ""


PLACES = (
    ("Now", "home", "bell"),
    ("Runs", "runs", "queue-list"),
    ("Leases", "leases", "key"),
    ("Workers", "workers", "cpu-chip"),
    ("Contention", "contention", "bolt"),
    ("Budgets", "budgets", "wallet"),
    ("Bulk", "bulks", "rectangle-stack"),
    ("Alerts", "alerts", "bell-alert"),
    ("Audit", "audit", "clipboard-document-list"),
    ("System", "system", "server-stack"),
)
# For the role admin alone; these addresses are its own, too.
ADMIN = ("Admin", "admin:index", "cog-6-tooth")
OF_ADMIN = ("keys", "people")
FIRST = ("home", "runs", "leases", "workers")


def places(request: ConsoleRequest) -> list[Place]:
    """The navigation as it stands on this page."""
    lapsed = copies.count("lapsed", fill=lambda: count_lapsed(database_now()), read=int)
    badges = {"leases": (lapsed, "lapsed"), "alerts": (count_firing(), "firing")}
    return [
        Place(
            label=label,
            # The first address may be another page for this person.
            address=reverse("now" if name == "home" and request.chosen.opens else name),
            icon=icon,
            current=_is_at(request, name),
            first=name in FIRST,
            badge=_badge(badges[name][0]) if name in badges else "",
            badge_title=badges[name][1] if name in badges else "",
        )
        for label, name, icon in (*PLACES, *((ADMIN,) if request.access.may("admin") else ()))
    ]


def _is_at(request: ConsoleRequest, name: str) -> bool:
    part = request.path.split("/")[1]
    if name == "home" and part == "now":
        return True
    return part == reverse(name).strip("/") or (name == ADMIN[1] and part in OF_ADMIN)


def _badge(count: int) -> str:
    return (f"{count}" if count < 100 else "99+") if count else ""


type View = Callable[..., HttpResponseBase]
type Asks = Callable[..., Mapping[str, together.Read[Any]] | None]


def asking(asks: Asks) -> Callable[[View], View]:
    """What a refresh reads goes along with the question who asks: one statement for both.

    asks: the reads, from what the view is given; None where this refresh has none. It runs before
    anybody knows who asks. Goes anywhere below `page`; the view gets them from `read_along`.
    """

    def mark(view: View) -> View:
        view.asks = asks  # type: ignore[attr-defined]
        return view

    return mark


def asked_run(request: ConsoleRequest) -> UUID | None:
    """`of`: the run that the page was about when it was loaded. Its log is found by this number;
    what is read along says whether the name still stands for it."""
    try:
        return UUID(request.GET.get("of", ""))
    except ValueError:
        return None


def read_along(request: ConsoleRequest) -> dict[str, Any] | None:
    """What the reads of `asking` found; None if this request has none."""
    reads = request.reads()
    return None if reads is None else together.read(reads, request.session.told)


def page(view: View) -> View:
    """A page of the console: for people who are logged in and have a role; never cached.

    Partials live on the same addresses, so the answer varies by HX-Request.
    """
    part = view.__module__.rpartition(".")[2]
    asks: Asks | None = getattr(view, "asks", None)
    copy: str | None = getattr(view, "copy", None)

    @wraps(view)
    def guarded(request: ConsoleRequest, *args: Any, **named: Any) -> HttpResponseBase:
        request.read_under = answers.generation(copy) if copy else ""
        wanted = asks if asks and request.htmx else None
        request.reads = cache(lambda: wanted(request, *args, **named) if wanted else None)
        # Whoever will get what was made for somebody else a moment ago needs none of it.
        if wanted and not _is_made(request) and (reads := request.reads()) is not None:
            request.session.beside = together.compose(reads)
        if not request.user.is_authenticated:
            response: HttpResponseBase = to_login(request)
        else:
            request.access = access_of(request.user)
            check(request)
            request.chosen = chosen_by(request.user)
            request.places = SimpleLazyObject(lambda: places(request))
            if settled := zones.settle(request.GET):
                response = HttpResponseRedirect(f"{request.path}?{settled.urlencode()}")
            else:
                with timezone.override(zone_of(request)), timings.of_page(part):
                    response = view(request, *args, **named)
        add_never_cache_headers(response)
        patch_vary_headers(response, ["HX-Request"])
        return response

    return guarded


def own(view: View) -> View:
    """A page about who looks at it: for everybody who is logged in, also without a role."""

    @wraps(view)
    def guarded(request: ConsoleRequest, *args: Any, **named: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            response: HttpResponseBase = to_login(request)
        else:
            request.access = access_of(request.user)
            request.chosen = chosen_by(request.user)
            seen = request.access.may("read")
            request.places = SimpleLazyObject(lambda: places(request)) if seen else []
            with timezone.override(zone_of(request)):
                response = view(request, *args, **named)
        add_never_cache_headers(response)
        return response

    return guarded


def check(request: ConsoleRequest) -> None:
    """Whether the address is for them (rights.py). Raises PermissionDenied, written down.

    What is more than a scope, say whether a holder is live, the store says under its locks.
    """
    if not request.access.may("read"):
        refuse(request, "read", "Your account has no role yet. Ask an admin for one.")
    match = request.resolver_match
    line = rights.LINES.get(match.route) if match else None
    if line is None:
        return
    scope = line.post if request.method == "POST" else line.get
    if scope is not None and scope != rights.PERSON and not request.access.may(scope):
        refuse(request, scope)


def refuse(request: ConsoleRequest, scope: str, text: str = "") -> NoReturn:
    """Say no to who lacks a scope; the try stands in the audit, and of a run or unit among its
    refusals as well. Raises PermissionDenied."""
    match = request.resolver_match
    parts = match.kwargs if match else {}
    name = (match.url_name if match else None) or "console"
    if "action" in parts and name.endswith("act"):
        name = f"{name.removesuffix('act')}{parts['action']}"[:ACTION_CHARS]
    action = rights.ACTIONS.get(name, name)
    by, under = request.access.caller, circumstances(request)
    run = legal(names.check_run_key, parts.get("key"))
    unit = legal(names.check_unit, parts.get("unit"))
    if run or unit:
        ask = NoteRefused(operation=action, scopes=(scope,), run=run, unit=unit)
        with suppress(Refusal):  # the answer is no either way
            store.execute(ask, by=by, under=under)
    elif request.method not in ("GET", "HEAD"):
        named = request.POST.get("name", "")  # of what was to be made
        thing = next((str(parts[one]) for one in THINGS if one in parts), named)
        store.record_refused_action(by=by, action=action, thing=thing, under=under)
    raise PermissionDenied(text or why(scope))


def denied(refused: NotAllowed) -> PermissionDenied:
    """What the store said to who lacks a scope, in the words of roles."""
    scope = str(refused.facts.get("scope", ""))
    reason = refused.detail.partition(", so it needs the scope ")[0]
    if scope not in ROLE_OF:
        return PermissionDenied(refused.detail)
    known = reason != refused.detail
    return PermissionDenied(
        f"{reason[:1].upper()}{reason[1:]}. {why(scope)}" if known else why(scope)
    )


def why(scope: str) -> str:
    if scope == "payloads":
        return "Your role does not show payloads."
    return f"This needs the role {ROLE_OF[scope]}."


def zone_of(request: ConsoleRequest) -> tzinfo:
    """The zone of this page: of its address, which a refreshed part has from its page, else the
    person's.
    """
    asked = request.GET.get(zones.FIELD)
    if request.htmx and not asked:
        asked = QueryDict(urlsplit(shown_address(request)).query).get(zones.FIELD)
    return zones.find(asked) or request.chosen.shown


class _NotShared(Exception):
    """An answer that is for one alone: a redirect, a stream, an error page."""


def shared(view: View) -> View:
    """Refreshes of a page that shows everybody with the same rights the same: who asks within a
    second, and before the next write, gets what was made for the first one. Goes below `page`.
    """
    return _shared_as("answers", view)


def shared_among_holders(view: View) -> View:
    """The same for a page about leases alone: for two seconds, and until a holder changes."""
    return _shared_as("holders", view)


def _shared_as(copy: str, view: View) -> View:
    @wraps(view)
    def answered(request: ConsoleRequest, *args: Any, **named: Any) -> HttpResponseBase:
        def fill() -> str:
            # What was read along may be older than the write that this copy is the first one after.
            if request.read_under != answers.generation(copy):
                request.session.told = None
            response = view(request, *args, **named)
            if not isinstance(response, HttpResponse) or response.status_code != HTTPStatus.OK:
                raise _NotShared
            return response.text

        if not request.htmx:
            return view(request, *args, **named)
        if not settings.AGENTSTATE_SHARED_ANSWERS:
            return _unless_shown(request, view(request, *args, **named))
        generation = answers.generation(copy)
        try:
            made = answers.count(copy, fill=fill, read=str, variant=_variant(request))
        except _NotShared:
            return view(request, *args, **named)
        _note_made(request, copy, generation)
        return _unless_shown(request, HttpResponse(made))

    answered.copy = copy  # type: ignore[attr-defined]
    return answered


# Which parts there are answers of: the copy, its generation when it was asked for, and since when.
# It saves a read and decides nothing, so it may be wrong, and is small.
_made: dict[tuple[str, ...], tuple[str, str, float]] = {}
MADE_MAX = 500
MADE_PART = 0.8  # of a copy's age: it may be gone by the time that it is asked for


def _place(request: ConsoleRequest) -> tuple[str, ...]:
    return (request.get_full_path(), request.htmx.target or "", shown_address(request))


def _is_made(request: ConsoleRequest) -> bool:
    """Whether this part was made so lately that its copy will serve, if the rights are the same."""
    copy, generation, since = _made.get(_place(request), ("", "", 0.0))
    if not copy or not settings.AGENTSTATE_SHARED_ANSWERS:
        return False
    is_young = time.monotonic() - since < MADE_PART * CACHES_OF[copy].ttl_seconds
    return is_young and answers.generation(copy) == generation


def _note_made(request: ConsoleRequest, copy: str, generation: str) -> None:
    """Since when: of the first one who asked in this generation."""
    place, now = _place(request), time.monotonic()
    known = _made.get(place)
    ttl = CACHES_OF[copy].ttl_seconds
    if known is None or known[1] != generation or now - known[2] >= ttl:
        if len(_made) >= MADE_MAX:
            _made.clear()
        _made[place] = (copy, generation, now)


def if_changed(view: View) -> View:
    """Refreshes of a page that is made for each who asks: 304 while it shows what it showed."""

    @wraps(view)
    def answered(request: ConsoleRequest, *args: Any, **named: Any) -> HttpResponseBase:
        response = view(request, *args, **named)
        return _unless_shown(request, response) if request.htmx else response

    return answered


# What of a page is another at each instant though nothing has changed: its clock, and the ages that
# run on in the browser by themselves.
_TICKS = re.compile(
    r'(?<=<time )([^>]*\bdata-(?:at|until)="\d+"[^>]*>)[^<]*'
    r'|\bdata-now="\d+"|(<\w+ data-as-of>)[^<]*'
)
_NOW = re.compile(r'\bdata-now="(\d+)"')
NOW_HEADER = "Agentstate-Now"


def _unless_shown(request: ConsoleRequest, response: HttpResponseBase) -> HttpResponseBase:
    """304 when the browser says that it shows just this already, with the instant of this answer.

    It is told from all that is shown, so nothing that is can be forgotten.
    """
    is_whole = request.method == "GET" and response.status_code == HTTPStatus.OK
    if not is_whole or not isinstance(response, HttpResponse):
        return response
    steady = _TICKS.sub(r"\1\2", response.text)
    tag = f'W/"{hashlib.sha256(steady.encode()).hexdigest()[:32]}"'
    if request.headers.get("If-None-Match") != tag:
        response.headers["ETag"] = tag
        return response
    now = _NOW.search(response.text)
    told = {NOW_HEADER: now[1]} if now else {}
    return HttpResponse(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag} | told)


def _variant(request: ConsoleRequest) -> str:
    """What an answer depends on beside the store."""
    rights = ",".join(sorted(request.access.scopes))
    asked = (rights, zones.name(), *_place(request))
    return hashlib.sha256("\0".join(asked).encode()).hexdigest()


def shown_address(request: ConsoleRequest) -> str:
    """The address of the page that the part is for; "" if there is none."""
    try:
        return (request.htmx.current_url_abs_path or "") if request.htmx else ""
    except ValueError:  # the header is whatever somebody sends
        return ""


def to_login(request: ConsoleRequest) -> HttpResponseBase:
    """Send the whole page to the login and back, also when only a part of it was asked for."""
    if not request.htmx:
        return redirect_to_login(return_path(request))
    try:
        shown = urlsplit(request.htmx.current_url_abs_path or "/")
    except ValueError:  # the header is whatever somebody sends
        shown = urlsplit("/")
    back = shown.path + (f"?{shown.query}" if shown.query else "")
    target = f"{resolve_url('login')}?{urlencode({'next': back})}"
    return HttpResponse(status=401, headers={"HX-Redirect": target})


def return_path(request: HttpRequest) -> str:
    """Where to go after the login. An action never runs by itself then: a POST goes to its page."""
    return request.get_full_path() if request.method == "GET" else request.path


def is_partial(request: ConsoleRequest, target: str) -> bool:
    """Whether only the part of this id is wanted. A whole page is right in every other case."""
    return bool(request.htmx) and request.htmx.target == target


def while_allowed(request: ConsoleRequest, parts: Iterable[str]) -> Iterator[str]:
    """What is downloaded, for as long as whoever takes it may: looked at once a second, as for open
    streams. Raises PermissionDenied, so that the download fails and is not taken for whole.
    """
    key, looked = request.session.session_key, time.monotonic()
    for part in parts:
        if time.monotonic() - looked >= LOOK_AGAIN_SECONDS:
            if not request.access.scopes <= scopes_of_session(key):
                raise PermissionDenied("the session is over, or the role is another one")
            looked = time.monotonic()
        yield part


def circumstances(
    request: ConsoleRequest, *, key: str | None = None, fingerprint: bytes | None = None
) -> Circumstances:
    """How the store sees this request; key: of the form, so that sending it twice acts once."""
    return Circumstances(
        request_id=request.request_id, idempotency_key=key, fingerprint=fingerprint
    )
