"""Workers: what they say of themselves, who they are, and asking one to stop taking work."""

from __future__ import annotations

from dataclasses import asdict

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate import store
from agentstate.api import fields, schemas
from agentstate.api.access import OPERATE, READ, WRITE, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.cursors import read_cursor, write_cursor
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, reply_result
from agentstate.store import reads
from agentstate.store.commands import AnnounceWorker, DrainWorker

UNUSED = ("If-Match", "Agentstate-Fence")

router = Router(tags=["workers"])


class WorkersWanted(BaseModel):
    """Which page of the workers."""

    cursor: fields.CursorText | None = None
    limit: fields.RowsLimit = 100


@router.get("", **contract("list_workers", answers=schemas.WorkersTold, access=READ))
def list_workers(request: WorkerRequest, wanted: Query[WorkersWanted]) -> HttpResponse:
    """The workers that announced themselves, by name, in pages. Leases do not depend on this."""
    of = {"list": "workers"}
    page = reads.workers(limit=wanted.limit, place=read_cursor(wanted.cursor, of=of))
    return reply(
        {
            "items": [asdict(view) for view in page.items],
            "next": write_cursor(page.next, of=of),
            "prev": write_cursor(page.prev, of=of),
            "as_of": page.now,
        }
    )


@router.put(
    "/{name}",
    **contract(
        "announce_worker",
        answers=schemas.WorkerSeenTold,
        access=WRITE,
        takes_body=True,
        headers=(ATTEMPT,),
    ),
)
def announce_worker(
    request: WorkerRequest, name: fields.Worker, ask: Sent[schemas.WorkerAsked]
) -> HttpResponse:
    """Say that a worker process is there; answered with the database's clock, and a drain.

    A drain of `host-1` is told to `host-1~7f3a` as well.
    """
    check_unused(request, *UNUSED)
    command = AnnounceWorker(
        worker=name,
        version=ask.version,
        host=ask.host,
        slots=ask.slots,
        worker_time=ask.worker_time,
    )
    under = circumstances(request, repeatable=True)
    return reply_result(store.execute(command, by=request.caller, under=under))


@router.post(
    "/{name}/drain",
    **contract(
        "drain_worker",
        answers=schemas.WorkerDrainedTold,
        access=OPERATE,
        takes_body=True,
        headers=(IDEMPOTENCY_KEY, ATTEMPT),
    ),
)
def drain_worker(
    request: WorkerRequest, name: fields.Worker, ask: Sent[schemas.DrainAsked]
) -> HttpResponse:
    """Ask a worker to finish what it holds and take nothing more; it is told at each renewal.

    It need not have announced itself yet. `draining: false` takes it back.
    """
    check_unused(request, *UNUSED)
    command = DrainWorker(worker=name, reason=ask.reason, draining=ask.draining)
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))
