"""The production layout: what the Procfile starts, behind PgBouncer and nginx, and how it ends."""

import re
import shutil
import socket
import threading
import time

import psycopg
import pytest
from agentstate_client import Client, Event, RetryPolicy

from tests.bootstrap.conftest import ROOT
from tests.bootstrap.layout import DEPLOY, Layout, Listener, patiently, status_of

pytestmark = pytest.mark.long
JOBS = "SELECT count(*) FROM agentstate_heartbeat WHERE passes > 0 AND failed IS NULL"
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agentstate live'"


def begun_and_left(site, name):
    """A client that has sent the beginning of a request, and nothing more."""
    client = socket.create_connection(("127.0.0.1", site.ports[name]), timeout=5)
    client.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    return client


def counted(session, question):
    return session.execute(question).fetchone()[0]


def test_a_site_behind_a_pooler_and_a_proxy_serves_and_ends_in_time(open_folder):
    """Case O-43 (docs/cases.md)."""
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
        patiently(lambda: stream.has("run.created"))
        began = time.monotonic()
        assert site.call(f"{api}/runs/42/events", {"events": [{"type": "step.done"}]})[0] == 201
        patiently(lambda: stream.has("step.done"))
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
        patiently(lambda: site.call(f"{api}/feed")[1].get("position", 0) >= 3)
        patiently(lambda: status_of(f"{front}/health/jobs") == 200)
        with psycopg.connect(direct, autocommit=True) as session:
            patiently(lambda: counted(session, JOBS) >= 5)
            assert counted(session, LISTENING) >= 2
        # Behind a pooler sessions have the name of whoever used them last; hints have their own.
        refused = site.ask("restore", "--already")
        assert (refused.returncode, "live" in refused.stderr) == (1, True)
        checked = site.ask("doctor", "--url", front)
        assert checked.returncode == 0, checked.stdout
        assert site.ask("manage", "verify").returncode == 0

        # Clients that never send all, or never read, hold nobody up.
        slow = [begun_and_left(site, name) for name in ("web", "streams")]
        took = site.stop("web", "streams", "worker", "beat")
        assert took < 15
        for client in slow:
            client.close()
        assert stream.ended.wait(5)
        assert stream.has("shutdown")
        for name in ("web", "streams", "worker", "beat"):
            assert "Traceback" not in site.said(name), site.said(name)


def test_a_doctor_sees_a_pooler_in_the_wrong_place(open_folder):
    """Case O-43 (docs/cases.md)."""
    with Layout(open_folder) as site:
        site.start_pooler()
        del site.variables["DATABASE_SESSION_URL"]
        found = site.ask("doctor").stdout
        assert "✗ pooler: DATABASE_URL is a pooler in transaction mode" in found
        assert "set AGENTSTATE_PREPARED_STATEMENTS=no" in found
        site.variables["DATABASE_SESSION_URL"] = site.variables["DATABASE_URL"]
        assert "✗ pooler: DATABASE_SESSION_URL is a pooler" in site.ask("doctor").stdout


def test_what_the_image_has_is_all_that_it_needs(open_folder):
    """There is no Docker engine here: the same files in a folder of their own, the same command."""
    code = open_folder / "image"
    text = (DEPLOY / "Dockerfile").read_text()
    for sources, to in re.findall(r"^COPY (?!--)(.+) (\S+)$", text, re.MULTILINE):
        if to.startswith("/opt/agentstate/"):
            for source in sources.split():
                put(ROOT / source, code / to.removeprefix("/opt/agentstate/"), to.endswith("/"))
    with Layout(open_folder, code=code) as site:
        site.start("release")
        patiently(lambda: site.running["release"].poll() is not None)
        assert site.running["release"].returncode == 0, site.said("release")
        web = site.start_web()
        site.start_streams()
        assert status_of(f"{web}/login") == 200
        assert status_of(f"{web}/static/dashboard/base.css") == 200
        assert status_of(f"{web}/api/v1/docs") == 200
        site.start("worker")
        site.start("beat")
        with psycopg.connect(site.variables["DATABASE_URL"], autocommit=True) as session:
            patiently(lambda: counted(session, JOBS) >= 5)
        assert site.stop("web", "streams", "worker", "beat") < 15


def put(source, to, into_folder):
    """As COPY does it."""
    to.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyc"))
    else:
        assert into_folder
        shutil.copy(source, to)


WRITERS, WEBS = 6, ("web-1", "web-2", "web-3")


class Writer(threading.Thread):
    """A worker that holds a run and appends numbered events until it is told to stop."""

    def __init__(self, url, key, number):
        super().__init__(daemon=True)
        self.client = Client(
            url, key, worker=f"writer-{number}", retry=RetryPolicy(total_seconds=60)
        )
        self.number, self.key = number, f"rolled-{number}"
        self.stopping = threading.Event()
        self.acknowledged: list[int] = []
        self.failed: list[BaseException] = []

    def run(self):
        try:
            with self.client:
                self.client.create(task="roll", key=self.key)
                with self.client.run(self.key).acquire(ttl_seconds=3_600) as held:
                    held.start()
                    while not self.stopping.is_set():
                        n = len(self.acknowledged)
                        held.append(Event("step.done", {"n": n}), add={"done": 1})
                        self.acknowledged.append(n)
                    held.complete({"steps": len(self.acknowledged)})
        except BaseException as failure:  # whatever it is, the test tells it
            self.failed.append(failure)


@pytest.mark.parametrize("proxy", ["nginx", pytest.param("haproxy", marks=pytest.mark.deep)])
def test_rolling_three_instances_under_load_loses_and_doubles_nothing(open_folder, proxy):
    with Layout(open_folder) as site:
        site.start_streams()
        for web in WEBS:
            site.start_web(web)
        site.start("worker")
        front = (site.start_haproxy if proxy == "haproxy" else site.start_proxy)(*WEBS)
        writers = [Writer(front, site.key, n) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        patiently(lambda: all(len(writer.acknowledged) > 5 for writer in writers))
        took = {}
        for name in (*WEBS, "streams", "worker"):
            took[name] = site.stop(name)
            before = [len(writer.acknowledged) for writer in writers]
            if name == "worker":
                site.start(name)
            else:
                site.start_again(name)
            # Everybody gets on while it is rolled, not only before and after.
            patiently(
                lambda before=before: (
                    all(
                        len(writer.acknowledged) > n
                        for writer, n in zip(writers, before, strict=True)
                    )
                    or any(writer.failed for writer in writers)
                )
            )
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(60)
        assert [writer.failed for writer in writers if writer.failed] == []
        assert max(took.values()) < 15, took

        for writer in writers:
            kept = [n for (n,) in written(site, writer.key)]
            assert kept == writer.acknowledged  # in order: none lost, none twice
            _, run = site.call(f"{front}/api/v1/runs/{writer.key}")
            assert (run["status"], run["counters"]) == ("completed", {"done": len(kept)})
        assert sum(len(writer.acknowledged) for writer in writers) > 100
        assert site.ask("manage", "verify").returncode == 0


def written(site, key):
    """What the writer's events say, as the store has them."""
    asked = (
        "SELECT (data->>'n')::int FROM agentstate_event WHERE type = 'step.done' AND run_id ="
        " (SELECT id FROM agentstate_run WHERE key = %s) ORDER BY seq"
    )
    with psycopg.connect(site.variables["DATABASE_URL"]) as session:
        return session.execute(asked, [key]).fetchall()
