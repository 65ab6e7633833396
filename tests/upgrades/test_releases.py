"""Two releases and their two schemas, with real processes: each code serves on each schema, and a
process that slept through the upgrade overwrites nothing."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from agentstate_client import AgentStateError, Client, Event, NewBudget, RetryPolicy
from django.db import connection

from agentstate import checkups
from agentstate.store.schema import releases
from bench.upgrade import code_of_release_before
from tests.bootstrap.conftest import ROOT, open_folder
from tests.bootstrap.layout import Layout, free_port, patiently

__all__ = ["open_folder"]

BEFORE = releases.RELEASE_BEFORE["agentstate"]


# --- what new code asks, on the schema of the release before --------------------------------------


@pytest.mark.django_db
def test_what_asks_for_a_restore_asks_for_none_where_the_table_is_not_there_yet(monkeypatch):
    """Whether the statements are right SQL; all of it on that schema is the deep test below."""
    from agentstate.store import audit, feed, vitals

    asked = (feed.READ, feed.LEFT_OUT, feed.CONSUMERS, feed.CONSUMER, vitals.FEED,
             audit.FEED_CHECKS[audit.HOLES_OF_FEED])  # fmt: skip
    with connection.cursor() as cursor:
        for statement in asked:
            without = releases.without_restores(statement)
            assert not re.search("agentstate_restore|agentstate_feed_lag", without)
            given = {"after": 0, "name": "", "limit": 5, "chosen": False, "types": [],
                     "prefixes": [], "rows": 5, "most": 5}  # fmt: skip
            if statement == feed.CONSUMERS:
                given["after"] = ""
            cursor.execute(without, given)
            found = cursor.fetchall()
            cursor.execute(statement, given)
            assert cursor.fetchall() == found


@pytest.mark.django_db
def test_ready_are_the_schema_of_today_and_that_of_the_release_before():
    assert checkups.missing_migrations() == 0
    assert checkups.missing_migrations(since_release_before=False) == 0
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE name > %s AND app = 'agentstate'",
                       [BEFORE])  # fmt: skip
    assert checkups.missing_migrations() > 0
    assert checkups.missing_migrations(since_release_before=False) == 0
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE name = %s", [BEFORE])
    assert checkups.missing_migrations(since_release_before=False) == 1


# What a release must go on doing while it waits for its schema: everything that workers ask, and
# the pages. Not here: what is about restores, and about the schema itself.
ON_THE_OLD_SCHEMA = (
    "tests/api/test_feed.py", "tests/api/test_runs.py", "tests/api/test_events.py",
    "tests/api/test_leases.py", "tests/api/test_budgets.py", "tests/api/test_effects.py",
    "tests/api/test_workers.py", "tests/api/test_metrics.py", "tests/api/test_shortcuts.py",
    "tests/dashboard/test_runs_page.py", "tests/dashboard/test_run_page.py",
    "tests/dashboard/test_now_page.py", "tests/dashboard/test_leases_page.py",
    "tests/dashboard/test_system_page.py",
    "tests/upgrades/test_releases.py::test_the_schema_is_the_old_one",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.deep
def test_this_release_serves_on_the_schema_of_the_one_before():
    """The product's own tests, on a database that has not been migrated further."""
    told = os.environ | {"AGENTSTATE_TEST_SCHEMA": BEFORE}
    asked = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m",
             "not long and not browser and not of_this_schema", *ON_THE_OLD_SCHEMA]  # fmt: skip
    found = subprocess.run(asked, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-5_000:]
    passed = re.search(r"(\d+) passed", found.stdout)
    assert passed is not None
    assert int(passed[1]) > 200


