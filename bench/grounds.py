"""What the benchmarks of a whole site stand on: a process apart, a site in a folder, its memory.

Django reads its settings once in a process. So whatever needs a site of its own runs in a process
of its own (`apart`) and tells what it found as JSON. It ends what it started when its parent is
interrupted, or gone.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress
from agentstate.cli.site import INTERRUPTED

ROOT = Path(__file__).resolve().parent.parent
END_SECONDS = 35.0  # for a process apart to stop its site


# --- a process apart ------------------------------------------------------------------------------


def apart(part: Callable[..., Any], /, **asked: Any) -> Any:
    """What `part(**asked)` gives in a process of its own; part: a function of a module here. What
    is asked and what comes back go by way of JSON. Raises RuntimeError when it failed."""
    name = f"{part.__module__}:{part.__name__}"
    command = [sys.executable, "-m", "bench.grounds", name, json.dumps(asked)]
    # In a session of its own it is not met by the terminal's Ctrl-C: it ends when its input does,
    # however this process goes.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, start_new_session=True) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            told = child.stdout.read()
        except BaseException:
            child.stdin.close()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    if child.returncode:
        raise RuntimeError(f"{name} ended with {child.returncode}")
    return json.loads(told.splitlines()[-1])


def main() -> None:
    where, asked = sys.argv[1:]
    threading.Thread(target=interrupt_at_end, daemon=True).start()
    module, _, name = where.partition(":")
    try:
        told = getattr(importlib.import_module(module), name)(**json.loads(asked))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    print(json.dumps(told), flush=True)


def interrupt_at_end() -> None:
    """As Ctrl-C once the input is over: whoever asked is gone, or wants no answer."""
    while os.read(sys.stdin.fileno(), 1_024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


# --- a site ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A site that runs. key: the text of an API key that may all that workers may, and its name.
    web, postgres: process ids."""

    url: str
    port: int
    key: str
    key_name: str
    web: int
    postgres: int | None


@contextmanager
def folder(home: str | None) -> Iterator[Path]:
    """The folder that is given, which stays, or a new one that is removed at the end."""
    if home is not None:
        yield Path(home)
        return
    with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as made:
        # The server's own user must get in, which is not root.
        Path(made).chmod(0o755)
        yield Path(made)


@contextmanager
def site(*, background: bool) -> Iterator[Ground]:
    """The web process of the folder that `move_in` was called with, its database running or
    started. background: Celery as well, without which nothing sweeps and nothing is deleted."""
    from django.conf import settings
    from django.db import connections

    from agentstate.cli import site as parts
    from agentstate.cli.database import running_server
    from agentstate.cli.people import make_key
    from agentstate.prepare import prepare
    from agentstate.supervisor import Supervisor

    with ExitStack() as stack:
        claim = stack.enter_context(parts.only_start(settings.AGENTSTATE_HOME))
        listener = stack.enter_context(parts.listen("127.0.0.1", 0))
        url = parts.address(listener)
        claim(url)
        server = stack.enter_context(running_server())
        prepare(report=progress)
        supervisor = Supervisor(folder=ROOT, report=progress)
        stack.enter_context(supervisor)
        # It would only note a signal, for a loop that nobody turns here.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        stack.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)  # once it is being stopped
        web = supervisor.add(parts.web_child(listener))
        parts.wait_for_web(supervisor, web, url)
        for child in parts.background_children() if background else ():
            supervisor.add(child)
        name, scopes = f"bench-{secrets.token_hex(4)}", ("read", "payloads", "write")
        key = make_key(name=name, scopes=scopes)
        stack.callback(connections.close_all)
        assert web.pid is not None
        yield Ground(
            url=url,
            port=int(url.rsplit(":", 1)[1]),
            key=key,
            key_name=name,
            web=web.pid,
            postgres=server.postmaster_pid() if server else None,
        )


def ask(command: Any, *, key_name: str = "bench") -> Any:
    """Have the store do it in this process, as a key that may everything: a lease is the key's that
    took it."""
    from agentstate import store
    from agentstate.store.callers import SCOPES, Caller

    return store.execute(command, by=Caller(kind="key", name=key_name, scopes=frozenset(SCOPES)))


def make_held(
    count: int, *, prefix: str, key_name: str = "bench", ttl_seconds: int = 86_400
) -> list[tuple[str, int]]:
    """So many new runs that are held, each with its token."""
    from agentstate.store.commands import AcquireLease, CreateRun

    made = []
    for number in range(count):
        key = f"{prefix}-{number:05d}"
        ask(CreateRun(key=key, task="bench"), key_name=key_name)
        wanted = AcquireLease(unit=f"run:{key}", owner="bench", ttl_seconds=ttl_seconds)
        lease = ask(wanted, key_name=key_name)
        made.append((key, lease.token))
    return made


# --- memory and processor -------------------------------------------------------------------------


def memory_kb(pid: int, *, shared: bool = True) -> float:
    """What a process holds, in kB: its own pages and its share of those that it has with others
    (PSS); where the system does not tell that, what is resident (RSS). NaN where it tells neither.

    shared: with its share of memory that processes write to together, as PostgreSQL's buffers are.
    """
    with suppress(OSError, KeyError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        told = {line.split()[0]: float(line.split()[1]) for line in rollup}
        return told["Pss:"] - (0.0 if shared else told["Pss_Shmem:"])
    with suppress(OSError, ValueError, subprocess.CalledProcessError):
        asked = ["ps", "-o", "rss=", "-p", str(pid)]
        return float(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    return math.nan


def memory_of_server_kb(postmaster: int) -> float:
    """The same of the database's server, all its processes together, without its buffers: those are
    taken once and for all, and filled little by little."""
    each = [memory_kb(pid, shared=False) for pid in children_of(postmaster)]
    # Not of those that have ended since they were listed.
    held = [one for one in each if not math.isnan(one)]
    return memory_kb(postmaster, shared=False) + sum(held)


def processor_seconds(pid: int) -> float:
    """What a process has computed so far. NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return math.nan


def children_of(pid: int) -> list[int]:
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True,
                          env=os.environ | {"LC_ALL": "C"}, check=True)  # fmt: skip
    pairs = [tuple(map(int, line.split())) for line in told.stdout.splitlines()]
    return [own for own, parent in pairs if parent == pid]


# --- figures --------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else math.nan


def median(values: Sequence[float]) -> float:
    """NaN of none."""
    return statistics.median(values) if values else math.nan


def exponent(costs: Mapping[float, float]) -> float:
    """k of cost ~ size^k, by least squares on the logarithms of size and cost."""
    xs = [math.log(size) for size in costs]
    ys = [math.log(cost) for cost in costs.values()]
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    above = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return above / sum((a - x) ** 2 for a in xs)


def ms(value: float) -> str:
    """Milliseconds for a table."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
