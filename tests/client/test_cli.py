"""The command line `agentstate`, as a process of its own, against the real server."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from agentstate_client import BudgetExhausted, Charge, Client, Event, NewBudget, RawJSON
from agentstate_client.cli import asking, commands, main
from agentstate_client.testing import Server, running_server

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "agentstate_client.cli"]
SECONDS = 60
HOSTILE = "\x1b]0;owned\x07 \u202egnp.exe\u202c \x9b31m"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with running_server(where="apart") as server:
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.empty()


@pytest.fixture
def worker(server: Server) -> Callable[[str], Client]:
    return server.client


@pytest.fixture
def environment(server) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("AGENTSTATE")}
    kept.pop("NO_COLOR", None)
    paths = {"PYTHONPATH": str(ROOT / "client" / "src"), "TERM": "xterm", "COLUMNS": "160"}
    return kept | paths | {"AGENTSTATE_URL": server.url, "AGENTSTATE_API_KEY": server.key}


@pytest.fixture
def run(environment, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run("runs", "--json"): as from a script, with pipes; in this process, for its start is most
    of the time that a command takes."""

    def made(
        *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name, value in (environment | variables).items():
                patch.setenv(name, value)
            patch.delenv("PYTEST_CURRENT_TEST")
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            capsys.readouterr()
            try:
                code = main(arguments)
            except SystemExit as usage:  # argparse's
                code = int(str(usage.code))
        said = capsys.readouterr()
        return subprocess.CompletedProcess([*arguments], code, said.out, said.err)

    return made


class Terminal:
    """A command with a terminal: what it shows, and what a person types."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self.side, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment, stdin=other, stdout=other, stderr=other,
            start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self.seen = ""

    def wait_for(self, words: str) -> str:
        while words not in self.seen:
            assert select.select([self.side], [], [], SECONDS)[0], self.seen
            self.seen += os.read(self.side, 65_536).decode()
        return self.seen

    def type(self, line: str) -> None:
        os.write(self.side, line.encode() + b"\n")

    def end(self) -> int:
        with suppress(OSError):  # Linux says EIO when the other side is closed
            while select.select([self.side], [], [], SECONDS)[0]:
                self.seen += os.read(self.side, 65_536).decode()
        os.close(self.side)
        return self.process.wait(SECONDS)


@pytest.fixture
def terminal(environment) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*arguments: str, **variables: str) -> Terminal:
        made.append(Terminal(list(arguments), environment | variables))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@contextmanager
def following(arguments: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    # Who started the tests may ignore Ctrl-C, as a background job does, and children inherit that.
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, kept)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def documents(done: subprocess.CompletedProcess[str]) -> list[dict]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- lists ----------------------------------------------------------------------------------------


def test_runs_are_listed_as_a_table_and_as_lines_of_json(worker, run):
    client = worker("w-1")
    for key in ("a-1", "a-2", "a-3"):
        client.create(task=f"audit {key}", key=key, tags=["eu"] if key == "a-2" else [])
    client.run("a-1").acquire(ttl_seconds=60).start()

    table = run("runs")
    assert table.returncode == 0, table.stderr
    lines = table.stdout.splitlines()
    assert lines[0].split() == [
        "status",
        "run",
        "task",
        "owner",
        "left",
        "seq",
        "version",
        "changed",
    ]
    assert [line.split()[1] for line in lines[1:]] == ["a-3", "a-2", "a-1"]
    assert re.search(r"running +a-1 +audit a-1 +w-1~\w+ +(59|60) s", table.stdout)
    assert "\x1b" not in table.stdout

    assert [one["key"] for one in documents(run("--json", "runs", "--oldest"))] == [
        "a-1",
        "a-2",
        "a-3",
    ]
    assert [one["key"] for one in documents(run("runs", "--json", "--tag", "eu"))] == ["a-2"]
    assert [one["key"] for one in documents(run("runs", "--json", "--status", "running"))] == [
        "a-1"
    ]
    assert len(documents(run("runs", "--json", "--since", "1h", "--limit", "2"))) == 2
    assert documents(run("runs", "--json", "--since", "2100-01-01T00:00Z")) == []


def test_an_age_beyond_the_beginning_of_all_times_is_all_of_it(worker, run):
    """S-203: it ended with an error of ours."""
    worker("w-1").create(task="old", key="a-1")
    (found,) = documents(run("runs", "--json", "--since", "9999999w"))
    assert found["key"] == "a-1"


def test_all_pages_are_read_when_all_are_asked_for(worker, run, monkeypatch):
    monkeypatch.setattr(asking, "PAGE_ROWS", 2)
    client = worker("w-1")
    for number in range(5):
        client.create(task="many", key=f"m-{number}")
    assert len(documents(run("runs", "--json", "--limit", "0"))) == 5
    assert len(documents(run("runs", "--json", "--limit", "3"))) == 3


def test_a_list_that_goes_on_beyond_its_limit_says_so(worker, run):
    """S-709 (docs/sweeps.md): the first fifty of any number looked like all of them."""
    client = worker("w-1")
    client.create(task="t", key="m-1", budgets=[NewBudget("tokens", cap=100)])
    client.create(task="t", key="m-2")
    client.run("m-1").budget("tokens").spend(1)
    said = "these are the first 1; --limit 0 shows all"
    for asked in (["runs"], ["spend", "m-1", "--ledger", "tokens"]):
        assert said in run(*asked, "--limit", "1").stderr
        assert run(*asked, "--limit", "2").stderr == ""
        assert run(*asked, "--limit", "0", "--json").stderr == ""


def test_the_ledger_of_a_split_budget_is_read_to_its_end(server, run, monkeypatch):
    """S-710 (docs/sweeps.md): beyond its first page it was refused, for want of a cursor."""
    monkeypatch.setattr(commands, "PAGE_ROWS", 2)
    with httpx.Client(
        base_url=f"{server.url}/api/v1", headers={"Authorization": f"Bearer {server.key}"}
    ) as api:
        assert api.post("/budgets", json={"name": "team", "cap": 90, "slots": 3}).is_success
        for n in range(5):
            assert api.post("/budgets/team/spend", json={"amount": 1, "id": f"i-{n}"}).is_success
    asked = ("spend", "--shared", "--ledger", "team", "--json", "--limit")
    lines = documents(run(*asked, "0"))
    assert sorted(line["id"] for line in lines if line["id"]) == [f"i-{n}" for n in range(5)]
    some = run(*asked, "3")
    assert documents(some) == lines[:3]
    assert "these are the first 3" in some.stderr


def test_leases_are_listed_with_who_holds_them(worker, run):
    client = worker("w-1")
    with client.lease("crawl:example.org", ttl_seconds=60) as lease:
        table = run("leases", "--state", "live")
        assert re.search(rf"live +crawl:example.org +w-1~\w+ +{lease.token}", table.stdout)
        (found,) = documents(run("leases", "--json", "--owner", client.owner))
        assert found["unit"] == "crawl:example.org"
    assert documents(run("leases", "--json", "--state", "live")) == []


def test_spend_shows_what_is_left_and_the_ledger(worker, run):
    client = worker("w-1")
    client.create(task="t", key="b-1", budgets=[NewBudget("tokens", cap=100)])
    mine = client.run("b-1").acquire(ttl_seconds=60)
    mine.start()
    mine.append(Event("a.b"), spend=Charge("tokens", 30, note="step"))
    with pytest.raises(BudgetExhausted):
        mine.budget("tokens").spend(80)

    table = run("spend", "b-1")
    assert re.search(r"tokens +tokens +100 +30 +0 +70 +30 %", table.stdout)
    assert documents(run("spend", "b-1", "--json"))[0]["left"] == 70
    ledger = documents(run("spend", "b-1", "--ledger", "tokens", "--json"))
    assert [line["kind"] for line in ledger] == ["open", "spend"]
    assert documents(run("spend", "--shared", "--json")) == []
    assert run("spend").returncode == 2
    assert run("spend", "b-1", "--ledger", "nothing").returncode == 4


# --- following ------------------------------------------------------------------------------------


def test_tail_shows_the_last_events_and_ends_with_the_run(worker, environment, run):
    client = worker("w-1")
    client.create(task="t", key="t-1")
    mine = client.run("t-1").acquire(ttl_seconds=60)
    mine.start()
    mine.append(*[Event("step.done", {"n": number}) for number in range(5)])

    last = run("tail", "t-1", "--no-follow", "-n", "2")
    assert [line.split()[1:3] for line in last.stdout.splitlines()] == [
        ["7", "step.done"],
        ["8", "step.done"],
    ]
    with following(["tail", "t-1", "--after", "8", "--json"], environment) as process:
        mine.append(Event("model.responded", RawJSON('{"cost": 1.10, "id": 12345678901234567890}')))
        mine.complete({"ok": True})
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    lines = out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["model.responded", "run.completed"]
    # As it was sent, digit for digit.
    assert '"data": {"cost": 1.10, "id": 12345678901234567890}' in lines[0]


def test_a_consumer_of_the_feed_goes_on_where_it_was(worker, environment, run):
    client = worker("w-1")
    client.create(task="t", key="f-1")
    assert next(iter(client.feed(after=0))).run == "f-1"

    assert run("feed", "--consumer", "billing", "--no-follow").stdout.split()[2] == "f-1"
    assert run("feed", "--consumer", "billing", "--no-follow").stdout == ""
    assert documents(run("feed", "--no-follow", "--json", "--type", "lease.*")) == []
    assert documents(run("feed", "--no-follow", "--json"))[0]["types"] == ["run.created"]

    with following(["feed", "--consumer", "billing", "--json"], environment) as process:
        client.create(task="t", key="f-2")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["run"] == "f-2"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


# --- reclaiming -----------------------------------------------------------------------------------


def test_a_unit_is_reclaimed_once_its_holder_was_shown_and_yes_was_said(worker, terminal):
    client = worker("w-1")
    lease = client.lease("unit-1", ttl_seconds=60)
    there = terminal("reclaim", "unit-1", "--force")
    there.wait_for("Reason: ")
    assert f"{client.owner}, token {lease.token}" in there.seen
    there.type("w-1 is stuck")
    there.wait_for("Take it away? [y/N] ")
    there.type("y")
    there.wait_for("unit-1 is free")
    assert there.end() == 0
    assert worker("w-2").lease("unit-1").token > lease.token


@pytest.mark.parametrize("answer", ["", "n", "what"])
def test_anything_but_yes_does_nothing(worker, terminal, answer):
    lease = worker("w-1").lease("unit-1", ttl_seconds=60)
    there = terminal("reclaim", "unit-1", "--force", "--reason", "stuck")
    there.wait_for("Take it away? [y/N] ")
    there.type(answer)
    there.wait_for("nothing was done")
    assert there.end() == 1
    lease.checkpoint()
    assert not lease.lost.is_set()


def test_another_holder_than_the_one_that_was_shown_keeps_the_unit(worker, terminal):
    lease = worker("w-1").lease("unit-1", ttl_seconds=60)
    there = terminal("reclaim", "unit-1", "--force", "--reason", "stuck")
    there.wait_for("Take it away? [y/N] ")
    lease.release()
    kept = worker("w-2").lease("unit-1", ttl_seconds=60)
    there.type("y")
    there.wait_for("holder-changed")
    assert there.end() == 1
    kept.checkpoint()
    assert not kept.lost.is_set()


def test_a_script_says_yes_and_why(worker, run):
    worker("w-1").lease("unit-1", ttl_seconds=60)
    assert run("reclaim", "unit-1").returncode == 2
    assert run("reclaim", "unit-1", "--yes").returncode == 2
    live = run("reclaim", "unit-1", "--yes", "--reason", "stuck")
    assert live.returncode == 1
    assert "lease-held" in live.stderr
    (done,) = documents(run("--json", "reclaim", "unit-1", "--yes", "--reason", "stuck", "--force"))
    assert done["unit"] == "unit-1"
    free = run("reclaim", "unit-1", "--yes", "--reason", "stuck")
    assert (free.returncode, free.stdout) == (1, "")
    assert "nobody holds it" in free.stderr


# --- receipts -------------------------------------------------------------------------------------


def test_a_receipt_tells_what_became_of_a_request(server, run):
    httpx.post(
        f"{server.url}/api/v1/runs",
        json={"task": "t", "key": "r-1"},
        headers={"Authorization": f"Bearer {server.key}", "Idempotency-Key": "once-1"},
    )
    done = run("receipt", "once-1")
    assert done.returncode == 0
    assert done.stdout.startswith("state: applied\n")
    assert "run r-1" in done.stdout
    assert documents(run("receipt", "once-1", "--json"))[0]["writes"][0]["run"] == "r-1"
    unseen = run("receipt", "never-1")
    assert (unseen.returncode, unseen.stdout) == (4, "state: unknown\n")
    assert run("receipt").returncode == 2


# --- keys, codes, terminals -----------------------------------------------------------------------


def test_each_kind_of_failure_has_its_exit_code(worker, run):
    worker("w-1").create(task="t", key="x-1")
    assert run("tail", "x-2").returncode == 4
    assert run("runs", "--status", "asleep").returncode == 2
    assert run("runs", "--limit", "-1").returncode == 2
    assert run("runs", "--url", "ftp://nowhere").returncode == 2
    away = run("runs", "--url", "http://127.0.0.1:9")
    assert away.returncode == 3
    assert "no answer from the store" in away.stderr
    unknown = run("runs", AGENTSTATE_API_KEY="as_" + "0" * 32 + "_" + "x" * 43)
    assert unknown.returncode == 1
    assert "unauthenticated" in unknown.stderr
    problem = run("tail", "x-2", "--json")
    assert json.loads(problem.stderr)["code"] == "not-found"


def test_a_key_that_may_only_read_reclaims_nothing(worker, run, server):
    worker("w-1").lease("unit-1", ttl_seconds=60)
    reader = server.make_key(["read"])
    done = run("reclaim", "unit-1", "--yes", "--reason", "x", AGENTSTATE_API_KEY=reader)
    assert done.returncode == 1
    assert "not-allowed" in done.stderr


def test_the_key_comes_from_the_environment_or_a_file_and_is_never_said(run, server, tmp_path):
    api_key = server.key
    file = tmp_path / "key"
    file.write_text(f"{api_key}\n")
    assert run("runs", AGENTSTATE_API_KEY="", AGENTSTATE_API_KEY_FILE=str(file)).returncode == 0
    assert run("runs", "--key-file", str(file), AGENTSTATE_API_KEY="wrong").returncode == 0
    assert run("runs", "--key-file", "-", stdin=f"{api_key}\n").returncode == 0
    none = run("runs", AGENTSTATE_API_KEY="")
    assert none.returncode == 2
    assert "AGENTSTATE_API_KEY" in none.stderr
    assert run("runs", "--key-file", str(tmp_path / "nothing")).returncode == 2
    broken = run("runs", AGENTSTATE_API_KEY=f"{api_key} \u20ac")
    assert broken.returncode == 2
    assert api_key not in broken.stdout + broken.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(worker, environment):
    client = worker("w-1")
    client.create(task="t", key="p-1")
    mine = client.run("p-1").acquire(ttl_seconds=60)
    mine.append(*[Event("step.done", "x" * 1_000) for _ in range(300)])
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(COMMAND)} tail p-1 --after 0 --no-follow --json | head -1; "
         "echo ${PIPESTATUS[0]}"],
        env=environment, capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_what_runs_say_cannot_reach_the_terminal(worker, run, terminal):
    client = worker("w-1")
    client.create(task="t", key="h-1", events=[Event("a.b", {"text": HOSTILE})])
    for done in (
        run("tail", "h-1", "--no-follow"),
        run("tail", "h-1", "--no-follow", "--json"),
    ):
        assert done.returncode == 0, done.stderr
        assert not set(done.stdout) & set("\x1b\x07\x9b\u202e\u202c")
    assert json.loads(done.stdout.splitlines()[-1])["data"]["text"] == HOSTILE
    there = terminal("tail", "h-1", "--no-follow", NO_COLOR="1")
    assert there.end() == 0
    assert not set(there.seen) & set("\x1b\x07\x9b\u202e\u202c")
    assert "\\u202egnp.exe" in there.seen


def test_a_terminal_gets_colours_unless_it_wants_none(worker, terminal):
    worker("w-1").create(task="t", key="c-1", status="running")
    coloured, plain = terminal("runs"), terminal("runs", NO_COLOR="1")
    assert (coloured.end(), plain.end()) == (0, 0)
    assert "\x1b[32mrunning" in coloured.seen
    assert re.search(r"running +c-1", plain.seen)
    assert "\x1b[3" not in plain.seen


def test_a_terminal_that_knows_ascii_alone_gets_escapes(worker, environment):
    worker("w-1").create(task="日本", key="u-1")
    ascii_alone = environment | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "runs"], env=ascii_alone, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\\u65e5\\u672c" in done.stdout
