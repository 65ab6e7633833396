"""After the database was restored from a backup: what was given out since the backup stays unused.

A backup knows nothing of what came after it. So tokens and feed positions go on far ahead of what
it holds, every lease in it is ended, and a reader of the feed who stands where nothing is any more
is told so. Until all of that is done a gate keeps everybody else from writing: three triggers that
the load itself makes, in its own transaction, so that there is no moment in between.
Why: docs/decisions/0040-restore.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from agentstate import where
from agentstate.store.asks import Ask
from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import ReclaimLease, RevokeKey
from agentstate.store.errors import AlreadyTerminal, HolderChanged, NotFound
from agentstate.store.execute import execute_all
from agentstate.store.tries import record_action

RESTORE = Caller(kind="system", name="restore", scopes=frozenset(SCOPES))
LEASES_PER_PASS = KEYS_PER_PASS = 200
# More than any PostgreSQL gives out, so that by the clock alone no number comes twice. With the
# seconds since 2026 they stay below 2^53, which JSON's readers need, for 280 years.
GIVEN_OUT_PER_SECOND = 1_000_000
# When the clock is of no help, because it was set back: more than was given out since a backup.
AHEAD_AT_LEAST = 1_000_000_000

GATED = ("agentstate_run", "agentstate_lease", "agentstate_feedhead", "agentstate_feedconsumer")
_FINISH = f"{where.COMMAND} restore --finish"
# Class 57: whoever is turned away takes the database for one that starts, and comes again.
GATE = f"""
CREATE OR REPLACE FUNCTION agentstate_restoring() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('agentstate.restoring', true) IS DISTINCT FROM 'finishing' THEN
        RAISE EXCEPTION 'the store is being restored; {_FINISH} goes on with it'
            USING ERRCODE = 'cannot_connect_now';
    END IF;
    RETURN NULL;
END $$;
"""
CLOSE = """
CREATE OR REPLACE TRIGGER restoring BEFORE INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION agentstate_restoring();
"""
OPEN = "DROP TRIGGER IF EXISTS restoring ON {table};"
NOTE = "COMMENT ON FUNCTION agentstate_restoring() IS {note};"
NOTED = "SELECT obj_description(to_regproc('agentstate_restoring'), 'pg_proc')"

FLOORS = """
SELECT coalesce((SELECT position FROM agentstate_feedhead WHERE id = 1), 0),
    (SELECT last_value FROM agentstate_fence)
"""
AHEAD = """
SELECT floor(extract(epoch FROM clock_timestamp() - timestamptz '2026-01-01 00:00:00+00')
    * %(per_second)s)::bigint, agentstate_now()
"""
OPEN_RESTORE = "SELECT id FROM agentstate_restore WHERE finished_at IS NULL ORDER BY id LIMIT 1"
NOTE_RESTORE = """
INSERT INTO agentstate_restore
    (at, source, reason, feed_after, feed_begins, token_after, token_begins, leases_ended)
VALUES (%(at)s, %(source)s, %(reason)s, %(feed_after)s, %(feed_begins)s, %(token_after)s,
    %(token_begins)s, 0)
RETURNING id
"""
SET_FEED = """
INSERT INTO agentstate_feedhead (id, position, moved_at) VALUES (1, %(position)s, %(at)s)
ON CONFLICT (id) DO UPDATE SET position = excluded.position
"""
HELD = """
SELECT unit, token, owner FROM agentstate_lease WHERE token IS NOT NULL AND unit > %(after)s
ORDER BY unit LIMIT %(limit)s
"""
COUNT_ENDED = """
UPDATE agentstate_restore SET leases_ended = leases_ended + %(ended)s WHERE id = %(id)s
"""
FINISHED = """
UPDATE agentstate_restore SET finished_at = agentstate_now() WHERE id = %(id)s
RETURNING source, reason, feed_after, feed_begins, token_after, token_begins, leases_ended
"""
KEYS_OVER = """
SELECT name FROM agentstate_apikey
WHERE revoked_at IS NULL AND (%(all)s OR id = ANY(%(ids)s::uuid[])) ORDER BY name
"""
# By when they were made as well: another store may have somebody of the same name.
SWITCH_OFF = """
UPDATE auth_user SET is_active = false WHERE is_active AND (username, date_joined) IN (
    SELECT name, made FROM json_to_recordset(%(people)s) AS off (name text, made timestamptz))
RETURNING username
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What whoever closed the gate wrote down. source: the backup. reason: why, in words.

    feed_floor, token_floor: how far the store had come that was overwritten; 0: nobody knows.
    keys_over: ids of keys that were revoked in it. people_off: name and time of making of people
    who could not sign in to it any more. end_keys: every key of the backup ends.
    """

    source: str
    reason: str = ""
    feed_floor: int = 0
    token_floor: int = 0
    keys_over: Sequence[str] = ()
    people_off: Sequence[Sequence[str]] = ()
    end_keys: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """feed_begins, token_begins: all that is given out from now on is greater. keys_ended,
    people_off: how many were valid in the backup, and are not any more."""

    source: str
    reason: str
    feed_after: int
    feed_begins: int
    token_after: int
    token_begins: int
    leases_ended: int
    keys_ended: int = 0
    people_off: int = 0


def closing_sql(begun: Begun) -> str:
    """SQL that closes the gate, for the transaction that loads the backup."""
    members = {name: getattr(begun, name) for name in Begun.__slots__}
    note = "'" + json.dumps(members).replace("'", "''") + "'"
    # A backslash in a plain literal is one, whatever an old client was told.
    standard = "SET LOCAL standard_conforming_strings = on;\n"
    triggers = "".join(CLOSE.format(table=table) for table in GATED)
    return standard + GATE + triggers + NOTE.format(note=note)


def close_gate(begun: Begun) -> None:
    """Close it on this database, which was brought back by other means than ours."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(closing_sql(begun))


