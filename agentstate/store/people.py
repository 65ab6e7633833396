"""Commands about people: their role, the end of their sessions, and the first admin of all.

People, their groups and sessions are Django's tables and the console's; what gives and takes rights
goes through the one door all the same, so that its audit row commits with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentstate.store.commands import Command, Result
from agentstate.store.rules import names

NAME_CHARS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSet(Result):
    """before, role: the roles by name, joined with commas; "" for none."""

    person: str
    before: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRole(Command[RoleSet]):
    """Give a person this role and no other, or with None none at all. Needs admin.

    told_by: whose word it is, say an identity provider's. The same role again leaves no trace.
    Refuses NotFound.
    """

    person: str
    role: str | None
    told_by: str = ""

    def __post_init__(self) -> None:
        names.check_line("person", self.person, at_least=1, at_most=NAME_CHARS)
        names.check_line("told_by", self.told_by, at_least=0, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsEnded(Result):
    person: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSessions(Command[SessionsEnded]):
    """End every session of a person, wherever it is. Needs admin, or to be that person.

    Refuses NotFound.
    """

    person: str
    reason: str = ""

    def __post_init__(self) -> None:
        names.check_line("person", self.person, at_least=1, at_most=NAME_CHARS)
        names.check_line("reason", self.reason, at_least=0, at_most=names.REASON_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminMade(Result):
    person: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFirstAdmin(Command[AdminMade]):
    """Make the first admin, while there is none. password: as Django keeps it. code: the digest of
    the one-time code that the start printed; it is used up.

    Refuses Exists once there is an admin, NotAllowed for another code, Invalid for a name that
    somebody has.
    """

    name: str
    password: str = field(repr=False)
    code: str = field(repr=False)

    def __post_init__(self) -> None:
        names.check_line("name", self.name, at_least=1, at_most=NAME_CHARS)
