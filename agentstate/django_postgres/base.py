"""The ENGINE of DATABASES: Django finds `DatabaseWrapper` in a module of this name."""

from __future__ import annotations

import select
import time
from types import SimpleNamespace
from typing import Any

import psycopg
from django.conf import settings
from django.db.backends.postgresql import base
from psycopg.pq import ConnStatus, TransactionStatus

from agentstate.django_postgres.opened import Opened
from agentstate.django_postgres.patient import ALIVE_SECONDS, Patient
from agentstate.django_postgres.turns import Turns
from agentstate.postgres import SERVER_TCP

TURNS = Turns()
OPENED = Opened()
# One that was not used for so long may have been forgotten on the way: it is asked before it is
# used. Longer: a caller finds that out, and waits for it. Shorter: a busy one is asked as well.
RESTED_SECONDS = 5.0
SET_SESSION = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)" for name, value in SERVER_TCP.items()
)


class DatabaseWrapper(base.DatabaseWrapper):
    """As Django's, but that connecting to a server that was away a moment ago is done by turns,
    that one that is well is not asked at each request whether it is, and that nobody waits for an
    answer for ever."""

    # psycopg, with connections whose patience has an end.
    Database = SimpleNamespace(  # type: ignore[assignment]
        **{name: getattr(psycopg, name) for name in psycopg.__all__} | {"connect": Patient.connect}
    )
    _used_at = 0.0

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connect = super().get_new_connection
        connection = OPENED.noted(lambda: TURNS.take(lambda: connect(conn_params)))
        connection.answer_seconds = settings.ANSWER_SECONDS
        self._used_at = time.monotonic()
        return connection

    def init_connection_state(self) -> None:
        """Also what the server's end is to do when it hears nothing of us any more. Behind a pooler
        the session is not ours."""
        super().init_connection_state()
        if not settings.SESSION_URL:
            self.connection.execute(SET_SESSION)

    def is_usable(self) -> bool:
        """Django asks `SELECT 1` here, once a request. A server that ends a session says so, or
        closes it: there is something to be read then, and only then the question is asked; and
        when it has rested, because a network that lost it says nothing."""
        before, self._used_at = self._used_at, time.monotonic()
        return (self._used_at - before < RESTED_SECONDS and self._is_quiet()) or self._answers()

    def _answers(self) -> bool:
        connection = self.connection
        if connection is None:
            return False
        before, connection.answer_seconds = connection.answer_seconds, ALIVE_SECONDS
        try:
            return bool(super().is_usable())
        finally:
            connection.answer_seconds = before

    def _is_quiet(self) -> bool:
        if self.connection is None or self.errors_occurred:
            return False
        pgconn = self.connection.pgconn
        idle = pgconn.transaction_status == TransactionStatus.IDLE
        if pgconn.status != ConnStatus.OK or not idle:
            return False
        looked = select.poll()
        looked.register(pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not looked.poll(0)
