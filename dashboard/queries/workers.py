"""Workers: how old the last sign of each kind is, what each holds and writes, who was overtaken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store.errors import FENCED
from agentstate.store.minutes import OK

PAGE_ROWS = 100
WINDOW = timedelta(hours=1)
KNOWN = timedelta(hours=24)
OVERTAKEN_SHOWN = 50
AWAY = timedelta(minutes=5)
# A clock that is further off is told: nothing is decided by it, but logs are read by it.
SKEW_MS = 2_000
STATES = ("stuck", "draining", "here", "away")
# What keeps a worker's place without getting its work on.
NO_PROGRESS = [
    "renew",
    "acquire",
    "claim",
    "release",
    "announce",
    "telemetry",
    "checkpoint",
    "check",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A worker. Three ages: seen_at (it announced itself), renewed_at, wrote_at (to the minute).

    live, lapsed: units that it holds. rhythm_seconds: how often it renews them on average, once it
    has done so twice. key: with which it announced itself, if it did.
    accepted, refused: its commands in the last hour.
    drain_*: what it was asked, by the name drain_of: its own, or that without what follows `~`.
    """

    name: str
    version: str | None
    host: str | None
    slots: int | None
    skew_ms: int | None
    key: str | None
    seen_at: datetime | None
    drain_of: str | None
    drain_at: datetime | None
    drain_by: str | None
    drain_reason: str | None
    live: int
    lapsed: int
    renewed_at: datetime | None
    rhythm_seconds: float | None
    accepted: int
    refused: int
    wrote_at: datetime | None
    now: datetime

    @property
    def state(self) -> str:
        """stuck (it let something lapse), draining, away (no sign for 5 minutes) or here."""
        if self.lapsed:
            return "stuck"
        if self.drain_at:
            return "draining"
        signs = [at for at in (self.seen_at, self.renewed_at, self.wrote_at) if at]
        return "here" if signs and self.now - max(signs) < AWAY else "away"

    @property
    def is_draining(self) -> bool:
        return self.drain_at is not None

    @property
    def is_skewed(self) -> bool:
        return self.skew_ms is not None and abs(self.skew_ms) > SKEW_MS


LINES = """
WITH holding AS (
    SELECT owner AS name, count(*) FILTER (WHERE expires_at > %(now)s) AS live,
        count(*) FILTER (WHERE expires_at <= %(now)s) AS lapsed, max(renewed_at) AS renewed_at,
        sum(extract(epoch FROM renewed_at - acquired_at)) FILTER (WHERE renewals > 1)::float
            / sum(renewals) FILTER (WHERE renewals > 1) AS rhythm
    FROM agentstate_lease WHERE token IS NOT NULL GROUP BY owner
), counted AS (
    SELECT worker AS name, sum(count) FILTER (WHERE outcome = %(ok)s)::bigint AS accepted,
        sum(count) FILTER (WHERE outcome <> %(ok)s)::bigint AS refused,
        max(minute) FILTER (WHERE outcome = %(ok)s AND operation <> ALL(%(no_progress)s))
            AS wrote_at
    FROM agentstate_minute WHERE minute >= %(since)s AND worker <> '' GROUP BY worker
), named AS (
    SELECT name FROM agentstate_worker WHERE seen_at >= %(known)s OR drain_at IS NOT NULL
    UNION SELECT name FROM holding
    UNION SELECT name FROM counted
    -- What was refused just now is not counted yet.
    UNION SELECT %(only)s WHERE EXISTS (
        SELECT FROM agentstate_refusal
        WHERE at >= %(since)s AND code = ANY(%(fenced)s) AND worker = %(only)s::text
    )
)
SELECT n.name, w.version, w.host, w.slots, w.skew_ms,
    CASE WHEN w.principal LIKE 'key:%%' THEN substr(w.principal, 5) END,
    -- A row that an operator's drain made is no sign of the worker.
    CASE WHEN w.principal NOT LIKE 'person:%%' THEN w.seen_at END,
    CASE WHEN w.drain_at IS NOT NULL THEN w.name WHEN base.drain_at IS NOT NULL THEN base.name END,
    coalesce(w.drain_at, base.drain_at), coalesce(w.drain_by, base.drain_by),
    coalesce(w.drain_reason, base.drain_reason), coalesce(h.live, 0), coalesce(h.lapsed, 0),
    h.renewed_at, h.rhythm, coalesce(c.accepted, 0), coalesce(c.refused, 0), c.wrote_at
FROM named n
LEFT JOIN agentstate_worker w ON w.name = n.name
LEFT JOIN agentstate_worker base ON base.name = split_part(n.name, '~', 1)
LEFT JOIN holding h ON h.name = n.name
LEFT JOIN counted c ON c.name = n.name
WHERE n.name COLLATE "C" > %(after)s AND (%(only)s::text IS NULL OR n.name = %(only)s)
ORDER BY n.name COLLATE "C" LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Those that need somebody first. later: the name to go on from, if there are more."""

    lines: list[Line]
    later: str | None


