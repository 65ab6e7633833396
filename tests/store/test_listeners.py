"""Whoever keeps copies is told of each write, after COMMIT and before the answer."""

import json

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from agentstate import postgres, store
from agentstate.store import Written, feed
from agentstate.store.errors import StaleFence
from tests.store.asking import SENIOR, Asking, event


@pytest.fixture
def asking(transactional_db):
    return Asking()


@pytest.fixture
def heard():
    """What listeners were told."""
    told = []
    store.after_write.append(told.append)
    yield told
    store.after_write.remove(told.append)


def last(heard):
    told, heard[:] = heard[-1], []
    return told


def test_each_write_says_which_runs_and_events_and_holders(asking, heard):
    ask = asking
    ask.create("42")
    assert last(heard) == Written(runs=frozenset({"42"}), types=frozenset({"run.created"}))

    lease = ask.acquire("run:42", "w-1")
    assert last(heard).units == {"run:42"}

    ask.append("42", [event("tool.called")], fence=lease.token)
    assert last(heard) == Written(runs=frozenset({"42"}), types=frozenset({"tool.called"}))

    ask.renew("run:42", lease.token)
    assert last(heard) == Written()

    ask.as_caller(SENIOR).reclaim("run:42", token=lease.token, force=True)
    told = last(heard)
    assert told.units == {"run:42"}
    assert "lease.reclaimed" in told.types


def test_a_unit_without_a_run_is_told_too(asking, heard):
    asking.acquire("mailbox:a", "w-1")

    assert last(heard).units == {"mailbox:a"}


def test_what_was_refused_changed_nothing(asking, heard):
    asking.create("42")
    lease = asking.hold("42")
    heard.clear()

    with pytest.raises(StaleFence):
        asking.append("42", [event()], fence=lease.token - 1)

    assert [told for told in heard if told != Written()] == []


def test_it_is_told_after_commit(asking):
    seen = []

    def look(_written):
        conninfo = postgres.conninfo(
            settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"]
        )
        with psycopg.connect(conninfo) as other:
            seen.append(other.execute("SELECT count(*) FROM agentstate_run").fetchone()[0])

    store.after_write.append(look)
    try:
        asking.create("42")
    finally:
        store.after_write.remove(look)

    assert seen == [1]


def test_a_listener_that_fails_is_logged_and_the_answer_stands(asking, heard, caplog):
    def fail(_written):
        raise RuntimeError("the cache is gone")

    store.after_write.insert(0, fail)
    try:
        made = asking.create("42")
    finally:
        store.after_write.remove(fail)

    assert made.version == 1
    assert len(heard) == 1
    assert "the cache is gone" in caplog.text


def test_a_hint_says_whether_statuses_or_holders_moved(asking):
    def kinds():
        return feed.move().kinds

    asking.create("42")
    assert kinds() == ("run",)
    lease = asking.hold("42")
    assert kinds() == ("lease", "run")
    asking.append("42", [event("tool.called"), event("running.late")], fence=lease.token)
    assert kinds() == ()


def test_a_hint_that_is_too_long_still_says_so(transactional_db):
    runs = {f"run-{n}": n for n in range(2_000)}
    conninfo = postgres.conninfo(settings.SESSION_PARTS, dbname=connection.settings_dict["NAME"])
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(f"LISTEN {feed.CHANNEL}")
        feed.hint(feed.Moved(9, runs, ("run",)))
        (said,) = list(other.notifies(timeout=20, stop_after=1))

    assert json.loads(said.payload) == {"position": 9, "kinds": ["run"]}
