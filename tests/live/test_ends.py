"""How streams end, and what they hold while they wait: nothing."""

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import httpx
import psycopg
import pytest
from django.conf import settings
from django.db import connection

from agentstate import postgres
from agentstate.live import hub as hubs
from agentstate.live.threads import THREADS
from agentstate.store.callers import SYSTEM
from agentstate.store.keys import revoke_key
from tests.api.asking import new_key
from tests.live.streaming import Site, Stream, seconds_since
from tests.store.asking import event, rows
from tests.store.waiting import wait_for


@pytest.fixture
def quick(monkeypatch):
    """Polls, key checks and comments at short intervals."""
    monkeypatch.setattr("agentstate.live.follow.POLL_SECONDS", 0.2)
    monkeypatch.setattr("agentstate.live.sessions.CHECK_SECONDS", 0.2)
    monkeypatch.setattr("agentstate.live.follow.PING_SECONDS", 0.5)


def open_streams():
    return sum(one.streams for one in hubs._hubs.values())


def connections():
    """Sessions on this database, but for the one that asks."""
    return rows(
        "SELECT count(*), count(*) FILTER (WHERE xact_start IS NOT NULL AND state <> 'active')"
        " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )[0]


@pytest.mark.parametrize("path", ["/runs/42/events", "/feed"])
def test_a_revoked_key_ends_its_streams_and_no_other(store, follow, quick, path):
    store.create("42")
    leaving = new_key("leaving").text
    cut, stays = follow(path, key=leaving), follow(path)
    cut.take(1), stays.take(1)

    revoke_key(name="leaving", by=SYSTEM)
    began = time.monotonic()

    assert cut.until_bye() == ([], "key-revoked")
    assert seconds_since(began) < 3
    store.append("42")
    assert len(stays.take(1)) == 1


def test_a_key_whose_time_is_over_ends_its_streams(store, follow, quick, clock):
    store.create("42")
    short = new_key("short", expires_at=clock.now + timedelta(seconds=60)).text
    stream = follow("/runs/42/events", key=short)
    stream.take(1)
    clock.advance(seconds=60)
    assert stream.until_bye() == ([], "key-revoked")


def test_a_revoked_key_ends_a_long_poll(store, site, quick):
    store.create("42")
    leaving = new_key("leaving").text
    stream = Stream(site, "/runs/42/events", key=leaving)
    revoke_key(name="leaving", by=SYSTEM)
    assert stream.until_bye()[1] == "key-revoked"
    assert site.get("/runs/42/events?after=1&wait=20", key=leaving).status_code == 401
    stream.close()


def test_the_usual_intervals_end_a_revoked_key_within_two_seconds():
    from agentstate.live import follow, sessions

    assert sessions.CHECK_SECONDS <= 1
    assert follow.PING_SECONDS <= 10


@pytest.mark.damages
def test_a_run_past_its_retention_ends_its_streams(store, follow, quick, clock):
    store.create("42", retain_seconds=10)
    store.append("42")
    stream = follow("/runs/42/events")
    stream.take(2)
    # Ended, and over before anybody looked.
    rows(
        "UPDATE agentstate_run SET ended_at = agentstate_now(), status = 'cancelled',"
        " expires_at = agentstate_now()"
    )

    assert stream.until_bye() == ([], "run-expired")


@pytest.mark.damages
@pytest.mark.parametrize(
    ("path", "set_back"),
    [
        ("/runs/42/events", "UPDATE agentstate_run SET last_seq = 1"),
        ("/feed", "UPDATE agentstate_feedhead SET position = 1"),
    ],
)
def test_who_has_read_what_is_no_longer_there_is_told_to_begin_anew(
    store, follow, quick, path, set_back
):
    """S-302 (docs/sweeps.md): after a failover that lost the last commits. `invalid` was said,
    which no text knew."""
    store.create("42")
    store.append("42")
    stream = follow(path)
    stream.take(2)

    rows(set_back)

    assert stream.until_bye() == ([], "cursor-expired")


def test_comments_come_while_nothing_happens(store, follow, quick):
    """Case O-31 (docs/cases.md)."""
    store.create("42")
    stream = follow("/runs/42/events", after=1)
    lines = stream._lines()
    seen = [next(lines) for _ in range(8)]
    assert seen[0] == "retry: 2000"
    assert seen.count(": still here") >= 2


def test_fifty_waiting_streams_hold_nothing(store, site, follow):
    """Case O-42 (docs/cases.md)."""
    store.create("42")
    streams = [follow("/feed" if n % 2 else "/runs/42/events", seconds=60) for n in range(50)]
    for stream in streams:
        stream.take(1)
    wait_for(lambda: open_streams() == 50)

    sessions, in_transaction = connections()
    # One that listens, those of the threads that read, and the mover's.
    assert sessions <= 1 + THREADS + 1
    assert in_transaction == 0
    assert site.http.get("/api/v1/time").status_code == 200

    store.append("42")
    for stream in streams:
        assert len(stream.take(1)) == 1
        stream.close()
    wait_for(lambda: open_streams() == 0)


def test_a_client_that_vanishes_leaves_nothing_behind(store, site):
    """Case O-42 (docs/cases.md)."""
    store.create("42")
    for _ in range(5):
        stream = Stream(site, "/runs/42/events")
        stream.take(1)
        stream.close()
    wait_for(lambda: open_streams() == 0)


def test_a_client_that_does_not_read_is_cut_off(store, site, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "agentstate.sending")
    monkeypatch.setattr("agentstate.sending.SEND_SECONDS", 0.5)
    store.create("42")
    for _ in range(12):
        store.append("42", [event("big", "x" * 900_000)])
    host, port = site.url.removeprefix("http://").split(":")
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect((host, int(port)))
        lazy.sendall(
            f"GET /live/v1/runs/42/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {site.key}\r\n\r\n".encode()
        )
        wait_for(lambda: "did not read" in caplog.text)
        wait_for(lambda: open_streams() == 0)
    assert site.get("/runs/42/events?limit=1").status_code == 200


def test_a_cut_database_connection_is_no_reason_to_end(store, follow, quick):
    """Case O-31 (docs/cases.md)."""
    store.create("42")
    stream = follow("/runs/42/events")
    stream.take(1)
    for _ in range(3):
        cut_all()
        store.append("42")
        assert len(stream.take(1)) == 1
    assert stream.last_id == "4"


def cut_all():
    """End all other sessions on this database, as a restart of PostgreSQL would."""
    conninfo = postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])
    connection.close()
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_server_that_stops_says_so_to_each_and_is_gone_in_five_seconds(store, tmp_path):
    store.create("42")
    key = new_key("fleet").text
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        port = listener.getsockname()[1]
        server = start_server(listener, tmp_path)
    site = Site(f"http://127.0.0.1:{port}", key, httpx.Client(verify=False))
    try:
        streams = [Stream(site, path, seconds=60) for path in ["/runs/42/events", "/feed"] * 5]
        streams[0].take(1)
        server.send_signal(signal.SIGTERM)
        began = time.monotonic()

        reasons = {stream.until_bye()[1] for stream in streams}
        server.wait(timeout=20)

        assert reasons == {"shutdown"}
        assert seconds_since(began) < 5
    finally:
        server.kill()
        server.wait(timeout=20)
        site.http.close()
        for stream in streams:
            stream.close()


