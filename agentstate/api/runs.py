"""Runs and their events: create, move, append, read."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import HttpResponse, StreamingHttpResponse
from ninja import Query, Router
from pydantic import BaseModel

from agentstate import store
from agentstate.api import fields, schemas
from agentstate.api.access import (
    OPERATE,
    READ,
    WRITE,
    WRITE_OR_OPERATE,
    WorkerRequest,
    need,
)
from agentstate.api.asks import new_append, new_move, new_patch, new_run
from agentstate.api.contract import ATTEMPT, FENCE, IDEMPOTENCY_KEY, IF_MATCH, Sent, contract
from agentstate.api.cursors import read_cursor, write_cursor
from agentstate.api.headers import check_unused, circumstances, fence, version_to_match
from agentstate.api.replies import (
    action_members,
    event_members,
    holding,
    listed_run_members,
    reply,
    reply_result,
    run_etag,
    run_members,
)
from agentstate.api.writes import Write, carried_out
from agentstate.store import audit, export, filters, reads, searched, story
from agentstate.store.commands import (
    UNSEEN,
    BrakeRun,
    CreateRun,
    PutTelemetry,
    RunCreated,
    SignalRun,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    EventIdReuse,
    Exists,
    ExpectationFailed,
    FenceRequired,
    HolderChanged,
    IllegalTransition,
    Invalid,
    NotFound,
    OutcomeUnknown,
    PartialDuplicate,
    RunExpired,
    RunHot,
    SeqConflict,
    StaleFence,
    VersionConflict,
)
from agentstate.store.rows import BudgetRow, LeaseRow, RunRow

_NO_ID = UUID(int=0)  # of rows that are only told of
FENCED = (StaleFence, FenceRequired, AlreadyTerminal)
UNKNOWN = (NotFound, RunExpired)
KEYED = (IDEMPOTENCY_KEY, ATTEMPT)
LINES = "application/x-ndjson"

router = Router(tags=["runs"])


class RunsWanted(BaseModel):
    """Which runs, and which page of them."""

    status: list[fields.StatusWord] = []
    task: fields.Task | None = None
    tag: fields.Tag | None = None
    owner: fields.Worker | None = None
    parent: fields.RunKey | None = None
    q: fields.Search | None = None
    created_after: fields.Moment | None = None
    created_before: fields.Moment | None = None
    updated_after: fields.Moment | None = None
    overdue: fields.Flag | None = None
    order: fields.Order = "newest"
    cursor: fields.CursorText | None = None
    limit: fields.RunsLimit = 50

    def filter(self) -> reads.RunFilter:
        return reads.RunFilter(
            statuses=tuple(sorted(set(self.status))),
            task=self.task,
            tag=self.tag,
            owner=self.owner,
            parent=self.parent,
            text=self.q,
            created_after=self.created_after,
            created_before=self.created_before,
            updated_after=self.updated_after,
            overdue=self.overdue,
            newest_first=self.order == "newest",
        )


class EventsWanted(BaseModel):
    """Which events of a run: numbers between `after` and `before`, both exclusive.

    open_effects: those alone that began an effect which no event ends.
    """

    after: fields.SeqInQuery = 0
    before: fields.SeqInQuery | None = None
    type: list[fields.EventType] = []
    origin: fields.Origin | None = None
    open_effects: fields.Flag = False
    order: fields.Order = "oldest"
    limit: fields.EventsLimit = 100


class StoryWanted(BaseModel):
    """Which of a run's events: numbers above `after_seq`."""

    after_seq: fields.SeqInQuery = 0
    limit: fields.EventsLimit = 500


class LiftWanted(BaseModel):
    """Why a brake is lifted, and `until` of the one that was seen (left out: whichever is on)."""

    reason: fields.Reason
    expected_until: fields.Moment | None = None


@router.post(
    "",
    **contract(
        "create_run",
        answers=schemas.RunTold,
        status=HTTPStatus.CREATED,
        access=WRITE,
        refuses=(Exists, *UNKNOWN, *FENCED),
        takes_body=True,
        headers=(*KEYED, FENCE),
    ),
)
def create_run(request: WorkerRequest, ask: Sent[schemas.CreateAsked]) -> HttpResponse:
    """Make a run with its budgets and first events, in one transaction.

    The site's default budgets are opened with it, unless it brings its own of the same name. A
    child of a leased run needs the parent's token as Agentstate-Fence.
    """
    check_unused(request, "If-Match", *([] if ask.parent else ["Agentstate-Fence"]))
    command = new_run(ask, fence=fence(request))
    made = store.execute(command, by=request.caller, under=circumstances(request))
    answer = reply(
        run_members(_as_made(command, made, request), request.caller),
        status=HTTPStatus.CREATED,
        replayed=made.replayed,
        etag=run_etag(made.version),
    )
    answer.headers["Location"] = f"/api/v1/runs/{quote(made.run)}"
    return answer


