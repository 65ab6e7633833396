"""The broker: whether it answers, and what waits in its queues. Never its address."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import connection
from kombu import Connection
from kombu.exceptions import KombuError
from psycopg import sql

ASK_SECONDS = 1
COUNT_MAX = 10_000
KINDS = {"pgmq": "pgmq, in the database", "redis": "Redis", "amqp": "RabbitMQ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """waiting: messages that nobody is at, COUNT_MAX at most. taken: given to a worker and not
    acknowledged; None where the broker does not say. oldest: how long one has been due."""

    name: str
    waiting: int
    taken: int | None = None
    oldest: timedelta | None = None

    @property
    def capped(self) -> bool:
        return self.waiting >= COUNT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """problem: why nothing is known of its queues, "" if they are."""

    kind: str
    queues: list[Queue]
    problem: str = ""


def read_broker() -> Broker:
    """Another broker than the database has ASK_SECONDS to answer."""
    scheme = settings.CELERY_BROKER_URL.split(":", 1)[0]
    kind = next((said for name, said in KINDS.items() if scheme.startswith(name)), scheme)
    if scheme == "pgmq":
        return _in_database(kind)
    try:
        return Broker(kind=kind, queues=[_outside(settings.CELERY_TASK_DEFAULT_QUEUE)])
    except (OSError, KombuError):
        return Broker(kind=kind, queues=[], problem="does not answer")
    except Exception as failed:
        return Broker(kind=kind, queues=[], problem=f"said no: {type(failed).__name__}")


THERE = "SELECT to_regclass('pgmq.meta')"
NAMES = "SELECT queue_name FROM pgmq.meta ORDER BY queue_name LIMIT 50"
COUNTS = """
SELECT count(*) FILTER (WHERE vt <= clock_timestamp()),
    count(*) FILTER (WHERE vt > clock_timestamp() AND read_ct > 0),
    clock_timestamp() - min(enqueued_at) FILTER (WHERE vt <= clock_timestamp())
FROM (SELECT vt, read_ct, enqueued_at FROM {} LIMIT {}) AS front
"""


def _in_database(kind: str) -> Broker:
    with connection.cursor() as cursor:
        cursor.execute(THERE)
        if cursor.fetchone()[0] is None:
            return Broker(kind=kind, queues=[], problem="has no tables yet")
        cursor.execute(NAMES)
        names = [name for (name,) in cursor.fetchall()]
        return Broker(kind=kind, queues=[_of_tables(cursor, name) for name in names])


def _of_tables(cursor: Any, name: str) -> Queue:
    table = sql.Identifier("pgmq", f"q_{name}")
    cursor.execute(sql.SQL(COUNTS).format(table, sql.Literal(COUNT_MAX)))
    waiting, taken, oldest = cursor.fetchone()
    return Queue(name=name, waiting=waiting, taken=taken, oldest=oldest)


def _outside(name: str) -> Queue:
    with Connection(settings.CELERY_BROKER_URL, connect_timeout=ASK_SECONDS) as broker:
        broker.ensure_connection(max_retries=1, timeout=ASK_SECONDS)
        channel: Any = broker.default_channel
        found = channel.queue_declare(queue=name, passive=True)
        return Queue(name=name, waiting=min(found.message_count, COUNT_MAX))
