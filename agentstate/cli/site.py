"""`./run demo` and `./run serve`: the whole site on this machine, until Ctrl-C."""

import argparse
import errno
import fcntl
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from agentstate import where
from agentstate.cli.database import load_settings, running_server
from agentstate.cli.guests import end_keys_of_killed, guests
from agentstate.cli.output import CommandFailure, event, progress, result
from agentstate.supervisor import Child, Supervisor

WEB_START_SECONDS = 180  # of a busy machine; one that ends is told at once
WORKER_PROCESSES = 2
FLEET_STOP_SECONDS = 3.0
REST_STOP_SECONDS = 4.5  # with the above and PostgreSQL's end, within ten seconds
LEFT_OVER_SECONDS = 12.0  # in which the janitor has ended what a killed site left
BACKLOG = 1024
INTERRUPTED = 130  # the exit code, when a demo with an end did not come to it
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not listened on


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site that runs. url: where this machine reaches it. since: the database's clock before."""

    supervisor: Supervisor
    url: str
    since: datetime
    web: Child
    background: tuple[Child, ...]


def serve(options: argparse.Namespace) -> int:
    """`./run serve`: until a signal comes."""
    with running_site(options) as site:
        from django.contrib.auth.models import User
        from django.db import connections

        from dashboard import first_run

        result(f"Console and API: {site.url}")
        if code := first_run.make_code():
            result(f"There is no admin yet: {site.url}/setup makes one with the code {code}")
        if not User.objects.exists():
            result(
                f"Nobody can log in yet: there, or {where.COMMAND} user --name ana --role operator"
            )
        connections.close_all()
        result("Ctrl-C stops everything.")
        for _ in site.supervisor.turns():
            pass
        stop(site, [])
    return 0


def demo(options: argparse.Namespace) -> int:
    """`./run demo`: with a fleet; until a signal comes, or for --seconds and then the summary."""
    with running_site(options) as site, guests() as (password, key, setup_code):
        fleet = site.supervisor.add(fleet_child(options, site.url, key))
        result(welcome(site.url, password, key, setup_code))
        deadline = time.monotonic() + options.seconds if options.seconds else None
        for _ in site.supervisor.turns():
            if deadline and time.monotonic() >= deadline:
                break
        if site.supervisor.signals:
            stop(site, [fleet])
            return INTERRUPTED if options.seconds else 0
        site.supervisor.stop([fleet])
        code = summary(site)
        stop(site, [])
    return code


def welcome(url: str, password: str, key: str, code: str | None) -> str:
    first = f"  First admin {url}/setup   code {code}\n" if code else ""
    return (
        f"\n  Console     {url}\n  Log in as   operator   password {password}\n"
        f"{first}  Worker key  {key}\n  API         {url}/api/v1/docs\n\nCtrl-C stops everything.\n"
    )


