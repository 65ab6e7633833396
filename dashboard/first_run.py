"""The first admin: made on a page that is there while there is none, with a code of one use.

The code is made at each start that finds no admin, and printed there: whoever can read the start's
output may be the first admin. In the database is its digest alone, so no copy of it opens the page.
"""

from __future__ import annotations

import hashlib
import secrets

from django.db import connection, transaction

from agentstate import store
from agentstate.store.callers import COMMAND_LINE
from agentstate.store.rowsql import SETUP

# No letter is taken for another or for a digit; 60 bits, tried ten times in five minutes.
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
GROUPS, GROUP_CHARS = 3, 4
_KEEP = """
INSERT INTO dashboard_setupcode (id, digest, made_at) VALUES (1, %s, agentstate_now())
ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, made_at = excluded.made_at
"""


def is_open() -> bool:
    """Whether there is no admin."""
    with connection.cursor() as cursor:
        cursor.execute(SETUP)
        return not cursor.fetchone()[0]


def make_code() -> str | None:
    """A new code, of which the audit tells; the one before it opens nothing any more. None when
    there is an admin."""
    if not is_open():
        return None
    code = "-".join(
        "".join(secrets.choice(LETTERS) for _ in range(GROUP_CHARS)) for _ in range(GROUPS)
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_KEEP, [digest_of(code)])
        store.record_action(by=COMMAND_LINE, action="setup-code.made", thing="the first admin")
    return code


def digest_of(code: str) -> str:
    """Of a code as a person typed it."""
    letters = "".join(one for one in code.lower() if one.isalnum())
    return hashlib.sha256(letters.encode()).hexdigest()
