"""What compose.yaml starts, in the root that clean_root.py made; PostgreSQL outside.

    python -m bench.deployed.site FOLDER       (in namespaces of its own; clean_root.py calls it)

As in the containers: the user of the image, no capabilities, no new privileges, a root that can
only be read, a /tmp and a state of its own. Health checks are the image's and compose.yaml's own.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from agentstate.embedded import EmbeddedPostgres
from bench.deployed import dockerfile
from bench.deployed.clean_root import PATH, ROOT, Failure

READY_SECONDS = 300.0  # of processor-poor machines; nothing waits longer than it has to
PAUSE_SECONDS = 0.2
STOP_SECONDS = 15
STATE = "var/lib/agentstate"
# Prints who it is, and what of the code it may write.
LOOK_AROUND = (
    "id -u; test -w /var/lib/agentstate && touch /tmp/x && "
    r"find /opt/agentstate ! -type l \( -uid $(id -u) -o -perm -o+w \)"
)


class Site:
    """The processes of one root. folder: has `image`; gets the database and what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "image"
        self.image = dockerfile.read(ROOT / "deploy" / "Dockerfile")[-1]
        self.services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
        self.uid = self.image.last("USER")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.password = secrets.token_urlsafe(24)
        self.variables = self._variables()

    def _variables(self) -> dict[str, str]:
        """The image's own, and the example's, changed where it says so."""
        text = (ROOT / "deploy" / "agentstate.env.example").read_text()
        found = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
        found["DATABASE_URL"] = found["DATABASE_URL"].replace("CHANGE-THIS", self.password)
        found["AGENTSTATE_SECRET_KEY"] = secrets.token_urlsafe(50)
        own = {"HOME": f"/{STATE}", "PATH": PATH}
        image = {
            name: re.sub(r"\$(\w+)", lambda m: own.get(m[1], ""), value)
            for name, value in self.image.environment.items()
        }
        return own | image | found

    # --- places ---------------------------------------------------------------------------

    def mount(self) -> None:
        """A root that can only be read, with a /tmp and a state that can be written."""
        done(["ip", "link", "set", "lo", "up"])
        names = [name for name in self.services if name not in ("postgres", "proxy")]
        hosts = f"127.0.0.1 localhost postgres {' '.join(names)}\n"
        (self.root / "etc/hosts").write_text(hosts)
        done(["mount", "--make-rprivate", "/"])
        done(["mount", "--bind", self.root, self.root])
        state = self.folder / "state"
        state.mkdir()
        os.chown(state, int(self.uid), int(self.uid))
        done(["mount", "--bind", state, self.root / STATE])
        done(["mount", "-t", "proc", "proc", self.root / "proc"])
        done(["mount", "-o", "remount,bind,ro", self.root])
        for place in ("tmp", "dev/shm"):
            done(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.root / place])

    def start_database(self) -> None:
        """PostgreSQL as the image `postgres` is told by compose.yaml, but outside the root."""
        binaries = EmbeddedPostgres(self.folder / "pg").binaries
        user = pwd.getpwnam("nobody")
        data = self.folder / "database"
        data.mkdir(mode=0o700)
        secret = self.folder / "password"
        secret.write_text(self.password)
        for path in (data, secret):
            os.chown(path, user.pw_uid, user.pw_gid)
        as_user: Mapping[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        told = self.services["postgres"]
        arguments = shlex.split(told["environment"]["POSTGRES_INITDB_ARGS"])
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "agentstate", "-A", "scram-sha-256",
             "--pwfile", secret, "-N", *arguments],
            check=True, stdout=subprocess.DEVNULL, cwd="/", **as_user,
        )  # fmt: skip
        _, *options = told["command"]
        with (self.folder / "postgres.log").open("ab") as log:
            self.running["postgres"] = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-c", "listen_addresses=127.0.0.1",
                 "-c", "unix_socket_directories=", *options],
                stdout=log, stderr=log, cwd="/", **as_user,
            )  # fmt: skip
        ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-U", "agentstate"]
        patiently("postgres", lambda: subprocess.run(ready, check=False).returncode == 0)
        make = "CREATE DATABASE agentstate"
        address = f"postgresql://agentstate:{self.password}@127.0.0.1/postgres"
        import psycopg

        with psycopg.connect(address, autocommit=True) as session:
            session.execute(make)

    # --- processes ------------------------------------------------------------------------

    def command(self, words: list[str], **more: str) -> list[str]:
        """A command as it is run in a container of ours."""
        pairs = [f"{name}={value}" for name, value in (self.variables | more).items()]
        least = ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        return ["chroot", str(self.root), "/usr/bin/setpriv", f"--reuid={self.uid}",
                f"--regid={self.uid}", *least, "/usr/bin/env", "-i", "-C",
                self.image.last("WORKDIR"), *pairs, *words]  # fmt: skip

    def ask(self, *words: str) -> str:
        """What a command in the root prints. Raises Failure."""
        had = subprocess.run(self.command(list(words)), capture_output=True, text=True, check=False)
        if had.returncode:
            raise Failure(f"{shlex.join(words)}: {had.stdout}{had.stderr}")
        return had.stdout.strip()

    def start(self, name: str) -> None:
        service = self.services[name]
        words = service.get("command") or self.image.command
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.command(words, **service.get("environment", {})), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def health_of(self, name: str) -> list[str]:
        asked = self.services[name].get("healthcheck")
        return list(asked["test"][1:]) if asked else self.image.health

    def is_healthy(self, name: str) -> bool:
        alive = self.running[name].poll() is None
        if not alive:
            raise Failure(f"{name} has ended:\n{self.said(name)}")
        quiet = subprocess.DEVNULL
        asked = self.command(self.health_of(name))
        return subprocess.run(asked, stdout=quiet, stderr=quiet, check=False).returncode == 0

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-4_000:]

    def stop(self, name: str) -> float:
        """Seconds until it had ended by SIGTERM. Raises Failure after 15."""
        began = time.monotonic()
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"{name} did not end in {STOP_SECONDS} s") from None
        return time.monotonic() - began

    def call(self, path: str, key: str, body: object = None) -> tuple[int, Any]:
        """As the proxy would: with what it says of the address and of TLS."""
        headers = {"Host": "agents.example.org", "X-Forwarded-Proto": "https",
                   "X-Forwarded-For": "192.0.2.1", "Authorization": f"Bearer {key}",
                   "Content-Type": "application/json"}  # fmt: skip
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"http://127.0.0.1:8000{path}", data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()


