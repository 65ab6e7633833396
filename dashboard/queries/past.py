"""A run and a unit as they were at a moment: told from log, ledger and terms, and from nothing that
changes. What was not kept is said, and never guessed.

What of a run is given to the pages are rows that were never stored: those of now, with everything
that can change put back to how it was. They are only to be read.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store import reads
from agentstate.store.models import Budget, Lease, OperatorAction, Run
from agentstate.store.payloads import moment
from agentstate.store.retention import find as find_age
from agentstate.store.rowsql import RENEWALS_KEPT
from agentstate.store.rules.runs import expiry
from agentstate.store.states import TERMINAL
from dashboard import moments
from dashboard.moments import AsOf, Beside, Moment, NotThen
from dashboard.queries import states
from dashboard.queries.clock import at_most
from dashboard.queries.leases import TERMS_SHOWN, UnitStory
from dashboard.queries.past_ledgers import BudgetThen, Ledger, figures_then
from dashboard.queries.states import State
from dashboard.queries.story import CHILDREN_SHOWN, Head
from dashboard.queries.terms import Term, as_they_were, newest_terms

SAYS_NOT_KEPT = "What its holder said of itself then is not kept."
REFUSALS_GONE = "Refusals are kept for {days} days: those of then may be gone."
RENEWALS_GONE = (
    f"Of each term the last {RENEWALS_KEPT} renewals are kept. When its holder had last renewed"
    " then, and until when, is not known any more."
)
ELSEWHERE = "Whoever held it then held it in the store that it was imported from, and nothing here."

AT = "SELECT at FROM agentstate_event WHERE run_id = %s AND seq = %s"


# --- the moment of a run -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a moment is in a run's log: after event `seq`, at `at`."""

    at: datetime
    seq: int


def place_in(run: Run, asked: Moment, *, now: datetime) -> Place:
    """Raises NotThen: to come, before the run, or no event of its."""
    if asked.at is None:
        return _at_event(run, asked.seq or 0)
    moments.check_has_come(asked.at, now)
    seq = reads.last_event(run.id, last_seq=run.last_seq, at=asked.at)
    if not seq:
        raise NotThen("There was no such run then", f"It was created at {moment(run.created_at)}.")
    return Place(at=asked.at, seq=seq)


def _at_event(run: Run, seq: int) -> Place:
    with connection.cursor() as cursor:
        cursor.execute(AT, [run.id, seq])
        found = cursor.fetchone() if seq <= run.last_seq else None
    if found is None:
        raise NotThen("It has no such event", f"Its events are numbered 1 to {run.last_seq}.")
    return Place(at=found[0], seq=seq)


def as_of_run(run: Run, asked: Moment, place: Place, *, page: str, notes: list[str]) -> AsOf:
    """The banner of a page that is about a run: steps lead from event to event."""
    exact = asked.at is None
    before = place.seq - 1 if exact else place.seq
    return AsOf(
        page=page,
        text=moments.of_event(place.seq) if exact else moments.of_time(place.at),
        at=place.at,
        seq=place.seq,
        last_seq=run.last_seq,
        exact=exact,
        before=_event(before) if before else None,
        after=_event(place.seq + 1) if place.seq < run.last_seq else None,
        notes=tuple(notes),
    )


def _event(seq: int) -> Beside:
    return Beside(label=f"event {seq}", text=moments.of_event(seq))


def refusals_gone(at: datetime, *, now: datetime) -> list[str]:
    """What is to be said of the refusals of then, if anything."""
    kept = find_age("refusals")
    gone = at < kept.whole_since(now)
    return [REFUSALS_GONE.format(days=kept.keep.days)] if gone else []


# --- a run ---------------------------------------------------------------------------------------


def read_run(head: Head, asked: Moment, *, page: str) -> Head:
    """The head as it was then. Raises NotThen, TooSlow, states.TooMany, states.Strange."""
    with at_most(states.STATE_MS):
        place = place_in(head.run, asked, now=head.now)
        state = read_state(head.run, place.seq)
        terms = newest_terms(f"run:{head.run.key}", limit=1, last_token=state.last_token or 0)
        lease, notes = lease_of_run(head.run, state, terms, head.lease, place.at)
        budgets = _budgets(head.budgets, place.at)
        children = _children(head.run, place.at)
    if head.telemetry is not None:
        notes.append(SAYS_NOT_KEPT)
    notes += refusals_gone(place.at, now=head.now)
    return replace(
        head,
        run=run_then(head.run, state, lease),
        lease=lease,
        budgets=budgets,
        now=place.at,
        telemetry=None,
        children=children[:CHILDREN_SHOWN],
        more_children=len(children) > CHILDREN_SHOWN,
        as_of=as_of_run(head.run, asked, place, page=page, notes=notes),
    )


