"""Who blocks whom in PostgreSQL, told as workers and runs: with sessions that really wait."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.template.loader import render_to_string

from agentstate.live.hub import conninfo
from agentstate.store import plain, sessions
from agentstate.store.commands import NewBudget
from agentstate.store.minutes import TALLY
from dashboard.queries import blockers
from tests.dashboard.test_contention_staged import judged, show
from tests.store.asking import Asking, rows
from tests.store.waiting import wait_for

# The package gives the name to the function that is in it.
execute = sys.modules["agentstate.store.execute"]


@pytest.fixture
def fleet(transactional_db, monkeypatch):
    """w-3 holds 42. Nothing of this waits for less than a minute: the page has time to look."""
    monkeypatch.setattr(execute, "LOCK_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(execute, "LOCK_TIMEOUT_OF_A_BATCH", "60s")
    TALLY.forget()
    store = Asking()
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    return store


@contextmanager
def outside(statement, name="psql"):
    """A session that is none of ours, and keeps what it locked until the block ends."""
    with psycopg.connect(conninfo(name)) as session:
        session.execute(statement)
        yield session
        session.rollback()


def in_a_thread(ask):
    """A thread's connection ends with it."""
    try:
        return ask()
    finally:
        connection.close()


@contextmanager
def waiting(*asks):
    """Commands in threads of their own, each of which has begun to wait."""
    with ThreadPoolExecutor(len(asks)) as pool:
        asked = []
        for number, ask in enumerate(asks, 1):
            asked.append(pool.submit(in_a_thread, ask))
            wait_for(lambda number=number: waiters() == number)
        yield asked


def waiters():
    rows("SELECT pg_stat_clear_snapshot()")
    (found,) = rows(
        "SELECT count(DISTINCT a.pid)::int FROM pg_stat_activity a JOIN pg_locks l"
        " ON l.pid = a.pid AND NOT l.granted AND l.waitstart IS NOT NULL"
        " WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'"
    )
    return found[0]


ROW = "SELECT FROM agentstate_run WHERE key = '42' FOR UPDATE"


def test_a_long_outside_lock_is_the_cause_with_who_waits_and_how_it_ends(fleet, log_in):
    lease = fleet.hold("42", "w-3", ttl_seconds=600)
    with outside(ROW) as session:
        pid = session.info.backend_pid
        with waiting(lambda: fleet.append("42", fence=lease.token)) as asked:
            page = show(log_in("vi", "viewer"))
            session.rollback()
        assert asked[0].result().last_seq == fleet.run("42").last_seq

    said, cure = judged(page)
    assert re.fullmatch(
        rf"psql \(pid {pid}\) has kept run 42 \(w-3 holds it\) for \d+s, and 1 session waits"
        r" for it\. No conflict in 60 min \(3 writes\)\.",
        said,
    )
    assert cure == (
        "Commit or roll back that transaction; a database administrator ends it with"
        f" SELECT pg_terminate_backend({pid})."
    )
    assert "Who blocks whom in PostgreSQL 1 session waits now" in page.text
    assert "append to 42 by w-3" in page.text
    assert "no worker of ours: idle in transaction, last select on run" in page.text
    assert page.link("^/runs/42$")


def test_who_waits_behind_others_is_told_under_whom_all_wait_for(fleet):
    """Writes and leases have a session each here; who comes later waits in the process."""
    asks = (lambda: fleet.append("42"), lambda: fleet.acquire("run:42", "w-1"))
    with outside(ROW) as session, waiting(*asks):
        pid, found = session.info.backend_pid, blockers.read()
        session.rollback()
    (blocker,) = found.blockers
    assert (blocker.session.pid, blocker.foreign, blocker.session.idle) == (pid, True, True)
    assert [str(wait.wants) for wait in blocker.waits] == ["run 42", "run 42"]
    assert [wait.session.carries for wait in blocker.waits] == [
        ("append to 42",), ("acquire to 42 by w-1",),
    ]  # fmt: skip
    assert found.waiting == 2


