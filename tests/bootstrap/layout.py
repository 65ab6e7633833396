"""A site as deploy/ lays it out: granian, uvicorn, Celery, PgBouncer and nginx, on loopback."""

import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from agentstate.embedded import EmbeddedPostgres
from tests.bootstrap.conftest import ROOT
from tests.bootstrap.sites import environment, run

DEPLOY = ROOT / "deploy"
STOP_SECONDS = 15


def commands() -> dict[str, str]:
    """What the Procfile starts, by name."""
    lines = (DEPLOY / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines)


def program(name: str, package: str) -> str:
    """Where a program of the system is. Fails with what to install."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    assert found, f"{name} is not installed: apt-get install {package} (.ci/run does it)"
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Layout:
    """Everything of one site. Use it as a context manager; at the end nothing of it runs."""

    def __init__(self, folder: Path, *, code: Path = ROOT) -> None:
        self.folder, self.home, self.code = folder, folder / "home", code
        self.held = ExitStack()
        self.server = EmbeddedPostgres(folder / "pg")
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.variables: dict[str, str] = {"AGENTSTATE_SECRET_KEY": "x" * 50}
        self.ports: dict[str, int] = {}
        self.key = ""

    def __enter__(self) -> "Layout":
        self.held.enter_context(self.server.held())
        parts = {"host": str(self.server.socket), "port": "5432", "user": "agentstate"}
        direct = " ".join(f"{name}={value}" for name, value in parts.items())
        self.variables["DATABASE_URL"] = f"{direct} dbname=postgres"
        made = self.ask("prepare")
        assert made.returncode == 0, made.stderr
        asked = self.ask("key", "--name", "k", "--scope", "read", "--scope", "write")
        self.key = asked.stdout.strip()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.held.close()

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of ./run on this site."""
        return run(self.home, *arguments, **self.variables)

    # --- processes ------------------------------------------------------------------------

    def start(self, name: str, command: str | None = None, **more: str) -> subprocess.Popen[bytes]:
        """A process of the Procfile, or another one; its output goes to a file of its name."""
        line = command or commands()[name.split("-")[0]]
        told = environment(self.home, **self.variables)
        told["PYTHONPATH"] = f"{self.code}:{self.code}/client/src"
        told |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | more
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["sh", "-c", f"exec {line}"], cwd=self.code, env=told, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def start_web(self, name: str = "web") -> str:
        """Its address, once it is ready."""
        port = self.ports[name] = free_port()
        self.start(name, PORT=str(port))
        self.wait_until_ready(name)
        return f"http://127.0.0.1:{port}"

    def start_streams(self) -> None:
        port = self.ports["streams"] = free_port()
        self.start("streams", STREAMS_PORT=str(port))
        self.wait_until_ready("streams")

    def start_again(self, name: str) -> None:
        """One that was stopped, at the address that it had."""
        which = "STREAMS_PORT" if name == "streams" else "PORT"
        self.start(name, **{which: str(self.ports[name])})
        self.wait_until_ready(name)

    def wait_until_ready(self, name: str) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}/health/ready"
        alive = self.running[name]
        patiently(lambda: alive.poll() is not None or status_of(url) == 200)
        assert alive.poll() is None, self.said(name)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def start_pooler(self) -> None:
        """PgBouncer as deploy/ has it, but for where things are; all but sessions go through it."""
        port = self.ports["pooler"] = free_port()
        text = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text()
        text = text.replace("host=127.0.0.1 port=5432 dbname=agentstate",
                            f"host={self.server.socket} port=5432 dbname=postgres")  # fmt: skip
        text = text.replace("listen_port = 6432", f"listen_port = {port}\nunix_socket_dir =")
        text = text.replace("auth_type = scram-sha-256", "auth_type = any")
        text = re.sub(r"agentstate = host", "agentstate = user=agentstate host", text, count=1)
        file = self.folder / "pgbouncer.ini"
        file.write_text(text)
        found = program("pgbouncer", "pgbouncer")
        # It refuses to be root; and who runs the server may enter the socket's folder.
        owner = pwd.getpwuid(self.server.data.stat().st_uid).pw_name
        as_owner = ["-u", owner] if os.geteuid() == 0 else []
        self.start("pooler", " ".join([found, *as_owner, str(file)]))
        patiently(lambda: accepts(port) or self.running["pooler"].poll() is not None)
        assert self.running["pooler"].poll() is None, self.said("pooler")
        self.variables["DATABASE_SESSION_URL"] = self.variables["DATABASE_URL"]
        self.variables["DATABASE_URL"] = f"postgresql://agentstate@127.0.0.1:{port}/agentstate"

    def start_proxy(self, *webs: str) -> str:
        """nginx as deploy/ has it, without TLS; its address."""
        port = self.ports["proxy"] = free_port()
        text = (DEPLOY / "proxies" / "nginx.conf").read_text()
        plain = text[text.index("server {\n    listen 443") :]
        upstream = text[: text.index("server {\n    listen 80")]
        upstream = upstream.replace("127.0.0.1:8100", f"127.0.0.1:{self.ports.get('streams', 1)}")
        targets = re.findall(r" {4}server 127.0.0.1:800\d [^\n]*\n", upstream)
        named = "".join(targets[0].replace("8001", str(self.ports[web])) for web in webs)
        upstream = upstream.replace("".join(targets), named)
        plain = plain.replace("listen 443 ssl http2", f"listen 127.0.0.1:{port}")
        plain = re.sub(r" {4}ssl_[^\n]*\n", "", plain)
        plain = plain.replace("$host;", "127.0.0.1;")
        temporary = "".join(
            f"{kind}_temp_path {self.folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = self.folder / "nginx.conf"
        file.write_text(
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log stderr;\n"
            f"events {{}}\nhttp {{ access_log off;\n{temporary}{upstream}{plain}}}\n"
        )
        self.start("proxy", f"{program('nginx', 'nginx-light')} -c {file} -p {self.folder}")
        patiently(lambda: accepts(port) or self.running["proxy"].poll() is not None)
        assert self.running["proxy"].poll() is None, self.said("proxy")
        return f"http://127.0.0.1:{port}"

    def start_haproxy(self, *webs: str) -> str:
        """HAProxy as deploy/ has it, without TLS; its address."""
        port = self.ports["proxy"] = free_port()
        text = (DEPLOY / "proxies" / "haproxy.cfg").read_text()
        text = text.replace("    bind :80\n", "")
        text = re.sub(r"bind :443 [^\n]*", f"bind 127.0.0.1:{port}", text)
        text = re.sub(r" {4}http-request redirect scheme https [^\n]*\n", "", text)
        text = text.replace("127.0.0.1:8100", f"127.0.0.1:{self.ports.get('streams', 1)}")
        named = "".join(f"    server {web} 127.0.0.1:{self.ports[web]}\n" for web in webs)
        text = re.sub(r"(?: {4}server web\d [^\n]*\n)+", named, text)
        file = self.folder / "haproxy.cfg"
        file.write_text(text)
        self.start("proxy", f"{program('haproxy', 'haproxy')} -db -f {file}")
        patiently(lambda: accepts(port) or self.running["proxy"].poll() is not None)
        assert self.running["proxy"].poll() is None, self.said("proxy")
        return f"http://127.0.0.1:{port}"

    def stop(self, *names: str) -> float:
        """SIGTERM to each at once; the seconds until the last has ended. Fails when one hangs."""
        for name in names:
            self.running[name].terminate()

        def left() -> list[str]:
            return [name for name in names if self.running[name].poll() is None]

        return patiently(
            lambda: not left(), within_seconds=STOP_SECONDS, or_say=lambda: str(left())
        )

    # --- calls ----------------------------------------------------------------------------

    def call(self, url: str, body=None, method="POST", **headers: str):
        """Status and members of an answer of the API."""
        asked = {"Authorization": f"Bearer {self.key}"} | headers
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            asked["Content-Type"] = "application/json"
        request = urllib.request.Request(url, data, asked, method="GET" if body is None else method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read() or b"{}")


class Listener:
    """A stream of server-sent events, read in a thread of its own."""

    def __init__(self, url: str, path: str, key: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self.connection.request(
            "GET", path, headers={"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
        )
        self.answer = self.connection.getresponse()
        self.lines: list[str] = []
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self.answer.readline():
                self.lines.append(line.decode().strip())
        except (OSError, http.client.HTTPException):
            pass
        self.ended.set()

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


PAUSE_SECONDS = 0.05


def patiently(
    what: Callable[[], object], *, within_seconds: float = 240, or_say: Callable[[], str] = str
) -> float:
    """Wait until it is true; the seconds that this took. Only what was waited counts, so that a
    machine that stands still for a while, with all that runs on it, fails nothing."""
    for turn in range(int(within_seconds / PAUSE_SECONDS)):
        if what():
            return turn * PAUSE_SECONDS
        time.sleep(PAUSE_SECONDS)
    raise AssertionError(f"not within {within_seconds} s {or_say()}")


def status_of(url: str) -> int:
    """0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
