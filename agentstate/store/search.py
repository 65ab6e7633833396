"""What a filter of runs means in the database.

Most conditions have an index (docs/console.md). Those that have none are dear: for them a search
looks at so many runs in the order of the list and goes on from there later (`edge`). So a step
costs the same however many runs there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import reduce
from operator import or_
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, F, Func, OuterRef, Q, QuerySet, TextField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact

from agentstate.store import filters
from agentstate.store.errors import CONFLICTS
from agentstate.store.filters import Clause, Filter
from agentstate.store.models import Budget, Lease, Refusal, Run
from agentstate.store.states import Status

SEARCHED_RUNS = 8_000
# Runs of one status lie apart: each is a page of the table by itself, and so is what is looked up
# of it. 5,000 failed ones with their budgets took 42 ms of a million runs, 1.4 s from the disk.
SEARCHED_APART = 2_000
HOLDERS_MAX = 500
TAGGED_MAX = 2_000
# Shorter words have no three letters to look up: they are looked for where a word begins.
WORD_CHARS = 3
NO_INDEX = frozenset({"budget", "conflicts"})


def matching(wanted: Filter, *, now: datetime) -> QuerySet[Run]:
    """The runs that a filter without problems lets through."""
    found = Run.objects.filter(kept(now))
    for clause in wanted.clauses:
        found = found.filter(_clause_condition(clause, now))
    return found


def kept(now: datetime | Combinable) -> Q:
    """Runs whose retention is not over, or that are held: all others are hidden at once. now: an
    instant, or the expression that the database's clock is."""
    return Q(expires_at__isnull=True) | Q(expires_at__gt=now) | Q(hold=True)


def of_keys(keys: Iterable[str], *, now: datetime | Combinable) -> QuerySet[Run]:
    """These runs, as far as they are not hidden."""
    return Run.objects.filter(kept(now), key__in=list(keys))


def side(at: datetime, tie: UUID, *, newer: bool, inclusive: bool = False) -> Q:
    """Runs on one side of the one that was created `at` and has the id `tie`."""
    same = {"id__gt" if newer else "id__lt": tie}
    if inclusive:
        same = {"id__gte" if newer else "id__lte": tie}
    # The first condition alone can use the index; the rest only decides among equals.
    if newer:
        return Q(created_at__gte=at) & (Q(created_at__gt=at) | Q(created_at=at, **same))
    return Q(created_at__lte=at) & (Q(created_at__lt=at) | Q(created_at=at, **same))


def is_dear(wanted: Filter) -> bool:
    """Whether a condition has to be tried on one run after the other."""
    return any(
        clause.field in NO_INDEX
        or clause.attr
        or (clause.negated and clause.field not in ("status", "since"))
        or (clause.field == "overdue" and "no" in clause.values)
        for clause in wanted.clauses
    )


def edge(
    wanted: Filter, *, now: datetime, start: Q, newer: bool = False, runs: int = 0
) -> Run | None:
    """The run at which a dear search from `start` on stops for now; None: it can go to the end.

    Status and time bound the list itself, by an index; only what is left counts as looked at.
    """
    if not is_dear(wanted):
        return None
    cheap = Filter(tuple(c for c in wanted.clauses if c.field in ("status", "since")))
    listed = Run.objects.filter(start)
    for clause in cheap.clauses:
        listed = listed.filter(_clause_condition(clause, now))
    order = ("created_at", "id") if newer else ("-created_at", "-id")
    is_apart = any(clause.field == "status" for clause in cheap.clauses)
    step = runs or (min(SEARCHED_APART, SEARCHED_RUNS) if is_apart else SEARCHED_RUNS)
    return listed.only("id", "created_at").order_by(*order)[step - 1 : step].first()


# --- conditions ----------------------------------------------------------------------------------


def _clause_condition(clause: Clause, now: datetime) -> Q:
    if clause.field == "status":
        return _statuses(clause)
    condition = reduce(or_, (_condition(clause, value, now) for value in clause.values))
    return ~condition if clause.negated else condition


def _statuses(clause: Clause) -> Q:
    """Always which ones they are: what they are not could use no index."""
    named = {s for value in clause.values for s in filters.GROUPS.get(value, (value,))}
    return Q(status__in=[str(s) for s in Status if (str(s) in named) is not clause.negated])


