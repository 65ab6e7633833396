"""A site whose broker is killed: workers do not notice, and the sweeps go on when it is back."""

import contextlib

import psycopg
import pytest

from agentstate import postgres
from agentstate.embedded import EmbeddedPostgres
from tasks.simulate import plain
from tasks.simulate.shift import Shift
from tests.bootstrap.conftest import open_folder
from tests.bootstrap.sites import begin, end, run, wait_for_start
from tests.brokers.conftest import eventually

__all__ = ["open_folder"]

pytestmark = pytest.mark.brokers

JOB = "note lapsed leases"


@pytest.fixture
def site(open_folder, broker):
    site = begin(open_folder / "home", "serve", "--port", "0", CELERY_BROKER_URL=broker.url)
    try:
        wait_for_start(site)
        yield site
    finally:
        end(site)


def ask(site, statement, *values):
    """Rows of the site's own database; none while it is away."""
    socket = EmbeddedPostgres(site.home / "postgres").socket
    with contextlib.suppress(psycopg.OperationalError):
        where = postgres.conninfo(postgres.embedded_parts(str(socket)))
        with psycopg.connect(where, autocommit=True) as session:
            return session.execute(statement, values).fetchall()
    return []


def passes(site):
    found = ask(site, "SELECT passes FROM agentstate_heartbeat WHERE name = %s", JOB)
    return found[0][0] if found else 0


def lapsed(site):
    """Which runs' leases were noted as lapsed, each as often as it was."""
    rows = ask(
        site,
        "SELECT r.key FROM agentstate_event e JOIN agentstate_run r ON r.id = e.run_id"
        " WHERE e.type = 'lease.lapsed' ORDER BY r.key",
    )
    return [key for (key,) in rows]


def leave(shift, run):
    """A run whose holder is never heard of again; asked for until the database is there."""
    made = {"key": run, "task": "Fix it"}
    held = {"owner": "gone~0001", "ttl_seconds": 1}

    def ask(path, document, *fine):
        return plain.send(shift, "POST", path, document)[0] in (plain.ACCEPTED, *fine)

    eventually(lambda: ask("runs", made, "exists"))
    eventually(lambda: ask(f"leases/run:{run}/acquire", held))


def test_a_broker_that_is_killed_loses_nothing_that_matters(site, broker):
    key = run(site.home, "key", "--name", "w", "--scope", "write", "--scope", "read",
              "--scope", "payloads").stdout.strip()  # fmt: skip
    eventually(lambda: passes(site) >= 1)
    shift = Shift(url=site.url, key=key)
    leave(shift, "before")
    if broker.name == "pgmq":
        site.kill_database()
    else:
        broker.kill()
    leave(shift, "meanwhile")
    broker.begin()
    eventually(lambda: len(lapsed(site)) == 2)
    seen = passes(site)
    eventually(lambda: passes(site) >= seen + 2)

    assert lapsed(site) == ["before", "meanwhile"]
    verified = run(site.home, "manage", "verify", CELERY_BROKER_URL=broker.url)
    assert verified.returncode == 0, verified.stdout + verified.stderr