def read_state(run: Run, seq: int) -> State:
    """Raises NotThen: no event of that number, and so none to be told of."""
    state = states.read_state(run, seq)
    if state is None:
        raise NotThen("It has no such event", f"Its events are numbered 1 to {run.last_seq}.")
    return state


def run_then(run: Run, state: State, lease: Lease | None) -> Run:
    """The row as it was. Its holder is the lease's, as it always is."""
    then = copy(run)
    then.status, then.version, then.last_seq = state.status, state.version, state.seq
    then.updated_at, then.ended_at = state.at, state.ended_at
    then.counters, then.tags, then.notes = state.counters, state.tags, state.notes
    then.attrs, then.result = state.attrs, state.result
    then.attempt, then.last_token = state.attempt, state.last_token
    then.owner = lease.owner if lease else None
    then.token = lease.token if lease else None
    then.hold, then.retain_seconds = state.hold, state.retain_seconds
    then.expires_at = expiry(state.ended_at, state.retain_seconds)
    then.brake_per_second, then.brake_until = state.brake, state.brake_until
    return then


def _budgets(budgets: list[Budget], at: datetime) -> list[Budget]:
    """Those that were open then, with what was spent and reserved of each."""
    ledgers = [
        Ledger(
            id=budget.id,
            entries=budget.entries,
            version=budget.version,
            cap=budget.cap,
            spent=budget.spent,
            reserved=budget.reserved,
        )
        for budget in budgets
    ]
    found = figures_then(ledgers, at)
    return [_budget(budget, found[budget.id]) for budget in budgets if budget.id in found]


def _budget(budget: Budget, figures: BudgetThen) -> Budget:
    then = copy(budget)
    then.cap, then.spent, then.reserved = figures.cap, figures.spent, figures.reserved
    then.version, then.entries = figures.version, figures.entries
    then.overdrawn = figures.overdrawn
    return then


def _children(run: Run, at: datetime) -> list[str]:
    parts = Run.objects.filter(parent=run, created_at__lte=at).order_by("created_at", "id")
    return list(parts.values_list("key", flat=True)[: CHILDREN_SHOWN + 1])


# --- a lease -------------------------------------------------------------------------------------


def lease_of_run(
    run: Run, state: State, terms: list[Term], lease: Lease | None, at: datetime
) -> tuple[Lease | None, list[str]]:
    """The lease on a run as it was, and what of it is not known any more.

    Who held it is what the log says; until when, its term. terms: those that had begun, the newest
    first. lease: as it is now.
    """
    if state.status in TERMINAL:  # it went with the run's end
        return None, []
    then = Lease(unit=f"run:{run.key}", run_id=run.id, signals=state.signals)
    if state.hold_off is not None:
        then.hold_off_owner, then.hold_off_until = state.hold_off
    term = terms[0] if terms else None
    if state.token is None:
        then.term_ended_at = term.ends_at if term else None
        return then, []
    if term is None or term.token != state.token:
        return then, [ELSEWHERE]
    return then, hold(then, term, lease, at, granted_seconds=state.granted_seconds)


def hold(
    then: Lease,
    term: Term,
    lease: Lease | None,
    at: datetime,
    *,
    granted_seconds: int | None = None,
) -> list[str]:
    """Make it the lease of this term, which had not ended then; what of it is not known.

    lease: as it is now. A renewal is known to the millisecond; the newest of a term that goes on,
    and the end of one that lapsed, exactly.
    """
    own = lease if lease is not None and lease.token == term.token else None
    done = [on for on in term.renewals_at if on <= at]
    all_done = len(done) == len(term.renewed_ms)
    is_whole = len(term.renewed_ms) == term.renewals
    then.owner, then.token = term.owner, term.token
    then.acquired_at, then.renewals = (
        term.starts_at,
        term.renewals - len(term.renewed_ms) + len(done),
    )
    ttl = term.ttl_seconds
    if not done and is_whole:
        ttl = granted_seconds or ttl
    if ttl is not None:
        then.ttl_seconds = ttl
    if own is not None and all_done and own.renewed_at is not None and own.renewed_at <= at:
        then.renewed_at, then.expires_at = own.renewed_at, own.expires_at
        return []
    if not done and not is_whole:
        return [RENEWALS_GONE]
    then.renewed_at = done[-1] if done else term.starts_at
    if term.ended == "lapsed" and all_done:
        then.expires_at = term.ends_at
    elif ttl is not None:
        then.expires_at = then.renewed_at + timedelta(seconds=ttl)
    return [] if then.expires_at is not None else [RENEWALS_GONE]


