"""Migrations, the broker, and whether our periodic jobs run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentstate import where
from agentstate.checkups import FINE
from agentstate.doctor.findings import Finding, problem, warning
from agentstate.store.reads import HeartbeatView


def judge_migrations(missing: int) -> Iterator[Finding]:
    if missing:
        yield problem(
            "migrations",
            f"{missing} are to be applied",
            f"{where.COMMAND} prepare, before new code starts",
        )


def judge_broker(found: str, *, embedded: bool) -> Iterator[Finding]:
    """found: what `checkups.broker` says. embedded: it is in the database."""
    if found != FINE:
        mend = (
            f"{where.COMMAND} prepare makes them"
            if embedded
            else "start it, and see that CELERY_BROKER_URL is its address, user and password"
        )
        yield problem("broker", f"it {found}", mend)


def judge_jobs(jobs: Sequence[HeartbeatView]) -> Iterator[Finding]:
    """Who was never heard of was never started; all silent means that a process is gone."""
    never = all(job.quiet_seconds is None for job in jobs)
    silent = list(jobs) if never else [job for job in jobs if job.silent]
    command = where.COMMAND
    begun = f"{command} celery worker, and one {command} celery beat ({command} serve has both)"
    if silent and len(silent) == len(jobs):
        heard = [job.quiet_seconds for job in jobs if job.quiet_seconds is not None]
        since = f"for {min(heard) / 60:.0f} min" if heard else "ever"
        yield problem("workers", f"no periodic job was heard of {since}", f"start {begun}")
    elif silent:
        names = ", ".join(job.name for job in silent)
        yield problem(
            "workers",
            f"silent for three periods: {names}",
            "look into the logs of worker and beat; one beat, and a worker of each queue, must run",
        )
    for job in jobs:
        if job.failed and not job.silent:
            yield warning(
                "workers",
                f"the last pass of {job.name} failed: {job.failed}",
                "see the worker's log",
            )
