"""A store that was restored: what was given out since the backup, and by whom it is noticed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import OperationalError, connection
from psycopg import sql

from agentstate import pg_tools, postgres
from agentstate.cli import backups
from agentstate.prepare import end_sessions
from agentstate.store import audit, feed, keys, restoring
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import SetCheckpoint
from agentstate.store.errors import CursorExpired, StaleFence, Unavailable
from agentstate.store.restoring import Begun
from dashboard.models import Session
from tests.api.asking import Answer, Api
from tests.store.asking import FLEET, event, rows

# What tests have beside the store's own, in their databases.
DROP_TESTS = "DROP FUNCTION IF EXISTS test_delete_all(); DROP TABLE IF EXISTS test_clock;"
BACKUP = Begun(source="monday.dump", reason="a disk", feed_floor=0, token_floor=0)


def parts(name: str) -> dict[str, str]:
    return settings.DATABASE_PARTS | {"dbname": name}


@pytest.fixture
def backup(transactional_db, tmp_path) -> Path:
    return tmp_path / "monday.dump"


def dump(to: Path) -> None:
    name = connection.settings_dict["NAME"]
    tools = pg_tools.find(connection.pg_version)
    pg_tools.dump(tools, parts(name), to)


@contextmanager
def loaded(file: Path, *, times: int = 1, begun: Begun = BACKUP) -> Iterator[None]:
    """Be connected to a database of its own with the backup in it, the gate closed."""
    usual = connection.settings_dict["NAME"]
    name = f"{usual}_restored"
    connection.close()
    with psycopg.connect(postgres.conninfo(parts("postgres")), autocommit=True) as session:
        quoted = sql.Identifier(name)
        session.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(quoted))
        session.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(quoted))
        version = session.info.server_version
        try:
            for _ in range(times):
                pg_tools.load(
                    pg_tools.find(version, reading=file), parts(name), file, version=version,
                    before=DROP_TESTS + backups.DROP_OURS.format(pattern=backups.our_tables()),
                    after=f"SET search_path = public;{restoring.closing_sql(begun)}",
                )  # fmt: skip
            connection.settings_dict["NAME"] = name
            yield
        finally:
            connection.close()
            connection.settings_dict["NAME"] = usual
            session.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(quoted))


def finish() -> restoring.Restored:
    done = restoring.finish(report=lambda _: None, end_sessions=end_sessions)
    assert done is not None
    return done


def move_all() -> int:
    while feed.move():
        pass
    return rows("SELECT position FROM agentstate_feedhead")[0][0]


def test_a_restored_store_is_ahead_of_all_that_was_given_out_and_holds_nobody(store, backup):
    store.create("42")
    held = store.acquire("run:42", "w-1", 3_600)
    store.append("42", [event("before")], fence=held.token)
    store.ask(SetCheckpoint(consumer="bills", position=move_all()))
    seen = move_all()
    store.append("42", [event("not.moved")], fence=held.token)
    Session.objects.create(session_key="signed-in", expire_date=datetime.now(UTC))
    dump(backup)
    # What nobody will know of any more, but those who were told.
    lost_position = store.append("42", [event("lost")], fence=held.token) and move_all()
    lost_token = store.acquire("unit:other", "w-2", 3_600).token
    assert lost_position > seen

    with loaded(backup):
        with pytest.raises((OperationalError, Unavailable)):
            store.append("42", [event("early")], fence=held.token)
        with pytest.raises(OperationalError, match="is being restored"):
            feed.move()
        done = finish()

        assert restoring.begun() is None
        assert (done.source, done.leases_ended) == ("monday.dump", 1)
        assert not Session.objects.exists()  # so an open page asks to sign in, and is made anew
        # The one that held it goes on working, and is told.
        with pytest.raises(StaleFence) as refused:
            store.append("42", [event("late")], fence=held.token)
        assert refused.value.current["owner"] is None
        again = store.acquire("run:42", "w-1", 60)
        assert again.token > lost_token
        ((ended, by, reason),) = rows(
            "SELECT ended, ended_by, reason FROM agentstate_leaseterm WHERE ended IS NOT NULL"
        )
        assert (ended, by) == ("reclaimed", "system:restore")
        assert reason == "the store was restored from monday.dump"
        assert rows("SELECT action, reason FROM agentstate_operatoraction ORDER BY id") == [
            ("lease.reclaimed", "the store was restored from monday.dump"),
            ("store.restored", "a disk"),
        ]
        _readers_are_told(seen, lost_position)
        assert audit.differences() == []


def _readers_are_told(seen: int, lost: int) -> None:
    latest = move_all()
    assert latest > lost
    # Who had read what the backup has goes on where it was, and is not as far behind as it looks.
    page = feed.read(after=seen, limit=10)
    assert [change.run for change in page.items][:1] == ["42"]
    waiting = len(page.items)
    assert feed.consumer("bills").lag == waiting
    assert feed.consumer("bills").expired is False
    # Who had read what is gone is told so, on both ways in.
    with pytest.raises(CursorExpired, match="restored from a backup") as told:
        feed.read(after=lost, limit=10)
    anew = told.value.facts["earliest"] - 1
    assert len(feed.read(after=anew, limit=10).items) == waiting
    assert told.value.facts["latest"] == latest
    with pytest.raises(CursorExpired):
        feed.check_position(lost)
    feed.check_position(latest)


def test_the_api_tells_a_consumer_of_before_to_begin_anew(store, backup):
    store.create("42")
    seen = move_all()
    dump(backup)
    with loaded(backup):
        done = finish()
        made = keys.create_key(name="after", scopes=("read", "write"), by=FLEET)
        api = Api(made)
        told = api.get(f"/feed?after={seen + 5}")
        assert (told.status, told["code"]) == (410, "cursor-expired")

        def put(position: int) -> Answer:
            return api.send("PUT", "/feed/consumers/bills", json.dumps({"position": position}))

        kept = put(seen + 5)
        assert (kept.status, kept["code"]) == (410, "cursor-expired")
        assert put(done.feed_begins).status == 200


@pytest.mark.long
@pytest.mark.many
def test_a_restore_that_was_stopped_goes_on_and_gives_nothing_out_twice(store, backup, monkeypatch):
    for run in ("1", "2", "3"):
        store.create(run)
        store.acquire(f"run:{run}", "w-1", 60)
    dump(backup)
    monkeypatch.setattr(restoring, "LEASES_PER_PASS", 1)
    with loaded(backup, times=2):

        def stop(said: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            restoring.finish(report=stop, end_sessions=end_sessions)
        connection.close()
        with pytest.raises((OperationalError, Unavailable)):
            store.acquire("unit:x", "w-9", 60)
        done = finish()
        assert done.leases_ended == 3
        assert rows("SELECT count(*) FROM agentstate_restore") == [(1,)]
        assert rows("SELECT count(*) FROM agentstate_lease WHERE token IS NOT NULL") == [(0,)]
        store.acquire("run:1", "w-2", 60)
        move_all()
        assert audit.differences() == []


@pytest.mark.long
@pytest.mark.many
def test_what_was_overwritten_had_come_further_than_any_clock_says(store, backup):
    store.create("42")
    dump(backup)
    with loaded(backup):
        beyond = 2**52
        restoring.close_gate(Begun(source="x", feed_floor=beyond, token_floor=beyond + 7))
        done = finish()
        assert done.feed_begins == beyond
        assert store.acquire("run:42", "w-1", 60).token > beyond + 7


@pytest.mark.long
@pytest.mark.many
def test_a_file_that_is_cut_off_changes_nothing(store, backup):
    store.create("42", events=tuple(event("x", "y" * 500) for _ in range(50)))
    dump(backup)
    whole = backup.read_bytes()
    with loaded(backup):
        finish()
        name, version = connection.settings_dict["NAME"], connection.pg_version
        connection.close()
        backup.write_bytes(whole[: len(whole) * 2 // 3])
        with pytest.raises(pg_tools.ToolFailure):
            pg_tools.load(
                pg_tools.find(version), parts(name), backup, version=version,
                before=backups.DROP_OURS.format(pattern=backups.our_tables()), after="",
            )  # fmt: skip
        assert rows("SELECT count(*) FROM agentstate_event") == [(51,)]


def test_a_password_is_in_no_argument_and_no_environment():
    with pg_tools.connected({"host": "db", "password": "hunter2", "dbname": "x"}) as environment:
        assert "hunter2" not in " ".join(environment.values())
        file = Path(environment["PGSERVICEFILE"])
        assert file.stat().st_mode & 0o077 == 0
        assert "password=hunter2" in file.read_text()
    assert not file.exists()
    with (
        pytest.raises(pg_tools.ToolFailure),
        pg_tools.connected({"password": "a\nhost=elsewhere"}),
    ):
        pass


def valid_keys() -> list[str]:
    return [one.name for one in keys.every_key() if one.valid]


def test_what_was_revoked_in_the_store_that_is_overwritten_stays_so(store, backup):
    for name in ("kept", "leaked", "old"):
        keys.create_key(name=name, scopes=["read"], by=SYSTEM)
    people = [User.objects.create_user(name) for name in ("ada", "bob", "zoe")]
    keys.revoke_key(name="old", by=SYSTEM)
    dump(backup)
    keys.revoke_key(name="leaked", by=SYSTEM)
    User.objects.filter(username="bob").update(is_active=False)
    with psycopg.connect(postgres.conninfo(parts(connection.settings_dict["NAME"]))) as session:
        over, off = backups.keys_over(session), backups.people_off(session)
    assert len(over) == 2
    # Somebody else of that name, in a store that has nothing to do with the backup.
    off.append(("zoe", (people[2].date_joined - timedelta(days=1)).isoformat()))

    with loaded(backup, begun=Begun(source="monday.dump", keys_over=over, people_off=off)):
        assert valid_keys() == ["kept", "leaked"]
        done = finish()
        assert (done.keys_ended, done.people_off) == (1, 1)
        assert valid_keys() == ["kept"]
        active = User.objects.filter(is_active=True).order_by("username")
        assert [one.username for one in active] == ["ada", "zoe"]
        told = rows("SELECT action, object, reason FROM agentstate_operatoraction ORDER BY id")
        assert ("key.revoked", "leaked") in [row[:2] for row in told]
        assert ("person.changed", "bob") in [row[:2] for row in told]
        assert "was revoked after the backup" in str(told)


def test_every_key_of_a_backup_can_be_ended_also_when_that_is_stopped_in_between(
    store, backup, monkeypatch
):
    for n in range(3):
        keys.create_key(name=f"k{n}", scopes=["read"], by=SYSTEM)
    dump(backup)
    monkeypatch.setattr(restoring, "KEYS_PER_PASS", 2)
    with loaded(backup, begun=Begun(source="monday.dump", end_keys=True)):

        class Stopped(Exception):
            pass

        def stop() -> int:
            raise Stopped

        with pytest.raises(Stopped):
            restoring.finish(report=lambda _: None, end_sessions=stop)
        done = finish()
        assert (restoring.begun(), valid_keys()) == (None, [])
        assert done.leases_ended == 0