def read_page(*, now: datetime, after: str = "") -> Page:
    """Workers that were seen in the last day, hold something, or wrote in the last hour."""
    lines = _read(now, after=after, only=None)
    later = lines[PAGE_ROWS - 1].name if len(lines) > PAGE_ROWS else None
    # Read by name, so that pages neither repeat nor miss one; by need within the page.
    return Page(
        lines=sorted(lines[:PAGE_ROWS], key=lambda line: (STATES.index(line.state), line.name)),
        later=later,
    )


def read_one(name: str, *, now: datetime) -> Line | None:
    return next(iter(_read(now, after="", only=name)), None)


def _read(now: datetime, *, after: str, only: str | None) -> list[Line]:
    facts: dict[str, Any] = {
        "now": now,
        "since": (now - WINDOW).replace(second=0, microsecond=0),
        "known": now - KNOWN,
        "ok": OK,
        "no_progress": NO_PROGRESS,
        "fenced": sorted(FENCED),
        "after": after,
        "only": only,
        "limit": PAGE_ROWS + 1,
    }
    with connection.cursor() as cursor:
        cursor.execute(LINES, facts)
        return [_line(row, now) for row in cursor.fetchall()]


def _line(row: tuple[Any, ...], now: datetime) -> Line:
    name, version, host, slots, skew_ms, key, seen_at, drain_of, drain_at, *rest = row
    drain_by, reason, live, lapsed, renewed_at, rhythm, accepted, refused, wrote_at = rest
    return Line(
        name=name,
        version=version,
        host=host,
        slots=slots,
        skew_ms=skew_ms,
        key=key,
        seen_at=seen_at,
        drain_of=drain_of,
        drain_at=drain_at,
        drain_by=drain_by,
        drain_reason=reason,
        live=live,
        lapsed=lapsed,
        renewed_at=renewed_at,
        rhythm_seconds=rhythm,
        accepted=accepted,
        refused=refused,
        wrote_at=wrote_at,
        now=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """A worker whose writes come too late; the key that wrote, where no worker was named.
    key, unit: what it wrote to last; holder: who has it."""

    name: str
    refused: int
    things: int
    last_at: datetime
    key: str | None
    unit: str | None
    token: int | None
    holder: str | None

    @property
    def is_worker(self) -> bool:
        return ":" not in self.name


# The newest refusals of the hour, grouped: an overtaken worker may send any number.
OVERTAKEN = """
SELECT f.name, count(*), count(DISTINCT coalesce(r.key, f.unit)), max(f.at),
    (array_agg(r.key ORDER BY f.id DESC))[1], (array_agg(f.unit ORDER BY f.id DESC))[1],
    (array_agg(f.token_sent ORDER BY f.id DESC))[1], (array_agg(r.owner ORDER BY f.id DESC))[1]
FROM (
    SELECT id, at, run_id, unit, token_sent, coalesce(worker, actor) AS name
    FROM agentstate_refusal WHERE at >= %(since)s AND code = ANY(%(fenced)s)
    ORDER BY at DESC, id DESC LIMIT 20000
) AS f LEFT JOIN agentstate_run r ON r.id = f.run_id
GROUP BY f.name ORDER BY max(f.at) DESC, f.name LIMIT %(limit)s
"""


def read_overtaken(*, now: datetime) -> list[Overtaken]:
    """Workers that were fenced in the last hour, the last try first."""
    facts: dict[str, Any] = {
        "since": now - WINDOW,
        "fenced": sorted(FENCED),
        "limit": OVERTAKEN_SHOWN,
    }
    with connection.cursor() as cursor:
        cursor.execute(OVERTAKEN, facts)
        return [
            Overtaken(
                name=name,
                refused=refused,
                things=things,
                last_at=last_at,
                key=key,
                unit=unit,
                token=token,
                holder=holder,
            )
            for name, refused, things, last_at, key, unit, token, holder in cursor.fetchall()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key, and how many workers announced themselves with it in the last day."""

    name: str
    scopes: list[str]
    hint: str
    last_used_at: datetime | None
    revoked_at: datetime | None
    workers: int


KEY = """
SELECT k.name, k.scopes, k.hint, k.last_used_at, k.revoked_at,
    (SELECT count(*) FROM agentstate_worker w
        WHERE w.principal = 'key:' || k.name AND w.seen_at >= %(known)s)
FROM agentstate_apikey k WHERE k.name = %(name)s
"""


def read_key(name: str, *, now: datetime) -> Key | None:
    with connection.cursor() as cursor:
        cursor.execute(KEY, {"name": name, "known": now - KNOWN})
        row = cursor.fetchone()
    if row is None:
        return None
    name, scopes, hint, last_used_at, revoked_at, workers = row
    return Key(
        name=name,
        scopes=scopes,
        hint=hint,
        last_used_at=last_used_at,
        revoked_at=revoked_at,
        workers=workers,
    )
