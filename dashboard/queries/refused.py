"""Charges that a budget refused. A refusal names the level that had no room, from the outermost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from agentstate.store.models import Budget, Refusal
from agentstate.store.rows import BudgetRow

SHOWN = 50
# Of one part of the time; the newest ones.
READ_MAX = 5_000
CODE = "budget-exhausted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCharge:
    """A charge or hold that was not admitted. amount None: it is not told.

    number: of the refusal. name: the charge's id, if it has one. used: what was spent and reserved
    then. is_charge: not a hold.
    """

    number: int
    at: datetime
    amount: int | None
    run: str | None
    who: str
    budget: str
    run_id: UUID | None = None
    name: str | None = None
    used: int | None = None
    is_charge: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Newest first. is_cut: there were more than are read."""

    charges: list[RefusedCharge]
    is_cut: bool = False


def read(budget: BudgetRow, *, since: datetime, until: datetime) -> Refused:
    """Charges that this level refused in this time.

    A run's own budget of a shared one's name is taken for its own.
    """
    found = Refusal.objects.select_related("run").filter(
        code=CODE, budget=budget.name, at__gte=since, at__lt=until
    )
    if budget.run_id is not None:
        found = found.filter(run=budget.run_id)
    else:
        own = Budget.objects.filter(name=budget.name, run__isnull=False).values("run")
        found = found.exclude(run__in=own)
    rows = list(found.order_by("-at", "-id")[: READ_MAX + 1])
    return Refused(charges=[_refused(row) for row in rows[:READ_MAX]], is_cut=len(rows) > READ_MAX)


def read_newest(*, since: datetime) -> list[RefusedCharge]:
    """The newest charges that any budget refused."""
    found = Refusal.objects.select_related("run").filter(code=CODE, at__gte=since)
    return [_refused(refusal) for refusal in found.order_by("-at", "-id")[:SHOWN]]


def _refused(refusal: Refusal) -> RefusedCharge:
    wanted: dict[str, Any] = refusal.wanted
    amount = _amount(wanted)
    return RefusedCharge(
        number=refusal.id,
        at=refusal.at,
        amount=amount,
        run=refusal.run.key if refusal.run else None,
        who=refusal.worker or refusal.actor,
        budget=refusal.budget or "",
        run_id=refusal.run_id,
        name=_name(wanted, amount),
        used=_used(refusal.found),
        is_charge=refusal.operation != "reserve",
    )


def _amount(wanted: dict[str, Any]) -> int | None:
    """What was asked of the level. One that an older release wrote says so of a single charge."""
    amounts = wanted.get("amount")
    each = list(amounts.values()) if isinstance(amounts, dict) else []
    asked = wanted.get("asked", each[0] if len(each) == 1 else None)
    return asked if isinstance(asked, int) else None


def _name(wanted: dict[str, Any], amount: int | None) -> str | None:
    """The id of the charge; of several in one append the one with this amount."""
    ids, amounts = wanted.get("ids"), wanted.get("amount")
    if not isinstance(ids, dict) or not isinstance(amounts, dict):
        name = wanted.get("id")
        return name if isinstance(name, str) else None
    names = [ids.get(budget) for budget, asked in amounts.items() if asked == amount]
    return names[0] if len(names) == 1 and isinstance(names[0], str) else None


def _used(found: dict[str, Any]) -> int | None:
    spent, reserved = found.get("spent"), found.get("reserved")
    return spent + reserved if isinstance(spent, int) and isinstance(reserved, int) else None