def fleet_child(options: argparse.Namespace, url: str, key: str) -> Child:
    command = [sys.executable, "-m", "tasks.simulate", "--url", url]
    for name in ("scenario", "workers", "speed", "seed"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", str(value)]
    return Child(
        name="fleet",
        command=command,
        log=log_of("fleet"),
        environment={"AGENTSTATE_KEY": key, "AGENTSTATE_PROCESS": "fleet"},
    )


def summary(site: Site) -> int:
    """Print what happened and whether every invariant holds. Its exit code is the demo's."""
    command = [sys.executable, "-m", "django", "summary", "--since", site.since.isoformat()]
    with subprocess.Popen(command, cwd=where.BASE, start_new_session=True) as process:
        while process.poll() is None:
            site.supervisor.wait(0.1)
            if site.supervisor.signals:
                process.kill()
                return INTERRUPTED
    return process.returncode


# --- start --------------------------------------------------------------------------------------


@contextmanager
def running_site(options: argparse.Namespace) -> Iterator[Site]:
    """Check first, then start database, web and background work; at the end all of it is gone."""
    load_settings()
    from django.conf import settings

    from agentstate.prepare import prepare

    started = time.monotonic()
    with ExitStack() as stack:
        claim = stack.enter_context(only_start(settings.AGENTSTATE_HOME))
        patience = LEFT_OVER_SECONDS if claim.follows_a_killed_one else 0.0
        listener = stack.enter_context(listen(options.host, options.port, within_seconds=patience))
        url = address(listener)
        claim(url)
        database = stack.enter_context(running_server())
        prepared = prepare(report=progress)
        end_keys_of_killed()
        progress(f"PostgreSQL {prepared.server} is ready · starting web …")
        supervisor = Supervisor(folder=where.BASE, report=event, database=database)
        stack.enter_context(supervisor)
        web = supervisor.add(web_child(listener))
        wait_for_web(supervisor, web, url)
        background = tuple(map(supervisor.add, background_children()))
        progress(f"ready after {time.monotonic() - started:.1f} s")
        yield Site(
            supervisor=supervisor, url=url, since=prepared.now, web=web, background=background
        )


class Claim:
    """That this home is ours, with our address for whoever comes second."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        file.seek(0)
        self.follows_a_killed_one = bool(file.read().strip())

    def __call__(self, url: str) -> None:
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} at {url}")
        self._file.flush()


@contextmanager
def only_start(home: Path) -> Iterator[Claim]:
    """One site a home."""
    home.mkdir(parents=True, exist_ok=True)
    # What it says is for a person. A crash of the machine may have left anything in it.
    with (home / "run.lock").open("a+", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise CommandFailure(
                f"already running here: {file.read().strip() or 'it is just starting'}. "
                "Stop it first, or set AGENTSTATE_HOME to another folder"
            ) from None
        try:
            yield Claim(file)
        finally:
            file.truncate(0)


def listen(host: str, port: int, *, within_seconds: float = 0.0) -> socket.socket:
    """A listening socket. Opened before anything starts, and held while web is started again.

    within_seconds: how long to try while the port is taken, by what a killed site left: its web
    process has it until the janitor has ended that.
    """
    deadline = time.monotonic() + within_seconds
    while True:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise CommandFailure(
                    f"cannot listen on {host} port {port}: {error.strerror}. "
                    "Choose another with --port"
                ) from None
        time.sleep(0.1)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def web_child(listener: socket.socket) -> Child:
    from django.conf import settings

    descriptor = listener.fileno()
    waits = ["--when-told"] if settings.AGENTSTATE_STANDBY else []
    return Child(
        name="web",
        command=[sys.executable, "-m", "agentstate.web", str(descriptor), *waits],
        log=log_of("web"),
        environment={"AGENTSTATE_PROCESS": "web"},
        pass_fds=(descriptor,),
        stands_by=settings.AGENTSTATE_STANDBY,
    )


def background_children() -> list[Child]:
    """A Celery worker, and beat apart from it, so that neither ends the other."""
    from django.conf import settings

    # Quiet: its banner, which is no entry of a log, would end it where the log's disk is full.
    celery = [sys.executable, "-m", "celery", "--quiet", "-A", "tasks.app"]
    worker = ["worker", "-n", "w@agentstate", "--concurrency", str(WORKER_PROCESSES)]
    # Its heartbeat is an event on a topic, which pgmq does not have: an error in the log each time.
    worker += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
    worker += ["--loglevel", "WARNING"]
    beat = ["beat", "--schedule", str(settings.AGENTSTATE_HOME / "beat-schedule")]
    beat += ["--pidfile", "", "--loglevel", "WARNING"]
    return [
        Child(name=name, command=[*celery, *command], log=log_of(name),
              environment={"AGENTSTATE_PROCESS": name})
        for name, command in (("worker", worker), ("beat", beat))
    ]  # fmt: skip


def log_of(name: str) -> Path:
    from django.conf import settings

    return Path(settings.AGENTSTATE_HOME) / "log" / f"{name}.log"


def wait_for_web(supervisor: Supervisor, web: Child, url: str) -> None:
    """Until it answers. If it ends instead, say why and stop: a restart would not help."""
    deadline = time.monotonic() + WEB_START_SECONDS
    while not supervisor.signals:
        if answers(url):
            return
        if not web.is_running() or time.monotonic() > deadline:
            raise CommandFailure(f"web does not start; the end of {web.log}:\n{web.last_lines(20)}")
    raise KeyboardInterrupt


def answers(url: str) -> bool:
    """Whether any answer comes within half a second."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=0.5)
    try:
        connection.request("GET", "/health/live")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


# --- stop ---------------------------------------------------------------------------------------


def stop(site: Site, fleet: list[Child]) -> None:
    """The fleet first, while web still answers it; then the rest, then (by the way out of
    running_site) the database."""
    progress("\nstopping …")
    for child in site.background:
        site.supervisor.ask_to_end(child)
    site.supervisor.stop(fleet, within_seconds=FLEET_STOP_SECONDS)
    site.supervisor.stop([site.web, *site.background], within_seconds=REST_STOP_SECONDS)
