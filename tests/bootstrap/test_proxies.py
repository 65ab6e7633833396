"""Each proxy of deploy/proxies with TLS before a site: streams at once, no client believed."""

import http.client
import json
import re
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from tests.bootstrap.layout import DEPLOY, Layout, accepts, free_port, patiently, program

HOST = "agents.example.org"
FILES = DEPLOY / "proxies"
# Whoever says such a thing of itself is not believed.
FORGED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http"}


class Front:
    """A proxy as deploy/ has it, but for ports, names of machines and the certificate."""

    def __init__(self, site: Layout, name: str) -> None:
        self.site, self.name = site, name
        self.port = site.ports["proxy"] = free_port()
        self.folder = site.folder

    def start(self) -> None:
        self.site.start("proxy", getattr(self, f"_{self.name}")())
        patiently(lambda: accepts(self.port) or self.site.running["proxy"].poll() is not None)
        assert self.site.running["proxy"].poll() is None, self.site.said("proxy")

    def _written(self, file: str, text: str) -> Path:
        path = self.folder / file
        path.write_text(text)
        return path

    def _certificate(self) -> tuple[Path, Path]:
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(
            [program("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-days", "1", "-subj", f"/CN={HOST}", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        return key, certificate

    def _places(self, text: str) -> str:
        ports = self.site.ports
        text = re.sub(r"(?:127\.0\.0\.1|web-1):800[01]\b", f"127.0.0.1:{ports['web']}", text)
        return re.sub(r"(?:127\.0\.0\.1|streams):8100\b", f"127.0.0.1:{ports['streams']}", text)

    def _nginx(self) -> str:
        key, certificate = self._certificate()
        text = self._places((FILES / "nginx.conf").read_text())
        text = re.sub(r" {4}server 127\.0\.0\.1:8002 [^\n]*\n", "", text)
        text = re.sub(r"server \{\n {4}listen 80;.*?\n\}\n", "", text, flags=re.DOTALL)
        text = text.replace("listen 443", f"listen 127.0.0.1:{self.port}")
        text = text.replace("/etc/ssl/agents.example.org.pem", str(certificate))
        text = text.replace("/etc/ssl/private/agents.example.org.key", str(key))
        temporary = "".join(
            f"{kind}_temp_path {self.folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        file = self._written(
            "nginx.conf",
            f"daemon off; worker_processes 1; pid {self.folder}/nginx.pid; error_log stderr;\n"
            f"events {{}}\nhttp {{ access_log off;\n{temporary}{text}}}\n",
        )
        return f"{program('nginx', 'nginx-light')} -c {file} -p {self.folder}"

    def _caddy(self) -> str:
        text = self._places((FILES / "Caddyfile").read_text()).replace(" web-2:8000", "")
        # A certificate of its own authority, which it must not add to those this machine trusts.
        text = text.replace(" {\n", " {\n\ttls internal\n", 1)
        own = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}\n"
        file = self._written("Caddyfile", own + text)
        self.site.variables |= {"SITE": f"https://{HOST}:{self.port}"}
        caddy = program("caddy", "caddy")
        return f"env XDG_DATA_HOME={self.folder} XDG_CONFIG_HOME={self.folder} " \
               f"{caddy} run --adapter caddyfile --config {file}"  # fmt: skip

    def _haproxy(self) -> str:
        key, certificate = self._certificate()
        both = self._written("both.pem", certificate.read_text() + key.read_text())
        text = self._places((FILES / "haproxy.cfg").read_text())
        text = text.replace("    bind :80\n", "").replace(
            "bind :443", f"bind 127.0.0.1:{self.port}"
        )
        text = text.replace("/etc/haproxy/agents.example.org.pem", str(both))
        text = text.replace("    server web2 127.0.0.1:8002\n", "")
        return f"{program('haproxy', 'haproxy')} -db -f {self._written('haproxy.cfg', text)}"

    # --- calls ----------------------------------------------------------------------------

    def connect(self) -> http.client.HTTPSConnection:
        anyone = ssl._create_unverified_context()

        class Connection(http.client.HTTPSConnection):
            def connect(self) -> None:
                http.client.HTTPConnection.connect(self)
                self.sock = anyone.wrap_socket(self.sock, server_hostname=HOST)

        return Connection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, str]:
        connection = self.connect()
        told = {"Host": HOST, "Authorization": f"Bearer {self.site.key}"} | FORGED | headers
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            told["Content-Type"] = "application/json"
        try:
            connection.request("GET" if data is None else "POST", path, data, told)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class Lines:
    """A stream through the proxy, read in a thread of its own."""

    def __init__(self, front: Front, path: str) -> None:
        self.connection = front.connect()
        told = {"Host": HOST, "Authorization": f"Bearer {front.site.key}",
                "Accept": "text/event-stream", "Accept-Encoding": "gzip, zstd"}  # fmt: skip
        self.connection.request("GET", path, headers=told)
        self.answer = self.connection.getresponse()
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self.answer.readline():
                self.lines.append(line.decode().strip())
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@pytest.mark.long
@pytest.mark.deep
@pytest.mark.parametrize("name", ["nginx", "caddy", "haproxy"])
def test_a_proxy_passes_streams_on_at_once_and_believes_no_client(open_folder, name):
    assert shutil.which("openssl")
    with Layout(open_folder) as site:
        site.variables |= {"AGENTSTATE_HTTPS": "yes", "AGENTSTATE_HOSTS": f"{HOST},127.0.0.1",
                           "AGENTSTATE_LOG_REQUESTS": "yes"}  # fmt: skip
        site.start_streams()
        site.start_web()
        front = Front(site, name)
        front.start()
        # It asks /health/ready itself, and sends nothing to one that is not.
        patiently(lambda: front.ask("/health/ready")[0] == 200)
        assert front.ask("/api/v1/runs", {"key": "42", "task": "t"})[0] == 201
        stream = Lines(front, "/live/v1/runs/42/events")
        assert stream.answer.status == 200, stream.answer.read()
        assert stream.answer.getheader("Content-Encoding") in (None, "identity")
        patiently(lambda: stream.has("run.created"))
        for n in range(5):
            sent = {"events": [{"type": f"step.{n}"}]}
            assert front.ask("/api/v1/runs/42/events", sent)[0] == 201
            # Nothing else is sent meanwhile, that could push it out of a buffer.
            assert patiently(lambda n=n: stream.has(f"step.{n}")) < 2
        assert front.ask("/login", Accept="text/html")[0] == 200  # and no turn to https
        assert front.ask("/metrics")[0] == 404
        large = b'{"events": [{"type": "x", "data": "' + b"y" * 9_600_000 + b'"}]}'
        try:
            assert front.ask("/api/v1/runs/42/events", large)[0] == 413
        except OSError as cut:  # answered by the head, and closed while the body was being sent
            assert not isinstance(cut, TimeoutError)
        assert front.ask("/api/v1/runs/42")[0] == 200
        stream.connection.close()
        site.stop("web", "streams")
