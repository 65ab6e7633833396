"""The database: whether it can be reached, is one that will do, and keeps what it promises.

Through a pooler it is found out by asking: a pooler makes up the process id that a client is told
at the start, and in transaction mode two idle clients get the same session, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
from django.db import DatabaseError

from agentstate import postgres, where
from agentstate.doctor.findings import Finding, problem, warning
from agentstate.embedded import SUPPORTED
from agentstate.store import outages

SKEW_SECONDS = 2.0
LONG_TRANSACTION_SECONDS = 3_600
FULL_PART = 0.8
WEEKS_AHEAD_LEAST = 2

FACTS = """
SELECT extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),
    current_setting('default_transaction_read_only') = 'on',
    current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_commit'), current_setting('autovacuum') = 'on',
    (SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()),
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int,
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start))
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'), 0)::float8,
    has_schema_privilege(current_schema(), 'CREATE'),
    to_regproc('agentstate_restoring') IS NOT NULL,
    to_regclass('django_migrations') IS NOT NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the server said. clock_seconds: its clock less this host's, for the middle of the
    question; round_trip_seconds: how long that took."""

    server_version: int
    clock_seconds: float
    round_trip_seconds: float
    in_recovery: bool
    read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    encoding: str
    connections_max: int
    connections: int
    oldest_transaction_seconds: float
    may_create: bool
    restoring: bool
    has_schema: bool


def ask(parts: Mapping[str, str]) -> Facts | Finding:
    """The facts, or why there are none. The address is never told with its password."""
    try:
        with connect(parts) as session:
            began = datetime.now(UTC).timestamp()
            started = time.monotonic()
            row = session.execute(FACTS).fetchone()
            took = time.monotonic() - started
            version = session.info.server_version
    except psycopg.Error as error:
        return unreachable(parts, error)
    assert row is not None
    clock, *others = row
    names = Facts.__slots__[3:]
    return Facts(
        server_version=version,
        clock_seconds=clock - (began + took / 2),
        round_trip_seconds=took,
        **dict(zip(names, others, strict=True)),
    )


def connect(parts: Mapping[str, str]) -> psycopg.Connection:
    conninfo = postgres.conninfo(dict(parts), application_name="agentstate doctor")
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)


MENDS = {
    "password authentication failed": "set user and password of DATABASE_URL as they are there",
    "no password supplied": "put the password into DATABASE_URL, or into ~/.pgpass",
    "does not exist": "make the role or the database: CREATE DATABASE … OWNER …",
    "no pg_hba.conf entry": "let this host in, in the server's pg_hba.conf",
    "SSL": "set sslmode in DATABASE_URL as the server has TLS or not",
    "too many": "raise max_connections, or put a pooler before it",
    "starting up": "wait: it recovers from a crash",
    "could not translate host name": "set the host of DATABASE_URL",
    "name or service not known": "set the host of DATABASE_URL",
}  # fmt: skip


def unreachable(parts: Mapping[str, str], error: psycopg.Error) -> Finding:
    told = " ".join(str(error).split())
    if secret := parts.get("password"):
        told = told.replace(secret, "…")
    otherwise = "start it, and see that host and port of DATABASE_URL are its own"
    mend = next((mend for words, mend in MENDS.items() if words.lower() in told.lower()), otherwise)
    return problem("database", f"cannot be reached: {told}", mend)


def judge(facts: Facts) -> Iterator[Finding]:
    """What is wrong with a database of which this is so."""
    major = facts.server_version // 10_000
    if facts.server_version < postgres.OLDEST:
        yield problem("database", f"PostgreSQL {major} is too old", "upgrade it to 15 or newer")
    elif major not in SUPPORTED:
        yield warning(
            "database",
            f"PostgreSQL {major} is newer than what the tests run on",
            f"use one of {SUPPORTED[0]} to {SUPPORTED[-1]}, or try it where nothing depends on it",
        )
    yield from _writing(facts)
    yield from _lasting(facts)
    yield from _room(facts)
    if abs(facts.clock_seconds) > SKEW_SECONDS + facts.round_trip_seconds:
        yield warning(
            "clock",
            f"the database's clock is {facts.clock_seconds:+.1f} s from this host's",
            "let both follow one NTP: a host's clock decides nothing, but logs are read by it",
        )


def _writing(facts: Facts) -> Iterator[Finding]:
    if facts.in_recovery:
        yield problem(
            "database",
            "it is in recovery, or a replica: it can only be read",
            "name the primary in DATABASE_URL (target_session_attrs=read-write finds it)",
        )
    elif facts.read_only:
        yield problem(
            "database",
            "default_transaction_read_only is on",
            "turn it off; a provider turns it on when the disk is full",
        )
    if not facts.may_create:
        yield problem(
            "database",
            "this role may not create tables, which each week's events need",
            "GRANT CREATE ON SCHEMA public TO it, or make it the database's owner",
        )
    if facts.restoring:
        yield problem(
            "database",
            "a restore was begun and not finished: nobody can write",
            f"{where.COMMAND} restore --finish",
        )
    if facts.encoding != "UTF8":
        yield problem(
            "database",
            f"its encoding is {facts.encoding}",
            "make another one with ENCODING 'UTF8' TEMPLATE template0",
        )


def has_room() -> bool | None:
    """Whether it can take more, by taking a megabyte for a moment; None: it could not be tried."""
    try:
        return outages.has_room(ask=True)
    except DatabaseError:
        return None  # read-only, or a right is missing: told by `judge`


def judge_room(has_room: bool | None) -> Iterator[Finding]:
    if has_room is False:
        yield problem(
            "database",
            "it has no room left on its disk: it can be read, and nothing can be written",
            "make room on the database's disk (logs, other files), or enlarge it; then let runs go "
            "sooner (AGENTSTATE_RETAIN_SECONDS). Never remove anything in pg_wal",
        )


def _lasting(facts: Facts) -> Iterator[Finding]:
    keeps = {"fsync": facts.fsync, "full_page_writes": facts.full_page_writes}
    for name in [name for name, on in keeps.items() if not on]:
        yield problem(
            "database",
            f"{name} is off: a crash of the machine may lose all of it",
            f"turn {name} on",
        )
    if facts.synchronous_commit == "off":
        yield problem(
            "database",
            "synchronous_commit is off: what was acknowledged may be lost in a crash",
            "turn it on, for this role or the server",
        )
    if not facts.autovacuum:
        yield problem(
            "database", "autovacuum is off: tables grow and get slow", "turn autovacuum on"
        )


def _room(facts: Facts) -> Iterator[Finding]:
    if facts.connections > FULL_PART * facts.connections_max:
        yield warning(
            "database",
            f"{facts.connections} of {facts.connections_max} connections are taken",
            "raise max_connections, or put a pooler before it (docs/sizing.md)",
        )
    if facts.oldest_transaction_seconds > LONG_TRANSACTION_SECONDS:
        yield warning(
            "database",
            f"a transaction is {facts.oldest_transaction_seconds / 3600:.1f} h old: nothing that"
            " was overwritten since can be cleaned up",
            "find it in pg_stat_activity, and end it",
        )


# --- poolers ------------------------------------------------------------------------------------

DIRECT, SESSION, TRANSACTION = "direct", "session", "transaction"


def mode_of(parts: Mapping[str, str]) -> str:
    """Whether a pooler is at this address, and in which mode: DIRECT, SESSION, TRANSACTION."""
    with connect(parts) as first, connect(parts) as second:
        mine = _session_of(first)
        if mine == first.pgconn.backend_pid:
            return DIRECT
        # Whoever comes next gets the session that was given back last.
        return TRANSACTION if _session_of(second) == mine else SESSION


def _session_of(session: psycopg.Connection) -> int:
    row = session.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def judge_modes(
    *, usual: str, sessions: str, has_session_url: bool, prepares: bool
) -> Iterator[Finding]:
    """usual, sessions: the modes of DATABASE_URL and of what is used for sessions."""
    if usual == TRANSACTION and not has_session_url:
        yield problem(
            "pooler",
            "DATABASE_URL is a pooler in transaction mode: hints, migrations and the broker in the"
            " database need sessions",
            "set DATABASE_SESSION_URL to the same database past the pooler",
        )
    elif sessions == TRANSACTION:
        yield problem(
            "pooler",
            "DATABASE_SESSION_URL is a pooler in transaction mode",
            "give the address of PostgreSQL itself, or of a pool in session mode",
        )
    if usual == TRANSACTION and prepares:
        yield problem(
            "pooler",
            "statements are prepared behind a pooler that gives each transaction another session",
            "set AGENTSTATE_PREPARED_STATEMENTS=no",
        )
    if usual == DIRECT and has_session_url:
        yield warning(
            "pooler",
            "DATABASE_SESSION_URL is set, and there is no pooler at DATABASE_URL",
            "unset it: statements are prepared then, which is quicker",
        )


def judge_weeks(weeks_ahead: int) -> Iterator[Finding]:
    """weeks_ahead: weeks after this one whose events have a place already."""
    if weeks_ahead < WEEKS_AHEAD_LEAST:
        yield warning(
            "database",
            f"the log has room for {weeks_ahead} weeks ahead",
            "see that workers and beat run: a task makes the next ones",
        )
