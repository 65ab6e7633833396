"""The plugin, as a project elsewhere uses it: a folder with a test in it and nothing else."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.client.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.many]

ROOT = Path(__file__).resolve().parent.parent.parent

# What a worker's author would write; the second half looks at what the plugin left alone.
WORKERS_TESTS = """
    import logging
    import os

    import pytest
    from agentstate_client import Event, LeaseHeld, NewBudget, NotAllowed, StaleFence

    ENVIRONMENT, HANDLERS = dict(os.environ), list(logging.getLogger().handlers)


    def test_a_worker_that_slept_is_fenced(agentstate_client, agentstate_server, agentstate_clock):
        agentstate_client.create(task="audit", key="1")
        mine = agentstate_client.run("1").acquire(ttl_seconds=60)
        with pytest.raises(LeaseHeld):
            agentstate_server.client("other").run("1").acquire(ttl_seconds=60)
        agentstate_clock.advance(seconds=61)
        theirs = agentstate_server.client("other").run("1").acquire(ttl_seconds=60)
        with pytest.raises(StaleFence):
            mine.append(Event("tool.returned"))
        theirs.start()
        assert theirs.read().status == "running"


    @pytest.mark.parametrize("time", [1, 2])
    def test_each_test_begins_with_nothing(agentstate_client, time):
        assert agentstate_client.claim() == []
        agentstate_client.create(task="audit", key="1", budgets=[NewBudget("tokens", cap=5)])
        assert next(iter(agentstate_client.feed(after=0))).position == 1


    def test_the_clock_decides_and_the_sweep_follows(agentstate_server, agentstate_clock):
        at = agentstate_clock.now
        agentstate_clock.advance(hours=1, minutes=1)
        assert (agentstate_clock.now - at).total_seconds() == 3_660
        with pytest.raises(ValueError, match="time zone"):
            agentstate_clock.set(at.replace(tzinfo=None))
        client, at = agentstate_server.client("w"), agentstate_clock.now
        client.create(task="audit", key="late", deadline_at=at, deadline_policy="cancel")
        agentstate_clock.advance(seconds=1)
        agentstate_server.sweep()
        assert client.run("late").read().status == "cancelled"


    def test_a_clock_that_was_set_is_real_again(agentstate_server):
        assert agentstate_server.clock.now.year > 2025


    def test_keys_have_the_scopes_that_they_are_given(agentstate_server):
        reader = agentstate_server.client(key=agentstate_server.make_key(["read"]))
        with pytest.raises(NotAllowed):
            reader.create(task="audit")
        assert agentstate_server.key not in repr(agentstate_server)


    def test_what_the_plugin_leaves_alone(agentstate_server):
        changed = set(os.environ.items()) ^ set(ENVIRONMENT.items())
        assert {name for name, _ in changed} <= {"PYTEST_CURRENT_TEST"}
        names = ("", "django", "uvicorn", "uvicorn.error", "agentstate")
        handlers = [handler for name in names[1:] for handler in logging.getLogger(name).handlers]
        assert handlers == []
        assert "tasks" not in __import__("sys").modules
"""


def run_pytest(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """As from a shell in that folder: nothing of this test run's own settings goes along."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "DJANGO", "AGENTSTATE"))
    }
    plugin = ["-p", "agentstate_client.testing.plugin"]  # in place of its entry point
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-q", *arguments],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT / "client" / "src")} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's project, with a module of a name that the server has as well."""
    (tmp_path / "test_worker.py").write_text(textwrap.dedent(WORKERS_TESTS))
    (tmp_path / "tasks.py").write_text("raise AssertionError('imported by the server')")
    return tmp_path


@pytest.mark.parametrize("where", ["here", "apart"])
def test_workers_are_tested_against_the_real_server(project, where):
    # Another project's database, which no test of ours may touch or even ask.
    done = run_pytest(
        project,
        f"--agentstate-where={where}",
        DATABASE_URL="postgresql://nobody@127.0.0.1:1/theirs",
        DATABASE_SESSION_URL="postgresql://nobody@127.0.0.1:2/theirs",
        AGENTSTATE_HOSTS="elsewhere.example",
        PGPORT="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


@pytest.mark.long
@pytest.mark.many
def test_each_process_of_xdist_has_a_server_of_its_own(project):
    done = run_pytest(project, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_with_a_django_of_the_projects_own_the_server_is_apart(tmp_path):
    (tmp_path / "theirs.py").write_text("SECRET_KEY = 'x'\nINSTALLED_APPS = []\n")
    (tmp_path / "test_both.py").write_text(
        textwrap.dedent("""
        def test_both(agentstate_client):
            from django.conf import settings

            agentstate_client.create(task="audit")
            assert settings.INSTALLED_APPS == []
        """)
    )
    done = run_pytest(tmp_path, DJANGO_SETTINGS_MODULE="theirs", PYTHONPATH=f"{ROOT}/client/src:.")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_that_is_not_there_is_named_with_what_to_do(project):
    (project / "pytest.ini").write_text("[pytest]\nagentstate_checkout = ../nowhere\n")
    done = run_pytest(project)
    assert done.returncode == 1
    missing = project.parent / "nowhere"
    assert f"{missing} is not a checkout of agentstate" in done.stdout


def test_a_place_for_the_server_that_does_not_exist_is_a_usage_error(project):
    (project / "pytest.ini").write_text("[pytest]\nagentstate_where = nearby\n")
    done = run_pytest(project)
    assert "agentstate_where is 'nearby', but must be one of" in done.stdout


def test_without_pytest_a_block_has_a_server():
    code = """
        from agentstate_client.testing import ServerFailure, running_server

        with running_server(where="apart") as server:
            server.client("w").create(task="audit", key="1")
            try:
                server.make_key(["everything"])
            except ServerFailure as failure:
                print(failure)
            server.empty()
            print(server.client("w").claim())
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "client" / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "scopes: one or more of" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_a_server_apart_ends_with_whoever_started_it():
    code = """
        import os, signal
        from agentstate_client.testing.finding import find_checkout
        from agentstate_client.testing.ways import Apart

        print(Apart(find_checkout())._child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "client" / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    pid = int(done.stdout)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
