"""The ENGINE of DATABASES: Django finds `DatabaseWrapper` in a module of this name."""

from __future__ import annotations

import select
from typing import Any

from django.db.backends.postgresql import base
from psycopg.pq import ConnStatus, TransactionStatus

from agentstate.django_postgres.opened import Opened
from agentstate.django_postgres.turns import Turns

TURNS = Turns()
OPENED = Opened()


class DatabaseWrapper(base.DatabaseWrapper):
    """As Django's, but for two things: connecting to a server that was away a moment ago is done by
    turns, and a connection about which the server has said nothing is asked nothing either."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connect = super().get_new_connection
        return OPENED.noted(lambda: TURNS.take(lambda: connect(conn_params)))

    def is_usable(self) -> bool:
        """Django asks `SELECT 1` here, once a request. A server that ends a session says so, or
        closes it: there is something to be read then, and only then the question is asked."""
        return self._is_quiet() or super().is_usable()

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
