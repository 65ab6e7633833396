"""API keys: made once, shown once, kept as a salted hash, looked up at each call.

A key is `as_<id>_<secret>`: the id finds the row, the secret (256 random bits) proves the key. So a
look-up costs one row by its primary key, a revocation counts from the next call on, and nothing in
the database lets anybody in. A slow hash would protect nothing: the secret cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection

from agentstate.store import flights, reads
from agentstate.store.callers import PLAIN, SCOPES, Caller, Circumstances
from agentstate.store.commands import CreateKey, KeyRevoked, RevokeKey
from agentstate.store.errors import Invalid, NotFound, Refusal
from agentstate.store.execute import execute

SECRET_BYTES, SALT_BYTES, HINT_CHARS = 32, 16, 4
NO_SALT, NO_DIGEST = bytes(SALT_BYTES), bytes(32)
_KEY = re.compile(r"as_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")

# Where nothing can be written now nothing is marked either: reads go on.
LOOK_UP = """
SELECT id, name, scopes, salt, digest, revoked_at IS NOT NULL,
       coalesce(expires_at <= agentstate_now(), false),
       coalesce(last_used_at < agentstate_now() - interval '1 minute', true)
           AND current_setting('transaction_read_only') = 'off'
FROM agentstate_apikey WHERE id = ANY (%s)
"""
EVERY = """
SELECT name, scopes, hint, created_by, created_at, expires_at, revoked_at, last_used_at,
    revoked_at IS NULL AND coalesce(expires_at > agentstate_now(), true)
FROM agentstate_apikey ORDER BY name
"""
# Whoever finds the row locked leaves it: another call is just writing the same minute.
MARK_USED = """
UPDATE agentstate_apikey SET last_used_at = agentstate_now()
WHERE id = (
    SELECT id FROM agentstate_apikey
    WHERE id = %(id)s
      AND coalesce(last_used_at < agentstate_now() - interval '1 minute', true)
    FOR NO KEY UPDATE SKIP LOCKED
)
"""


class Unauthenticated(Refusal):
    """No API key, or one that is unknown, expired or revoked."""

    code, title, recorded = "unauthenticated", "No valid API key", False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made. `text` is the key itself: show it once and forget it. It is empty
    when the request was repeated: then it was shown before."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    text: str = field(repr=False)


def create_key(
    *,
    name: str,
    scopes: Sequence[str],
    by: Caller,
    expires_at: datetime | None = None,
    valid_seconds: int | None = None,
    reason: str = "",
    under: Circumstances = PLAIN,
) -> NewKey:
    """Make a key. valid_seconds: from now on by the database's clock, in place of expires_at.

    Raises Invalid (an unknown scope, none, a name that is taken), NotAllowed.
    """
    if not scopes or not set(scopes) <= set(SCOPES):
        raise Invalid("scopes", f"one or more of {', '.join(SCOPES)}")
    key_id, secret = uuid4(), secrets.token_urlsafe(SECRET_BYTES)
    salt = secrets.token_bytes(SALT_BYTES)
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    if valid_seconds is not None:
        expires_at = reads.now() + timedelta(seconds=valid_seconds)
    ask = CreateKey(
        id=key_id,
        name=name,
        scopes=ordered,
        salt=salt,
        digest=digest_of(salt, secret),
        hint=secret[-HINT_CHARS:],
        expires_at=expires_at,
        reason=reason,
    )
    made = execute(ask, by=by, under=under)
    text = "" if made.replayed else f"as_{key_id.hex}_{secret}"
    return NewKey(id=made.id, name=name, scopes=ordered, text=text)


def revoke_key(
    *, name: str, by: Caller, reason: str = "", under: Circumstances = PLAIN
) -> KeyRevoked:
    """End a key: its next call is refused. Repeating it is harmless.

    Raises NotFound, NotAllowed.
    """
    if not _is_taken(name):
        raise NotFound(f"no key {name}", key=name)
    return execute(RevokeKey(name=name, reason=reason), by=by, under=under)


def find_caller(text: str) -> Caller:
    """Who calls with this key. Raises Unauthenticated; never says whether an id exists."""
    found = find_callers([text])[text]
    if isinstance(found, Unauthenticated):
        raise found
    return found


def find_callers(texts: Iterable[str]) -> dict[str, Caller | Unauthenticated]:
    """Who calls with these keys, asked together; a key's refusal in place of its caller."""
    parts = {text: _KEY.fullmatch(text) for text in texts}
    ids = {text: UUID(found[1]) for text, found in parts.items() if found}
    rows: dict[UUID, tuple[Any, ...]] = {}
    if ids:
        found_rows = flights.fetch(LOOK_UP, [list(set(ids.values()))])
        rows = {row[0]: row[1:] for row in found_rows}
    callers: dict[str, Caller | Unauthenticated] = {}
    for text, match in parts.items():
        if match is None:
            callers[text] = Unauthenticated(
                "this is not an API key: as_, 32 hex digits, _, 43 characters"
            )
        else:
            callers[text] = _caller_of(match[2], rows.get(ids[text]))
    used = {ids[text] for text, caller in callers.items() if isinstance(caller, Caller)}
    for key_id in (one for one in used if rows[one][-1]):
        with connection.cursor() as cursor:
            cursor.execute(MARK_USED, {"id": key_id})
    return callers


def _caller_of(secret: str, row: tuple[Any, ...] | None) -> Caller | Unauthenticated:
    # As long for an id that nobody has as for a wrong secret.
    salt, digest = (row[2], bytes(row[3])) if row else (NO_SALT, NO_DIGEST)
    is_right = hmac.compare_digest(digest_of(salt, secret), digest)
    if row is None or not is_right:
        return Unauthenticated("this key is unknown")
    name, scopes, _, _, revoked, expired, _ = row
    if revoked or expired:
        return Unauthenticated(f"this key was {'revoked' if revoked else 'valid for a time'}")
    return Caller(kind="key", name=name, scopes=frozenset(scopes))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """A key as it may be shown. hint: the last characters of its secret. last_used_at: to the
    minute. valid: neither revoked nor over."""

    name: str
    scopes: tuple[str, ...]
    hint: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    valid: bool


def every_key() -> tuple[KeyView, ...]:
    """All keys that there are or were, by name."""
    with connection.cursor() as cursor:
        cursor.execute(EVERY)
        names = [column.name for column in fields(KeyView)]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return tuple(KeyView(**row | {"scopes": tuple(row["scopes"])}) for row in rows)


def has_key_in(text: str) -> bool:
    """Whether a key stands in a text where none belongs, such as an address."""
    return _KEY.search(text) is not None


def _is_taken(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM agentstate_apikey WHERE name = %s", [name])
        return cursor.fetchone() is not None


def digest_of(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(bytes(salt) + secret.encode()).digest()