if os.environ.get("AGENTSTATE_TEST_SCHEMA"):

    @pytest.mark.django_db(transaction=True)
    def test_the_schema_is_the_old_one():
        """Of the run above alone."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('agentstate_restore')")
            assert cursor.fetchone() == (None,)
        assert not releases.has_restores()


# --- two releases of real processes ---------------------------------------------------------------


@pytest.fixture
def old_code(open_folder):
    return code_of_release_before(open_folder / "code-before")


def on_schema_before(site):
    """Back to it, and a key that sees what events say."""
    scopes = ("--scope", "read", "--scope", "write", "--scope", "payloads")
    site.key = site.ask("key", "--name", "all", *scopes).stdout.strip()  # migrates, as it must
    assert site.ask("manage", "migrate", "agentstate", BEFORE).returncode == 0


def client_of(url, site, name):
    return Client(url, site.key, worker=name, retry=RetryPolicy(total_seconds=30))


# That release came without the layout of today (deploy/), so as its own `./run` did it.
OLD_WEB = (
    "python -c 'import runpy, socket, sys;"
    ' at = socket.create_server(("127.0.0.1", {port})); sys.argv = ["web", str(at.fileno())];'
    ' runpy.run_module("agentstate.web", run_name="__main__")\''
)


def start_old(site, name):
    port = site.ports[name] = free_port()
    site.start(name, OLD_WEB.format(port=port))
    site.wait_until_ready(name)
    return f"http://127.0.0.1:{port}"


def work_through(url, site, name):
    """A run from its making to its end, with all that a worker asks for on the way."""
    with client_of(url, site, name) as client:
        tokens = NewBudget("tokens", unit="tokens", cap=100)
        run = client.create(task="upgrade", key=name, tags=["team:x"], budgets=[tokens])
        with run.acquire(ttl_seconds=60) as held:
            held.start()
            for n in range(5):
                held.append(Event("step.done", {"n": n}), add={"done": 1})
            held.step("look").run(lambda: {"found": 1})
            held.complete({"ok": True})
        kept = run.read()
        assert (kept.status, kept.counters["done"]) == ("completed", 5)
        assert [event.data["n"] for event in run.events(type="step.done")] == list(range(5))
    unit, api = f"unit:{name}", f"{url}/api/v1"
    status, lease = site.call(f"{api}/leases/{unit}/acquire", {"owner": name, "ttl_seconds": 60})
    assert status == 200
    token = {"token": lease["token"]}
    asked = token | {"ttl_seconds": 60}
    assert site.call(f"{api}/leases/{unit}/renew", asked)[0] == 200
    assert site.call(f"{api}/leases/{unit}/release", token)[0] == 200
    patiently(lambda: name in str(site.call(f"{api}/feed?limit=500")[1]))
    assert site.call(f"{api}/feed/consumers/{name}", {"position": 1}, "PUT")[0] in (200, 201)
    assert site.call(f"{api}/feed/consumers")[0] == 200
    for path in ("runs", "leases", "workers", "rates"):
        assert site.call(f"{api}/{path}")[0] == 200, path


@pytest.mark.long
@pytest.mark.deep
def test_each_code_serves_on_each_schema_and_both_beside_each_other(open_folder, old_code):
    with Layout(open_folder) as site:
        on_schema_before(site)
        new_web = site.start_web("web-new")  # ready on the schema of before
        work_through(new_web, site, "new-on-old")
        site.code = old_code
        old_web = start_old(site, "web-old")
        work_through(old_web, site, "old-on-old")

        told = site.ask("manage", "migrate", "--plan").stdout
        assert "agentstate.0040_restores\n    When the store was restored" in told
        assert site.ask("prepare").returncode == 0  # while both run
        work_through(old_web, site, "old-on-new")
        work_through(new_web, site, "new-on-new")
        # Begun after the upgrade, with the old code: ready, since nothing of its own is missing.
        work_through(start_old(site, "web-late"), site, "late-old-on-new")
        assert site.ask("manage", "verify").returncode == 0
        assert site.stop("web-new", "web-old", "web-late") < 15


# A worker that waits for a line before it writes again; then it says what it was told.
WAITING = """
import sys, agentstate_client as c
client = c.Client({url!r}, {key!r}, worker="other", retry=c.RetryPolicy(total_seconds=60))
held = client.create(task="upgrade", key="of-a-process").acquire(ttl_seconds=2)
held.start()
print("holds", flush=True)
sys.stdin.readline()
try:
    held.complete({{"by": "who slept"}})
