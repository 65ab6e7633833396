"""What a developer runs: tests, checks, lock files. These need the packages for development."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agentstate.cli.output import CommandFailure, progress, result

ROOT = Path(__file__).resolve().parent.parent.parent
USUAL = "not long and not brokers and not citus"
NO_TESTS = 5  # pytest's exit code when none was chosen
BROKERS = 3
# Of pytest-xdist; each has a database of its own. More than cores: many tests wait for real leases.
WORKERS = 3
# What another PostgreSQL could change: everything that talks to it, but for browsers and starts.
# Where SQL is written; the API and the client ask the store alone.
OF_THE_DATABASE = ("store", "live", "tasks", "dashboard")
# But not these of the last: they ask what any PostgreSQL answers alike, or none.
OF_NO_DATABASE = (
    "admin", "axes", "closeups", "forms", "hints_hub", "hints_stream", "hostile_text", "oidc",
    "payloads", "presence", "sentences", "session", "sessions", "settings_page", "setup", "sign_in",
    "timeline", "who_may_what", "windows",
)  # fmt: skip

CHECKS: dict[str, list[str]] = {
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "lint": ["-m", "ruff", "check", "--quiet", "."],
    "types": ["-m", "mypy", "."],
    "types of the client": ["-m", "mypy", "--config-file=client/pyproject.toml", "client"],
    "sync client as made": ["client/make_sync.py", "--check"],
    "client reference as made": ["client/write_reference.py", "--check"],
    "import layers": ["-c", "from importlinter.cli import lint_imports_command as c; c()"],
    "migrations in step": ["manage.py", "makemigrations", "--check", "--dry-run"],
    "templates": ["-m", "djlint", "--lint", "--quiet", "templates"],
}
# For every platform; with hashes; without the name of a registry, and without the client, which is
# in the checkout.
LOCKED = (
    "--universal --python-version 3.12 --generate-hashes --no-emit-index-url "
    "--no-emit-package agentstate-client"
)
LOCKS = {
    "requirements.lock": LOCKED,
    "requirements-dev.lock": f"--group dev -c requirements.lock {LOCKED}",
}


def test(arguments: Sequence[str]) -> int:
    """`./run test`: everything but what takes minutes, or what the arguments say."""
    return pytest(arguments or ["-m", USUAL])


# Of the long ones: those of many cases side by side, then each of the others by itself.
LONG_PARTS = {
    "many": (["-m", "long and many and not brokers and not deep"], WORKERS),
    "alone": (["-m", "long and not many and not brokers and not deep"], 0),
}


def test_long(arguments: Sequence[str]) -> int:
    """`./run test-long`: many cases side by side, then, each by itself, real crashes and real
    time-outs. AGENTSTATE_LONG_PART (many, alone) is one of the two."""
    part = os.environ.get("AGENTSTATE_LONG_PART")
    if part is not None and part not in LONG_PARTS:
        raise CommandFailure(f"AGENTSTATE_LONG_PART is {part!r}, not {' or '.join(LONG_PARTS)}")
    codes = [
        pytest([*marks, *arguments], workers=workers)
        for name, (marks, workers) in LONG_PARTS.items()
        if part in (None, name)
    ]
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


def test_deep(arguments: Sequence[str]) -> int:
    """`./run test-deep`: those that take minutes of a processor each."""
    return pytest(["-m", "deep", *arguments])


def test_pg15(arguments: Sequence[str]) -> int:
    """`./run test-pg15`: the database's tests on PostgreSQL 15, from the system's binaries."""
    binaries = Path(os.environ.get("AGENTSTATE_PG15_BIN") or "/usr/lib/postgresql/15/bin")
    if not (binaries / "initdb").exists():
        raise CommandFailure(
            f"no PostgreSQL 15 in {binaries}: install it (Debian: postgresql-15), or set "
            "AGENTSTATE_PG15_BIN to the folder of its initdb"
        )
    os.environ["AGENTSTATE_PG_BIN"] = str(binaries)
    os.environ["AGENTSTATE_TEST_HOME"] = str(ROOT / "var" / "test-pg15")
    folders = [f"tests/{name}" for name in OF_THE_DATABASE]
    left_out = [f"--ignore=tests/dashboard/test_{name}.py" for name in OF_NO_DATABASE]
    return test(arguments or [*folders, *left_out, "-m", USUAL])


# They turn off the log's trigger or set one on it, have a commit prove itself by its rows, or count
# statements, of which there is one more here.
NOT_ON_CITUS = (
    "tests/store/test_distribution.py::test_without_the_extension_it_says_what_to_do",
    "tests/store/test_audit.py::test_a_tampered_store_is_reported",
    "tests/store/test_repair.py::test_a_hole_in_the_log_is_not_papered_over",
    "tests/store/test_retry.py::test_a_write_that_was_rolled_back_twice_is_written_once",
    "tests/store/test_retry.py::test_tries_are_bounded_and_a_write_that_is_given_up_leaves_nothing",
    "tests/store/test_lost_commit.py::test_an_id_that_somebody_elses_commit_has_is_no_proof",
    "tests/store/test_lost_commit.py::test_a_claim_is_known_by_the_term_that_it_began",
    "tests/store/test_story.py::test_the_texts_own_scenario_everything_about_run_42_is_one_query",
)


# Only the log is elsewhere. These ask nothing of it that others of the list do not: alerts and
# their targets, people and keys, queues of commands, what is refused before the store is asked.
OF_NO_LOG = {
    "store": (
        "ages", "aio", "alert_figures", "alerting", "away", "bounds", "connections", "deliveries",
        "flights", "heartbeats", "keys", "lanes", "listeners", "made_rules", "one_door", "policy",
        "quiet_hours", "reference", "turns", "versions",
    ),
    "api": (
        "access", "alert_rules", "alerts", "bodies", "budgets", "contract", "cursors", "deadline",
        "defaults", "health", "load", "metrics", "pacing", "problems", "rates", "reservations",
        "targets", "timing", "wire", "workers",
    ),
}  # fmt: skip


def test_citus(arguments: Sequence[str]) -> int:
    """`./run test-citus`: a distributed store on three servers with Citus, on loopback: its own
    tests, and those of the store and the API that have to do with the log."""
    from tests.citus.cluster import NoCitus, binaries, running

    try:
        binaries()
        with tempfile.TemporaryDirectory(prefix="agentstate-citus-") as folder:
            Path(folder).chmod(0o755)  # the servers' user has to get in
            with running(Path(folder)) as cluster:
                os.environ["DATABASE_URL"] = cluster.coordinator.url
                os.environ["AGENTSTATE_TEST_CITUS"] = ",".join(str(n.port) for n in cluster.nodes)
                chosen = arguments or [
                    "tests/citus", "tests/store", "tests/api",
                    *(f"--ignore=tests/{folder}/test_{name}.py"
                      for folder, names in OF_NO_LOG.items() for name in names),
                ]  # fmt: skip
                left_out = [f"--deselect={name}" for name in NOT_ON_CITUS]
                return pytest(["-m", "not long and not brokers", *chosen, *left_out], workers=0)
    except NoCitus as missing:
        raise CommandFailure(str(missing)) from None


def test_pooler(arguments: Sequence[str]) -> int:
    """`./run test-pooler`: the usual tests behind PgBouncer in transaction mode, as deploy/ has
    it; pages in a browser ask nothing more of a database."""
    from tests import pooler

    with tempfile.TemporaryDirectory(prefix="agentstate-pooler-") as folder:
        Path(folder).chmod(0o755)  # the server's user has to get in
        with pooler.running(Path(folder)) as environment:
            os.environ.update(environment)
            browsers = [f"--ignore=tests/{name}" for name in ("browser", "cases/browser")]
            left_out = [f"--deselect={name}" for name in pooler.NOT_BEHIND_A_POOLER]
            return pytest(["-m", USUAL, *(arguments or ["tests", *browsers]), *left_out])


def test_brokers(arguments: Sequence[str]) -> int:
    """`./run test-brokers`: the same tests on pgmq, RabbitMQ and Redis, each in its own process."""
    missing = [name for name in ("redis-server", "rabbitmq-server") if not shutil.which(name)]
    if missing:
        raise CommandFailure(
            f"no {' and no '.join(missing)} on the PATH: install it (Debian: apt-get install "
            f"{' '.join(missing)}). The tests start their own, on loopback, and stop them"
        )
    # They wait more than they work: for a broker to give something out again.
    spread = ["-n", str(BROKERS), "--dist", "loadgroup"]
    return pytest(["-m", "brokers", "tests/brokers", *spread, *arguments])


def test_api_fuzz(options: argparse.Namespace) -> int:
    """`./run test-api-fuzz`: see bench/fuzz/trial.py, which is only needed here."""
    from bench.fuzz.trial import fuzz

    return fuzz(options)


def pytest(arguments: Sequence[str], *, workers: int = WORKERS) -> int:
    chosen = any(word.startswith(("-n", "--numprocesses", "-p")) for word in arguments)
    spread = [] if chosen or not workers else ["-n", str(workers), "--dist", "worksteal"]
    return python(["-m", "pytest", *spread, *arguments])


def python(arguments: Sequence[str]) -> int:
    """Run Python in the project's folder and hand on its exit code.

    Compiled modules are kept whatever the environment says: each of the tests' many processes would
    compile them anew.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def check(options: argparse.Namespace) -> int:
    """`./run check`: each check in turn, all of them, then the tests; or those that are named."""
    chosen = {name: CHECKS[name] for name in options.only} if options.only else CHECKS
    failed = [name for name, command in chosen.items() if not passes(name, command)]
    if not (options.no_tests or options.only) and test([]):
        failed.append("tests")
    result(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def passes(name: str, command: Sequence[str]) -> bool:
    """Run a check; its output only when it fails."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    took = time.monotonic() - started
    if done.returncode:
        progress(f"✗ {name} ({took:.1f} s)\n{done.stdout.rstrip()}")
        return False
    progress(f"✓ {name} ({took:.1f} s)")
    return True


def wheels(options: argparse.Namespace) -> int:
    """`./run wheels`: by the standard build backend, from what is in the checkout now."""
    folder = options.to.absolute()
    for project in (ROOT / "client", ROOT):
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
        if code := subprocess.run(command, cwd=project, check=False).returncode:
            return code
    return 0


def lock(options: argparse.Namespace) -> int:
    """`./run lock`: both files; uv resolves them for every platform at once, which pip cannot."""
    uv = shutil.which("uv")
    if uv is None or subprocess.run([uv, "--version"], capture_output=True).returncode:
        raise CommandFailure("this needs uv: `pip install uv`, or from your system's packages")
    upgrade = ["--upgrade"] if options.upgrade else []
    for name, how in LOCKS.items():
        progress(f"{name} …")
        command = [uv, "pip", "compile", "pyproject.toml", *how.split(), "-o", name, "-q", *upgrade]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    return 0
