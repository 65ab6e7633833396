import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from agentstate.embedded import STOP_SECONDS, EmbeddedFailure, EmbeddedPostgres, _wheel
from tests.bootstrap.conftest import ROOT, eventually, is_gone, kill_hard

# Every test runs on such a server; these start and kill some thirty.
pytestmark = [pytest.mark.long, pytest.mark.many]

HOLD = """
import sys
from pathlib import Path
from agentstate.embedded import FORGETFUL, EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1]), settings=FORGETFUL).held():
    print("held", flush=True)
    sys.stdin.readline()
"""


def connect(server: EmbeddedPostgres) -> psycopg.Connection:
    return psycopg.connect(
        host=str(server.socket), user="agentstate", dbname="postgres", autocommit=True
    )


def hold_elsewhere(base: Path) -> subprocess.Popen[str]:
    """Another process that holds the server until it gets a line."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(base)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def let_go(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def test_it_runs_while_held_and_keeps_its_data(open_folder, make_server):
    server = make_server(open_folder / "pg")
    with server.held(), connect(server) as session:
        session.execute("CREATE TABLE kept AS SELECT 1 AS n")
        assert server.is_listening()
    assert not server.is_listening()
    with server.held(), connect(server) as session:
        assert session.execute("SELECT n FROM kept").fetchone() == (1,)


def test_only_its_owner_can_reach_it(open_folder, make_server):
    server = make_server(open_folder / "pg")
    with server.held(), connect(server) as session:
        assert session.execute("SHOW listen_addresses").fetchone() == ("",)
        assert server.socket.stat().st_mode & 0o777 == 0o700
        assert server.data.stat().st_mode & 0o777 == 0o700


def test_the_last_holder_stops_it_and_none_stops_it_under_another(open_folder, make_server):
    base = open_folder / "pg"
    server = make_server(base)
    others = [hold_elsewhere(base) for _ in range(4)]  # at once: one starts it, three wait
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
    with server.held():
        pass
    for other in others[1:]:
        let_go(other)
        assert server.is_listening()
    let_go(others[0])
    assert not server.is_listening()


def test_what_a_killed_parent_left_is_used_again(open_folder, make_server):
    base = open_folder / "pg"
    server = make_server(base)
    first = hold_elsewhere(base)
    assert first.stdout is not None
    first.stdout.readline()
    pid = server.postmaster_pid()
    first.kill()
    first.communicate()
    with server.held():
        assert server.postmaster_pid() == pid
    assert not server.is_listening()


def test_what_a_killed_parent_left_is_stopped_unless_somebody_holds_it(open_folder, make_server):
    base = open_folder / "pg"
    server = make_server(base)
    first = hold_elsewhere(base)
    assert first.stdout is not None
    first.stdout.readline()
    server.stop_unless_held()
    assert server.is_listening()
    first.kill()
    first.communicate()
    server.stop_unless_held()
    assert not server.is_listening()
    shutil.rmtree(base)
    server.stop_unless_held()
    assert not base.exists()


def test_a_killed_server_starts_again_with_what_was_committed(open_folder, make_server):
    server = EmbeddedPostgres(open_folder / "pg")  # durable, as in production
    make_server(open_folder / "pg")
    with server.held():
        for round_ in range(2):
            with connect(server) as session:
                session.execute(f"CREATE TABLE round_{round_} ()")
                kill_hard(server.postmaster_pid())
            assert server.start() is True
        with connect(server) as session:
            found = session.execute("SELECT count(*) FROM pg_tables WHERE tablename ~ '^round_'")
            assert found.fetchone() == (2,)


def test_a_pid_file_with_the_number_of_another_program_does_not_stop_it(open_folder, make_server):
    server = make_server(open_folder / "pg")
    with server.held():
        pass
    uid, gid = server.data.stat().st_uid, server.data.stat().st_gid
    user = {"user": uid, "group": gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **user) as stranger:  # type: ignore[call-overload]
        pid_file = server.data / "postmaster.pid"
        pid_file.write_text(f"{stranger.pid}\n{server.data}\n0\n5432\n{server.socket}\n\n")
        server.socket.mkdir()
        lock_file = server.socket / ".s.PGSQL.5432.lock"
        lock_file.write_text(pid_file.read_text())
        for file in (pid_file, server.socket, lock_file):
            os.chown(file, uid, gid)
        with server.held():
            assert server.is_listening()
        stranger.kill()


def test_one_that_was_frozen_is_stopped_as_well(open_folder, make_server):
    """S-508 (docs/sweeps.md): a minute, and then a traceback."""
    server = make_server(open_folder / "pg")
    began = time.monotonic()
    with server.held():
        os.kill(server.postmaster_pid(), signal.SIGSTOP)
    assert time.monotonic() - began < STOP_SECONDS
    assert server.postmaster_pid() is None  # by itself: nothing is to be recovered


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b"\xff\0\n", b"0\n"])
def test_lock_files_that_a_crash_of_the_machine_damaged_do_not_stop_it(
    open_folder, make_server, left
):
    """S-505 (docs/sweeps.md): it never started again, and said after a minute that it does not
    answer."""
    server = make_server(open_folder / "pg")
    with server.held():
        pass
    uid, gid = server.data.stat().st_uid, server.data.stat().st_gid
    server.socket.mkdir()
    for file in (server.data / "postmaster.pid", server.socket / ".s.PGSQL.5432.lock"):
        file.write_bytes(left)
        os.chown(file, uid, gid)
    os.chown(server.socket, uid, gid)
    with server.held():
        assert server.is_listening()


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        *(pytest.param(name, marks=pytest.mark.deep) for name in ("x" * 90, "ko,mma'quote")),
    ],
)
def test_any_folder_will_do(open_folder, make_server, name):
    server = make_server(open_folder / name / "pg")
    with server.held(), connect(server) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
        assert server.data.is_relative_to(open_folder / name)


def test_a_folder_that_others_cannot_enter_stays_closed(tmp_path, make_server):
    """Root's server runs as another user, who cannot enter: its data is elsewhere then."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    before = {folder: folder.stat().st_mode for folder in [closed, *closed.parents]}
    server = make_server(closed / "pg")
    with server.held(), connect(server) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    assert {folder: folder.stat().st_mode for folder in [closed, *closed.parents]} == before


