"""Who waits for whom in PostgreSQL now, told as workers and runs as far as that can be known.

PostgreSQL knows sessions: who holds a lock, who waits, and which version of which row it is about
(`pg_locks` has its place in the table), so a waiting session tells the run, unit or budget. Whose
commands a session carries, only the process that opened it knows (`store.sessions`): of this
process they are told, of another one its name is all there is. Sessions of other database users
hide what they do from a user without `pg_read_all_stats`; that is said, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connection

from agentstate.store import sessions
from agentstate.store.execute import LEASES, WRITES
from agentstate.store.plan import Plan

WAITING_MAX, OPEN_MAX, NAMES_MAX = 50, 10, 3
# No command of ours is in a transaction for longer: who is, keeps others from it.
OPEN_FOR = timedelta(seconds=5)
OURS, NO_TIME = "agentstate", timedelta()

# The oldest first: what has waited longest is what somebody looks for.
WAITING = """
SELECT a.pid, pg_blocking_pids(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.wait_event_type = 'Lock' AND a.pid <> pg_backend_pid()
ORDER BY a.query_start, a.pid LIMIT %(limit)s
"""
# A row's place is in the lock of its tuple, which whoever is next in line has and the others want.
WANTED = """
SELECT l.pid, l.locktype, coalesce(c.relname, ''), l.page, l.tuple, l.granted,
    clock_timestamp() - l.waitstart
FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
WHERE l.pid = ANY(%(pids)s) AND (l.locktype = 'tuple' OR NOT l.granted)
"""
SESSIONS = """
SELECT pid, coalesce(application_name, ''), coalesce(usename, ''), coalesce(state, ''),
    clock_timestamp() - xact_start, coalesce(query, ''), state IS NULL
FROM pg_stat_activity WHERE pid = ANY(%(pids)s)
"""
# Locks that rows were locked or written under, or that keep a table from being written to. A mere
# reader has none of them.
OPEN = """
SELECT a.pid, array_agg(DISTINCT c.relname ORDER BY c.relname)
FROM pg_stat_activity a
JOIN pg_locks l ON l.pid = a.pid AND l.granted AND l.locktype = 'relation'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
        'ExclusiveLock', 'AccessExclusiveLock')
JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p') AND c.relname ^@ 'agentstate_'
WHERE a.datname = current_database() AND a.backend_type = 'client backend'
    AND a.pid <> pg_backend_pid() AND a.xact_start <= clock_timestamp() - %(open_for)s
