"""Where alerts are told: targets, tests, and the log of deliveries."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool

from agentstate import store
from agentstate.api import fields
from agentstate.api.access import ADMIN, WorkerRequest
from agentstate.api.contract import ATTEMPT, IDEMPOTENCY_KEY, Sent, contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply, reply_result, told
from agentstate.api.schemas import Asked, NothingAsked, Told
from agentstate.outside.addresses import read_address
from agentstate.store import answers, deliveries, reads, targets
from agentstate.store.alerting import RULES
from agentstate.store.commands import (
    ChangeTarget,
    Command,
    DeleteTarget,
    ResendDelivery,
    TryTarget,
)
from agentstate.store.deliveries import read_id
from agentstate.store.errors import Exists, NotFound, VersionConflict
from agentstate.store.made import MADE_MAX

KEYED = (IDEMPOTENCY_KEY, ATTEMPT)
UNUSED = ("If-Match", "Agentstate-Fence")

router = Router(tags=["alert targets"])
log = Router(tags=["deliveries"])


RULES_MOST = len(RULES) + MADE_MAX


class TargetAsked(Asked):
    """least: the severity from which it is told. rules: of which; none: of all."""

    name: fields.BudgetName
    kind: fields.TargetKind
    address: fields.TargetAddress = Field(
        description="of a webhook, or as apprise has it; never shown again"
    )
    least: fields.Least = "warn"
    rules: list[fields.AlertRule] = Field(default=[], max_length=RULES_MOST)
    reason: fields.Note = ""


class TargetChangeAsked(Asked):
    """What is left out stays as it is."""

    version: fields.RunVersion = Field(description="of the target, as it was seen")
    enabled: StrictBool | None = None
    least: fields.Least | None = None
    rules: list[fields.AlertRule] | None = Field(default=None, max_length=RULES_MOST)
    reason: fields.Reason


class TargetDeleteAsked(Asked):
    version: fields.RunVersion = Field(description="of the target, as it was seen")
    reason: fields.Reason


class RotateAsked(Asked):
    version: fields.RunVersion = Field(description="of the target, as it was seen")
    reason: fields.Reason


class SecretRotatedTold(Told):
    """secret: the new one, shown here and never again, also not to the same request when it is
    repeated (then it is null). old_until: the one before signs as well until then.
    """

    name: str
    version: int
    secret: str | None
    old_until: fields.Moment
    at: fields.Moment


class TargetTold(Told):
    """A target. hint: what may be shown of its address. waiting: deliveries not settled; held: of
    those, how many wait for the end of quiet hours. person: whose quiet hours it has as well; ""
    for nobody's.
    """

    name: str
    kind: fields.TargetKind
    hint: str
    least: fields.Least
    rules: list[str]
    enabled: bool
    off_at: fields.Moment | None
    off_why: str | None
    failures: int
    failing_since: fields.Moment | None
    delivered_at: fields.Moment | None
    version: int
    created_by: str
    created_at: fields.Moment
    person: str
    waiting: int
    held: int


class TargetsTold(Told):
    items: list[TargetTold]
    as_of: fields.Moment


class TargetCreatedTold(Told):
    """secret: what a webhook's receiver verifies signatures with. It is shown here and never again,
    also not to the same request when it is repeated (then it is null, as it is for apprise).
    """

    name: str
    kind: fields.TargetKind
    hint: str
    version: int
    secret: str | None
    at: fields.Moment


class TargetChangedTold(Told):
    name: str
    enabled: bool
    least: fields.Least
    rules: list[str]
    version: int
    at: fields.Moment


class TargetDeletedTold(Told):
    name: str
    at: fields.Moment


class DeliveryQueuedTold(Told):
    """delivery: its id, which the receiver gets as `webhook-id`."""

    delivery: str
    target: str
    at: fields.Moment


class DeliveryTold(Told):
    """A line of the log. state: waiting, delivered, failed, dropped. status: of HTTP. held_until:
    the end of the quiet hours that it came in.
    """

    id: str
    target: str
    rule: str
    what: str
    state: str
    attempts: int
    attempts_max: int
    next_at: fields.Moment
    tried_at: fields.Moment | None
    took_ms: int | None
    status: int | None
    answer: str
    created_at: fields.Moment
    settled_at: fields.Moment | None
    held_until: fields.Moment | None
    trying: bool
    resendable: bool


class DeliveriesTold(Told):
    """The newest first. next: `before` of the page that follows; null: there is none."""

    items: list[DeliveryTold]
    next: str | None
    as_of: fields.Moment


class DeliveriesWanted(BaseModel):
    """Which page of the log; target: of this one alone."""

    target: fields.BudgetName | None = None
    before: fields.Id | None = None
    limit: fields.RowsLimit = 100


@router.get("", **contract("list_targets", answers=TargetsTold, access=ADMIN))
def list_targets(request: WorkerRequest) -> HttpResponse:
    """Where alerts are told, by name; addresses and secrets are not shown."""
    items = [answers.members(target) for target in targets.read()]
    return reply({"items": items, "as_of": reads.now()})


@router.post(
    "",
    **contract(
        "create_target",
        answers=TargetCreatedTold,
        status=HTTPStatus.CREATED,
        access=ADMIN,
        refuses=(Exists,),
        takes_body=True,
        headers=KEYED,
    ),
)
def create_target(request: WorkerRequest, ask: Sent[TargetAsked]) -> HttpResponse:
    """Tell alerts somewhere: a webhook that we sign, or a service that apprise knows.

    422 when the address cannot be one. Send a test to see whether it can be reached.
    """
    check_unused(request, *UNUSED)
    address = read_address(ask.kind, ask.address)
    made = targets.create_target(
        name=ask.name,
        kind=ask.kind,
        address=address.text,
        hint=address.hint,
        least=ask.least,
        rules=ask.rules,
        reason=ask.reason,
        by=request.caller,
        under=circumstances(request),
    )
    return reply(
        told(made.created) | {"secret": made.secret},
        status=HTTPStatus.CREATED,
        replayed=made.created.replayed,
    )


def _ask(request: WorkerRequest, command: Command[Any]) -> HttpResponse:
    check_unused(request, *UNUSED)
    return reply_result(store.execute(command, by=request.caller, under=circumstances(request)))


@router.patch(
    "/{name}",
    **contract(
        "change_target",
        answers=TargetChangedTold,
        access=ADMIN,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=KEYED,
    ),
)
def change_target(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[TargetChangeAsked]
) -> HttpResponse:
    """Switch it on or off, or change what it is told. What waits for one that is off is dropped.

    412 version-conflict when somebody else changed it, or it was switched off by itself.
    """
    command = ChangeTarget(
        name=name,
        version=ask.version,
        enabled=ask.enabled,
        least=ask.least,
        rules=None if ask.rules is None else tuple(sorted(set(ask.rules))),
        reason=ask.reason,
    )
    return _ask(request, command)


@router.post(
    "/{name}/rotate",
    **contract(
        "rotate_target_secret",
        answers=SecretRotatedTold,
        access=ADMIN,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=KEYED,
    ),
)
def rotate_target_secret(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[RotateAsked]
) -> HttpResponse:
    """Give a webhook another secret. For a day messages have two signatures, of both."""
    check_unused(request, *UNUSED)
    done = targets.rotate_secret(
        name=name,
        version=ask.version,
        reason=ask.reason,
        by=request.caller,
        under=circumstances(request),
    )
    return reply(told(done.rotated) | {"secret": done.secret}, replayed=done.rotated.replayed)


@router.post(
    "/{name}/delete",
    **contract(
        "delete_target",
        answers=TargetDeletedTold,
        access=ADMIN,
        refuses=(NotFound, VersionConflict),
        takes_body=True,
        headers=KEYED,
    ),
)
def delete_target(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[TargetDeleteAsked]
) -> HttpResponse:
    """Delete it with its address and secret; its log stays."""
    return _ask(request, DeleteTarget(name=name, version=ask.version, reason=ask.reason))


@router.post(
    "/{name}/test",
    **contract(
        "try_target",
        answers=DeliveryQueuedTold,
        access=ADMIN,
        refuses=(NotFound,),
        takes_body=True,
        headers=KEYED,
    ),
)
def try_target(
    request: WorkerRequest, name: fields.BudgetName, ask: Sent[NothingAsked]
) -> HttpResponse:
    """Send it a test, tried once, also when it is off; send `{}`. The log has what was answered."""
    return _ask(request, TryTarget(name=name))


@log.get("", **contract("list_deliveries", answers=DeliveriesTold, access=ADMIN))
def list_deliveries(request: WorkerRequest, wanted: Query[DeliveriesWanted]) -> HttpResponse:
    """What was told and how it ended, the newest first; kept for 30 days, or as an admin says."""
    found = deliveries.read(target=wanted.target, before=wanted.before, limit=wanted.limit + 1)
    items, more = found[: wanted.limit], len(found) > wanted.limit
    return reply(
        {
            "items": [answers.members(line) for line in items],
            "next": items[-1].id if more else None,
            "as_of": reads.now(),
        }
    )


@log.post(
    "/{id}/resend",
    **contract(
        "resend_delivery",
        answers=DeliveryQueuedTold,
        access=ADMIN,
        refuses=(NotFound,),
        takes_body=True,
        headers=KEYED,
    ),
)
def resend_delivery(request: WorkerRequest, id: fields.Id, ask: Sent[NothingAsked]) -> HttpResponse:
    """Send a message again, with the same id, however it ended; send `{}`."""
    delivery = read_id(id)
    if delivery is None:
        raise NotFound("no such delivery")
    return _ask(request, ResendDelivery(delivery=delivery))