def done(command: list[str | Path]) -> None:
    subprocess.run([str(word) for word in command], check=True)


def patiently(what: str, is_so: Callable[[], object]) -> None:
    """Only what was waited counts: a machine that stands still for a while fails nothing."""
    for _ in range(int(READY_SECONDS / PAUSE_SECONDS)):
        if is_so():
            return
        time.sleep(PAUSE_SECONDS)
    raise Failure(f"not in {READY_SECONDS:.0f} s: {what}")


def is_well(site: Site) -> bool:
    """Whether the doctor finds nothing to mend. On a loaded machine a job may be late for once, so
    it is asked again; what it found is printed."""
    try:
        site.ask("python", "-m", "agentstate", "doctor")
    except Failure as failure:
        print(f"  {failure}", file=sys.stderr)
        return False
    return True


def stream_until(word: str, path: str, key: str) -> None:
    """Read a stream until a line has the word. Raises Failure when it ends before that."""
    asked = urllib.request.Request(f"http://127.0.0.1:8100{path}", headers={
        "Host": "agents.example.org", "X-Forwarded-Proto": "https",
        "Authorization": f"Bearer {key}", "Accept": "text/event-stream"})  # fmt: skip
    with urllib.request.urlopen(asked, timeout=30) as answer:
        if not any(word in line.decode() for line in answer):
            raise Failure(f"the stream ended without {word}")


def check(site: Site) -> None:
    """The whole life of a site. Raises Failure."""
    site.mount()
    site.start_database()
    told("PostgreSQL outside the root, by password over TCP")
    mine = site.ask("sh", "-c", LOOK_AROUND)
    if mine != site.uid:
        raise Failure(f"the user {site.uid} may write: {mine}")
    told("the user owns nothing but its state and /tmp")
    site.ask(*site.services["prepare"]["command"])
    told("prepare")
    for name in ("web-1", "streams", "worker", "beat"):
        site.start(name)
    for name in ("web-1", "streams"):
        patiently(name, lambda n=name: site.is_healthy(n))  # type: ignore[misc]
        told(f"{name} is healthy, by its own health check")
    key = site.ask("python", "-m", "agentstate", "key", "--name", "k", "--scope", "read",
                   "--scope", "write")  # fmt: skip
    expect(201, site.call("/api/v1/runs", key, {"key": "42", "task": "t"}))
    expect(201, site.call("/api/v1/runs/42/events", key, {"events": [{"type": "step.done"}]}))
    stream_until("step.done", "/live/v1/runs/42/events", key)
    told("a run is written and streamed")
    patiently("jobs on time", lambda: site.call("/health/jobs", key)[0] == 200)
    expect(200, site.call("/health/ready", key))
    told("the jobs of worker and beat are on time, and the site is ready")
    patiently("the doctor finds nothing to mend", lambda: is_well(site))
    told("the doctor finds nothing to mend")
    for name in ("web-1", "streams", "worker", "beat"):
        seconds = site.stop(name)
        if "Traceback" in site.said(name):
            raise Failure(f"{name} said:\n{site.said(name)}")
        if site.password in site.said(name) or site.variables["AGENTSTATE_SECRET_KEY"] in site.said(
            name
        ):
            raise Failure(f"{name} told a secret in its log")
        told(f"{name} ended {seconds:.1f} s after SIGTERM")


def expect(status: int, answer: tuple[int, Any]) -> None:
    if answer[0] != status:
        raise Failure(f"{status} was expected: {answer}")


def told(what: str) -> None:
    print(f"✓ {what}", flush=True)


def main() -> int:
    site = Site(Path(sys.argv[1]))
    try:
        check(site)
    except (Failure, subprocess.CalledProcessError, OSError) as failure:
        print(f"✗ {failure}", file=sys.stderr)
        for name in site.running:
            print(f"--- {name}\n{site.said(name)}", file=sys.stderr)
        return 1
    finally:
        for process in site.running.values():
            process.kill()
            process.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