def _as_made(command: CreateRun, made: RunCreated, request: WorkerRequest) -> reads.RunView:
    """The run as it was when it was made. Not read again: a repeated request gets its first
    answer, however far the run has come since."""
    run = RunRow(
        id=_NO_ID,
        key=made.run,
        task=command.task,
        status=made.status,
        version=made.version,
        last_seq=made.last_seq,
        tags=command.tags,
        attrs=command.attrs.text,
        max_attempts=command.max_attempts,
        deadline_at=command.deadline_at,
        deadline_policy=command.deadline_policy,
        retain_seconds=command.retain_seconds,
        created_by=request.caller.principal,
        created_at=made.at,
        updated_at=made.at,
    )
    budgets = tuple(
        reads.BudgetView(
            budget=BudgetRow(id=_NO_ID, run_id=_NO_ID, name=b.name, unit=b.unit, cap=b.cap),
            parent=b.parent,
        )
        for b in sorted(command.budgets, key=lambda b: b.name)
    )
    return reads.RunView(
        run=run,
        parent=command.parent,
        lease=LeaseRow(unit=run.unit),
        budgets=budgets,
        now=made.at,
    )


@router.get("", **contract("list_runs", answers=schemas.RunsTold, access=READ))
def list_runs(request: WorkerRequest, wanted: Query[RunsWanted]) -> HttpResponse:
    """Runs, newest first unless told otherwise, in pages.

    next, prev: cursors for the same list; null where it ends. q: part of the key or task.
    """
    # In whichever order, and however often, a status is named: it is the same list.
    of = wanted.model_dump(exclude={"cursor", "limit"}) | {"status": sorted(set(wanted.status))}
    page = reads.runs(
        wanted=wanted.filter(), limit=wanted.limit, place=read_cursor(wanted.cursor, of=of)
    )
    return reply(
        {
            "items": [listed_run_members(view, request.caller) for view in page.items],
            "next": write_cursor(page.next, of=of),
            "prev": write_cursor(page.prev, of=of),
            "as_of": page.now,
        }
    )


class SearchWanted(BaseModel):
    """filter: in the language of the console's list of runs, such as `status:running worker:w-3
    -tag:nightly since:2h "audit checkout"`."""

    filter: fields.FilterText
    cursor: fields.CursorText | None = None
    limit: fields.RunsLimit = 50


@router.get("/-/search", **contract("search_runs", answers=schemas.RunsFoundTold, access=READ))
def search_runs(request: WorkerRequest, wanted: Query[SearchWanted]) -> HttpResponse:
    """Runs under a filter as the console has it, newest first. 422 says what is not understood.

    A filter that no index helps looks at some thousand runs at a time: a page may be short, or even
    empty, and `next` still tells where to go on. A member of attrs (`attr.name:value`) takes the
    scope `payloads`.
    """
    clauses = filters.parse(wanted.filter)
    if clauses.problems:
        wrong = "; ".join(f"{one.text}: {one.problem}" for one in clauses.problems)
        raise Invalid("filter", wrong)
    if any(clause.attr for clause in clauses.clauses):
        request.caller.need("payloads")
    of = {"filter": clauses.text}
    found = searched.read(clauses, limit=wanted.limit, place=read_cursor(wanted.cursor, of=of))
    return reply(
        {
            "items": [listed_run_members(view, request.caller) for view in found.items],
            "next": write_cursor(found.next, of=of),
            "as_of": found.now,
        }
    )