def test_its_user_gets_a_copy_of_binaries_that_it_cannot_reach(open_folder, make_server, tmp_path):
    """As with a venv in a 0700 folder. For an ordinary user the binaries are always reachable."""
    wheel = _wheel()
    assert wheel is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (wheel.name, f"{wheel.name}.libs"):
        shutil.copytree(wheel.with_name(name), closed / name, symlinks=True)
    server = make_server(open_folder / "pg")
    server.base.mkdir()
    server.binaries = server._reachable(closed / wheel.name)
    is_copied = server.binaries.is_relative_to(server.base)
    assert is_copied is (os.geteuid() == 0)
    with server.held(), connect(server) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_data_of_another_major_version_is_refused_and_left_alone(open_folder, make_server):
    server = make_server(open_folder / "pg")
    with server.held():
        pass
    version = server.data / "PG_VERSION"
    version.write_text("16\n")
    before = sorted(path.name for path in server.data.iterdir())
    with pytest.raises(EmbeddedFailure, match="was made by PostgreSQL 16, the binaries are"):
        server.start()
    assert sorted(path.name for path in server.data.iterdir()) == before


@pytest.mark.parametrize("left", [b"", b"\0\0\0", b"\xff\n", b"seventeen\n"])
def test_data_whose_version_was_damaged_is_refused_in_a_line_and_left_alone(
    open_folder, make_server, left
):
    """S-504 (docs/sweeps.md): a traceback."""
    server = make_server(open_folder / "pg")
    server.data.mkdir(parents=True)
    version = server.data / "PG_VERSION"
    version.write_bytes(left)
    with pytest.raises(EmbeddedFailure, match=r"PG_VERSION is damaged: .* restore a backup"):
        server.start()
    assert version.read_bytes() == left


def test_an_initialisation_that_was_killed_is_begun_anew(open_folder, make_server):
    server = make_server(open_folder / "pg")
    (server.base / "data.new").mkdir(parents=True)
    (server.base / "data.new" / "PG_VERSION").write_text("18\n")
    with server.held(), connect(server) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_something_else_in_the_data_folder_is_not_thrown_away(open_folder, make_server):
    server = make_server(open_folder / "pg")
    server.data.mkdir(parents=True)
    (server.data / "precious").touch()
    with pytest.raises(EmbeddedFailure, match="not empty"):
        server.start()
    assert (server.data / "precious").exists()


def test_a_full_disk_is_told_before_anything_is_written(open_folder, make_server, monkeypatch):
    monkeypatch.setattr("agentstate.embedded.LEAST_FREE_BYTES", 2**62)
    server = make_server(open_folder / "pg")
    with pytest.raises(EmbeddedFailure, match=r"the disk is full: \d+ MB are free"):
        server.start()
    assert not server.data.exists()


def test_why_it_does_not_start_is_told_in_one_line(open_folder, make_server):
    server = make_server(open_folder / "pg")
    server.settings["shared_buffers"] = "nonsense"
    with pytest.raises(EmbeddedFailure) as failed:
        server.start()
    assert "shared_buffers" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_socket_folder_of_somebody_else_is_refused(open_folder, make_server):
    server = make_server(open_folder / ("x" * 90))
    assert server.socket.parent == Path("/tmp")
    server.socket.symlink_to(open_folder)
    with pytest.raises(EmbeddedFailure, match="belongs to somebody else"):
        server.start()
    server.socket.unlink()


def test_binaries_that_are_not_there_are_named(open_folder, make_server, monkeypatch):
    monkeypatch.setenv("AGENTSTATE_PG_BIN", str(open_folder))
    with pytest.raises(EmbeddedFailure, match=f"no postgres and initdb in {open_folder}"):
        make_server(open_folder / "pg").start()


def test_ctrl_c_while_it_starts_leaves_no_server(open_folder, make_server):
    server = make_server(open_folder / "pg")

    def interrupt() -> bool:
        if server.process is None:
            return False
        raise KeyboardInterrupt

    server.give_up = interrupt
    with pytest.raises(KeyboardInterrupt), server.held():
        pass
    pid = server.postmaster_pid()
    assert pid is None or eventually(lambda: is_gone(pid))
