"""A run with everything on it, the commands that can touch it, and what one can see of the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any

from agentstate import store
from agentstate.store.callers import Caller
from agentstate.store.commands import (
    AcquireLease,
    Append,
    Batch,
    ChangeCap,
    Charge,
    Check,
    CommitReservation,
    CreateBudget,
    CreateRun,
    NewBudget,
    Patch,
    PutTelemetry,
    ReclaimLease,
    ReleaseLease,
    ReleaseReservation,
    RenewLease,
    Reserve,
    SignalRun,
    Spend,
    Transition,
)
from agentstate.store.errors import Refusal
from agentstate.store.payloads import dump
from agentstate.store.rows import unit_of
from tests.store.asking import ANA, FLEET, SENIOR, Asking, event, rows


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A running, leased run with a budget below a shared one, a hold, and a known event id."""

    key: str
    token: int
    version: int
    last_seq: int

    @property
    def fleet(self) -> str:
        return f"fleet-{self.key}"


def set_up(key: str) -> Scene:
    asking = Asking()
    asking.ask(CreateBudget(run=None, budget=NewBudget(name=f"fleet-{key}", cap=130)))
    asking.create(key, budgets=(NewBudget(name="budget", cap=100, parent=f"fleet-{key}"),))
    token = asking.hold(key).token
    asking.append(key, [event(id="known")], fence=token)
    asking.spend(key, 40, fence=token)
    asking.ask(Reserve(run=key, budget="budget", amount=30, id="h-1", fence=token))
    run = asking.run(key)
    return Scene(key=key, token=token, version=run.version, last_seq=run.last_seq)


type Making = Callable[[Scene], tuple[Any, Caller]]


def _held(make: Callable[[Scene], Any]) -> Making:
    return lambda scene: (make(scene), FLEET)


def _append(s: Scene, **more: Any) -> Append:
    return Append(
        run=s.key, events=(event("step", id=more.pop("id", None)),), fence=s.token, **more
    )


def _batch(s: Scene) -> Batch:
    return Batch(
        operations=(
            Check(run=s.key, expect={"status": "running"}, fence=s.token),
            _append(s),
            Spend(run=s.key, charge=Charge(budget="budget", amount=10), fence=s.token),
        )
    )


def _charge(s: Scene, amount: int, id: str | None = None) -> Spend:
    return Spend(run=s.key, charge=Charge(budget="budget", amount=amount, id=id), fence=s.token)


COMMANDS: dict[str, Making] = {
    "append": _held(lambda s: _append(s)),
    "append at the seen number": _held(lambda s: _append(s, expected_seq=s.last_seq)),
    "append under an id": _held(lambda s: _append(s, id="e-1")),
    "append a known id": _held(lambda s: _append(s, id="known")),
    "append with a charge": _held(
        lambda s: _append(s, spend=(Charge(budget="budget", amount=25),), add={"steps_done": 1})
    ),
    "append and complete": _held(lambda s: _append(s, to="completed")),
    "patch a counter": _held(lambda s: Patch(run=s.key, add={"steps_done": 1}, fence=s.token)),
    "patch at the seen version": _held(
        lambda s: Patch(run=s.key, notes="mine", if_match=s.version, fence=s.token)
    ),
    "patch under a change id": _held(
        lambda s: Patch(run=s.key, add={"n": 1}, id="c-1", fence=s.token)
    ),
    "patch a guarded field": _held(
        lambda s: Patch(
            run=s.key,
            attrs={"x": dump(1)},
            expect={"attrs.x": {"exists": False}, "status": "running"},
            fence=s.token,
        )
    ),
    "tag by an operator": lambda s: (Patch(run=s.key, tags_add=("seen",)), ANA),
    "complete": _held(lambda s: Transition(run=s.key, to="completed", fence=s.token)),
    "fail": _held(lambda s: Transition(run=s.key, to="failed", fence=s.token)),
    "give back to pending": _held(lambda s: Transition(run=s.key, to="pending", fence=s.token)),
    "cancel by an operator": lambda s: (Transition(run=s.key, to="cancelled"), ANA),
    "acquire by another": _held(lambda s: AcquireLease(unit=unit_of(s.key), owner="w-2")),
    "renew": _held(lambda s: RenewLease(unit=unit_of(s.key), token=s.token, ttl_seconds=90)),
    "release": _held(lambda s: ReleaseLease(unit=unit_of(s.key), token=s.token)),
    "reclaim": lambda s: (
        ReclaimLease(
            unit=unit_of(s.key),
            expected_token=s.token,
            expected_owner="w-1",
            reason="frozen",
            force=True,
        ),
        SENIOR,
    ),
    "signal": lambda s: (SignalRun(run=s.key, signal="cancel", reason="enough"), ANA),
    "telemetry": _held(lambda s: PutTelemetry(run=s.key, host="h", fence=s.token)),
    "spend": _held(lambda s: _charge(s, 10)),
    "spend what is left": _held(lambda s: _charge(s, 30)),
    "spend under an id": _held(lambda s: _charge(s, 10, "s-1")),
    "reserve": _held(
        lambda s: Reserve(run=s.key, budget="budget", amount=20, id="h-2", fence=s.token)
    ),
    "commit": _held(
        lambda s: CommitReservation(run=s.key, budget="budget", id="h-1", amount=30, fence=s.token)
    ),
    "commit more than was held": _held(
        lambda s: CommitReservation(run=s.key, budget="budget", id="h-1", amount=75, fence=s.token)
    ),
    "release a hold": _held(
        lambda s: ReleaseReservation(run=s.key, budget="budget", id="h-1", fence=s.token)
    ),
    "spend the shared one": _held(
        lambda s: Spend(run=None, charge=Charge(budget=s.fleet, amount=40))
    ),
    "change the cap": lambda s: (
        ChangeCap(run=s.key, budget="budget", cap=80, reason="enough"),
        SENIOR,
    ),
    "change the shared cap": lambda s: (
        ChangeCap(run=None, budget=s.fleet, cap=90, reason="enough"),
        SENIOR,
    ),
    "open a budget": _held(
        lambda s: CreateBudget(run=s.key, budget=NewBudget(name="calls", cap=5), fence=s.token)
    ),
    "make a child": _held(
        lambda s: CreateRun(key=f"{s.key}.child", task="child", parent=s.key, fence=s.token)
    ),
    "batch": _held(_batch),
}