def start_server(listener, home, files=None):
    """The web process of `./run`, on this test's database. files: how many it may have open."""
    parts = settings.DATABASE_PARTS | {"dbname": connection.settings_dict["NAME"]}
    environment = os.environ | {
        "AGENTSTATE_HOME": str(home),
        "DATABASE_URL": postgres.conninfo(parts),
        "DJANGO_SETTINGS_MODULE": "agentstate.settings",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "agentstate.web", str(listener.fileno())],
        env=environment,
        pass_fds=[listener.fileno()],
        preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)),
    )


@pytest.mark.long
@pytest.mark.many
def test_streams_that_are_too_many_for_the_files_are_refused_and_all_else_goes_on(store, tmp_path):
    """S-306 (docs/sweeps.md): there were no files left to serve a page, or to ask whether a key was
    revoked. The soft limit here is too low to begin with; it is raised to the hard one."""
    store.create("42")
    key = new_key("fleet").text
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        port = listener.getsockname()[1]
        server = start_server(listener, tmp_path, files=(64, 160))
    site = Site(f"http://127.0.0.1:{port}", key, httpx.Client(verify=False, timeout=60))
    streams = []
    try:
        for _ in range(80):
            streams.append(Stream(site, "/runs/42/events", seconds=60))
            streams[-1].take(1)
        for _ in range(100):
            refused = Stream(site, "/runs/42/events", seconds=60)
            refused.close()
            assert refused.response.status_code == 503
        assert site.http.get(f"{site.url}/api/v1/time").status_code == 200
        revoke_key(name="fleet", by=SYSTEM)
        assert {stream.until_bye()[1] for stream in streams} == {"key-revoked"}
    finally:
        server.kill()
        server.wait(timeout=20)
        site.http.close()
        for stream in streams:
            stream.close()
