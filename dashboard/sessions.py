"""Sessions that know whose they are: who asks, and in which roles, is read in one statement.

Django's own three (the session, the person, the groups) would be asked again by each open page at
each refresh. It stays Django who decides: it compares the session's hash with the person's as
always, and asks `Backend` for the person; that one has just been read with the session.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.contrib.sessions.backends import db
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db.models import QuerySet, TextField
from django.db.models.expressions import RawSQL

from agentstate.store import retention
from dashboard.models import DatabaseNow, Session

# Set by every look at a session and taken by the next question for a person, so that what one
# request has read never answers another's.
_just_read: ContextVar[User | None] = ContextVar("person of the session", default=None)


class SessionStore(db.SessionStore):
    """Django's sessions in the database, in a table that has the person beside the data."""

    # What else the look at the session asks, as an expression of SQL with its values, and the text
    # that it was: a live page's reads go along with it (queries/together.py).
    beside: tuple[str, list[Any]] | None = None
    told: str | None = None

    @classmethod
    def get_model_class(cls) -> type[Session]:
        return Session

    def _get_session_from_db(self) -> Session | None:
        """The session, if it goes on; that it was used is noted."""
        going_on = _going_on(self.session_key) if self.session_key else Session.objects.none()
        if self.beside is not None:
            sql, values = self.beside
            going_on = going_on.annotate(told=RawSQL(sql, values, output_field=TextField()))  # noqa: S611  composed of the ORM's and our own SQL
        found = going_on.first()
        self.told = getattr(found, "told", None)
        if found is None:
            self._session_key = None
        elif found.unmarked:  # type: ignore[attr-defined]  # annotated
            _same(found).update(seen_at=DatabaseNow())
        return found

    async def _aget_session_from_db(self) -> Session | None:
        found = await _going_on(self.session_key).afirst() if self.session_key else None
        if found is None:
            self._session_key = None
        elif found.unmarked:  # type: ignore[attr-defined]  # annotated
            await _same(found).aupdate(seen_at=DatabaseNow())
        return found

    @classmethod
    def clear_expired(cls) -> None:
        """As Django asks for it; the upkeep does it anyway."""
        retention.purge("sessions")

    @classmethod
    async def aclear_expired(cls) -> None:
        await sync_to_async(cls.clear_expired)()

    def load(self) -> dict[str, Any]:
        return self._read(self._get_session_from_db())

    async def aload(self) -> dict[str, Any]:
        return self._read(await self._aget_session_from_db())

    def _read(self, found: Session | None) -> dict[str, Any]:
        person = found.user if found else None
        if found and person:
            person.role_names = frozenset(found.roles)  # type: ignore[attr-defined]
        _just_read.set(person)
        return self.decode(found.session_data) if found else {}

    def create_model_instance(self, data: dict[str, Any]) -> Session:
        return _with_person(super().create_model_instance(data), data)

    async def acreate_model_instance(self, data: dict[str, Any]) -> Session:
        return _with_person(await super().acreate_model_instance(data), data)


def _going_on(key: str) -> QuerySet[Session]:
    return Session.objects.going_on().filter(session_key=key)


def _same(found: Session) -> QuerySet[Session]:
    return Session.objects.filter(session_key=found.session_key).order_by()


def _with_person(session: AbstractBaseSession, data: dict[str, Any]) -> Session:
    assert isinstance(session, Session)
    session.user_id = User._meta.pk.to_python(data[SESSION_KEY]) if SESSION_KEY in data else None
    return session


def end_sessions(person: User, *, keep: str | None = None) -> None:
    """Of somebody whose password is another one now, in the same transaction; keep: the key of the
    one in which it was changed.

    Django believes the others no more when they ask. Their open streams do not ask: these end with
    the rows.
    """
    Session.objects.filter(user=person).exclude(session_key=keep or "").delete()


class Backend(ModelBackend):
    """Django's backend, which takes the person that was read with the session a moment ago."""

    def get_user(self, user_id: int) -> User | None:
        person = self._taken(user_id)
        return super().get_user(user_id) if person is None else self._if_active(person)

    async def aget_user(self, user_id: int) -> User | None:
        person = self._taken(user_id)
        return await super().aget_user(user_id) if person is None else self._if_active(person)

    def _taken(self, user_id: int) -> User | None:
        person = _just_read.get()
        _just_read.set(None)
        return person if person is not None and person.pk == user_id else None

    def _if_active(self, person: User) -> User | None:
        return person if self.user_can_authenticate(person) else None
