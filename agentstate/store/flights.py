"""Statements of `execute`, prepared once per connection and sent together: few round trips.

Django's cursor sends each statement by itself, and has PostgreSQL parse and plan it anew each time.
Here what is executed waits until somebody fetches, and goes over in one flight (libpq's pipeline).
Any other statement goes by Django's cursor, after those that wait. One transaction at a time and
connection; `transaction.atomic` begins and ends it as ever. Why: docs/decisions/0029-hot-path.md.

psycopg's own pipeline and prepared statements do the same; its generality costs more than half of
what a round trip does [processor time of a statement more: 7 µs here, 37 there].
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import count
from time import perf_counter
from typing import Any, cast

from django.conf import settings
from django.db import DatabaseError, connection
from psycopg import errors, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, TransactionStatus

from agentstate.store import spent

# By which a batch whose COMMIT was not answered is known: an event of its own.
IS_THERE = (
    "SELECT EXISTS (SELECT FROM agentstate_event WHERE run_id = %s AND seq = %s"
    " AND at = %s AND actor = %s AND request_id IS NOT DISTINCT FROM %s)"
)

type Params = Sequence[Any] | Mapping[str, Any]
type Row = tuple[Any, ...]

# Whose answer it is, the statement that it prepares, and what sends it.
type _Sent = tuple[Later | None, str | None, Callable[[], None]]

_KNOWN = "_agentstate_known"  # kept beside the connection: it ends with it
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
# Behind a pooler that gives each transaction another session, what was prepared is not there.
_OF_POOLERS = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
_POOLED = threading.Event()


class Later:
    """A statement that was sent, or will be once somebody wants its rows."""

    __slots__ = ("_cursor", "locks", "result")

    def __init__(self, cursor: Cursor, locks: bool) -> None:
        self._cursor, self.locks = cursor, locks
        self.result: Any = None

    def rows(self) -> list[Row]:
        """All of its rows. Raises what Django raises for the first statement that failed."""
        if self.result is None:
            self._cursor.flush()
        return self._cursor.load(self.result) if self.result.ntuples else []


class _Known:
    """The prepared statements of one connection, by their text."""

    __slots__ = ("_count", "names")

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self._count = count()

    def give(self, statement: str) -> bytes:
        name = self.names[statement] = b"agentstate_%d" % next(self._count)
        return name


class Cursor:
    """What `execute` needs of a cursor: execute, fetchone, fetchall, and `later` beside."""

    def __init__(self, prepared: frozenset[str], *, begins: bool = True) -> None:
        connection.ensure_connection()
        self._begins = begins
        self._raw = connection.connection
        self._conn: Any = self._raw.pgconn
        self._prepared = prepared
        if not hasattr(self._raw, _KNOWN):
            setattr(self._raw, _KNOWN, _Known())
        self._known: _Known = getattr(self._raw, _KNOWN)
        self._waiting: list[_Sent] = []
        self._tx = Transformer(self._raw)
        self._plain: Any = None  # Django's cursor
        self._last: Later | None = None
        self._left: Iterator[Row] | None = None

    @property
    def backend_pid(self) -> int:
        """PostgreSQL's process of this session."""
        return int(self._conn.backend_pid)

    @property
    def is_first(self) -> bool:
        """Whether nothing of the transaction was sent yet; no, inside of a longer one."""
        return bool(self._conn.transaction_status == TransactionStatus.IDLE)

    def execute(self, statement: str, params: Params = ()) -> None:
        self._left = None
        if statement in self._prepared:
            self._last = self.later(statement, params)
            return
        self.flush()
        self._last = None
        if self._plain is None:
            self._plain = connection.cursor()
        self._plain.execute(statement, params)

    def later(self, statement: str, params: Params = ()) -> Later:
        """The same for one that is prepared; others may follow before its rows are wanted."""
        text, names = in_protocol(statement)
        values = list(params) if names is None else [params[name] for name in names]  # type: ignore[call-overload]
        dumped = self._tx.dump_sequence(values, [PyFormat.TEXT] * len(values)) if values else None
        answer = Later(self, spent.locks(statement))
        if not settings.PREPARED_STATEMENTS or _POOLED.is_set():
            self._waiting.append(
                (answer, None, partial(self._conn.send_query_params, text, dumped))
            )
            return answer
        name = self._known.names.get(statement)
        if name is None:
            name = self._known.give(statement)
            self._waiting.append((None, statement, partial(self._conn.send_prepare, name, text)))
        self._waiting.append((answer, None, partial(self._conn.send_query_prepared, name, dumped)))
        return answer

    def fetchall(self) -> list[Row]:
        return list(self._plain.fetchall()) if self._last is None else self._last.rows()

    def fetchone(self) -> Row | None:
        if self._last is None:
            row: Row | None = self._plain.fetchone()
            return row
        if self._left is None:
            self._left = iter(self._last.rows())
        return next(self._left, None)

    def load(self, result: Any) -> list[Row]:
        self._tx.set_pgresult(result)
        return cast("list[Row]", self._tx.load_rows(0, result.ntuples, tuple))

    def flush(self) -> None:
        """Send all that waits, and have it answered. Raises what Django raises."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        record, began = spent.record(), perf_counter()
        try:
            with connection.wrap_database_errors:
                self._exchange(waiting)
        finally:
            if record is not None:
                locks = any(answer is not None and answer.locks for answer, *_ in waiting)
                record.note(perf_counter() - began, locks=locks)

    def _exchange(self, waiting: list[_Sent]) -> None:
        conn = self._conn
        if self._begins and conn.transaction_status == TransactionStatus.IDLE:
            waiting = [(None, None, partial(conn.send_query_params, b"BEGIN", None)), *waiting]
        try:
            conn.enter_pipeline_mode()
            for *_, send in waiting:
                send()
            conn.pipeline_sync()
            results = self._raw.wait(_results(conn, len(waiting) + 1))
            conn.exit_pipeline_mode()
        except BaseException:
            # Nobody knows what is still on its way to whom.
            self._raw.close()
            raise
        failed = None
        for (answer, made, _), result in zip(waiting, results, strict=False):
            if result.status in _GOOD:
                if answer is not None:
                    answer.result = result
                continue
            failed = failed or result
            if made is not None:
                self._known.names.pop(made, None)
        if failed is not None:
            error = errors.error_from_result(failed, encoding="utf-8")
            if isinstance(error, _OF_POOLERS):
                self._known.names.clear()
                _POOLED.set()
            raise error


def _results(conn: Any, wanted: int) -> Generator[Any, Any, list[Any]]:
    """One result for each statement, and one for the end."""
    yield from generators.send(conn)
    found: list[Any] = []
    while len(found) < wanted:
        found += yield from generators.fetch_many(conn)
    return found


def fetch(statement: str, params: Params) -> list[Row]:
    """The rows of one statement, prepared, in a transaction of its own or in the one that is open.

    For what is asked all the time and needs nothing of Django's cursor.
    """
    if connection.in_atomic_block or not settings.PREPARED_STATEMENTS or _POOLED.is_set():
        with connection.cursor() as plain:
            plain.execute(statement, params)
            return list(plain.fetchall())
    # Often the first thing that a request asks: a connection that was lost meanwhile is not used.
    connection.close_if_health_check_failed()
    try:
        return Cursor(frozenset({statement}), begins=False).later(statement, params).rows()
    except DatabaseError as failed:
        if not isinstance(failed.__cause__, _OF_POOLERS):
            raise
        return fetch(statement, params)  # now without: nothing was done


@lru_cache(maxsize=500)
def in_protocol(statement: str) -> tuple[bytes, tuple[str, ...] | None]:
    """A statement with `$1` in place of `%s` or `%(name)s`, and the names in their order.

    None for names where they have none. The same name twice is one parameter.
    """
    names: list[str] = []
    count = 0

    def place(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] == "%%":
            return "%"
        if found["name"] is None:
            count += 1
            return f"${count}"
        if found["name"] not in names:
            names.append(found["name"])
        return f"${names.index(found['name']) + 1}"

    text = _PLACE.sub(place, statement)
    return text.encode(), tuple(names) if names else None


_PLACE = re.compile(r"%(?:%|s|\((?P<name>\w+)\)s)")


@contextmanager
def cursor(prepared: frozenset[str]) -> Iterator[Cursor]:
    """A cursor for one transaction; what waits at the end is sent, if nothing failed.

    prepared: the statements that are prepared and may wait for others. All others go by Django's.
    """
    found = Cursor(prepared)
    yield found
    found.flush()
