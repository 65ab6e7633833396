"""Since you last looked: what happened meanwhile, for each person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from agentstate.store.errors import FENCED

# Looking again within this time is the same look: a reload does not make everything old.
SAME_LOOK = timedelta(minutes=15)
# Nobody reads what is new of more than a week.
LONGEST = timedelta(days=7)
COUNT_MAX = 10_000

_LOOK = """
INSERT INTO dashboard_look AS look (person_id, looked_at) VALUES (%(person)s, %(now)s)
ON CONFLICT (person_id) DO UPDATE SET looked_at = greatest(look.looked_at, excluded.looked_at),
    before_at = CASE WHEN excluded.looked_at - look.looked_at >= %(same)s THEN look.looked_at
        ELSE look.before_at END
RETURNING before_at
"""


def note_look(person: int, *, now: datetime) -> datetime | None:
    """Note that somebody looks; when they had looked before, None: never. One statement, so two
    windows of one person lose nothing of each other.
    """
    with connection.cursor() as cursor:
        facts: dict[str, Any] = {"person": person, "now": now, "same": SAME_LOOK}
        cursor.execute(_LOOK, facts)
        before: datetime | None = cursor.fetchone()[0]
    return None if before is None else max(before, now - LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What there was since then; each count goes up to COUNT_MAX."""

    since: datetime
    alerts: int
    failed: int
    lapsed: int
    fenced: int
    actions: int

    @property
    def is_quiet(self) -> bool:
        return not (self.alerts or self.failed or self.lapsed or self.fenced or self.actions)


_NEWS = """
SELECT (SELECT count(*) FROM (SELECT FROM agentstate_alertchange
        WHERE at > %(since)s AND after IN ('warn', 'alert') AND before NOT IN ('warn', 'alert')
        LIMIT %(most)s) c),
    (SELECT count(*) FROM (SELECT FROM agentstate_run
        WHERE status = 'failed' AND ended_at > %(since)s LIMIT %(most)s) r),
    (SELECT count(*) FROM (SELECT FROM agentstate_leaseterm
        WHERE ended = 'lapsed' AND upper(held) > %(since)s LIMIT %(most)s) t),
    (SELECT coalesce(sum(count), 0) FROM agentstate_minute
        WHERE minute >= date_trunc('minute', %(since)s::timestamptz) AND outcome = ANY(%(fenced)s)),
    (SELECT count(*) FROM (SELECT FROM agentstate_operatoraction
        WHERE at > %(since)s AND actor LIKE 'person:%%' AND actor <> %(own)s LIMIT %(most)s) a)
"""


def read_news(*, since: datetime, own: str) -> News:
    """What happened since then. own: the actor whose own doings are no news."""
    facts: dict[str, Any] = {
        "since": since,
        "own": own,
        "most": COUNT_MAX,
        "fenced": sorted(FENCED),
    }
    with connection.cursor() as cursor:
        cursor.execute(_NEWS, facts)
        alerts, failed, lapsed, fenced, actions = cursor.fetchone()
    return News(
        since=since, alerts=alerts, failed=failed, lapsed=lapsed, fenced=fenced, actions=actions
    )