def begun() -> Begun | None:
    """What is to be finished, if the gate is closed."""
    with connection.cursor() as cursor:
        cursor.execute(NOTED)
        (noted,) = cursor.fetchone()
    return Begun(**json.loads(noted)) if noted else None


def floors() -> tuple[int, int]:
    """How far feed positions and tokens have come in this store."""
    with connection.cursor() as cursor:
        cursor.execute(FLOORS)
        position, token = cursor.fetchone()
        return position, token


def pass_gate() -> None:
    """Let this connection write while the gate is closed: for migrations, and for `finish`."""
    with connection.cursor() as cursor:
        cursor.execute("SET agentstate.restoring = 'finishing'")


def finish(*, report: Callable[[str], None], end_sessions: Callable[[], int]) -> Restored | None:
    """Do what a restore needs once the data is there, and open the gate. None: nothing to do.

    Stopped in between it is simply called again. end_sessions: ends what people are signed in by,
    since one that was signed out after the backup would be signed in again.
    """
    noted = begun()
    if noted is None:
        return None
    pass_gate()
    number = _go_ahead(noted)
    _end_leases(number, noted, report)
    keys_ended = _end_keys(noted)
    with transaction.atomic(), connection.cursor() as cursor:
        sessions = end_sessions()
        people_off = _switch_off(noted)
        cursor.execute(FINISHED, {"id": number})
        found = (*cursor.fetchone(), keys_ended, people_off)
        done = Restored(*found)
        told = {name: getattr(done, name) for name in Restored.__slots__ if name != "reason"}
        record_action(
            by=RESTORE,
            action="store.restored",
            thing="the store",
            reason=done.reason,
            after=told | {"sessions_ended": sessions},
        )
        for table in GATED:
            cursor.execute(OPEN.format(table=table))
        cursor.execute("DROP FUNCTION agentstate_restoring()")
    with connection.cursor() as cursor:
        cursor.execute("RESET agentstate.restoring")
    return done


def _go_ahead(noted: Begun) -> int:
    """Set tokens and positions ahead, once; the number of the row that says so."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(OPEN_RESTORE)
        if going_on := cursor.fetchone():
            return int(going_on[0])
        feed_after, token_after = floors()
        cursor.execute(AHEAD, {"per_second": GIVEN_OUT_PER_SECOND})
        by_clock, at = cursor.fetchone()
        values = {
            "at": at,
            "source": noted.source,
            "reason": noted.reason,
            "feed_after": feed_after,
            "feed_begins": max(by_clock, feed_after + AHEAD_AT_LEAST, noted.feed_floor),
            "token_after": token_after,
            "token_begins": max(by_clock, token_after + AHEAD_AT_LEAST, noted.token_floor),
        }
        cursor.execute(SET_FEED, {"position": values["feed_begins"], "at": at})
        cursor.execute("SELECT setval('agentstate_fence', %s)", [values["token_begins"]])
        cursor.execute(NOTE_RESTORE, values)
        return int(cursor.fetchone()[0])


def _end_leases(number: int, noted: Begun, report: Callable[[str], None]) -> None:
    """End each with the reason, through the one door: with its event, and in the audit."""
    after, ended = "", 0
    while held := _held(after):
        outcomes = execute_all(
            [
                Ask(
                    command=ReclaimLease(
                        unit=unit,
                        expected_token=token,
                        expected_owner=owner,
                        reason=f"the store was restored from {noted.source}"[:200],
                        force=True,
                    ),
                    by=RESTORE,
                )
                for unit, token, owner in held
            ]
        )
        for outcome in outcomes:
            # Freed by somebody else, or by an attempt of ours that was cut off.
            if isinstance(outcome, Exception) and not isinstance(
                outcome, HolderChanged | AlreadyTerminal | NotFound
            ):
                raise outcome
        count = sum(not isinstance(outcome, Exception) for outcome in outcomes)
        with connection.cursor() as cursor:
            cursor.execute(COUNT_ENDED, {"ended": count, "id": number})
        ended += count
        after = held[-1][0]
        report(f"{ended} leases are ended …")


def _end_keys(noted: Begun) -> int:
    """Revoke the keys that are not to come back, each with the reason in the audit; how many."""
    with connection.cursor() as cursor:
        cursor.execute(KEYS_OVER, {"all": noted.end_keys, "ids": list(noted.keys_over)})
        over = [name for (name,) in cursor.fetchall()]
    why = "ended" if noted.end_keys else "was revoked after the backup"
    reason = f"{why}; the store was restored from {noted.source}"[:200]
    for first in range(0, len(over), KEYS_PER_PASS):
        asks = [
            Ask(command=RevokeKey(name=name, reason=reason), by=RESTORE)
            for name in over[first : first + KEYS_PER_PASS]
        ]
        for outcome in execute_all(asks):
            if isinstance(outcome, Exception):
                raise outcome
    return len(over)


def _switch_off(noted: Begun) -> int:
    """Let nobody sign in again who could not any more; how many that were."""
    if not noted.people_off:
        return 0
    people = [{"name": name, "made": made} for name, made in noted.people_off]
    with connection.cursor() as cursor:
        cursor.execute(SWITCH_OFF, {"people": json.dumps(people)})
        names = [name for (name,) in cursor.fetchall()]
    for name in names:
        record_action(
            by=RESTORE,
            action="person.changed",
            thing=name,
            reason="could not sign in any more when the store was overwritten",
            before={"active": True},
            after={"active": False},
        )
    return len(names)


def _held(after: str) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(HELD, {"after": after, "limit": LEASES_PER_PASS})
        return list(cursor.fetchall())
