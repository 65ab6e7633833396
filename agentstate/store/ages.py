"""What ages out beside the runs: how long each kind is kept, and within which bounds an admin may
say otherwise.

A bound is a promise that something else makes: the feed's cursors, what the console compares, the
audit. Pure; what goes and how: retention.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from agentstate.store.errors import Invalid, NotFound

# A pass that is under way when a kind's age is changed goes by what counted before; tasks/upkeep.py
# gives it no longer than this.
UNDER_WAY = timedelta(minutes=5)
DAYS_MAX = 3_660
KIND_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """How long rows of a kind are kept (0: each has its own expiry), and how the oldest are found.

    key: what names a row. at: when its age began. only: which of the table's rows age at all.
    order: in which they go, where that is another than by age. guarded: a trigger refuses to let
    them go to whoever does not say that it is retention. app: whose table it is. own: what is said
    of those that have their own expiry.
    least, most: days that an admin may choose between; why: what asks for the least. not_before:
    another kind that must not be kept longer than this.
    """

    keep: timedelta
    table: str
    key: str
    at: str
    only: str = "true"
    order: str = ""
    guarded: bool = False
    app: str = "agentstate"
    own: str = "24 hours, each with its own expiry"
    least: int = 1
    most: int = DAYS_MAX
    why: str = ""
    not_before: str = ""

    @property
    def due(self) -> str:
        return f"{self.only} AND {self.at} <= %(before)s"

    @property
    def delete(self) -> str:
        return (
            f"DELETE FROM {self.app}_{self.table} WHERE ({self.key}) IN ("
            f" SELECT {self.key} FROM {self.app}_{self.table} WHERE {self.due}"
            f" ORDER BY {self.order or self.at} LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
        )

    @property
    def look(self) -> str:
        return (
            f"SELECT (SELECT min({self.at}) FROM {self.app}_{self.table} WHERE {self.only}),"
            f" (SELECT count(*) FROM (SELECT FROM {self.app}_{self.table} WHERE {self.due}"
            f" LIMIT %(limit)s) AS due)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedAge(Age):
    """The feed goes from its front, so that what is left has no hole: only what stands before the
    first change that is still young, and no pass looks further than it may delete."""

    @property
    def delete(self) -> str:
        return """
DELETE FROM agentstate_feed WHERE position IN (SELECT position FROM (
    SELECT position, bool_and(at <= %(before)s) OVER (ORDER BY position) AS due
    FROM (SELECT position, at FROM agentstate_feed ORDER BY position LIMIT %(limit)s) AS front
) AS marked WHERE due)
"""

    @property
    def look(self) -> str:
        return """
