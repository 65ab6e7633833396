"""Health for machines: a process that can work, and jobs that somebody outside watches."""

from agentstate.store.upkeep import JOBS, beat


def all_jobs_run():
    for name in JOBS:
        with beat(name) as this:
            this.behind = 0


def test_jobs_that_are_on_time_are_listed(anonymous, clock):
    all_jobs_run()
    clock.advance(seconds=10)
    found = anonymous.get("/health/jobs")
    assert (found.status, found["status"]) == (200, "on-time")
    late = {job["name"]: (job["late_seconds"], job["behind"]) for job in found["jobs"]}
    assert set(late) == set(JOBS)
    assert (late["note lapsed leases"], late["evaluate alerts"]) == ((5, 0), (0, 0))
    assert anonymous.get("/health/ready")["checks"]["jobs"] == "ok"


def test_a_silent_evaluator_is_503_for_a_watcher_and_nothing_for_a_load_balancer(anonymous, clock):
    all_jobs_run()
    clock.advance(seconds=51)
    found = anonymous.get("/health/jobs")
    assert found.refused == (503, "unavailable")
    assert found["checks"]["evaluate alerts"] == "silent"
    assert "purge what is past its age" not in found["checks"]
    ready = anonymous.get("/health/ready")
    assert "evaluate alerts" in ready["checks"]["jobs"]
    # The tests' own database has no queues; the jobs are no reason.
    assert ready["detail"] == "broker: has no tables yet"
