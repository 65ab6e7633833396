"""A run's timeline: which part of it is drawn, what goes on it, and where its links lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from agentstate.store.alerting import LATE_PART
from agentstate.store.models import OperatorAction, Refusal, Run, SeenVersion
from agentstate.store.states import TERMINAL
from dashboard import closeups, timeline
from dashboard.closeups import Closeup, Ways
from dashboard.queries import happened
from dashboard.queries import marks as marks_of
from dashboard.queries import story as queries
from dashboard.queries.marks import Mark
from dashboard.queries.story import Head
from dashboard.queries.terms import Term
from dashboard.templatetags.console import stamp

UNENDED = "unknown"
# A charge that was refused is drawn otherwise than a write that was.
BUDGET_CODES = frozenset({"budget-exhausted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a timeline is drawn from beside the head. None of the last four: read when it is known
    which part is drawn."""

    actions: list[OperatorAction]
    terms: list[Term]
    parts: list[Run]
    marks: list[Mark] | None = None
    refusals: list[Refusal] | None = None
    deploys: list[SeenVersion] | None = None


def read(head: Head) -> Read:
    actions = queries.read_actions(head.run.id, until=head.until)
    return Read(actions=actions, terms=queries.read_terms(head), parts=read_parts(head))


def read_of(head: Head, found: Mapping[str, Any]) -> Read:
    """The same of what `drawn_reads` and the marks' `tail_reads` found."""
    return Read(
        actions=found["actions"],
        terms=found["terms"][::-1],
        parts=found["parts"],
        marks=marks_of.with_tail(head.run, found["marks"]),
        refusals=found["refusals"],
        deploys=found["deploys"],
    )


def draw(head: Head, query: Mapping[str, str], found: Read | None = None) -> dict[str, Any]:
    """The drawing, the closeup that it is of, and the ways to others.

    query: of the address; what of it is no part of the closeup is kept in every link.
    """
    run = head.run
    found = found or read(head)
    actions, terms = found.actions, found.terms
    closeup = closeups.read_closeup(
        dict(query), first=run.created_at, last=last_moment(head, actions)
    )
    ways = Ways(closeup, dict(query))
    reclaimed = {action.before.get("token"): action.at for action in actions}
    drawing = timeline.draw(
        start=run.created_at,
        now=head.now,
        ended_at=run.ended_at if run.status in TERMINAL else None,
        spans=[span_of(term, head, reclaimed.get(term.token)) for term in terms],
        dots=[
            *(event_dot(mark) for mark in read_marks(head, closeup, found)),
            *(refusal_dot(one) for one in read_refusals(head, closeup, found)),
            *(action_dot(action) for action in actions),
            *read_deploys(closeup, found),
        ],
        parts=[part_of(one, head.now) for one in found.parts],
        parent=part_of(run.parent, head.now) if run.parent else None,
        window=closeup.window,
        fold=not closeup.gaps,
    )
    return {"drawing": drawing, "closeup": closeup, "ways": ways} | show_ways(head, ways, terms)


def last_moment(head: Head, actions: list[OperatorAction]) -> datetime:
    """Now, or the end of a run that ended: and what was refused or done to it later still."""
    run = head.run
    if run.status not in TERMINAL:
        return head.now
    refused = queries.read_refusals(run.id, limit=1, until=head.until)
    late = [refusal.at for refusal in refused]
    return max([run.updated_at, *late, *(action.at for action in actions[:1])])


def read_marks(head: Head, closeup: Closeup, found: Read) -> list[Mark]:
    past = head.as_of is not None
    if closeup.window is None and found.marks is not None:
        return found.marks
    if closeup.window is None:
        marks = marks_of.read_marks(head.run, past=past)
        if not past:
            marks_of.know(head.run.id, head.run.last_seq, marks)
        return marks
    return marks_of.read_marks_between(head.run, *closeup.window, past=past)


def read_refusals(head: Head, closeup: Closeup, found: Read) -> list[Refusal]:
    run = head.run
    if closeup.window is None:
        newest = found.refusals
        if newest is None:
            limit = queries.REFUSALS_DRAWN
            newest = queries.read_refusals(run.id, limit=limit, until=head.until)
        return [one for one in newest if one.at >= run.created_at]
    return queries.read_refusals_between(run.id, *closeup.window)


def read_parts(head: Head) -> list[Run]:
    return queries.read_parts(head.run.id, until=head.until) if head.children else []