GROUP BY a.pid, a.xact_start ORDER BY a.xact_start, a.pid LIMIT %(limit)s
"""
# The version of a row that is waited for stays where it is until whoever holds it has committed.
ROWS = {
    "agentstate_run": "SELECT ctid::text, key, key, owner FROM agentstate_run"
    " WHERE ctid = ANY(%(places)s::tid[])",
    "agentstate_lease": "SELECT l.ctid::text, l.unit, r.key, l.owner FROM agentstate_lease l"
    " LEFT JOIN agentstate_run r ON r.id = l.run_id WHERE l.ctid = ANY(%(places)s::tid[])",
    "agentstate_budget": "SELECT b.ctid::text, b.name, r.key, r.owner FROM agentstate_budget b"
    " LEFT JOIN agentstate_run r ON r.id = b.run_id WHERE b.ctid = ANY(%(places)s::tid[])",
}
KINDS = {"agentstate_run": "run", "agentstate_lease": "lease", "agentstate_budget": "budget"}
OWNERS = "SELECT token, owner FROM agentstate_leaseterm WHERE token = ANY(%(tokens)s)"
_VERB = re.compile(r"\s*([A-Za-z]+)")
_TABLE = re.compile(r'"?agentstate_([a-z]+)"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """What is waited for. kind: run, lease, budget, or "" where a row is no more than its table's.
    name: told to people. run, holder: "" where none is known. whole: the table itself.
    """

    kind: str = ""
    name: str = ""
    table: str = ""
    whole: bool = False
    run: str = ""
    holder: str = ""

    def __str__(self) -> str:
        if self.kind == "budget":
            return f"the budget {self.name}{f' of {self.run}' if self.run else ''}"
        if self.kind:
            return f"{self.kind} {self.name}" if self.kind == "run" else f"the lease of {self.name}"
        if not self.table:
            return "a lock that names no row"
        return f"the table {self.table}" if self.whole else f"a row of {self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One of PostgreSQL's sessions. ours: opened by agentstate. carries: whose commands, as
    `append to 42 by w-3`; others: how many more. open_for: how long its transaction is open.
    doing: verb and table of its last statement, never a value. hidden: it may not be looked at.
    """

    pid: int
    name: str = ""
    user: str = ""
    ours: bool = False
    state: str = ""
    open_for: timedelta | None = None
    doing: str = ""
    carries: tuple[str, ...] = ()
    others: int = 0
    hidden: bool = False

    def __str__(self) -> str:
        return f"{self.name or 'a session without a name'} (pid {self.pid})"

    @property
    def idle(self) -> bool:
        """It does nothing and keeps its transaction open: it will not go on by itself soon."""
        return self.state.startswith("idle in transaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    session: Session
    wants: Thing
    waited: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Who waits for nobody, and all who wait for it, directly or behind others, the longest first.
    tables: of which it keeps rows while nobody waits.
    """

    session: Session
    waits: tuple[Wait, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def foreign(self) -> bool:
        return not self.session.ours

    @property
    def wants(self) -> Thing | None:
        """What is wanted of it most."""
        wanted = [wait.wants for wait in self.waits]
        return max(wanted, key=wanted.count) if wanted else None

    @property
    def longest(self) -> timedelta:
        return max((w.waited for w in self.waits if w.waited is not None), default=NO_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """more: so many wait that the newest are left out. queued: commands that wait for their turn in
    this process and have no session yet: PostgreSQL does not know of them.
    """

    blockers: tuple[Blocker, ...] = ()
    more: bool = False
    queued: int = 0

    @property
    def waiting(self) -> int:
        return sum(len(blocker.waits) for blocker in self.blockers)


def read(*, open_for: timedelta = OPEN_FOR) -> Waits:
    """Who blocks whom; and who has had rows of ours for longer than `open_for` in any case."""
    queued = WRITES.waiting + LEASES.waiting
    with connection.cursor() as cursor:
        cursor.execute(WAITING, {"limit": WAITING_MAX + 1})
        graph: dict[int, list[int]] = dict(cursor.fetchall()[:WAITING_MAX])
        more = cursor.rowcount > WAITING_MAX
        asked: dict[str, Any] = {"limit": OPEN_MAX, "open_for": open_for}
        cursor.execute(OPEN, asked)
        tables = {pid: tuple(_plain(name) for name in names) for pid, names in cursor.fetchall()}
        if not graph and not tables:
            return Waits(queued=queued)
        pids = sorted({*graph, *tables, *(pid for blockers in graph.values() for pid in blockers)})
        known = _sessions(cursor, pids)
        wanted = _wanted(cursor, sorted(graph))
    waits: dict[int, list[Wait]] = {pid: [] for pid in tables if pid not in graph}
    for pid in graph:
        thing, waited = wanted.get(pid, (Thing(), None))
        wait = Wait(session=known.get(pid, Session(pid=pid)), wants=thing, waited=waited)
        waits.setdefault(root_of(pid, graph), []).append(wait)
    blockers = [
        Blocker(
            session=known.get(head, Session(pid=head)),
            tables=tables.get(head, ()),
            waits=tuple(sorted(several, key=lambda w: (-(w.waited or NO_TIME), w.session.pid))),
        )
        for head, several in waits.items()
    ]
    blockers.sort(key=lambda one: (-one.longest, -len(one.waits), one.session.pid))
    return Waits(blockers=tuple(blockers), more=more, queued=queued)


def root_of(pid: int, graph: Mapping[int, Sequence[int]]) -> int:
    """Whom a session waits for in the end: of several the first. In a ring, who closes it."""
    seen = {pid}
    while blockers := graph.get(pid):
        if blockers[0] in seen:
            return blockers[0]
        pid = blockers[0]
        seen.add(pid)
    return pid


def _sessions(cursor: Any, pids: Sequence[int]) -> dict[int, Session]:
    cursor.execute(SESSIONS, {"pids": pids})
    rows = cursor.fetchall()
    carried = {row[0]: sessions.carried_by(row[0]) for row in rows}
    plans = [plan for several in carried.values() for plan in several]
    tokens = sorted({plan.token_sent for plan in plans if plan.token_sent})
    owners: dict[int | None, str] = {}
    if tokens:
        cursor.execute(OWNERS, {"tokens": tokens})
        owners = dict(cursor.fetchall())
    return {
        pid: Session(
            pid=pid,
            name=name,
            user=user,
            ours=name.split(" ")[0] == OURS,
            state=state,
            open_for=open_for,
            doing="" if hidden else doing(query),
            carries=tuple(_told(plan, owners) for plan in carried[pid][:NAMES_MAX]),
            others=max(0, len(carried[pid]) - NAMES_MAX),
            hidden=hidden,
        )
        for pid, name, user, state, open_for, query, hidden in rows
    }


def _told(plan: Plan, owners: Mapping[int | None, str]) -> str:
    about = f" to {plan.run}" if plan.run else f" of {plan.unit}" if plan.unit else ""
    worker = plan.worker or owners.get(plan.token_sent)
    return f"{plan.operation}{about}{f' by {worker}' if worker else ''}"


def doing(query: str) -> str:
    """`select on run`: the verb and the first of our tables. What a statement says beside that may
    be what somebody wrote to a run."""
    verb, table = _VERB.match(query), _TABLE.search(query)
    told = verb[1].lower() if verb else ""
    return f"{told} on {table[1]}" if told and table else told


def _plain(name: str) -> str:
    return name.removeprefix("agentstate_")


def _wanted(cursor: Any, pids: Sequence[int]) -> dict[int, tuple[Thing, timedelta | None]]:
    """What each waits for, and for how long. A lock that waits tells the time, a tuple the row."""
    cursor.execute(WANTED, {"pids": pids})
    waited: dict[int, timedelta | None] = {}
    places: dict[int, tuple[str, str]] = {}
    plain: dict[int, Thing] = {}
    for pid, kind, relation, page, row, granted, since in cursor.fetchall():
        if not granted:
            waited[pid] = since
        if kind == "tuple":
            places[pid] = (relation, f"({page},{row})")
            plain[pid] = Thing(table=_plain(relation))
        elif relation:
            plain.setdefault(pid, Thing(table=_plain(relation), whole=kind == "relation"))
    things = _things(cursor, places.values())
    return {
        pid: (things.get(places.get(pid, ("", ""))) or plain.get(pid, Thing()), since)
        for pid, since in waited.items()
    }


def _things(cursor: Any, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Thing]:
    found: dict[tuple[str, str], Thing] = {}
    wanted = set(places)
    for table, statement in ROWS.items():
        here = sorted(place for relation, place in wanted if relation == table)
        if not here:
            continue
        cursor.execute(statement, {"places": here})
        for place, name, run, owner in cursor.fetchall():
            found[table, place] = Thing(
                kind=KINDS[table], name=name, table=_plain(table), run=run or "", holder=owner or ""
            )
    return found
