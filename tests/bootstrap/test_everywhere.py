"""The production layout on each PostgreSQL and each broker that it may have, with the Procfile's
own commands (those of the units and of compose.yaml: test_deploy_files.py): a site starts, takes
work, its workers end their runs, sweeps happen, a stream tells, and SIGTERM ends all of it."""

from __future__ import annotations

from contextlib import contextmanager

import psycopg
import pytest
from agentstate_client import Client, Event

from bench.deployed import servers
from tests.bootstrap.layout import Layout, Listener, patiently, status_of
from tests.bootstrap.test_layout import JOBS, counted
from tests.brokers.instances import KINDS

pytestmark = [pytest.mark.long, pytest.mark.deep]

PROCESSES = ("web", "streams", "worker", "beat")
RUNS = 12
# pgmq on PostgreSQL 18 is what every other test has.
PLACES = [(18, "rabbitmq"), (18, "redis"), (17, "pgmq"), (16, "pgmq"), (15, "pgmq")]


@contextmanager
def broker_of(kind):
    """What CELERY_BROKER_URL is to be; None: as it is without."""
    broker = KINDS[kind]()
    try:
        broker.begin()
        yield None if kind == "pgmq" else broker.url
    finally:
        broker.end()


@pytest.mark.parametrize(("major", "kind"), PLACES, ids=lambda value: str(value))
def test_a_site_lives_and_ends_on_each_server_and_with_each_broker(
    open_folder, monkeypatch, major, kind
):
    monkeypatch.setenv("AGENTSTATE_PG_BIN", str(servers.binaries(major, open_folder)))
    with broker_of(kind) as url:
        site = Layout(open_folder)
        if url is not None:
            site.variables["CELERY_BROKER_URL"] = url
        with site, psycopg.connect(site.variables["DATABASE_URL"], autocommit=True) as session:
            assert session.info.server_version // 10_000 == major
            live(site, session)
            assert counted(session, "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgmq'") == (
                kind == "pgmq"
            )


def live(site, session):
    """A site's whole life."""
    scopes = ("--scope", "read", "--scope", "write", "--scope", "payloads")
    site.key = site.ask("key", "--name", "all", *scopes).stdout.strip()
    site.start_streams()
    web = site.start_web()
    site.start("worker")
    site.start("beat")
    api, streams = f"{web}/api/v1", f"http://127.0.0.1:{site.ports['streams']}"

    # One whose holder is never heard of again: a sweep finds it, and a stream tells.
    assert site.call(f"{api}/runs", {"key": "left", "task": "left"})[0] == 201
    stream = Listener(streams, "/live/v1/runs/left/events", site.key)
    assert stream.answer.status == 200
    asked = {"owner": "gone", "ttl_seconds": 1}
    assert site.call(f"{api}/leases/run:left/acquire", asked)[0] == 200
    patiently(lambda: stream.has("lease.acquired"))

    done = work_off(web, site.key)
    assert sorted(done) == [f"work-{n:02}" for n in range(RUNS)]  # each once
    for key in done:
        _, run = site.call(f"{api}/runs/{key}")
        assert (run["status"], run["result"]) == ("completed", {"key": key})
        assert run["counters"] == {"steps": 2}

    patiently(lambda: stream.has("lease.lapsed"))
    patiently(lambda: counted(session, JOBS) >= 5)
    patiently(lambda: status_of(f"{web}/health/jobs") == 200)
    assert status_of(f"{web}/health/ready") == 200
    changes = site.call(f"{api}/feed?limit=500")[1]["items"]
    assert {change["run"] for change in changes} >= {"left", *done}
    assert site.ask("doctor").returncode == 0
    assert site.ask("manage", "verify").returncode == 0

    assert site.stop(*PROCESSES) < 15
    assert stream.ended.wait(5)
    assert stream.has("shutdown")
    for name in PROCESSES:
        assert "Traceback" not in site.said(name), site.said(name)


def work_off(web, key):
    """A fleet's worker carries out all there is; the keys of the runs, as it had them."""
    done = []
    with Client(web, key, worker="w") as client:
        for n in range(RUNS):
            client.create(task="work", key=f"work-{n:02}")

        @client.worker(task="work", concurrency=3)
        def carry_out(run):
            for step in range(2):
                run.append(Event("step.done", {"step": step}), add={"steps": 1})
            done.append(run.key)
            return {"key": run.key}

        client.work(until_idle=True)
    return done
