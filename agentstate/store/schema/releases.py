"""The schema of the release before, on which this code serves as well, without what is new in it.

So a site is upgraded in any order: old code on the new schema, and new code on the old. Whoever
makes a release writes down here what its schema was, and takes away what was for the one before.
"""

from __future__ import annotations

import re
from functools import cache

from django.db import connection

# The newest migration of each app of ours in the release before, and a commit of its code, which
# tests run on the schema of today. Of apps that are not named here the newest one is needed.
RELEASE_BEFORE = {"agentstate": "0030_leases_plain"}
COMMIT_BEFORE = "ddecb7a568c85a8c92753ff81565925acd693bc6"


NO_RESTORES = "SELECT 0::bigint AS feed_after, 0::bigint AS feed_begins WHERE false"


class _NotYet(Exception):
    """It is not there, and will be: nothing to remember."""


def has_restores() -> bool:
    """Whether `agentstate_restore` is there (0040); before it no store was ever restored by us."""
    try:
        return _once_there("agentstate_restore")
    except _NotYet:
        return False


def without_restores(statement: str) -> str:
    """The statement as it would be asked where there never was a restore: of an empty table."""
    lag = r"agentstate_feed_lag\(([\w.]+), ([\w.]+)\)"
    return re.sub(lag, r"greatest(0, \2 - \1)", statement).replace(
        "agentstate_restore", f"({NO_RESTORES})"
    )


@cache
def _once_there(table: str) -> bool:
    """Asked until it is there, then never again."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
        if cursor.fetchone() == (True,):
            return True
    raise _NotYet(table)
