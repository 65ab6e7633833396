"""The production layout: what the Procfile starts, behind PgBouncer and nginx, and how it ends."""

import time

import psycopg
import pytest

from tests.bootstrap.conftest import eventually
from tests.bootstrap.layout import Layout, Listener, status_of

pytestmark = pytest.mark.long
JOBS = "SELECT count(*) FROM agentstate_heartbeat WHERE passes > 0 AND failed IS NULL"
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"


def counted(session, question):
    return session.execute(question).fetchone()[0]


def test_a_site_behind_a_pooler_and_a_proxy_serves_and_ends_in_time(open_folder):
    with Layout(open_folder) as site:
        direct = site.variables["DATABASE_URL"]
        site.start_pooler()
        site.start_streams()
        web = site.start_web()
        site.start("worker")
        site.start("beat")
        front = site.start_proxy("web")
        api = f"{front}/api/v1"

        made, _ = site.call(f"{api}/runs", {"key": "42", "task": "t"})
        assert made == 201
        stream = Listener(front, "/live/v1/runs/42/events", site.key)
        assert stream.answer.status == 200
        eventually(lambda: stream.has("run.created"))
        began = time.monotonic()
        assert site.call(f"{api}/runs/42/events", {"events": [{"type": "step.done"}]})[0] == 201
        eventually(lambda: stream.has("step.done"))
        assert time.monotonic() - began < 2  # at once, and not when a buffer is full

        status, lease = site.call(f"{api}/leases/run:42/acquire", {"owner": "w", "ttl_seconds": 60})
        assert status == 200
        fence = {"Agentstate-Fence": str(lease["token"])}
        moved, _ = site.call(f"{api}/runs/42/transitions", {"to": "running"}, **fence)
        assert moved == 200
        assert status_of(f"{front}/login") == 200
        assert status_of(f"{front}/static/dashboard/base.css") == 200
        assert status_of(f"{front}/metrics") == 404  # of the proxy; the process itself tells
        assert status_of(f"{web}/metrics") == 401

        # The feed moves as soon as the web process has written, and the jobs run, all of it
        # through the pooler; what needs a session has one of its own.
        eventually(lambda: site.call(f"{api}/feed")[1].get("position", 0) >= 3)
        eventually(lambda: status_of(f"{front}/health/jobs") == 200)
        with psycopg.connect(direct, autocommit=True) as session:
            eventually(lambda: counted(session, JOBS) >= 5)
            assert counted(session, LISTENING) >= 2
        checked = site.ask("doctor", "--url", front)
        assert checked.returncode == 0, checked.stdout
        assert site.ask("manage", "verify").returncode == 0

        took = site.stop("web", "streams", "worker", "beat")
        assert took < 15
        assert stream.ended.wait(5)
        assert stream.has("shutdown")
        for name in ("web", "streams", "worker", "beat"):
            assert "Traceback" not in site.said(name), site.said(name)


def test_a_doctor_sees_a_pooler_in_the_wrong_place(open_folder):
    with Layout(open_folder) as site:
        site.start_pooler()
        del site.variables["DATABASE_SESSION_URL"]
        found = site.ask("doctor").stdout
        assert "✗ pooler: DATABASE_URL is a pooler in transaction mode" in found
        assert "set AGENTSTATE_PREPARED_STATEMENTS=no" in found
        site.variables["DATABASE_SESSION_URL"] = site.variables["DATABASE_URL"]
        assert "✗ pooler: DATABASE_SESSION_URL is a pooler" in site.ask("doctor").stdout
