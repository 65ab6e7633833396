"""People: who has which role, whose sessions end, and who is the first admin."""

import hmac

from agentstate.store.errors import Exists, Invalid, NotAllowed, NotFound
from agentstate.store.people import (
    AdminMade,
    EndSessions,
    MakeFirstAdmin,
    RoleSet,
    SessionsEnded,
    SetRole,
)
from agentstate.store.rules.deciding.desk import Deciding


def _known(name: str, on: Deciding) -> str:
    """Their roles. Raises NotFound."""
    found = on.draft.facts.people.get(name)
    if found is None:
        raise NotFound(f"nobody is called {name}", person=name)
    return found


def set_role(ask: SetRole, on: Deciding) -> RoleSet:
    on.by.need("admin")
    before, role = _known(ask.person, on), ask.role or ""
    if before != role:
        on.draft.writes.other.append(("set-role", {"person": ask.person, "role": role}))
        was, now = {"role": before}, {"role": role}
        on.act("person.role", ask.person, reason=ask.told_by, before=was, after=now)
    return RoleSet(person=ask.person, before=before, role=role)


def end_sessions(ask: EndSessions, on: Deciding) -> SessionsEnded:
    if on.by.principal != f"person:{ask.person}":
        on.by.need("admin")
    _known(ask.person, on)
    on.draft.writes.other.append(("end-sessions", {"person": ask.person}))
    on.act("person.signed-out", ask.person, reason=ask.reason)
    return SessionsEnded(person=ask.person)


def make_first_admin(ask: MakeFirstAdmin, on: Deciding) -> AdminMade:
    facts = on.draft.facts
    if facts.has_admin:
        raise Exists("there is an admin already")
    if not hmac.compare_digest(ask.code, facts.setup_code or ""):
        raise NotAllowed("this is not the code that the last start printed", scope="admin")
    if ask.name in facts.people:
        raise Invalid("name", "a name that nobody has")
    made = {"name": ask.name, "password": ask.password}
    on.draft.writes.other.append(("make-first-admin", made))
    on.act("person.created", ask.name, reason="the first admin", after={"role": "admin"})
    return AdminMade(person=ask.name)
