"""What the database says when it can be read and not written to: callers and health are told so.

A full disk is not seen by asking: every statement of a check works, and the first one that needs a
new page does not. So whoever met it leaves a note, and whoever looks after health tries then.
"""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

READ_ONLY, FULL = "25006", "53100"
WORDS = {
    READ_ONLY: "the database can only be read now",
    FULL: "the database has no room left on its disk",
}
TITLES = {
    READ_ONLY: "The database can only be read now",
    FULL: "The database has no room left",
}
# A megabyte of its own, gone with the transaction. Short rows: long ones would be compressed.
TAKE_ROOM = """
CREATE TEMPORARY TABLE agentstate_room ON COMMIT DROP AS
SELECT repeat('x', 1000) AS filling FROM generate_series(1, 1000)
"""


class _Met:
    """Whether somebody met a full disk, and nobody has seen since that it is not."""

    full = False


def state_of(failed: BaseException | None) -> str:
    """PostgreSQL's code of psycopg's or Django's exception; nothing for anything else."""
    state = getattr(failed, "sqlstate", None) or getattr(
        getattr(failed, "__cause__", None), "sqlstate", None
    )
    return state or ""


def note(failed: BaseException) -> None:
    """Remember a full disk."""
    if state_of(failed) == FULL:
        _Met.full = True


def is_one(failed: BaseException | type[BaseException] | None) -> bool:
    """Whether it is the database's, and may pass: away, busy, full, read-only."""
    if isinstance(failed, OperationalError | InterfaceError):
        return True
    return isinstance(failed, DatabaseError) and state_of(failed) in WORDS


def in_words(failed: BaseException) -> str:
    """For a caller; never where the database is, or who asks it."""
    return WORDS.get(state_of(failed), "the database cannot be reached or is busy")


def has_room(*, ask: bool = False) -> bool:
    """Whether the database can take more. It is tried when somebody met a full disk, or with ask.

    Raises DatabaseError for anything else that is the matter.
    """
    if not (ask or _Met.full):
        return True
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(TAKE_ROOM)
    except DatabaseError as failed:
        if state_of(failed) != FULL:
            raise
        _Met.full = True
        return False
    _Met.full = False
    return True
