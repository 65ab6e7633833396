"""The addresses under /live/v1: what /api/v1 has, for those who wait for it.

Same keys, same parameters, same bodies and refusals; with `Accept: text/event-stream` a stream.
The key comes in the Authorization header and never in the address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import wraps
from http import HTTPStatus
from typing import Any

import ninja.errors
import pydantic
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import BaseModel, Field

from agentstate import files
from agentstate.api import fields, pacing
from agentstate.api.access import READ, WorkerRequest
from agentstate.api.bodies import PayloadParser
from agentstate.api.door import answer_to
from agentstate.api.feed import TYPES_MAX, TypePattern
from agentstate.api.problems import problem
from agentstate.api.replies import reply
from agentstate.live.follow import Follower, stream, wait_for_page
from agentstate.live.hub import hub
from agentstate.live.sending import EventStream
from agentstate.live.sources import ChangeFeed, RunLog, Source
from agentstate.live.threads import check_room, in_thread
from agentstate.store.errors import Invalid, Unavailable
from agentstate.store.payloads import Malformed, RawJSON
from agentstate.store.rules import names

# A process holds so many beside those of the console, and not for more than so much of the files
# that it may have open; each costs some tens of kB.
STREAMS_MAX, FILES_PART = 2_000, 0.5
STREAM_TYPE = "text/event-stream"
TYPES = ["application/json", STREAM_TYPE]  # the first one for whoever takes anything

# Who lacks the scope leaves a row under these names, as with the calls of /api/v1.
FOLLOW_RUN, FOLLOW_FEED = READ.of("follow_run"), READ.of("follow_feed")

type View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]

_NUMBER = re.compile(r"[0-9]{1,16}")


class EventsFollowed(BaseModel):
    """Which events of a run, and how long to wait for the first of them."""

    after: fields.SeqInQuery = 0
    limit: fields.EventsLimit = 100
    wait: fields.WaitSeconds | None = None


class FeedFollowed(BaseModel):
    """Which changes, and how long to wait for the first of them."""

    after: fields.SeqInQuery = 0
    types: list[TypePattern] = Field([], max_length=TYPES_MAX)
    limit: fields.RowsLimit = 100
    wait: fields.WaitSeconds | None = None


def answering(view: View) -> View:
    """The view, with an answer of the contract whatever happens in it."""

    @wraps(view)
    async def answer(request: HttpRequest, **parts: str) -> HttpResponseBase:
        try:
            check_room()
            response = await view(request, **parts) if _reads(request) else _only_get(request)
        except Exception as raised:  # whatever it is, the answer is one of the contract
            response = answer_to(request, raised)
        response.headers.setdefault("Cache-Control", "no-store")
        pacing.tell(request, response)
        return response

    return answer


@answering
async def events(request: WorkerRequest, key: str) -> HttpResponseBase:
    """A run's events behind `after`, as soon as there are some. A stream of a run that has ended
    is over after its last event."""
    caller = await in_thread(lambda: FOLLOW_RUN(request))
    asked = _asked(EventsFollowed, request)
    log = RunLog(run=names.check_run_key("key", key), caller=caller, limit=asked.limit)
    return await _answer(request, log, after=asked.after, wait=asked.wait)


@answering
async def feed(request: WorkerRequest) -> HttpResponseBase:
    """The changes of all runs behind `after`, as soon as there are some."""
    await in_thread(lambda: FOLLOW_FEED(request))
    asked = _asked(FeedFollowed, request, lists=["types"])
    changes = ChangeFeed(types=tuple(asked.types), limit=asked.limit)
    return await _answer(request, changes, after=asked.after, wait=asked.wait)


@answering
async def nowhere(request: HttpRequest) -> HttpResponseBase:
    """Whatever looks like an address of these and is none."""
    raise Http404


async def _answer(
    request: WorkerRequest, source: Source, *, after: int, wait: int | None
) -> HttpResponseBase:
    if hub().streams_of(None) >= min(STREAMS_MAX, files.share(FILES_PART)):
        raise Unavailable("too many streams are open here", retry_after_ms=5_000)
    follower = Follower(source, request.caller)
    if request.method == "GET" and request.get_preferred_type(TYPES) == STREAM_TYPE:
        if wait is not None:
            raise Invalid("wait", "not with a stream")
        first = await follower.look(_resumed(request, after))
        return EventStream(stream(follower, first))
    seconds = wait if wait is not None and request.method == "GET" else 0
    look = await wait_for_page(follower, after, seconds=seconds)
    return reply({"items": [RawJSON(text) for _, text in look.items], **look.beside})


def _resumed(request: HttpRequest, after: int) -> int:
    """Where a stream goes on. A client that connects again by itself repeats the address as it was
    and says in a header how far it came; so the later of the two. Raises Invalid."""
    told = request.headers.get("Last-Event-ID", "").strip()
    if not told:
        return after
    if not _NUMBER.fullmatch(told):
        raise Invalid("Last-Event-ID", "the id of the last event that came, a whole number")
    return max(after, int(told))


def _asked[M: BaseModel](model: type[M], request: HttpRequest, lists: list[str] | None = None) -> M:
    """The parameters of the address, as /api/v1 takes them. Raises Invalid and its like."""
    for name in request.GET:
        if name not in model.model_fields:
            raise Invalid(name, "there is no such parameter")
    values = PayloadParser().parse_querydict(request.GET, lists or [], request)
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as wrong:
        broken = [{**error, "loc": ("query", *error["loc"])} for error in wrong.errors()]
        raise ninja.errors.ValidationError(broken) from None


def _reads(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


def _only_get(request: HttpRequest) -> HttpResponse:
    refusal = Malformed(f"{request.method} is not for this address; GET, HEAD is")
    answer = problem(request, refusal, status=HTTPStatus.METHOD_NOT_ALLOWED)
    answer.headers["Allow"] = "GET, HEAD"
    return answer