# --- a unit --------------------------------------------------------------------------------------

# When terms of a unit began and ended: the nearest before and after an instant. Of a term that
# lapsed the end is when its lease ran out.
STEPS = """
WITH edges AS (
    SELECT lower(held) AS at FROM agentstate_leaseterm WHERE unit = %(unit)s
    UNION
    SELECT upper(held) FROM agentstate_leaseterm WHERE unit = %(unit)s AND ended IS NOT NULL
    UNION
    SELECT at FROM agentstate_operatoraction WHERE object = %(unit)s
)
SELECT max(at) FILTER (WHERE at < %(at)s), min(at) FILTER (WHERE at > %(at)s AND at <= %(now)s)
FROM edges
"""


def read_unit(story: UnitStory, asked: Moment, *, page: str) -> UnitStory:
    """A unit as it was then. story: as it is now.

    Raises NotThen, TooSlow, states.TooMany, states.Strange.
    """
    with at_most(states.STATE_MS):
        if story.run is not None:
            return _unit_of_run(story, story.run, asked, page=page)
        return _other_unit(story, asked, page=page)


def _unit_of_run(story: UnitStory, run: Run, asked: Moment, *, page: str) -> UnitStory:
    place = place_in(run, asked, now=story.now)
    state = read_state(run, place.seq)
    terms = newest_terms(story.unit, limit=TERMS_SHOWN, last_token=state.last_token or 0)
    lease, notes = lease_of_run(run, state, terms, story.lease, place.at)
    notes += refusals_gone(place.at, now=story.now)
    return replace(
        story,
        lease=lease,
        run=run_then(run, state, lease),
        terms=as_they_were(terms, place.at, open_token=lease.token if lease else None),
        actions=actions_until(story.unit, place.at),
        now=place.at,
        as_of=as_of_run(run, asked, place, page=page, notes=notes),
    )


def _other_unit(story: UnitStory, asked: Moment, *, page: str) -> UnitStory:
    if asked.at is None:
        raise NotThen("This unit has no numbered events", "Only a run has. Ask for a time.", 400)
    at = asked.at
    moments.check_has_come(at, story.now)
    terms = newest_terms(story.unit, limit=TERMS_SHOWN, until=at)
    if not terms:
        kept = find_age("terms of units").keep.days
        raise NotThen(
            "Nobody had held it then",
            f"Terms of ownership are kept for {kept} days after their end.",
        )
    actions = actions_until(story.unit, at)
    term, notes = terms[0], []
    then = Lease(unit=story.unit, term_ended_at=term.ends_at)
    if _is_open(term, story, at):
        notes = hold(then, term, story.lease, at)
    elif term.ended == "reclaimed" and story.lease is not None:
        then.hold_off_owner = story.lease.hold_off_owner
        then.hold_off_until = story.lease.hold_off_until
    return replace(
        story,
        lease=then,
        terms=as_they_were(terms, at, open_token=then.token),
        actions=actions,
        now=at,
        as_of=_as_of_unit(story, at, page=page, notes=notes),
    )


def _is_open(term: Term, story: UnitStory, at: datetime) -> bool:
    """Whether the newest term had not ended then. One that lapsed ends when the next one begins,
    and one that was reclaimed, when that was done: its lease may have run out long before."""
    if term.ended is None or term.ended == "lapsed":
        return True
    reclaimed = (a.at for a in story.actions if a.before.get("token") == term.token)
    ended_at = next(reclaimed, None) if term.ended == "reclaimed" else None
    ended_at = ended_at or term.ends_at
    return ended_at is not None and at < ended_at


def _as_of_unit(story: UnitStory, at: datetime, *, page: str, notes: list[str]) -> AsOf:
    asked: dict[str, Any] = {"unit": story.unit, "at": at, "now": story.now}
    with connection.cursor() as cursor:
        cursor.execute(STEPS, asked)
        before, after = cursor.fetchone()
    return AsOf(
        page=page,
        text=moments.of_time(at),
        at=at,
        before=Beside(label="change before", text=moments.of_time(before)) if before else None,
        after=Beside(label="change after", text=moments.of_time(after)) if after else None,
        notes=tuple(notes),
    )


def actions_until(unit: str, at: datetime) -> list[OperatorAction]:
    found = OperatorAction.objects.filter(object=unit, at__lte=at)
    return list(found.order_by("-id")[:TERMS_SHOWN])