except c.AgentStateError as refused:
    print(type(refused).__name__, flush=True)
"""


@pytest.fixture
def waiting_worker():
    """waiting_worker(url, key): the process, once it holds its run."""
    made = []

    def start(url, key):
        told = os.environ | {"PYTHONPATH": f"{ROOT}/client/src"}
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", WAITING.format(url=url, key=key)], env=told, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
        assert made[-1].stdout.readline() == "holds\n"
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


class Late(threading.Thread):
    """A write that is sent to a web process which stands still; what came of it in the end."""

    def __init__(self, held):
        super().__init__(daemon=True)
        self.held, self.outcome = held, None
        self.start()

    def run(self):
        try:
            self.outcome = self.held.append(Event("late.done"), add={"done": 100})
        except AgentStateError as refused:
            self.outcome = refused


@pytest.mark.long
@pytest.mark.deep
def test_who_slept_through_an_upgrade_and_a_takeover_overwrites_nothing(
    open_folder, old_code, waiting_worker
):
    """A worker with a run and its token in memory, and a web process with a request of another:
    both stand still, the site is upgraded, their runs are taken over, and then both go on."""
    with Layout(open_folder) as site:
        on_schema_before(site)
        site.code = old_code
        old_web = start_old(site, "web-old")
        sleeper = client_of(old_web, site, "sleeper")
        held = sleeper.create(task="upgrade", key="slept").acquire(ttl_seconds=2)
        held.start()
        held.append(Event("step.done"), add={"done": 1})
        seen = held.read()
        other = waiting_worker(old_web, site.key)

        other.send_signal(signal.SIGSTOP)  # all of it: it renews nothing any more
        web = site.running["web-old"]
        os.killpg(web.pid, signal.SIGSTOP)
        late = Late(held)

        site.code = ROOT
        assert site.ask("prepare").returncode == 0
        new_web = site.start_web("web-new")
        with client_of(new_web, site, "taker") as taker:
            for key in ("slept", "of-a-process"):
                with taken(taker, key) as now:
                    now.append(Event("step.done"), add={"done": 10})
                    now.complete({"by": "taker"})

        os.killpg(web.pid, signal.SIGCONT)
        other.send_signal(signal.SIGCONT)
        told, _ = other.communicate("\n", timeout=120)
        assert told.strip() in ("StaleFence", "LeaseLost", "AlreadyTerminal")
        late.join(120)
        assert isinstance(late.outcome, AgentStateError), late.outcome
        # What was read before all of it, written as if nothing had happened since.
        stale = {"If-Match": f'"v{seen.version}"', "Agentstate-Fence": str(held.lease.token)}
        for url in (old_web, new_web):
            asked = {"tags_add": ["late"]}
            status, problem = site.call(f"{url}/api/v1/runs/slept", asked, "PATCH", **stale)
            assert status in (409, 412), problem

        for key, done in (("slept", 11), ("of-a-process", 10)):
            _, kept = site.call(f"{new_web}/api/v1/runs/{key}")
            assert (kept["status"], kept["result"]) == ("completed", {"by": "taker"})
            assert (kept["counters"]["done"], kept["tags"]) == (done, [])
            _, events = site.call(f"{new_web}/api/v1/runs/{key}/events?limit=500")
            assert "late.done" not in [event["type"] for event in events["items"]]
        assert site.ask("manage", "verify").returncode == 0
        sleeper.close()
        assert site.stop("web-old", "web-new") < 15


def taken(client, key):
    """The run, once the time of its holder is up."""
    found = []

    def tried():
        try:
            found.append(client.run(key).acquire(ttl_seconds=60))
        except Exception:
            return False
        return True

    patiently(tried)
    return found[0]
