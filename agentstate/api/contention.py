"""Contention of a window: how much was turned away, on which runs, and who met whom."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate.api import fields
from agentstate.api.access import READ, WorkerRequest
from agentstate.api.contract import contract
from agentstate.api.rates import FiguresTold, figures_members
from agentstate.api.replies import reply
from agentstate.api.schemas import Told
from agentstate.store import collisions, rates
from agentstate.store.collisions import Collision

router = Router(tags=["rates"])


class ContentionWanted(BaseModel):
    """Which window and what of it: since and until are widened to whole minutes; without them the
    last hour. run: of this one alone. limit: so many runs, and so many pairs.
    """

    since: fields.Moment | None = None
    until: fields.Moment | None = None
    run: fields.RunKey | None = None
    limit: fields.RowsLimit = 20


class ContendedRunTold(FiguresTold):
    """The figures of one run; null: of writes to no run."""

    run: str | None


class CollisionTold(Told):
    """How often `loser` was turned away because of `winner`, with this code. "" is nobody known, or
    what was too much to tell apart. about: the columns, unit or budget that both wanted. added_ms:
    what the store spent on it.
    """

    run: str
    code: str
    loser: str
    winner: str
    about: list[str]
    count: int
    added_ms: int


class ContentionTold(Told):
    """runs: those with the most conflicts and fenced calls first. pairs: the most frequent first.
    more_runs, more_pairs: there are some beyond the limit."""

    since: fields.Moment
    until: fields.Moment
    total: FiguresTold
    runs: list[ContendedRunTold]
    more_runs: bool
    pairs: list[CollisionTold]
    more_pairs: bool
    as_of: fields.Moment


@router.get("", **contract("read_contention", answers=ContentionTold, access=READ))
def read_contention(request: WorkerRequest, wanted: Query[ContentionWanted]) -> HttpResponse:
    """Where writers met in a window of whole minutes: the hot runs, and who met whom about what.

    About a second behind, and read from counts per minute: it costs what is in the window.
    """
    runs = () if wanted.run is None else (wanted.run,)
    found = rates.read(
        since=wanted.since, until=wanted.until, by=("run",), runs=runs, limit=wanted.limit
    )
    met = collisions.read(
        since=found.since, until=found.until, runs=runs or None, limit=wanted.limit
    )
    return reply(
        {
            "since": found.since,
            "until": found.until,
            "total": figures_members(found.total),
            "runs": [{"run": one.keys["run"], **figures_members(one.figures)}
                     for one in found.groups],
            "more_runs": found.more,
            "pairs": [pair_members(pair) for pair in met.pairs],
            "more_pairs": met.more,
            "as_of": found.as_of,
        }
    )  # fmt: skip


def pair_members(pair: Collision) -> dict[str, Any]:
    return {
        "run": pair.run,
        "code": pair.code,
        "loser": pair.loser,
        "winner": pair.winner,
        "about": pair.columns,
        "count": pair.count,
        "added_ms": pair.latency_ms,
    }
