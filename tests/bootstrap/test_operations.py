"""docs/operations.md, done from top to bottom as it stands: deploy without Docker, look, upgrade,
back up, restore. On a PostgreSQL 15 of Debian's, as a user that owns nothing.

In a mount namespace whose /etc, /opt and /var are this machine's with a layer above them: what is
written there is gone afterwards. systemd is not process 1 here: systemctl.py starts the units."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from bench.deployed import servers
from tests.bootstrap.conftest import ROOT
from tests.bootstrap.layout import free_port, patiently

PAGE = ROOT / "docs" / "operations.md"
BLOCK = re.compile(r"^```(\w+(?: \w+)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DONE = ("install", "look", "upgrade", "restore")
LAYERED = ("/etc", "/opt", "/var/lib", "/var/backups")
SECONDS = 3_000
# Who must be able to run this Python, and cannot where it is.
PYTHON = "/opt/python-for-everybody"


def blocks() -> dict[str, str]:
    """The page's commands by what they are for."""
    found = BLOCK.findall(PAGE.read_text())
    return {kind.partition(" ")[2] or kind: text for kind, text in found if kind != "sh"}


def test_the_page_has_commands_for_all_that_it_is_for():
    assert set(blocks()) >= {"sql", *DONE}


@pytest.fixture
def database(open_folder):
    """A PostgreSQL as whoever deploys has one: on TCP, by password. Its superuser's address."""
    binaries = servers.binaries(15, open_folder)
    data, secret = open_folder / "database", open_folder / "secret"
    secret.write_text(secrets.token_urlsafe(20))
    data.mkdir(mode=0o700)
    nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    for path in (data, secret):
        shutil.chown(path, "nobody", "nogroup")
    asked = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile",
             secret, "-N", "--locale=C.UTF-8"]  # fmt: skip
    subprocess.run(asked, check=True, stdout=subprocess.DEVNULL, cwd="/", **nobody)
    port = free_port()
    with (open_folder / "postgres.log").open("ab") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), "-c", "unix_socket_directories=",
             "-c", "listen_addresses=127.0.0.1"], cwd="/", stdout=log, stderr=log, **nobody,
        )  # fmt: skip
    address = f"postgresql://postgres:{secret.read_text()}@127.0.0.1:{port}/postgres"
    try:
        patiently(lambda: answers(address))
        yield address
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait(30)


def answers(address: str) -> bool:
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def script(address: str, state: Path, ports: dict[str, int]) -> str:
    """All of it in one shell that stops at the first thing which is not as the page says."""
    told = blocks()
    password = secrets.token_urlsafe(24)
    with psycopg.connect(address, autocommit=True) as session:
        for statement in told["sql"].replace("CHANGE-THIS", password).split(";"):
            if statement.strip():
                session.execute(statement)
    of_site = re.sub(r"//\w+:[^@]*@", f"//agentstate:{password}@", address)
    edits = (
        ("DATABASE_URL=.*", f"DATABASE_URL={of_site.replace('/postgres', '/agentstate')}"),
        ("AGENTSTATE_SECRET_KEY=.*", f"AGENTSTATE_SECRET_KEY={secrets.token_urlsafe(50)}"),
    )
    edit = " ".join(f"-e 's#^{found}#{new}#'" for found, new in edits)
    changed = {
        "git clone …": f"git clone -q {ROOT}",
        "editor ": f"sed -i {edit} ",
        " FILE\n": " \"$(ls /var/backups/agentstate/*.dump | head -1)\"\n",
        "8001": str(ports["web-1"]), "8002": str(ports["web-2"]), "8100": str(ports["streams"]),
    }  # fmt: skip
    for found, new in changed.items():
        told = {kind: text.replace(found, new) for kind, text in told.items()}
    port = ports["web-1"]
    ready = f"until curl -sf -o /dev/null http://127.0.0.1:{port}/health/ready; do sleep 0.2; done"
    moved = f"sed -i s/8100/{ports['streams']}/ /etc/systemd/system/agentstate-streams.service"
    api = f"http://127.0.0.1:{port}/api/v1"
    return f"""
set -euo pipefail
systemctl() {{ {sys.executable} {ROOT}/tests/bootstrap/systemctl.py {state} "$@"; {moved}; }}
say() {{ echo "--- $1"; }}
of_site() {{ curl -sS -H "Authorization: Bearer $key" -H 'X-Forwarded-Proto: https' \\
    -H 'Content-Type: application/json' "$@"; }}
trap 'systemctl stop agentstate.target' EXIT
say install
{told["install"]}
{ready}
say look
{told["look"]}
key=$(/opt/agentstate/deploy/site key --name walk --scope read --scope write)
of_site -d '{{"key": "before", "task": "t"}}' {api}/runs; echo
of_site {api}/runs/before/events; echo
until of_site http://127.0.0.1:{port}/health/jobs | grep on-time; do sleep 0.5; done
say metrics
for place in {port} {ports["streams"]}; do
    curl -sSf -H "Authorization: Bearer $key" -H "Host: web-1:$place" \\
        http://127.0.0.1:$place/metrics | grep ^agentstate_runs
done
say backup
systemctl start agentstate-backup.service
ls -l /var/backups/agentstate
say upgrade
{told["upgrade"]}
of_site -d '{{"key": "after", "task": "t"}}' {api}/runs; echo
say restore
{told["restore"]}
{ready}
say restored
of_site {api}/runs/before; echo
of_site {api}/runs/after; echo
find -H /opt/agentstate -user agentstate
for file in {state}/*.log; do grep -H Traceback $file || true; done
"""


