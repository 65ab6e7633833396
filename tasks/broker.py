"""How our processes are connected to the broker, and how soon again after it was away.

Celery waits two seconds longer after each try, up to half a minute; psycopg's pool, below the
broker in the database, doubles its pauses for as long; and a read that is never answered is waited
for without an end. Here a try comes every two seconds at most, and waits last seconds.
Why: docs/decisions/0041-outages.md.
"""

from __future__ import annotations

from typing import Any, cast

import kombu
import psycopg
from celery.app.amqp import AMQP
from kombu.transport import TRANSPORT_ALIASES, pgmq
from pgmq import PGMQueue
from pgmq.base import PGMQConfig
from psycopg_pool import ConnectionPool

from agentstate.django_postgres.patient import Patient

AGAIN_SECONDS = 2.0
# Of a connection from the pool, which itself tries again after 1, 2, 4 … seconds.
POOL_SECONDS = 5.0
# Of a queue's read: it waits for no lock, and no longer than its rows take.
ANSWER_SECONDS = 8.0


class Connection(kombu.Connection):
    """As kombu's own; after the broker was away it is tried every AGAIN_SECONDS."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """So workers and beat connect; they say nothing of pauses."""
        told = {"interval_start": AGAIN_SECONDS, "interval_step": 0, "interval_max": AGAIN_SECONDS}
        return super().ensure_connection(*args, **(told | kwargs))


class Amqp(AMQP):
    """Celery's, with our connections."""

    Connection = Connection
    BrokerConnection = Connection


class BrokerConnection(Patient):
    """One of the broker in the database."""

    answer_seconds = ANSWER_SECONDS


class Transport(pgmq.Transport):
    """pgmq, on a pool that gives up soon: the tries are Celery's, and each begins with a new pool.

    A server that recovers can be read and not written to, and a read from a queue writes: that is
    an outage of the broker as well, and not the end of a worker.
    """

    connection_errors = (
        *pgmq.Transport.connection_errors,
        psycopg.errors.ReadOnlySqlTransaction,
    )

    def _create_pgmq_client(self) -> PGMQueue:
        options = cast("dict[str, Any]", cast("Any", self.client).transport_options)
        conninfo = options["conn_string"]
        self._own = ConnectionPool(
            PGMQConfig(conn_string=conninfo, init_extension=False).dsn,
            connection_class=BrokerConnection,
            min_size=1,
            max_size=options["pool_size"],
            timeout=options.get("pool_timeout", POOL_SECONDS),
            reconnect_timeout=POOL_SECONDS,
            open=True,
        )
        return PGMQueue(
            conn_string=conninfo,
            vt=options["visibility_timeout"],
            init_extension=False,
            pool=self._own,
        )

    def close_connection(self, connection: Any) -> None:
        try:
            super().close_connection(connection)
        finally:
            if self._own is not None:
                self._own.close()
                self._own = None

    _own: ConnectionPool | None = None


TRANSPORT_ALIASES["pgmq"] = "tasks.broker:Transport"