def _condition(clause: Clause, value: str, now: datetime) -> Q:
    if clause.attr:
        return _has_attr(clause.attr, value)
    match clause.field:
        case "task":
            return _task_has(value)
        case "key":
            return Q(key__startswith=value) & Q(key__istartswith=value)
        case "worker":
            return _held_by(value)
        case "tag":
            return _tagged(value)
        case "lease":
            return _lease_condition(value, now)
        case "overdue":
            overdue = Q(deadline_at__lte=now, ended_at__isnull=True)
            return overdue if value == "yes" else ~overdue
        case "parent":
            return Q(parent__in=list(Run.objects.filter(key=value).values_list("pk", flat=True)))
        case "since":
            return Q(created_at__gte=filters.moment_of(value, now))
        case "budget":
            return _budget_above(filters.budget_percent(value))
        case "conflicts":
            return _conflicts_above(filters.conflicts(value))
        case _:
            return Q(key__istartswith=value) | _task_has(value) | _held_by(value)


def _task_has(value: str) -> Q:
    if len(value) >= WORD_CHARS:
        return Q(task__icontains=value)
    return Q(task__istartswith=value) | Q(task__icontains=f" {value}")


def _held_by(value: str) -> Q:
    """Runs by their holder, who stands in the lease: there are few, beside all runs that ever were.

    So many that they are many: then the list finds some of them soon by itself.
    """
    holders = Lease.objects.filter(owner__startswith=value, run__isnull=False)
    found = list(holders.values_list("run_id", flat=True)[: HOLDERS_MAX + 1])
    if len(found) > HOLDERS_MAX:
        return Q(owner__startswith=value, status__in=filters.LIVE)
    return Q(pk__in=found)


# What is not among the frequent tags is guessed to be at one run in 200, so that the planner would
# walk the whole list for a tag that few or none have.
IS_FREQUENT = """
SELECT EXISTS (SELECT FROM pg_stats WHERE schemaname = current_schema()
    AND tablename = 'agentstate_run' AND attname = 'tags'
    AND %s = ANY(most_common_elems::text::text[]))
"""
BY_INDEX = "SET LOCAL enable_seqscan TO off; SET LOCAL enable_indexscan TO off"
AS_USUAL = "SET LOCAL enable_seqscan TO DEFAULT; SET LOCAL enable_indexscan TO DEFAULT"


def _tagged(value: str) -> Q:
    """Runs with a tag: a few of them by name, and of many the list finds some soon by itself."""
    tagged = Q(tags__contains=[value])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(IS_FREQUENT, [value])
        if cursor.fetchone() == (True,):
            return tagged
        cursor.execute(BY_INDEX)
        named = Run.objects.filter(tagged).order_by().values_list("pk", flat=True)
        found = list(named[: TAGGED_MAX + 1])
        cursor.execute(AS_USUAL)
    return tagged if len(found) > TAGGED_MAX else Q(pk__in=found)


class _Member(Func):
    """A member of a JSON text by its name, as text: numbers with every digit as they were sent."""

    template = "(%(expressions)s)"
    arg_joiner = " ->> "
    output_field = TextField()


def _has_attr(name: str, value: str) -> Q:
    """A run without the member is one where it is empty."""
    member = Coalesce(_Member(F("attrs"), Value(name)), Value(""), output_field=TextField())
    return Q(Exact(member, Value(value)))


def _budget_above(percent: int) -> Q:
    used = (F("spent") + F("reserved")) * 100
    share = F("cap") * percent
    budgets = Budget.objects.alias(used=used, share=share)
    return Q(Exists(budgets.filter(run=OuterRef("pk"), used__gt=F("share"))))


def _conflicts_above(number: int) -> Q:
    """There is one after the n-th: so many are looked at and no more."""
    conflicts = Refusal.objects.filter(run=OuterRef("pk"), code__in=sorted(CONFLICTS))
    return Q(Exists(conflicts.order_by()[number : number + 1]))


def _lease_condition(state: str, now: datetime) -> Q:
    leases = Lease.objects.filter(run=OuterRef("pk"), token__isnull=False)
    if state == "live":
        return Q(Exists(leases.filter(expires_at__gt=now)))
    if state == "lapsed":
        return Q(Exists(leases.filter(expires_at__lte=now)))
    return Q(status__in=filters.LIVE) & ~Q(Exists(leases))