def test_a_command_that_waits_for_its_turn_is_told_although_no_session_has_it(fleet, log_in):
    with (
        outside(ROW) as session,
        waiting(lambda: fleet.append("42")),
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(in_a_thread, lambda: fleet.append("42"))
        wait_for(lambda: execute.WRITES.waiting == 1)
        page = show(log_in("vi", "viewer"))
        session.rollback()
        asked.result()
    assert "1 command of this process waits behind them for a session." in page.text


@pytest.mark.parametrize(
    ("statement", "ask", "said"),
    [
        (
            "SELECT FROM agentstate_lease WHERE unit = 'run:42' FOR UPDATE",
            lambda store: store.acquire("run:42", "w-1"),
            "the lease of run:42",
        ),
        (
            "SELECT FROM agentstate_budget WHERE name = 'tokens' FOR UPDATE",
            lambda store: store.spend("42", 1, budget="tokens"),
            "the budget tokens of 42",
        ),
        (
            "LOCK TABLE agentstate_run IN ACCESS EXCLUSIVE MODE",
            lambda store: store.append("42"),
            "the table run",
        ),
    ],
)
def test_what_is_waited_for_is_told_by_its_name(fleet, statement, ask, said):
    # What is locked cannot be read meanwhile: a table that is locked whole has no row to look at.
    with outside(statement, name="") as session, waiting(lambda: ask(fleet)):
        pid, found = session.info.backend_pid, blockers.read()
        session.rollback()
    (blocker,) = found.blockers
    assert [str(wait.wants) for wait in blocker.waits] == [said]
    assert str(blocker.session) == f"a session without a name (pid {pid})"


def test_a_transaction_that_stays_open_is_told_before_anybody_waits(fleet):
    with outside(ROW) as session:
        assert blockers.read().blockers == ()  # it has only begun
        (blocker,) = blockers.read(open_for=timedelta(0)).blockers
        assert blocker.session.pid == session.info.backend_pid
        assert (blocker.waits, blocker.tables, blocker.wants) == ((), ("run",), None)
    assert blockers.read(open_for=timedelta(0)).blockers == ()


def test_who_only_reads_keeps_nothing(fleet):
    with outside("SELECT FROM agentstate_run"):
        assert blockers.read(open_for=timedelta(0)).blockers == ()


def test_a_session_carries_commands_only_while_it_does(fleet):
    pid = connection.connection.info.backend_pid
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (execute._Batch, plain.PlainBatch):
            patch.setattr(kind, "run", looking(kind.run, lambda: carried(pid), seen))
        fleet.append("42")
        fleet.move("42", "cancelled")
    assert (seen, sessions.carried_by(pid)) == ([["42"], ["42"]], ())


def carried(pid):
    return [plan.run for plan in sessions.carried_by(pid)]


def looking(run, look, seen):
    def run_it(batch, cursor):
        seen.append(look())
        run(batch, cursor)

    return run_it


def test_a_ring_of_waiters_has_an_end():
    graph = {1: [2], 2: [3], 3: [1], 4: [9, 3], 5: [4]}
    assert [blockers.root_of(pid, graph) for pid in (1, 4, 5)] == [1, 9, 9]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("UPDATE \"agentstate_run\" SET notes = 'secret'", "update on run"),
        ("  select 1", "select"),
        ("", ""),
    ],
)
def test_of_a_statement_only_verb_and_table_are_told(query, said):
    assert blockers.doing(query) == said


@pytest.mark.parametrize(
    ("session", "said"),
    [
        ({"ours": True, "doing": "update on run"},
         "whose commands, only its own process knows (update on run)"),
        ({"hidden": True}, "it hides what it does from this database user"),
        ({"state": "active", "doing": "select"}, "no worker of ours: active, last select"),
        ({"carries": ("append to 42 by w-3",), "others": 2}, "append to 42 by w-3 and 2 more"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_of_a_session_is_said(session, said):
    made = blockers.Session(pid=7, **session)
    text = re.sub(r"<[^>]+>", "", render_to_string("contention/session.html", {"session": made}))
    assert text.strip() == said


def test_a_panel_of_locks_that_fails_fails_alone(fleet, log_in, monkeypatch):
    monkeypatch.setattr(blockers, "WAITING", "SELECT 1 / (%(limit)s - 51)")
    page = show(log_in("vi", "viewer"))
    assert "This part could not be read. The rest of the page is not concerned." in page.text
    assert judged(page)[0] == "No conflict in 60 min (1 writes)."


def test_a_panel_of_locks_that_takes_too_long_says_so(fleet, log_in, monkeypatch):
    from dashboard.views import contention

    monkeypatch.setattr(contention, "LOCKS_MS", 1)
    monkeypatch.setattr(blockers, "WAITING", "SELECT pg_sleep(5), %(limit)s")
    page = show(log_in("vi", "viewer"))
    assert "This part took too long and was left out." in page.text
    assert judged(page)[0] == "No conflict in 60 min (1 writes)."
