"""API keys: their hashes come in, never the keys. And what a key was not allowed to do."""

from agentstate.store.commands import (
    CreateKey,
    KeyCreated,
    KeyRevoked,
    NoteRefused,
    Result,
    RevokeKey,
)
from agentstate.store.errors import Invalid, NotAllowed
from agentstate.store.payloads import moment
from agentstate.store.rules.deciding.desk import Deciding


def create_key(ask: CreateKey, on: Deciding) -> KeyCreated:
    on.by.need("admin")
    if ask.name in on.draft.facts.api_keys:
        raise Invalid("name", "a name that no key has or had: it stands beside what the key did")
    on.draft.writes.other.append(("create-key", {"ask": ask, "by": on.by.principal}))
    told = {"scopes": list(ask.scopes), "hint": ask.hint}
    if ask.expires_at is not None:
        told["expires_at"] = moment(ask.expires_at)
    on.act("key.created", ask.name, reason=ask.reason, after=told)
    return KeyCreated(id=ask.id, name=ask.name, at=on.draft.now)


def revoke_key(ask: RevokeKey, on: Deciding) -> KeyRevoked:
    on.by.need("admin")
    on.draft.writes.other.append(("revoke-key", {"name": ask.name}))
    on.act("key.revoked", ask.name, reason=ask.reason)
    return KeyRevoked(name=ask.name, at=on.draft.now)


def note_refused(ask: NoteRefused, on: Deciding) -> Result:
    on.by.need(*ask.scopes)
    raise NotAllowed("this is not for your key", scope=ask.scopes[0])