def show_ways(head: Head, ways: Ways, terms: list[Term]) -> dict[str, Any]:
    """The links above the drawing; of a closeup all of the run in small as well."""
    closeup = ways.closeup
    spans = [(term.starts_at, term.ends_at) for term in terms]
    shown: dict[str, Any] = {
        "closer": ways.closer(),
        "unfolded": ways.unfolded(),
        "term_before": ways.term_beside(spans, step=-1),
        "term_after": ways.term_beside(spans, step=1),
        "overview": None,
    }
    if not closeup.whole:
        marks = marks_of.read_marks(head.run, past=head.as_of is not None)
        moments = [(mark.at, mark.count) for mark in marks]
        shown |= {
            "farther": ways.farther(),
            "earlier": ways.earlier(),
            "later": ways.later(),
            "all_of_it": ways.all(),
            "overview": closeups.overview(ways, moments),
        }
    return shown


def event_dot(mark: Mark) -> timeline.Dot:
    alone = f"{mark.first_seq} {mark.type} at {stamp(mark.at)}"
    many = f"{mark.count} events from number {mark.first_seq} on"
    return timeline.Dot(
        at=mark.at,
        token=mark.token,
        kind="store" if mark.origin == "store" else "worker",
        title=alone if mark.count == 1 else many,
        seq=mark.first_seq,
        count=mark.count,
    )


def refusal_dot(refusal: Refusal) -> timeline.Dot:
    who = refusal.worker or refusal.actor
    title = f"{refusal.code}: {who} {refusal.operation} at {stamp(refusal.at)}"
    kind = "budget" if refusal.code in BUDGET_CODES else "refused"
    return timeline.Dot(at=refusal.at, token=refusal.token_sent, kind=kind, title=title)


def action_dot(action: OperatorAction) -> timeline.Dot:
    reason = f" “{action.reason}”" if action.reason else ""
    title = f"{action.actor.removeprefix('person:')}: {action.action}{reason}"
    return timeline.Dot(at=action.at, token=None, kind="action", title=title)


def read_deploys(closeup: Closeup, found: Read) -> list[timeline.Dot]:
    """Versions that were new while it is drawn. Of long ago they are no longer known."""
    span = {"since": closeup.start, "until": closeup.end}
    marks = (
        happened.read_deploys(**span)
        if found.deploys is None
        else happened.deploys_of(found.deploys, **span)
    )
    return [
        timeline.Dot(at=mark.at, token=None, kind="deploy", title=f"{mark.title}, first seen")
        for mark in marks
    ]


def part_of(run: Run, now: datetime) -> timeline.Part:
    """Of a moment that is over, one that ended later was going on: nobody asks its log how."""
    later = run.ended_at is not None and run.ended_at > now
    return timeline.Part(
        key=run.key,
        status=UNENDED if later else run.status,
        starts_at=run.created_at,
        ends_at=None if later else run.ended_at,
    )


def span_of(term: Term, head: Head, reclaimed_at: datetime | None) -> timeline.Span:
    """A term as it is drawn. A lapsed one that was reclaimed later is overdue until then."""
    ends_at, lapsed_at, ended = term.ends_at, None, term.ended or ""
    if head.lease is not None and head.lease.token == term.token:
        ends_at = None
        lapsed_at = None if head.live else head.lease.expires_at
    if ended == "reclaimed" and ends_at and reclaimed_at and ends_at < reclaimed_at:
        lapsed_at, ends_at = ends_at, reclaimed_at
    how = f"reclaimed by {(term.ended_by or '').removeprefix('person:')}"
    told = how if ended == "reclaimed" else ended or ("lapsed" if lapsed_at else "holds it")
    return timeline.Span(
        token=term.token,
        owner=term.owner,
        starts_at=term.starts_at,
        ends_at=ends_at,
        lapsed_at=lapsed_at,
        ended=ended,
        title=f"{term.owner}, token {term.token}: {told}, renewed {term.renewals} times",
        renewals=renewals_of(term),
    )


def renewals_of(term: Term) -> list[timeline.Renewal]:
    """The last renewals. Late: after more than the part of the lease in which it renews usually."""
    found: list[timeline.Renewal] = []
    before = 0 if term.renewals == len(term.renewed_ms) else None
    for ms in term.renewed_ms:
        late = (
            before is not None
            and term.ttl_seconds is not None
            and ms - before > LATE_PART * term.ttl_seconds * 1_000
        )
        found.append(timeline.Renewal(at=term.starts_at + timedelta(milliseconds=ms), late=late))
        before = ms
    return found