@router.get("/{key}", **contract("read_run", answers=schemas.RunTold, access=READ, refuses=UNKNOWN))
def read_run(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """One run. The answer's ETag names the version to guard a write with; it is never 304."""
    view = reads.run(key)
    return reply(run_members(view, request.caller), etag=run_etag(view.run.version))


@router.get(
    "/{key}/actions",
    **contract("list_run_actions", answers=schemas.ActionsTold, access=READ, refuses=UNKNOWN),
)
def list_run_actions(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """What the caller may do to a run now, or why not: what the console offers goes by the same.

    It is no promise: the action itself looks again.
    """
    view = reads.run(key)
    thing = {"kind": "run", "status": view.run.status, **holding(view.lease, view.now)}
    return reply({"items": action_members(request.caller, thing), "as_of": view.now})


@router.post(
    "/{key}/transitions",
    **contract(
        "move_run",
        answers=schemas.MovedTold,
        access=WRITE_OR_OPERATE,
        refuses=(
            *UNKNOWN,
            IllegalTransition,
            VersionConflict,
            ExpectationFailed,
            RunHot,
            *FENCED,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE, IF_MATCH),
    ),
)
def move_run(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.TransitionAsked]
) -> HttpResponse:
    """Move a run to another status. A terminal move ends its lease, and absorbs.

    Without a token, `operate` may cancel, pause and resume; everything else is the holder's.
    """
    command = new_move(key, ask, if_match=version_to_match(request), fence=fence(request))
    moved = store.execute(command, by=request.caller, under=circumstances(request))
    return reply_result(moved, etag=run_etag(moved.version))


@router.patch(
    "/{key}",
    **contract(
        "change_run",
        answers=schemas.ChangedTold,
        access=WRITE_OR_OPERATE,
        refuses=(*UNKNOWN, VersionConflict, ExpectationFailed, EventIdReuse, RunHot, *FENCED),
        takes_body=True,
        headers=(*KEYED, FENCE, IF_MATCH),
    ),
)
def change_run(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.PatchAsked]
) -> HttpResponse:
    """Change fields of a run, each by its own rule, in one write: notes and attrs are set, counters
    are added to, tags join and leave.

    `expect` guards single fields, where a version would be too much; every clause that fails is
    told. The same `id` again answers the first version, whatever the rest says. A run that has
    ended takes notes, tags, hold and retention; without a token `operate` may change the same.
    """
    command = new_patch(key, ask, if_match=version_to_match(request), fence=fence(request))
    changed = store.execute(command, by=request.caller, under=circumstances(request))
    return reply_result(changed, etag=run_etag(changed.version))


@router.put(
    "/{key}/telemetry",
    **contract(
        "put_telemetry",
        answers=schemas.TelemetryKeptTold,
        access=WRITE,
        refuses=(*UNKNOWN, *FENCED),
        takes_body=True,
        headers=(ATTEMPT, FENCE),
    ),
)
def put_telemetry(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.TelemetryAsked]
) -> HttpResponse:
    """Keep what the holder says of itself: the newest stands, and losing one is harmless.

    Fenced like any write, but it moves no version and leaves no event.
    """
    check_unused(request, "If-Match")
    command = PutTelemetry(
        run=key,
        host=ask.host,
        model=ask.model,
        progress=ask.progress,
        worker_time=ask.worker_time,
        fence=fence(request),
    )
    under = circumstances(request, repeatable=True)
    return reply_result(store.execute(command, by=request.caller, under=under))


