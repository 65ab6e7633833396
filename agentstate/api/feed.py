"""The feed of all changes, page by page, and its consumers. What waits is under /live/v1."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema

from agentstate import store
from agentstate.api import fields
from agentstate.api.access import READ, WRITE, WorkerRequest
from agentstate.api.contract import Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, reply_result
from agentstate.api.schemas import Asked, Told
from agentstate.store import feed
from agentstate.store.commands import SetCheckpoint
from agentstate.store.errors import CursorExpired, Invalid, NotFound, VersionConflict
from agentstate.store.rules import names

TYPES_MAX = 50
PATTERN_RULE = "an event type, or the beginning of one with .* behind it, such as run.*"

router = Router(tags=["feed"])


def _pattern(value: Any) -> str:
    name = value.removesuffix(".*") if isinstance(value, str) else value
    try:
        names.check_event_type("types", name)
    except Invalid:
        raise fields.broken_rule(PATTERN_RULE) from None
    return str(value)


TypePattern = Annotated[
    str,
    PlainValidator(_pattern),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": names.TYPE_CHARS + 2,
            "pattern": rf"^{names.EVENT_TYPE}(\.\*)?$",
        }
    ),
]


class FeedWanted(BaseModel):
    """Which part of the feed: changes behind the position `after`, of some types."""

    after: fields.SeqInQuery = 0
    types: list[TypePattern] = Field([], max_length=TYPES_MAX)
    limit: fields.RowsLimit = 100


class ConsumersWanted(BaseModel):
    """Which consumers: those whose names come after `after`."""

    after: fields.Worker | None = None
    limit: fields.RowsLimit = 100


class ChangeTold(Told):
    """What one batch wrote for a run: its events from first_seq to last_seq, of these types."""

    position: int
    run: str
    first_seq: int
    last_seq: int
    version: int
    types: list[str]
    at: fields.Moment


class FeedTold(Told):
    """position: where to go on from, also when nothing of the wanted types was found."""

    items: list[ChangeTold]
    position: int


class CheckpointAsked(Asked):
    position: fields.Seq


class CheckpointTold(Told):
    consumer: str
    position: int
    at: fields.Moment


class ConsumerTold(Told):
    """lag: positions behind the feed's last one. lag_seconds: the age of the first change that was
    not read. expired: what comes next is no longer kept. by: who moved it last, at `at`.
    """

    consumer: str
    position: int
    lag: int
    lag_seconds: float
    expired: bool
    by: str
    at: fields.Moment


class ConsumersTold(Told):
    items: list[ConsumerTold]


@router.get("", **contract("read_feed", answers=FeedTold, access=READ, refuses=(CursorExpired,)))
def read_feed(request: WorkerRequest, wanted: Query[FeedWanted]) -> HttpResponse:
    """Every change of every run, in one order that never skips and never goes back within a run.

    Go on with `after` set to the `position` of the answer. What a batch wrote for a run is one
    item. To wait for more, or to get a stream, ask /live/v1/feed with the same parameters.
    """
    page = feed.read(after=wanted.after, types=wanted.types, limit=wanted.limit)
    return reply(feed_members(page))


@router.get("/consumers", **contract("list_consumers", answers=ConsumersTold, access=READ))
def list_consumers(request: WorkerRequest, wanted: Query[ConsumersWanted]) -> HttpResponse:
    """Who reads the feed, by name: how far each has come and how far it is behind."""
    found = feed.consumers(after=wanted.after or "", limit=wanted.limit)
    return reply({"items": [consumer_members(one) for one in found]})


@router.get(
    "/consumers/{name}",
    **contract("read_consumer", answers=ConsumerTold, access=READ, refuses=(NotFound,)),
)
def read_consumer(request: WorkerRequest, name: fields.Worker) -> HttpResponse:
    """One consumer. 404 for one that has never set a checkpoint: it begins at 0."""
    return reply(consumer_members(feed.consumer(name)))


@router.put(
    "/consumers/{name}",
    **contract(
        "set_checkpoint",
        answers=CheckpointTold,
        access=WRITE,
        refuses=(VersionConflict, CursorExpired),
        takes_body=True,
    ),
)
def set_checkpoint(
    request: WorkerRequest, name: fields.Worker, ask: Sent[CheckpointAsked]
) -> HttpResponse:
    """Say how far a consumer has read; the first time makes it. It never goes back (412), and
    setting the same position again is harmless. Consumers never hold back retention. 410 for a
    position of before a restore: what was read there is gone.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    feed.check_position(ask.position)
    command = SetCheckpoint(consumer=name, position=ask.position)
    under = circumstances(request, repeatable=True)
    return reply_result(store.execute(command, by=request.caller, under=under))


def feed_members(page: feed.FeedPage) -> dict[str, Any]:
    """A page of the feed, as here and under /live/v1."""
    return {"items": [change_members(change) for change in page.items], "position": page.position}


def change_members(change: feed.Change) -> dict[str, Any]:
    return {
        "position": change.position,
        "run": change.run,
        "first_seq": change.first_seq,
        "last_seq": change.last_seq,
        "version": change.version,
        "types": change.types,
        "at": change.at,
    }


def consumer_members(one: feed.Consumer) -> dict[str, Any]:
    return {
        "consumer": one.name,
        "position": one.position,
        "lag": one.lag,
        "lag_seconds": one.lag_seconds,
        "expired": one.expired,
        "by": one.principal,
        "at": one.at,
    }
