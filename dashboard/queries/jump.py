"""Where a pasted text may lead: runs, units, workers, requests and keys of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from agentstate.store import filters
from agentstate.store.filters import Clause, Filter
from agentstate.store.models import Lease, Run, Worker
from agentstate.store.search import kept, matching
from dashboard.queries import receipts
from dashboard.queries.clock import database_now
from dashboard.queries.panels import read_panel

SHOWN = 8
JUMP_MS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Something that the text names (exact), or may mean. says: what it is, beside its name."""

    kind: str
    name: str
    says: str
    address: str
    exact: bool = False


def places(text: str) -> list[Place]:
    """Where a text may lead, what it names itself first. A part that is slow is left out."""
    found = list(_of_all(_EXACT, text))
    named = {place.name for place in found}
    return found + [place for place in _of_all(_LIKE, text) if place.name not in named]


def _of_all(readers: Iterable[Callable[[str], Iterator[Place]]], text: str) -> Iterator[Place]:
    for reader in readers:
        yield from read_panel(partial(_all_of, reader, text), milliseconds=JUMP_MS).found or ()


def _all_of(reader: Callable[[str], Iterator[Place]], text: str) -> list[Place]:
    return list(reader(text))


def _run(text: str) -> Iterator[Place]:
    keys = {text, text.removeprefix("run:")}
    for run in Run.objects.filter(kept(database_now()), key__in=keys):
        yield _place_of(run, exact=True)


def _place_of(run: Run, *, exact: bool) -> Place:
    says = f"{run.status} · {run.task}"
    address = reverse("run", args=[run.key])
    return Place(kind="Run", name=run.key, says=says, address=address, exact=exact)


def _unit(text: str) -> Iterator[Place]:
    for lease in Lease.objects.filter(unit=text, run__isnull=True):
        says = f"held by {lease.owner}" if lease.owner else "held by nobody"
        address = reverse("lease", args=[lease.unit])
        yield Place(kind="Unit", name=lease.unit, says=says, address=address, exact=True)


def _worker(text: str) -> Iterator[Place]:
    held = Lease.objects.filter(owner=text).count()
    if held or Worker.objects.filter(name=text).exists():
        yield _worker_place(text, held=held, exact=True)


def _worker_place(name: str, *, held: int, exact: bool) -> Place:
    says = f"holds {held} unit{'' if held == 1 else 's'}"
    address = _list(Filter((Clause("worker", (name,)),)))
    return Place(kind="Worker", name=name, says=says, address=address, exact=exact)


def _list(wanted: Filter) -> str:
    return f"{reverse('runs')}?{urlencode({'q': wanted.text})}"


def _request(text: str) -> Iterator[Place]:
    if receipts.by_request(text):
        yield _receipt("Request", text, {"request_id": text})


def _request_key(text: str) -> Iterator[Place]:
    if receipts.by_key(text):
        yield _receipt("Idempotency key", text, {"key": text})


def _receipt(kind: str, text: str, parameters: dict[str, Any]) -> Place:
    address = f"{reverse('receipts')}?{urlencode(parameters)}"
    return Place(kind=kind, name=text, says="what became of it", address=address, exact=True)


def _runs_like(text: str) -> Iterator[Place]:
    word = Filter((Clause("", (text,)),))
    found = matching(word, now=database_now()).only("key", "status", "task")
    for run in found.order_by("-created_at", "-id")[:SHOWN]:
        yield _place_of(run, exact=False)


def _workers_like(text: str) -> Iterator[Place]:
    owners = Lease.objects.filter(owner__startswith=text).values_list("owner", flat=True)
    held = [str(owner) for owner in owners[:500]]
    names = Worker.objects.filter(name__startswith=text).order_by("name")
    known = [*dict.fromkeys([*names.values_list("name", flat=True)[:SHOWN], *sorted(held)])]
    for name in known[:SHOWN]:
        yield _worker_place(name, held=held.count(name), exact=False)


def _units_like(text: str) -> Iterator[Place]:
    units = Lease.objects.filter(unit__startswith=text, run__isnull=True).order_by("unit")
    for lease in units[:SHOWN]:
        address = reverse("lease", args=[lease.unit])
        says = f"held by {lease.owner}" if lease.owner else "held by nobody"
        yield Place(kind="Unit", name=lease.unit, says=says, address=address)


def is_filter(text: str) -> bool:
    """Whether it says by a field what it looks for, as in the filter of runs."""
    return any(clause.field and not clause.problem for clause in filters.parse(text).clauses)


_EXACT = (_run, _unit, _worker, _request, _request_key)
_LIKE = (_workers_like, _units_like, _runs_like)
