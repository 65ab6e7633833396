"""`./run doctor`: each thing that it finds, and that it finds nothing where nothing is wrong."""

from dataclasses import replace
from ipaddress import ip_network
from types import SimpleNamespace

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from agentstate import checkups
from agentstate.doctor import Level, background, database, machine, together
from agentstate.doctor.database import DIRECT, SESSION, TRANSACTION, Facts
from agentstate.store import reads
from agentstate.store.reads import HeartbeatView
from tests.bootstrap.sites import run

FINE = Facts(
    server_version=180_006, clock_seconds=0.1, round_trip_seconds=0.01, in_recovery=False,
    read_only=False, fsync=True, full_page_writes=True, synchronous_commit="on", autovacuum=True,
    encoding="UTF8", connections_max=100, connections=10, oldest_transaction_seconds=1.0,
    may_create=True, restoring=False, has_schema=True,
)  # fmt: skip


def told(findings):
    return [(one.level, one.about, one.what, one.mend) for one in findings]


def only(findings):
    (found,) = list(findings)
    assert found.mend
    return found


@pytest.mark.parametrize(
    ("change", "level", "word", "mend"),
    [
        ({"server_version": 140_010}, Level.PROBLEM, "too old", "15 or newer"),
        ({"server_version": 190_001}, Level.WARNING, "newer than", "15 to 18"),
        ({"in_recovery": True}, Level.PROBLEM, "replica", "primary"),
        ({"read_only": True}, Level.PROBLEM, "read_only", "turn it off"),
        ({"may_create": False}, Level.PROBLEM, "may not create", "GRANT CREATE"),
        ({"restoring": True}, Level.PROBLEM, "restore", "--finish"),
        ({"encoding": "SQL_ASCII"}, Level.PROBLEM, "SQL_ASCII", "UTF8"),
        ({"fsync": False}, Level.PROBLEM, "fsync is off", "turn fsync on"),
        ({"full_page_writes": False}, Level.PROBLEM, "full_page_writes", "turn"),
        ({"synchronous_commit": "off"}, Level.PROBLEM, "acknowledged", "turn it on"),
        ({"autovacuum": False}, Level.PROBLEM, "autovacuum", "turn"),
        ({"connections": 95}, Level.WARNING, "95 of 100", "pooler"),
        ({"oldest_transaction_seconds": 9_000.0}, Level.WARNING, "2.5 h old", "pg_stat_activity"),
        ({"clock_seconds": -90.0}, Level.WARNING, "-90.0 s", "NTP"),
        ({"clock_seconds": 3.0}, Level.WARNING, "+3.0 s", "NTP"),
    ],
)
def test_what_is_wrong_with_a_database(change, level, word, mend):
    found = only(database.judge(replace(FINE, **change)))
    assert found.level is level
    assert word in found.what
    assert mend in found.mend


def test_a_database_that_will_do_is_fine_also_a_slow_one():
    assert told(database.judge(FINE)) == []
    slow = replace(FINE, clock_seconds=3.0, round_trip_seconds=2.0)
    assert told(database.judge(slow)) == []
    assert told(database.judge(replace(FINE, synchronous_commit="local"))) == []


def test_the_facts_are_those_of_the_server(db):
    facts = database.ask(settings.DATABASE_PARTS | {"dbname": connection.settings_dict["NAME"]})
    assert isinstance(facts, Facts)
    assert (facts.encoding, facts.has_schema, facts.restoring) == ("UTF8", True, False)
    assert facts.fsync is False  # the tests' server forgets; the doctor would say so
    assert abs(facts.clock_seconds) < 2
    assert facts.connections >= 1


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"host": "127.0.0.1", "port": "1", "user": "a", "dbname": "x"}, "start it"),
        ({"host": "no-such-host.invalid", "user": "a", "dbname": "x"}, "set the host"),
        (settings.DATABASE_PARTS | {"dbname": "nowhere"}, "CREATE DATABASE"),
        (settings.DATABASE_PARTS | {"user": "nobody-here"}, "make the role"),
    ],
)
def test_why_it_cannot_be_reached_and_what_to_do(parts, word, postgres_server):
    found = database.ask(parts | {"password": "hunter2"})
    assert (found.level, found.about) == (Level.PROBLEM, "database")
    assert word in found.mend
    assert "hunter2" not in found.what


def test_a_password_that_is_told_by_an_error_is_not_told_on():
    found = database.unreachable({"password": "hunter2"}, psycopg.OperationalError("x hunter2 y"))
    assert "hunter2" not in found.what


def test_no_pooler_is_no_pooler(db):
    parts = settings.DATABASE_PARTS | {"dbname": connection.settings_dict["NAME"]}
    assert database.mode_of(parts) == DIRECT


