"""The stream of hints for open pages of the console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.template.loader import render_to_string

from agentstate import files, presence
from agentstate.live.company import Looker
from agentstate.live.hub import Message, Notice, Seen, hub
from agentstate.live.sending import EventStream, Line
from agentstate.live.sessions import People, watch
from agentstate.store.callers import ROLES

RETRY_MS = 2_000
RETRY_SECONDS = 10
PING_SECONDS = 10.0
# Then the browser connects again and is looked at anew.
LONGEST_SECONDS = 600.0
KEY_CHARS_MAX = 200
READING = ("GET", "HEAD")
# In one process. Beyond it a page is as without a stream: it asks every few seconds.
STREAMS_PER_PERSON_MAX = 50
# All streams together take no more than so much of the files that a process may have open.
FILES_PART = 0.75


async def console(request: HttpRequest) -> HttpResponseBase:
    """Hints about one run (`?run=key`) or all, for a person with a role, as server-sent events.

    With `page` (`run:42`, `reclaim:run:42`) and `seen` (a number of the page's own) the stream is
    also a sign of who looks at that page, and tells who else does.
    HEAD opens none. 401 without a session, 403 without a role; a browser does not come back after
    either. 429 when the person has STREAMS_PER_PERSON_MAX here, or all of them too many. No
    database connection is held once it streams.
    """
    if request.method not in READING:
        return HttpResponseNotAllowed(READING)
    user = await request.auser()
    if not isinstance(user, User) or not request.session.session_key:
        return HttpResponse(status=401)
    if not user.is_superuser and not await user.groups.filter(name__in=list(ROLES)).aexists():
        return HttpResponse(status=403)
    run = request.GET.get("run") or None
    if run is not None and len(run) > KEY_CHARS_MAX:
        return HttpResponse(status=400)
    try:
        looker = looker_of(request, user)
    except ValueError:
        return HttpResponse(status=400)
    if not _has_place(user.pk):
        return HttpResponse(status=429, headers={"Retry-After": str(RETRY_SECONDS)})
    await sync_to_async(connections.close_all)()
    if request.method == "HEAD":  # there would be nobody to see that it goes on
        return HttpResponse(content_type="text/event-stream")
    line = Line(getattr(request, "scope", {}))
    stream = send_hints(request.session.session_key, user.pk, run, looker, line)
    return EventStream(stream)


def _has_place(person: int) -> bool:
    here = hub()
    is_in_files = here.streams < files.share(FILES_PART)
    return is_in_files and here.streams_of(person) < STREAMS_PER_PERSON_MAX


def looker_of(request: HttpRequest, user: User) -> Looker | None:
    """Who looks at which page, if the stream says so. Raises ValueError."""
    page, instance = request.GET.get("page", ""), request.GET.get("seen", "")
    if not page and not instance:
        return None
    if len(page) > presence.PAGE_CHARS_MAX or not presence.PAGE.fullmatch(page):
        raise ValueError("page")
    if not presence.INSTANCE.fullmatch(instance):
        raise ValueError("seen")
    return Looker(person=user.get_username(), instance=instance, page=page)


async def send_hints(
    session: str, user: int, run: str | None, looker: Looker | None, line: Line
) -> AsyncGenerator[str]:
    """Hints as they come, a comment when there is none, an end when the session is over.

    At its end at once if others of the person have taken the last place meanwhile. While the client
    keeps up hints go straight to its line, and this only waits: hundreds of pages are told at once,
    and to wake each one's task for the same text is time that the writers lose.
    """
    watched, source = watch(People), hub()
    if source.streams_of(user) >= STREAMS_PER_PERSON_MAX:
        return
    subscription = await source.subscribe(run, looker.page if looker else None, user)
    mine = watched.enter((session, user), lambda: subscription.put(Notice.RESYNC))
    loop = asyncio.get_running_loop()
    end_at = loop.time() + LONGEST_SECONDS
    if looker:
        source.company.enter(looker)
    try:
        yield f"retry: {RETRY_MS}\n\n"
        subscription.straight = lambda hint: not mine.over and line.write(write(hint, run).encode())
        while not mine.over and loop.time() < end_at:
            try:
                message = await asyncio.wait_for(subscription.queue.get(), PING_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if mine.over:
                return
            if message is Notice.BYE:
                subscription.straight = None
            yield write(message, run, looker)
            if message is Notice.BYE:
                return
    finally:
        if looker:
            source.company.leave(looker)
        source.unsubscribe(subscription)
        watched.leave(mine)


def write(message: Message, run: str | None, looker: Looker | None = None) -> str:
    """One server-sent event. Its data is one line of JSON, so no text can add a line of its own."""
    if isinstance(message, Seen):
        return f"event: presence\ndata: {json.dumps(seen_by(looker))}\n\n"
    if isinstance(message, Notice):
        return f"event: {message.value}\ndata: {{}}\n\n"
    return f"event: hint\ndata: {message.text if run is None else message.text_of(run)}\n\n"


def seen_by(looker: Looker | None) -> dict[str, str]:
    """The part of the page that says who else looks at it. Nothing of it is asked of the store."""
    if looker is None:
        return {}
    others = presence.board.others(looker.page, looker.person)
    context = {"others": others, "page": looker.page}
    return {"html": render_to_string("components/onlookers.html", context)}
