"""The database's clock, and whether this process lives and can work. No key is needed."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse
from kombu import Connection
from kombu.exceptions import KombuError
from ninja import Router

from agentstate.api import schemas
from agentstate.api.contract import contract
from agentstate.api.replies import reply
from agentstate.store import reads
from agentstate.store.errors import Unavailable

BROKER_SECONDS = 1
FINE = "ok"

router = Router(tags=["health"])


@router.get("/time", **contract("read_time", answers=schemas.TimeTold, access=None))
def read_time(request: HttpRequest) -> HttpResponse:
    """The database's clock. Compare nothing else with an `expires_at`."""
    return reply({"now": reads.now()})


@router.get("/health/live", **contract("is_live", answers=schemas.HealthTold, access=None))
def is_live(request: HttpRequest) -> HttpResponse:
    """This process answers. It looks at nothing else: a restart would mend nothing else."""
    return reply({"status": "live"})


@router.get("/health/ready", **contract("is_ready", answers=schemas.HealthTold, access=None))
def is_ready(request: HttpRequest) -> HttpResponse:
    """Requests can be served: the database answers, has every migration, and the broker is there.

    503 with the checks when one of them fails. `jobs` fails nothing here: without our periodic jobs
    every request is served as well; /health/jobs is for whoever has to know.
    """
    checks = {"database": _database(), "migrations": "unknown", "broker": "unknown"}
    if checks["database"] == FINE:
        checks["migrations"], checks["broker"] = _migrations(), _broker()
    told = checks | {"jobs": _jobs() if checks["migrations"] == FINE else "unknown"}
    failed = [f"{name}: {found}" for name, found in checks.items() if found != FINE]
    if failed:
        raise Unavailable("; ".join(failed), checks=told)
    return reply({"status": "ready", "checks": told})


@router.get("/health/jobs", **contract("are_jobs_on_time", answers=schemas.JobsTold, access=None))
def are_jobs_on_time(request: HttpRequest) -> HttpResponse:
    """Our periodic jobs are heard of: sweeps, feed, retention, and who judges and tells alerts.

    503 with the names of those that were silent for three periods. Let something outside ask here
    every minute: while nothing judges alerts, nothing else could tell you.
    """
    jobs = reads.heartbeats()
    silent = [job.name for job in jobs if job.silent]
    if silent:
        checks = dict.fromkeys(silent, "silent")
        raise Unavailable(f"silent: {', '.join(silent)}", checks=checks)
    return reply({"status": "on-time", "jobs": [_job_members(job) for job in jobs]})


def _job_members(job: reads.HeartbeatView) -> dict[str, Any]:
    return {
        "name": job.name,
        "every_seconds": job.every_seconds,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "late_seconds": job.late_seconds,
        "behind": job.behind,
    }


def _jobs() -> str:
    silent = [job.name for job in reads.heartbeats() if job.silent]
    return f"silent: {', '.join(silent)}" if silent else FINE


def _database() -> str:
    try:
        reads.now()
    except DatabaseError:
        return "does not answer"
    return FINE


def _migrations() -> str:
    try:
        return _once_migrated()
    except _Unmigrated as missing:
        return str(missing)


class _Unmigrated(Exception):
    """Migrations are missing; how many."""


@cache
def _once_migrated() -> str:
    """Looked up until it is true, then never again: it costs more than a request should."""
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if missing:
        raise _Unmigrated(f"{len(missing)} to be applied")
    return FINE


def _broker() -> str:
    if settings.CELERY_BROKER_URL.startswith("pgmq"):
        return _queues()
    try:
        with Connection(settings.CELERY_BROKER_URL, connect_timeout=BROKER_SECONDS) as broker:
            broker.ensure_connection(max_retries=1, timeout=BROKER_SECONDS)
    except (OSError, KombuError):
        return "does not answer"
    return FINE


def _queues() -> str:
    """The broker that lives in the database: whether its tables are there."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('pgmq.meta')")
        return FINE if cursor.fetchone()[0] else "has no tables yet"