@pytest.mark.parametrize(
    ("usual", "sessions", "url", "prepares", "words"),
    [
        (DIRECT, DIRECT, False, True, []),
        (SESSION, SESSION, False, True, []),
        (TRANSACTION, DIRECT, True, False, []),
        (TRANSACTION, TRANSACTION, False, False, ["need sessions"]),
        (TRANSACTION, TRANSACTION, True, False, ["DATABASE_SESSION_URL is a pooler"]),
        (TRANSACTION, DIRECT, True, True, ["prepared"]),
        (DIRECT, DIRECT, True, False, ["no pooler"]),
    ],
)
def test_a_pooler_in_the_wrong_mode(usual, sessions, url, prepares, words):
    found = list(
        database.judge_modes(usual=usual, sessions=sessions, has_session_url=url, prepares=prepares)
    )
    assert len(found) == len(words)
    assert all(word in one.what for word, one in zip(words, found, strict=True))


def test_no_room_for_next_week():
    assert told(database.judge_weeks(8)) == []
    assert "1 weeks" in only(database.judge_weeks(1)).what


# --- settings -----------------------------------------------------------------------------------


def said(**changes):
    usual = {
        "ALLOWED_HOSTS": ["localhost"], "DEBUG": False, "HTTPS": False, "PROXIES": 0,
        "CSRF_TRUSTED_ORIGINS": [], "OIDC_ISSUER": "", "OIDC_CLIENT_ID": "", "OIDC_ROLES": {},
        "EMBEDDED": True, "SECRET_KEY_GIVEN": False, "AGENTSTATE_HOME": settings.AGENTSTATE_HOME,
        "SESSION_IDLE_SECONDS": 7_200, "SESSION_COOKIE_AGE": 43_200, "DELIVERY_NETWORKS": (),
    }  # fmt: skip
    return list(together.look(SimpleNamespace(**usual | changes)))


PUBLIC = {"ALLOWED_HOSTS": ["ops.example.org"], "HTTPS": True, "PROXIES": 1}


@pytest.mark.parametrize(
    ("changes", "level", "word"),
    [
        ({"ALLOWED_HOSTS": ["ops.example.org"]}, Level.WARNING, "as they are"),
        (PUBLIC | {"DEBUG": True}, Level.PROBLEM, "AGENTSTATE_DEBUG"),
        (PUBLIC | {"ALLOWED_HOSTS": ["*"]}, Level.WARNING, "AGENTSTATE_HOSTS is *"),
        ({"HTTPS": True, "PROXIES": 1}, Level.PROBLEM, "this machine alone"),
        (PUBLIC | {"PROXIES": 0}, Level.WARNING, "one address"),
        (PUBLIC | {"CSRF_TRUSTED_ORIGINS": ["http://x.org"]}, Level.PROBLEM, "http://x.org"),
        ({"OIDC_ISSUER": "https://sso", "OIDC_ROLES": {"a": "b"}}, Level.PROBLEM, "CLIENT_ID"),
        ({"OIDC_ISSUER": "https://sso", "OIDC_CLIENT_ID": "a"}, Level.PROBLEM, "nobody in"),
        ({"EMBEDDED": False}, Level.WARNING, "secret key"),
        ({"SESSION_IDLE_SECONDS": 90_000}, Level.WARNING, "longer"),
        ({"DELIVERY_NETWORKS": (ip_network("0.0.0.0/0"),)}, Level.WARNING, "everything"),
    ],
)
def test_settings_that_do_not_go_together(changes, level, word):
    found = only(said(**changes))
    assert found.level is level
    assert word in found.what


def test_settings_that_do():
    assert said() == []
    assert said(**PUBLIC) == []
    assert said(EMBEDDED=False, SECRET_KEY_GIVEN=True) == []


# --- files and disk -----------------------------------------------------------------------------


def test_rights_of_files(tmp_path):
    tmp_path.chmod(0o755)
    key = tmp_path / "secret-key"
    key.write_text("x")
    key.chmod(0o600)
    assert told(machine.look_at_files(tmp_path)) == []
    key.chmod(0o640)
    assert f"chmod 600 {key}" in only(machine.look_at_files(tmp_path)).mend
    key.chmod(0o600)
    tmp_path.chmod(0o777)
    assert only(machine.look_at_files(tmp_path)).mend == f"chmod o-w {tmp_path}"
    tmp_path.chmod(0o755)


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    monkeypatch.setattr(machine.os, "access", lambda *_: False)  # root may write anywhere
    assert "cannot be written" in only(machine.look_at_files(tmp_path)).what


