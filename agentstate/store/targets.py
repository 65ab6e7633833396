"""Targets of alerts: made with their address and secret sealed, and read without either.

A webhook signs what it sends with a secret that is made here and shown once; whoever lost it
rotates it. What an address may be: `agentstate/outside`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from django.db import connection

from agentstate.store.callers import PLAIN, Caller, Circumstances
from agentstate.store.commands import CreateTarget, RotateSecret, SecretRotated, TargetCreated
from agentstate.store.delivering import ROTATION_SECONDS, WEBHOOK, rotated
from agentstate.store.errors import Invalid
from agentstate.store.execute import execute
from agentstate.store.sealing import Unreadable, seal, unseal

SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105  as Standard Webhooks writes one


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTarget:
    """A target that was just made. secret: of a webhook, to be shown once; None when the request
    was repeated.
    """

    created: TargetCreated
    secret: str | None = field(repr=False)


def create_target(
    *,
    name: str,
    kind: str,
    address: str,
    hint: str,
    least: str = "warn",
    rules: Sequence[str] = (),
    person: str = "",
    reason: str = "",
    by: Caller,
    under: Circumstances = PLAIN,
) -> NewTarget:
    """Keep a target. address: checked before (`outside.read_address`), and hint made of it.

    Raises Invalid, Exists, NotAllowed.
    """
    secret = new_secret() if kind == WEBHOOK else None
    ask = CreateTarget(
        id=uuid4(),
        name=name,
        kind=kind,
        address=seal(address),
        secret=seal(secret) if secret is not None else None,
        hint=hint,
        least=least,
        rules=tuple(sorted(set(rules))),
        person=person,
        reason=reason,
    )
    created = execute(ask, by=by, under=under)
    return NewTarget(created=created, secret=None if created.replayed else secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """secret: to be shown once; None when the request was repeated."""

    rotated: SecretRotated
    secret: str | None = field(repr=False)


SEALED = """
SELECT secret, agentstate_now() FROM agentstate_alerttarget WHERE name = %s AND secret IS NOT NULL
"""


def rotate_secret(
    *, name: str, version: int, reason: str, by: Caller, under: Circumstances = PLAIN
) -> NewSecret:
    """Give a webhook another secret; the one before signs as well for ROTATION_SECONDS.

    Only the one before: a third one ends at once. Raises Invalid, NotFound, VersionConflict,
    NotAllowed; Invalid too when the one before cannot be read under the site's key.
    """
    by.need("admin")
    secret = new_secret()
    with connection.cursor() as cursor:
        cursor.execute(SEALED, [name])
        before, now = cursor.fetchone() or ("", datetime.now(UTC))
    try:
        # Of one that is not there, or has none, the command says what is wrong.
        kept = rotated(secret, unseal(before), now) if before else ""
    except Unreadable as unreadable:
        raise Invalid("name", f"its secret cannot be read ({unreadable}): add it anew") from None
    until = now + timedelta(seconds=ROTATION_SECONDS)
    ask = RotateSecret(
        name=name, version=version, secret=seal(kept), old_until=until, reason=reason
    )
    done = execute(ask, by=by, under=under)
    return NewSecret(rotated=done, secret=None if done.replayed else secret)


def new_secret() -> str:
    """As Standard Webhooks has them: `whsec_` and 32 random bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target as it may be shown. waiting: deliveries that are not settled; held: of those, how
    many wait for the end of quiet hours. person: whose quiet hours it has, too.
    """

    name: str
    kind: str
    hint: str
    least: str
    rules: tuple[str, ...]
    enabled: bool
    off_at: datetime | None
    off_why: str | None
    failures: int
    failing_since: datetime | None
    delivered_at: datetime | None
    version: int
    created_by: str
    created_at: datetime
    person: str
    waiting: int
    held: int


_NAMES = (
    "name", "kind", "hint", "least", "rules", "enabled", "off_at", "off_why", "failures",
    "failing_since", "delivered_at", "version", "created_by", "created_at", "person",
)  # fmt: skip
READ = f"""
SELECT {", ".join(_NAMES)}, (SELECT count(*) FROM agentstate_delivery d
    WHERE d.target_id = t.id AND d.state = 'waiting'), (SELECT count(*) FROM agentstate_delivery d
    WHERE d.target_id = t.id AND d.state = 'waiting' AND d.held_until > agentstate_now())
FROM agentstate_alerttarget t WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name
"""


def read(*, name: str | None = None) -> list[Target]:
    """All targets by name, or the one of this name."""
    with connection.cursor() as cursor:
        cursor.execute(READ, {"name": name})
        rows = cursor.fetchall()
    found = [dict(zip((*_NAMES, "waiting", "held"), row, strict=True)) for row in rows]
    return [Target(**values | {"rules": tuple(values["rules"])}) for values in found]


def find(name: str) -> Target | None:
    """The target of this name. None as well for what no target can be called."""
    return next(iter(read(name=name)), None) if "\0" not in name else None
