"""What happened since a moment, counted from the events and the refusals, and whether it adds up.

The invariants are derived anew by agentstate.store.audit, over everything that is stored and not
only over what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from agentstate.store import audit

# Runs by status, among those that were made or changed since.
_RUNS = """
SELECT status, count(*), count(*) FILTER (WHERE created_at >= %(since)s)
FROM agentstate_run WHERE updated_at >= %(since)s GROUP BY status ORDER BY status
"""
_EVENTS = """
SELECT count(*), count(*) FILTER (WHERE origin = 'worker'),
    coalesce(sum(octet_length(data::text)), 0)
FROM agentstate_event WHERE at >= %(since)s
"""
# A takeover: a lease given to another one because its holder had let it run out. The holder came
# back too late if a write of it was refused for its token after that.
_TAKEOVERS = """
WITH taken AS (
    SELECT run_id, (data -> 'taken_from' ->> 'token')::bigint AS token, at
    FROM agentstate_event
    WHERE at >= %(since)s AND origin = 'store' AND type = 'lease.acquired'
        AND data -> 'taken_from' IS NOT NULL
)
SELECT count(*), count(*) FILTER (WHERE EXISTS (
    SELECT FROM agentstate_refusal f WHERE f.run_id = taken.run_id AND f.code = 'stale-fence'
        AND f.token_sent = taken.token AND f.at >= taken.at))
FROM taken
"""
_REFUSALS = """
SELECT code, count(*) FROM agentstate_refusal WHERE at >= %(since)s GROUP BY code ORDER BY code
"""
_SPENT = """
SELECT b.unit, sum(e.spent) FROM agentstate_budgetentry e
JOIN agentstate_budget b ON b.id = e.budget_id AND b.run_id IS NOT NULL
WHERE e.at >= %(since)s GROUP BY b.unit ORDER BY b.unit
"""

CONFLICTS = ("seq-conflict", "version-conflict", "expectation-failed", "holder-changed")
FENCED = ("stale-fence",)
CHARGES = ("budget-exhausted",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts since a moment by the database's clock, and what does not add up.

    statuses: runs changed since, by their status now. came_back: takeovers after which a write of
    the former holder was refused. refusals: by code. spent: by unit.
    """

    statuses: dict[str, int]
    created: int
    events: int
    worker_events: int
    payload_bytes: int
    takeovers: int
    came_back: int
    refusals: dict[str, int]
    spent: dict[str, int]
    differences: tuple[audit.Difference, ...]
    overdrafts: tuple[audit.Overdraft, ...]

    def refused(self, codes: Sequence[str]) -> int:
        return sum(self.refusals.get(code, 0) for code in codes)


def summarize(*, since: datetime) -> Summary:
    """Everything of a Summary; the counts are read one after the other while work goes on."""
    runs = _rows(_RUNS, since)
    ((events, worker_events, payload_bytes),) = _rows(_EVENTS, since)
    ((takeovers, came_back),) = _rows(_TAKEOVERS, since)
    return Summary(
        statuses={status: count for status, count, _ in runs},
        created=sum(created for _, _, created in runs),
        events=events,
        worker_events=worker_events,
        payload_bytes=payload_bytes,
        takeovers=takeovers,
        came_back=came_back,
        refusals={code: count for code, count in _rows(_REFUSALS, since)},  # noqa: C416
        spent={unit: int(spent) for unit, spent in _rows(_SPENT, since)},
        differences=tuple(audit.verify()),
        overdrafts=tuple(audit.overdrafts()),
    )


def lines(summary: Summary) -> Iterator[str]:
    """The summary for people: a name, a number, and what it is, in columns."""
    yield from _table(_counts(summary))
    yield ""
    yield from _invariants(summary)


def _counts(summary: Summary) -> Iterator[tuple[str, int, str]]:
    by_status = ", ".join(f"{count} {status}" for status, count in summary.statuses.items())
    others = {
        code: count
        for code, count in summary.refusals.items()
        if code not in (*CONFLICTS, *FENCED, *CHARGES)
    }
    yield "runs", sum(summary.statuses.values()), by_status
    yield "events", summary.events, f"{summary.worker_events} of workers, {_size(summary)}"
    yield "takeovers", summary.takeovers, "a worker went on where another was gone"
    yield "  not heard of again", summary.takeovers - summary.came_back, "it had crashed"
    yield "  came back too late", summary.came_back, "its write was fenced off"
    yield "fenced writes", summary.refused(FENCED), "refused for their token"
    yield "conflicts", summary.refused(CONFLICTS), "somebody else was first"
    yield "refused charges", summary.refused(CHARGES), "they would have passed a cap"
    yield (
        "other refusals",
        sum(others.values()),
        ", ".join(f"{n} {code}" for code, n in others.items()),
    )
    for unit, spent in summary.spent.items():
        yield f"{unit} spent", spent, ""


def _size(summary: Summary) -> str:
    return f"{summary.payload_bytes / 1024:,.0f} KiB of payloads"


def _table(rows: Iterator[tuple[str, int, str]]) -> Iterator[str]:
    found = [(name, f"{count:,}", more) for name, count, more in rows]
    names, counts = (max(len(row[at]) for row in found) for at in (0, 1))
    for name, count, more in found:
        yield f"  {name:<{names}}  {count:>{counts}}  {more}".rstrip()


def _invariants(summary: Summary) -> Iterator[str]:
    """Each invariant with its verdict; those that are broken with every place."""
    broken: dict[str, list[audit.Difference]] = {}
    for difference in summary.differences:
        broken.setdefault(difference.check, []).append(difference)
    for check in dict.fromkeys([*audit.CHECKS, *audit.FEED_CHECKS, *broken]):
        yield f"  {'BROKEN' if check in broken else 'holds '}  {check}"
        for at in broken.get(check, ()):
            yield f"            {at.what}: expected {at.expected}, found {at.found}"
    for over in summary.overdrafts:
        yield (
            f"  note    {over.budget} is overdrawn: {over.used:,} of {over.cap:,},"
            f" since line {over.entry} of its ledger by {over.actor}"
        )


def _rows(statement: str, since: datetime) -> list[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, {"since": since})
        return list(cursor.fetchall())