def test_a_disk_that_gets_full(tmp_path):
    full = only(machine.look_at_disk(tmp_path, 10 * 2**20, embedded=True))
    assert (full.level, "10 MB are free" in full.what) == (Level.PROBLEM, True)
    assert only(machine.look_at_disk(tmp_path, 2**30, embedded=True)).level is Level.WARNING
    assert told(machine.look_at_disk(tmp_path, 2**30, embedded=False)) == []
    assert told(machine.look_at_disk(tmp_path, 2**40, embedded=True)) == []


# --- what runs in the background ----------------------------------------------------------------


def job(name, *, silent=False, failed=None, quiet_seconds=1.0):
    return HeartbeatView(
        name=name, every_seconds=5, started_at=None, ended_at=None, took_ms=1, did=0, behind=0,
        passes=1, failed=failed, host="h", running=False, silent=silent,
        quiet_seconds=quiet_seconds,
    )  # fmt: skip


def test_workers_and_beat_that_are_absent():
    never = [job(name, silent=True, quiet_seconds=None) for name in ("a", "b")]
    found = only(background.judge_jobs(never))
    assert "heard of ever" in found.what
    assert "beat" in found.mend
    gone = [job("a", silent=True, quiet_seconds=600.0)]
    assert "for 10 min" in only(background.judge_jobs(gone)).what
    one = only(background.judge_jobs([job("a", silent=True), job("b")]))
    assert one.what == "silent for three periods: a"
    failed = only(background.judge_jobs([job("a", failed="no disk"), job("b")]))
    assert (failed.level, "no disk" in failed.what) == (Level.WARNING, True)
    assert told(background.judge_jobs([job("a")])) == []


def test_a_store_in_which_no_job_ever_ran_has_no_workers(db):
    assert "heard of ever" in only(background.judge_jobs(reads.heartbeats())).what


def test_migrations_and_brokers(db, settings):
    assert told(background.judge_migrations(0)) == []
    assert "3 are to be applied" in only(background.judge_migrations(3)).what
    assert told(background.judge_broker("ok", embedded=True)) == []
    found = only(background.judge_broker(checkups.broker(), embedded=True))
    assert found.what == "it has no tables yet"  # the tests' database has none
    settings.CELERY_BROKER_URL = "redis://u:hunter2@127.0.0.1:1/0"
    found = only(background.judge_broker(checkups.broker(), embedded=False))
    assert found.what == "it does not answer"
    assert "hunter2" not in found.mend


# --- the command --------------------------------------------------------------------------------


def test_a_setting_that_breaks_its_rule_is_a_finding(tmp_path):
    found = run(tmp_path / "home", "doctor", AGENTSTATE_LOG_FORMAT="xml")
    assert found.returncode == 1
    assert "✗ settings: AGENTSTATE_LOG_FORMAT is 'xml'" in found.stdout
    assert "→ change AGENTSTATE_LOG_FORMAT" in found.stdout


@pytest.mark.long
@pytest.mark.many
def test_the_command_looks_at_a_real_site(open_folder):
    home = open_folder / "home"
    empty = run(home, "doctor", "--url", "http://127.0.0.1:1")
    assert empty.returncode == 1
    assert "there is no store in this database yet" in empty.stdout
    assert "http://127.0.0.1:1/health/ready does not answer" in empty.stdout
    assert run(home, "key", "--name", "k", "--scope", "read").returncode == 0
    idle = run(home, "doctor")
    assert (idle.returncode, idle.stdout.count("✗")) == (1, 1)
    assert "✗ workers: no periodic job was heard of" in idle.stdout
    assert "1 to be mended" in idle.stderr
    away = run(home, "doctor", DATABASE_URL="postgresql://u:hunter2@127.0.0.1:1/x")
    assert away.returncode == 1
    assert "cannot be reached" in away.stdout
    assert "hunter2" not in away.stdout + away.stderr
    (home / "secret-key").chmod(0o644)
    assert "chmod 600" in run(home, "doctor").stdout


# --- readiness ----------------------------------------------------------------------------------


def test_readiness_tells_why_the_database_cannot_be_written(transactional_db):
    assert checkups.database() == checkups.FINE
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        assert checkups.database() == "is read-only"
        cursor.execute("RESET default_transaction_read_only")
        cursor.execute(
            "CREATE FUNCTION agentstate_restoring() RETURNS int LANGUAGE sql AS 'SELECT 1'"
        )
        assert checkups.database() == "is being restored"
        cursor.execute("DROP FUNCTION agentstate_restoring()")
    assert checkups.database() == checkups.FINE


def test_readiness_tells_that_the_database_does_not_answer(db, monkeypatch):
    monkeypatch.setattr(checkups, "WRITABLE", "SELECT 1 / 0")
    assert checkups.database() == "does not answer"
