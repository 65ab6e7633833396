"""A distributed store of a role that is no superuser, with PgBouncer before its coordinator."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg.sql import SQL, Identifier

from tests.bootstrap.conftest import eventually
from tests.bootstrap.layout import accepts, program
from tests.citus.cluster import HOST, Cluster, free_port
from tests.citus.test_distribute import FILL, Site

pytestmark = pytest.mark.citus

ROLE = "plain_role"


@pytest.fixture
def site(servers: Cluster) -> Iterator[Site]:
    name = f"site_{uuid4().hex[:8]}"
    try:
        for node in servers.nodes:
            with node.connect() as session:
                session.execute(SQL("DROP ROLE IF EXISTS {}").format(Identifier(ROLE)))
                session.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(ROLE)))
                session.execute(
                    SQL("CREATE DATABASE {} OWNER {}").format(Identifier(name), Identifier(ROLE))
                )
        servers.join(name)
        yield Site(servers, name, user=ROLE)
    finally:
        servers.drop_database(name)
        for node in servers.nodes:
            with node.connect() as session:
                session.execute(SQL("DROP ROLE IF EXISTS {}").format(Identifier(ROLE)))


@contextmanager
def pooler(site: Site, folder: Path) -> Iterator[int]:
    """PgBouncer in transaction mode; its port."""
    port = free_port()
    file = folder / "pgbouncer.ini"
    file.write_text(f"""
[databases]
{site.name} = host={HOST} port={site.servers.coordinator.port} user={ROLE}
[pgbouncer]
listen_addr = {HOST}
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits,options
""")
    user = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid, "extra_groups": []}
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    process = subprocess.Popen(
        [program("pgbouncer", "pgbouncer"), "-q", str(file)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        **(user if os.geteuid() == 0 else {}),
    )  # fmt: skip
    try:
        eventually(lambda: accepts(port))
        yield port
    finally:
        process.terminate()
        process.wait(30)


def test_a_plain_role_distributes_and_writes_also_behind_a_pooler(
    site: Site, tmp_path: Path
) -> None:
    code, told = site.manage("migrate", "-v0")
    assert code == 0, told
    code, told = site.python(FILL)
    assert code == 0, told
    code, told = site.manage("distribute", "--shards", "4")
    assert code == 0, told
    assert site.count() == 60
    with pooler(site, tmp_path) as port:
        direct = site.url
        site.more |= {"DATABASE_SESSION_URL": direct, "AGENTSTATE_PREPARED_STATEMENTS": "no"}
        site.port = port
        code, told = site.python(FILL.replace("run-{n}", "pooled-{n}"))
        assert code == 0, told
        assert site.count() == 120
        code, told = site.manage("verify")
        assert code == 0, told
        code, told = site.run("-m", "agentstate", "doctor")
        assert "distribution: functions" not in told
        assert "cannot be asked" not in told
