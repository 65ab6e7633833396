"""Targets of alerts: made with their address and secret sealed, and read without either.

A webhook signs what it sends with a secret that is made here and shown once; whoever lost it makes
the target anew. What an address may be: `agentstate/outside`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from django.db import connection

from agentstate.store.callers import PLAIN, Caller, Circumstances
from agentstate.store.commands import CreateTarget, TargetCreated
from agentstate.store.delivering import WEBHOOK
from agentstate.store.execute import execute
from agentstate.store.sealing import seal

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
        reason=reason,
    )
    created = execute(ask, by=by, under=under)
    return NewTarget(created=created, secret=None if created.replayed else secret)


def new_secret() -> str:
    """As Standard Webhooks has them: `whsec_` and 32 random bytes in base64."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target as it may be shown. waiting: deliveries that are not settled."""

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
    waiting: int


_NAMES = (
    "name", "kind", "hint", "least", "rules", "enabled", "off_at", "off_why", "failures",
    "failing_since", "delivered_at", "version", "created_by", "created_at",
)  # fmt: skip
READ = f"""
SELECT {", ".join(_NAMES)}, (SELECT count(*) FROM agentstate_delivery d
    WHERE d.target_id = t.id AND d.state = 'waiting')
FROM agentstate_alerttarget t WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name
"""


def read(*, name: str | None = None) -> list[Target]:
    """All targets by name, or the one of this name."""
    with connection.cursor() as cursor:
        cursor.execute(READ, {"name": name})
        rows = cursor.fetchall()
    found = [dict(zip((*_NAMES, "waiting"), row, strict=True)) for row in rows]
    return [Target(**values | {"rules": tuple(values["rules"])}) for values in found]


def find(name: str) -> Target | None:
    """The target of this name."""
    return next(iter(read(name=name)), None)