def ask(name: str, scene: Scene) -> store.Ask:
    command, by = COMMANDS[name](scene)
    return store.Ask(command=command, by=by)


# --- what can be seen ----------------------------------------------------------------------------

# Differ between a scene and its twin, and mean nothing by themselves.
_UNLIKE = frozenset({"token", "former_token", "last_token", "token_current", "id", "detail"})


def seen(outcome: Any, scene: Scene) -> Any:
    """An outcome without what differs between two scenes: the key and the tokens."""
    if isinstance(outcome, Refusal):
        told = {"code": outcome.code, "current": outcome.current, "facts": outcome.facts}
        return _plain(told, scene)
    if not is_dataclass(outcome):
        raise AssertionError(f"neither a result nor a refusal: {outcome!r}")
    return type(outcome).__name__, _plain(outcome, scene)


def _plain(value: Any, scene: Scene) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v, scene) for k, v in value.items() if k not in _UNLIKE}
    if isinstance(value, (list, tuple)):
        return [_plain(one, scene) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value.replace(scene.key, "KEY") if isinstance(value, str) else value


_STATE = {
    "run": "SELECT status, version, last_seq, counters::text, tags, notes, attrs::text, owner,"
    " attempt, token IS NULL FROM agentstate_run WHERE key = %(key)s",
    "events": "SELECT e.seq, e.version, e.type, e.origin, e.event_id FROM agentstate_event e"
    " JOIN agentstate_run r ON r.id = e.run_id WHERE r.key = %(key)s ORDER BY e.seq",
    "lease": "SELECT owner, expires_at, renewals, signals::text FROM agentstate_lease"
    " WHERE unit = 'run:' || %(key)s",
    "terms": "SELECT owner, held::text, renewals, ended FROM agentstate_leaseterm"
    " WHERE unit = 'run:' || %(key)s ORDER BY token",
    "budgets": "SELECT replace(b.name, %(key)s, 'KEY'), b.cap, b.reserved, b.spent, b.overdrawn,"
    " b.version, b.entries FROM agentstate_budget b LEFT JOIN agentstate_run r ON r.id = b.run_id"
    " WHERE r.key = %(key)s OR b.name = 'fleet-' || %(key)s ORDER BY 1",
    "ledger": "SELECT replace(b.name, %(key)s, 'KEY'), e.n, e.kind, e.amount, e.spent, e.reserved"
    " FROM agentstate_budgetentry e JOIN agentstate_budget b ON b.id = e.budget_id"
    " LEFT JOIN agentstate_run r ON r.id = b.run_id"
    " WHERE r.key = %(key)s OR b.name = 'fleet-' || %(key)s ORDER BY 1, 2",
    "holds": "SELECT h.reservation_id, h.state, h.amount, h.actual"
    " FROM agentstate_reservation h JOIN agentstate_run r ON r.id = h.run_id"
    " WHERE r.key = %(key)s ORDER BY 1",
    "telemetry": "SELECT t.host FROM agentstate_telemetry t"
    " JOIN agentstate_run r ON r.id = t.run_id WHERE r.key = %(key)s",
    "children": "SELECT c.status FROM agentstate_run c"
    " JOIN agentstate_run r ON r.id = c.parent_id WHERE r.key = %(key)s",
    "actions": "SELECT a.action FROM agentstate_operatoraction a"
    " JOIN agentstate_run r ON r.id = a.run_id WHERE r.key = %(key)s ORDER BY a.id",
}


def state(scene: Scene) -> dict[str, Any]:
    """Everything that is stored of the scene."""
    from django.db import connection

    found: dict[str, Any] = {}
    with connection.cursor() as cursor:
        for name, statement in _STATE.items():
            cursor.execute(statement, {"key": scene.key})
            found[name] = cursor.fetchall()
    return found


def refusals(scene: Scene) -> list[tuple[Any, ...]]:
    return rows(
        "SELECT f.operation, f.code FROM agentstate_refusal f JOIN agentstate_run r"
        " ON r.id = f.run_id WHERE r.key = %s ORDER BY f.id",
        scene.key,
    )