SELECT (SELECT at FROM agentstate_feed ORDER BY position LIMIT 1), count(*) FILTER (WHERE due)
FROM (SELECT bool_and(at <= %(before)s) OVER (ORDER BY position) AS due
    FROM (SELECT position, at FROM agentstate_feed ORDER BY position LIMIT %(limit)s) AS front
) AS marked
"""


# Ages beside the runs' own retention; an answer's age is in its own row (24 h).
AGES: dict[str, Age] = {
    "idempotency records": Age(
        keep=timedelta(0), table="idempotencyrecord", key="principal, key", at="expires_at"
    ),
    "refusals": Age(
        keep=timedelta(days=30),
        table="refusal",
        key="id",
        at="at",
        order="at, id",
        least=8,
        why="Contention shows a week beside the same time of the day before",
    ),
    "minutes": Age(
        keep=timedelta(days=30),
        table="minute",
        key="minute, run_key, operation, worker, outcome",
        at="minute",
        least=8,
        most=366,
        why="Contention and charts show a week beside the same time of the day before, and rates"
        " are of at most 366 days",
    ),
    "collisions": Age(
        keep=timedelta(days=30),
        table="collision",
        key="minute, run_key, outcome, loser, winner, about",
        at="minute",
        least=8,
        most=366,
        why="Contention shows a week beside the same time of the day before",
    ),
    "feed": FeedAge(
        keep=timedelta(days=7),
        table="feed",
        key="position",
        at="at",
        least=7,
        why="whoever reads the feed may be away for a week and go on with the same cursor",
    ),
    "free units": Age(
        keep=timedelta(days=7),
        table="lease",
        key="unit",
        at="term_ended_at",
        only="run_id IS NULL AND token IS NULL",
        order="unit",
        least=2,
        why="after a reclaim an owner may be held off for a day",
    ),
    "terms of units": Age(
        keep=timedelta(days=90),
        table="leaseterm",
        key="token",
        at="upper(held)",
        only="run_id IS NULL AND ended IS NOT NULL",
        order="token",
        least=7,
        why="a holder that comes late is told how its term ended",
    ),
    "workers not seen": Age(
        keep=timedelta(days=7),
        table="worker",
        key="name",
        at="seen_at",
        least=2,
        why="a worker that was drained and comes back is drained still",
    ),
    # The site's own go on for ever: it says its version when it starts, however long it then runs.
    "versions of workers": Age(
        keep=timedelta(days=90),
        table="seenversion",
        key="what, version",
        at="seen_at",
        only="what = 'workers'",
        order="what, version",
        least=8,
        why="charts of a week mark where a version was first seen",
    ),
    # Long after the feed itself has gone on: whoever comes back has to begin anew either way.
    "consumers not seen": Age(
        keep=timedelta(days=30),
        table="feedconsumer",
        key="name",
        at="at",
        least=7,
        why="a checkpoint stays as long as the feed has what follows it",
        not_before="feed",
    ),
    "changes of alerts": Age(
        keep=timedelta(days=90),
        table="alertchange",
        key="id",
        at="at",
        order="at, id",
        least=8,
        why="a week is looked back at",
    ),
    "figures of alerts": Age(
        keep=timedelta(days=2),
        table="alertfigure",
        key="rule, minute",
        at="minute",
        least=2,
        most=31,
        why="other bounds of a rule are tried on the last day",
    ),
    "refused tries": Age(
        keep=timedelta(days=90),
        table="refusedaction",
        key="id",
        at="at",
        order="at, id",
        guarded=True,
        least=90,
        why="the audit promises 90 days: nobody who tried may shorten that",
    ),
    "deliveries": Age(
        keep=timedelta(days=30),
        table="delivery",
        key="id",
        at="settled_at",
        only="settled_at IS NOT NULL",
        order="id",
        least=7,
        why="a message can be sent again",
    ),
    "outcomes of bulks": Age(
        keep=timedelta(days=90),
        table="bulkitem",
        key="bulk_id, n",
        at="found_at",
        least=30,
        why="a bulk that waits for its worker keeps what it has found",
    ),
    "bulks": Age(
        keep=timedelta(days=90),
        table="bulkaction",
        key="id",
        at="ended_at",
        only="ended_at IS NOT NULL",
        order="id",
        least=30,
        why="a bulk stays as long as its outcomes",
        not_before="outcomes of bulks",
    ),
    "heartbeats of jobs that are no more": Age(
        keep=timedelta(days=30),
        table="heartbeat",
        key="name",
        at="started_at",
        least=7,
        why="a job that is silent is shown as that",
    ),
    # Over before, by either of their limits; here they only take room.
    "sessions": Age(
        keep=timedelta(0),
        app="dashboard",
        table="session",
        key="session_key",
        at="expire_date",
        own="AGENTSTATE_SESSION_SECONDS",
    ),
    "counted tries": Age(
        keep=timedelta(0),
        app="dashboard",
        table="try",
        key="what",
        at="until",
        order="what",
        own="5 minutes at most",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAge:
    """How long a kind is kept now. version 0: nobody ever changed it. days None: its default.

    whole_from: what is older is gone, because it was kept for less until it was changed; None:
    nothing is known to be.
    """

    kind: str
    days: int | None = None
    version: int = 0
    whole_from: datetime | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None
    changed_why: str | None = None

    @property
    def age(self) -> Age:
        return AGES[self.kind]

    @property
    def keep(self) -> timedelta:
        """What counts. Below its bound, which a later release may have raised, it is never."""
        if self.days is None:
            return self.age.keep
        return timedelta(days=max(self.days, self.age.least))

    def whole_since(self, now: datetime) -> datetime:
        """From when on all of its rows are there."""
        since = now - self.keep
        return max(since, self.whole_from) if self.whole_from else since

    def whole_if_changed(self, now: datetime) -> datetime:
        """`whole_from` of whatever it is changed to."""
        return self.whole_since(now) + UNDER_WAY


def word(kind: str) -> str:
    """A kind as it stands in an address."""
    return kind.replace(" ", "-")


def settable(kind: str) -> Age:
    """Raises NotFound: no such kind, or one whose rows have each their own expiry."""
    age = AGES.get(kind)
    if age is None or not age.keep:
        raise NotFound(f"nothing called {kind[:100]} is kept for a time that can be set")
    return age


def check_days(kind: str, days: int, kept: Mapping[str, KeptAge]) -> None:
    """Raises Invalid. kept: of those that were ever changed."""
    age = settable(kind)
    if not age.least <= days <= age.most:
        raise Invalid("days", f"from {age.least} to {age.most} days: {age.why}")
    other = age.not_before
    if other and timedelta(days=days) < keep_of(other, kept):
        told = keep_of(other, kept).days
        raise Invalid("days", f"not shorter than {other}, which stays for {told} days: {age.why}")
    for name, longer in AGES.items():
        if longer.not_before == kind and keep_of(name, kept) < timedelta(days=days):
            told = keep_of(name, kept).days
            raise Invalid(
                "days",
                f"not longer than {name}, {told} days, so change that first: {longer.why}",
            )


def keep_of(kind: str, kept: Mapping[str, KeptAge]) -> timedelta:
    return kept.get(kind, KeptAge(kind=kind)).keep