@pytest.mark.long
@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and users are made by root")
def test_somebody_who_does_what_the_page_says_has_a_site(open_folder, database):
    state, layers = open_folder / "state", open_folder / "layers"
    for folder in (state, layers):
        folder.mkdir()
    ports = {name: free_port() for name in ("web-1", "web-2", "streams")}
    mounts = []
    for place in LAYERED:
        upper, work = (layers / f"{place.replace('/', '_')}.{kind}" for kind in ("upper", "work"))
        upper.mkdir()
        work.mkdir()
        mounts.append(
            f"mkdir -p {place} && mount -t overlay overlay"
            f" -o lowerdir={place},upperdir={upper},workdir={work} {place}"
        )
    mounts.append(f"mkdir {PYTHON} && mount --bind {sys.base_prefix} {PYTHON}")
    # One that is built with a library of its own looks for it where it was built.
    mounts.append(f"echo {PYTHON}/lib >/etc/ld.so.conf.d/everybody.conf && ldconfig")
    said = open_folder / "said"
    (open_folder / "walk").write_text(
        "\n".join(["set -e", *mounts, f"exec bash {open_folder}/walk-on\n"])
    )
    (open_folder / "walk-on").write_text(script(database, state, ports))
    told = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_"))}
    told |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
             "PYTHON": f"{PYTHON}/bin/python3", "NO_UV": "1"}  # fmt: skip
    with said.open("wb") as output:
        done = subprocess.run(
            ["unshare", "--mount", "bash", open_folder / "walk"], cwd="/", env=told,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=SECONDS, check=False,
        )  # fmt: skip
    text = said.read_text()
    print(text)  # shown when the test failed
    assert done.returncode == 0
    parts = dict(re.findall(r"^--- (\w+)\n(.*?)(?=^--- |\Z)", text, re.MULTILINE | re.DOTALL))
    assert re.search(r'"status": ?"ready"', parts["look"])
    assert re.search(r"(?:\w{4}-){2}\w{4}$", parts["look"], re.MULTILINE)
    assert re.search(r'"type": ?"run.created"', parts["look"])
    assert parts["metrics"].count('agentstate_runs{status="pending"} 1.0') == 2  # web, streams
    assert re.search(r"^-rw------- .* agentstate .*\.dump$", parts["backup"], re.MULTILINE)
    assert re.search(r'"key": ?"after"', parts["upgrade"])
    assert re.search(r'"key": ?"before"', parts["restored"])
    assert re.search(r'"code": ?"not-found"', parts["restored"])  # of the run that came later
    assert "Traceback" not in parts["restored"]
    assert "/opt/" not in parts["restored"].replace("/opt/agentstate/deploy", "")
