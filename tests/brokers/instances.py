"""Scratch brokers: the real programs on free loopback ports, in folders of their own, to be killed.

`begin()` starts one and waits until it answers, `kill()` is SIGKILL, `end()` takes everything of
it away. Nothing of a broker that the system runs is touched, nor its folders.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from kombu import Connection

from tests.bootstrap.conftest import eventually

START_SECONDS = 300
# Debian's rabbitmq-server changes to another user; the script behind it does not.
RABBITMQ_SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
# How often RabbitMQ looks for what is not acknowledged; a minute is its own choice.
RABBITMQ_SETTINGS = """\
[{rabbit, [{channel_tick_interval, 500}, {tcp_listen_options, [{nodelay, true}]}]},
 {kernel, [{inet_dist_use_interface, {127,0,0,1}}]}].
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def found(name: str, *others: str) -> str:
    """The path of a program. Fails with what to install."""
    for candidate in (*others, name):
        if path := shutil.which(candidate):
            return path
    raise AssertionError(f"no {name} here: install it (Debian: apt-get install {name})")


class Broker:
    """One kind of broker. url: what CELERY_BROKER_URL gets."""

    name = ""
    url = ""

    def begin(self) -> None:
        """Start it, the first time or after a kill; it answers when this returns."""

    def kill(self) -> None:
        """SIGKILL, as a machine that loses its power."""

    def wait_for_acknowledgements(self, seconds: float) -> None:
        """From now on so long. Those with a visibility timeout have it from their clients."""

    def end(self) -> None:
        """No process and no file of it is left."""


class InTheDatabase(Broker):
    """pgmq: it is the store's own PostgreSQL, which the tests have anyway."""

    name = "pgmq"
    url = "pgmq://localhost"


class Server(Broker):
    """A broker that is a process (group) of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"agentstate-{self.name}-", dir="/tmp"))
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **environment: str) -> None:
        with (self.folder / "output").open("ab") as output:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=os.environ | environment, stdout=output,
                    stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
                )
            )  # fmt: skip

    def wait_until_it_answers(self) -> None:
        def said() -> str:
            return (self.folder / "output").read_text(errors="replace")[-2_000:]

        def answers() -> bool:
            assert all(process.poll() is None for process in self.processes), said()
            with Connection(self.url, connect_timeout=1) as connection:
                try:
                    connection.connect()
                except (OSError, *connection.connection_errors):
                    return False
            return True

        eventually(answers, within_seconds=START_SECONDS, pause_seconds=0.2)

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes = []

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(Server):
    """It keeps nothing on disk here: after a kill its queues are empty, the worst that can be."""

    name = "redis"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def begin(self) -> None:
        self.start(
            found("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", str(self.folder), "--save", "", "--appendonly", "no",
        )  # fmt: skip
        self.wait_until_it_answers()


class RabbitMQ(Server):
    """One node with a name, a cookie and a port mapper that nobody else uses."""

    name = "rabbitmq"

    def __init__(self) -> None:
        super().__init__()
        self.port, self.mapper, self.distribution = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (self.folder / "advanced.config").write_text(RABBITMQ_SETTINGS)
        # Not left to Erlang: of two that make it at once, one may look before the other closed it.
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10).upper())
        cookie.chmod(0o400)
        for empty in ("rabbitmq.conf", "environment.conf", "enabled_plugins"):
            (self.folder / empty).write_text("[].\n" if empty == "enabled_plugins" else "")

    def begin(self) -> None:
        settings = self.settings()
        # In the foreground and ours: the one that Erlang starts by itself would outlive the tests.
        self.start(found("epmd"), **settings)
        self.start(found("rabbitmq-server", RABBITMQ_SCRIPT), **settings)
        self.wait_until_it_answers()

    def wait_for_acknowledgements(self, seconds: float) -> None:
        """It has no visibility timeout; this is what comes near. For channels that are opened
        from now on."""
        tool = found("rabbitmqctl", "/usr/lib/rabbitmq/bin/rabbitmqctl")
        order = f"application:set_env(rabbit, consumer_timeout, {int(seconds * 1000)})."
        subprocess.run(
            [tool, "eval", order], cwd=self.folder, env=os.environ | self.settings(), check=True,
            stdout=subprocess.DEVNULL, timeout=START_SECONDS,
        )  # fmt: skip

    def settings(self) -> dict[str, str]:
        def at(name: str) -> str:
            return str(self.folder / name)

        return {
            "HOME": at(""),
            "RABBITMQ_NODENAME": f"agentstate-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_MNESIA_BASE": at("mnesia"),
            "RABBITMQ_LOG_BASE": at("log"),
            "RABBITMQ_PID_FILE": at("pid"),
            "RABBITMQ_CONFIG_FILE": at("rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": at("advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": at("environment.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": at("enabled_plugins"),
            "ERL_EPMD_PORT": str(self.mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }


KINDS: dict[str, type[Broker]] = {kind.name: kind for kind in (InTheDatabase, RabbitMQ, Redis)}
