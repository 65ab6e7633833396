"""The database's clock, and whether this process lives and can work. No key is needed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from agentstate import checkups
from agentstate.api import schemas
from agentstate.api.contract import contract
from agentstate.api.replies import reply
from agentstate.checkups import FINE
from agentstate.store import reads
from agentstate.store.errors import Unavailable

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
    """Requests can be served: the database answers, can be written to, has the schema of this
    release or of the one before, and the broker is there.

    503 with the checks when one of them fails. `jobs` fails nothing here: without our periodic jobs
    every request is served as well; /health/jobs is for whoever has to know.
    """
    checks = {"database": checkups.database(), "migrations": "unknown", "broker": "unknown"}
    if checks["database"] == FINE:
        checks["migrations"], checks["broker"] = checkups.migrations(), checkups.broker()
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