@router.post(
    "/{key}/signals",
    **contract(
        "signal_run",
        answers=schemas.SignalledTold,
        access=OPERATE,
        refuses=(*UNKNOWN, AlreadyTerminal, HolderChanged),
        takes_body=True,
        headers=KEYED,
    ),
)
def signal_run(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.SignalAsked]
) -> HttpResponse:
    """Tell the holder something, at each of its renewals until it is over.

    cancel and pause are told to the next holder too; resume takes a pause back. With
    `expected_token` it is only said to the holder that was seen: else 412 holder-changed.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    looked = "expected_token" in ask.model_fields_set
    command = SignalRun(
        run=key,
        signal=ask.signal,
        reason=ask.reason,
        expected_token=ask.expected_token if looked else UNSEEN,
    )
    signalled = store.execute(command, by=request.caller, under=circumstances(request))
    return reply_result(signalled, etag=run_etag(signalled.version))


@router.put(
    "/{key}/brake",
    **contract(
        "brake_run",
        answers=schemas.BrakedTold,
        access=OPERATE,
        refuses=(*UNKNOWN, AlreadyTerminal, ExpectationFailed),
        takes_body=True,
        headers=KEYED,
    ),
)
def brake_run(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.BrakeAsked]
) -> HttpResponse:
    """Limit how fast a hot run is written to, for a time; the brake ends by itself.

    Writers beyond it get 429 run-hot with Retry-After. Renewals, releases, the move that ends the
    run and operators are never held up. Another brake takes the place of the one that is on; with
    `expected_until` only of the one that was seen: else 412 expectation-failed.
    `until` is a moment of the database's clock, as all that decides is.
    """
    looked = "expected_until" in ask.model_fields_set
    command = BrakeRun(
        run=key,
        per_second=ask.per_second,
        seconds=ask.seconds,
        reason=ask.reason,
        expected_until=ask.expected_until if looked else UNSEEN,
    )
    return _braked(request, command)


@router.delete(
    "/{key}/brake",
    **contract(
        "lift_brake",
        answers=schemas.BrakedTold,
        access=OPERATE,
        refuses=(*UNKNOWN, AlreadyTerminal, ExpectationFailed, OutcomeUnknown),
        headers=(ATTEMPT,),
    ),
)
def lift_brake(
    request: WorkerRequest, key: fields.RunKey, wanted: Query[LiftWanted]
) -> HttpResponse:
    """Lift a run's brake before it ends by itself. Repeating it is harmless.

    With `expected_until` only the brake that was seen is lifted: else 412 expectation-failed.
    """
    seen = UNSEEN if wanted.expected_until is None else wanted.expected_until
    command = BrakeRun(run=key, per_second=None, reason=wanted.reason, expected_until=seen)
    return _braked(request, command)


def _braked(request: WorkerRequest, command: BrakeRun) -> HttpResponse:
    check_unused(request, "If-Match", "Agentstate-Fence")
    under = circumstances(request, repeatable=command.per_second is None)
    braked = store.execute(command, by=request.caller, under=under)
    return reply_result(braked, etag=run_etag(braked.version))


@router.get(
    "/{key}/story",
    **contract("read_story", answers=schemas.StoryTold, access=READ, refuses=UNKNOWN),
)
def read_story(
    request: WorkerRequest, key: fields.RunKey, wanted: Query[StoryWanted]
) -> HttpResponse:
    """Everything about one run, in one snapshot: its budgets, its events, then its head.

    Pages hold at most `limit` events and 1 MiB; budgets and head stand in each.
    """
    found = story.story(
        key,
        after_seq=wanted.after_seq,
        limit=wanted.limit,
        payloads=request.caller.may("payloads"),
    )
    return reply({"items": found.items, "as_of_seq": found.as_of_seq, "next_seq": found.next_seq})


@router.post(
    "/{key}/events",
    **contract(
        "append_events",
        answers=schemas.AppendedTold,
        status=HTTPStatus.CREATED,
        access=WRITE,
        refuses=(
            *UNKNOWN,
            SeqConflict,
            PartialDuplicate,
            EventIdReuse,
            VersionConflict,
            BudgetExhausted,
            IllegalTransition,
            RunHot,
            *FENCED,
        ),
        takes_body=True,
        headers=(*KEYED, FENCE, IF_MATCH),
    ),
)
@carried_out
def append_events(
    request: WorkerRequest, key: fields.RunKey, ask: Sent[schemas.AppendAsked]
) -> Write:
    """Append events: all or none, numbered without a hole. One finished step can be one write,
    with what it adds to counters, what it spends, and the move that it ends with.

    expected_seq: the last number that the caller has seen. Without it: after whatever is there.
    Event ids are unique in the run for its life: sending the same ones again answers as before. The
    event before something outside is done may say so with an effect, and the one after it as well;
    what was begun and not ended is told to the next holder. Each begins once and ends once.
    """
    command = new_append(key, ask, if_match=version_to_match(request), fence=fence(request))
    return Write(command, circumstances(request), status=HTTPStatus.CREATED, etag="v")


@router.get(
    "/{key}/events",
    **contract("list_events", answers=schemas.EventsTold, access=READ, refuses=UNKNOWN),
)
def list_events(
    request: WorkerRequest, key: fields.RunKey, wanted: Query[EventsWanted]
) -> HttpResponse:
    """A run's events in pages of at most `limit` events and 1 MiB.

    Go on with `after` (or `before`, newest first) set to the last number of the page, until
    nothing comes or it is `last_seq`. With `open_effects` those that began an effect which has not
    ended, for whoever takes a run over.
    """
    page = reads.events(
        run_key=key,
        wanted=reads.EventFilter(
            after=wanted.after,
            before=wanted.before,
            types=tuple(wanted.type),
            origin=wanted.origin,
            newest_first=wanted.order == "newest",
            beginning_open_effects=wanted.open_effects,
        ),
        limit=wanted.limit,
        with_payloads=request.caller.may("payloads"),
    )
    items = [
        event_members(event, size, request.caller)
        for event, size in zip(page.items, page.sizes, strict=True)
    ]
    return reply({"items": items, "last_seq": page.last_seq})


@router.get(
    "/{key}/export",
    **contract(
        "export_run",
        answers=None,
        lines=LINES,
        access=READ,
        refuses=UNKNOWN,
    ),
)
def export_run(request: WorkerRequest, key: fields.RunKey) -> StreamingHttpResponse:
    """A run with its whole history as JSON lines, as of one moment; it needs `payloads` as well.

    The format is ours, and `import` takes it back. Its last line counts the others, so that an
    export that was cut off is noticed.
    """
    need(request, "payloads", operation="export_run")
    answer = StreamingHttpResponse(export.export(key), content_type=LINES)
    answer.headers["Content-Disposition"] = f'attachment; filename="{key}.jsonl"'
    return answer


@router.get(
    "/{key}/verify",
    **contract("verify_run", answers=schemas.VerifiedTold, access=READ, refuses=UNKNOWN),
)
def verify_run(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """Derive everything about a run again from its events and ledgers; each difference is told."""
    found = audit.verify_run(key)
    differences: list[dict[str, Any]] = [
        {"check": d.check, "what": d.what, "expected": d.expected, "found": d.found} for d in found
    ]
    return reply({"run": key, "sound": not found, "differences": differences})
