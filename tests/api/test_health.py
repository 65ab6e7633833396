"""Health for machines: a process that can work, and jobs that somebody outside watches."""

import psycopg
from django.db import OperationalError, connection
from django.test import Client

from agentstate import checkups
from agentstate.store import outages
from agentstate.store.upkeep import JOBS, beat
from tests.store.asking import rows


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


def test_readiness_names_what_is_missing_and_asks_again_until_it_is_there(
    anonymous, monkeypatch, settings
):
    missing = [2, 2, 0]
    monkeypatch.setattr(checkups, "missing_migrations", lambda **_: missing.pop(0))
    checkups._once_migrated.cache_clear()
    settings.CELERY_BROKER_URL = "redis://u:hunter2@127.0.0.1:1/0"
    for _ in range(2):
        found = anonymous.get("/health/ready")
        assert found.refused == (503, "unavailable")
        assert found["checks"]["migrations"] == "2 to be applied"
        assert found["checks"]["broker"] == "does not answer"
        assert found["checks"]["jobs"] == "unknown"
        assert "hunter2" not in found.text
    assert anonymous.get("/health/ready")["checks"]["migrations"] == "ok"
    assert anonymous.get("/health/ready")["checks"]["migrations"] == "ok"  # not asked again


def test_readiness_without_a_database_asks_nothing_else(transactional_db, anonymous, monkeypatch):
    monkeypatch.setattr(checkups, "WRITABLE", "SELECT 1 / 0")
    found = anonymous.get("/health/ready")
    assert found.refused == (503, "unavailable")
    assert found["checks"] == {
        "database": "does not answer", "migrations": "unknown", "broker": "unknown",
        "jobs": "unknown",
    }  # fmt: skip
    assert anonymous.get("/health/live")["status"] == "live"


def full_disk():
    """What Django raises when PostgreSQL cannot extend a table."""
    failed = OperationalError("could not extend file")
    failed.__cause__ = psycopg.errors.DiskFull("could not extend file: No space left on device")
    return failed


def test_readiness_says_that_the_disk_is_full_until_it_is_not(
    transactional_db, anonymous, monkeypatch
):
    monkeypatch.setattr(outages._Met, "full", False)
    assert anonymous.get("/health/ready")["checks"]["database"] == "ok"
    outages.note(full_disk())
    really = outages.TAKE_ROOM
    # What PostgreSQL says with this code; the real thing is in tests/bootstrap/test_full_disk.py.
    no_room = "DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
    monkeypatch.setattr(outages, "TAKE_ROOM", no_room)
    for _ in range(2):
        found = anonymous.get("/health/ready")
        assert found.refused == (503, "unavailable")
        assert found["checks"]["database"] == "has no room left on its disk"
    monkeypatch.setattr(outages, "TAKE_ROOM", really)
    assert anonymous.get("/health/ready")["checks"]["database"] == "ok"
    assert outages._Met.full is False
    assert rows("SELECT to_regclass('pg_temp.agentstate_room')") == [(None,)]


def test_a_database_that_can_only_be_read_is_503_for_whoever_writes(transactional_db, api):
    api.create("42")
    only_read("SET default_transaction_read_only = on")
    try:
        refused = api.append("42")
        assert refused.refused == (503, "unavailable")
        assert refused["detail"] == "the database can only be read now"
        assert refused.headers["Retry-After"]
        assert api.get("/runs/42").status == 200
        assert api.get("/health/ready")["checks"]["database"] == "is read-only"
    finally:
        only_read("RESET default_transaction_read_only")
    assert api.append("42").status == 201


def only_read(setting):
    """For every session from now on: who met it connects anew, another host may take writes."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute(f'ALTER DATABASE "{connection.settings_dict["NAME"]}" {setting}')
    connection.close()


def test_a_load_balancer_asks_by_whatever_name_it_has(db):
    for name in ("web-1:8000", "10.0.0.7"):
        assert Client().get("/health/live", headers={"Host": name}).status_code == 200
