import psycopg
import pytest
from django.conf import settings
from django.db import DatabaseError, connection, transaction

from agentstate import postgres, prepare


@pytest.fixture
def parts() -> dict[str, str]:
    return settings.DATABASE_PARTS | {"dbname": connection.settings_dict["NAME"]}


@pytest.fixture
def session(db, parts):
    with prepare.connect(parts) as session:
        yield session


@pytest.mark.django_db
def test_a_database_that_is_too_old_is_refused_in_one_clear_line(session, monkeypatch):
    monkeypatch.setattr(postgres, "OLDEST", 990_000)
    monkeypatch.setattr(prepare.postgres, "OLDEST", 990_000)
    with pytest.raises(prepare.DatabaseUnfit, match=r"PostgreSQL \d+ at .* is too old") as refused:
        prepare.refuse_old(session)
    assert "\n" not in str(refused.value)


@pytest.mark.django_db
def test_one_that_is_new_enough_is_taken(session):
    prepare.refuse_old(session)


@pytest.mark.django_db(transaction=True)
def test_the_queues_are_installed_once(parts):
    with prepare.connect(parts) as session:
        prepare.install_queues(session)
        prepare.install_queues(session)
        found = session.execute("SELECT to_regclass('pgmq.meta') IS NOT NULL").fetchone()
        session.execute("DROP SCHEMA pgmq CASCADE")
    assert found == (True,)


@pytest.mark.django_db(transaction=True)
def test_a_ready_database_has_nothing_to_run():
    said: list[str] = []
    assert prepare.migrate(said.append) == 0
    assert said == []


@pytest.mark.django_db
def test_what_the_database_does_not_allow_is_told_in_one_line_and_a_fault_of_ours_is_not():
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE test_weak")
        cursor.execute("SET LOCAL ROLE test_weak")
        with pytest.raises(DatabaseError) as refused, transaction.atomic():
            cursor.execute("CREATE SCHEMA mine")
        cursor.execute("RESET ROLE")
        with pytest.raises(DatabaseError) as wrong, transaction.atomic():
            cursor.execute("SELECT nonsense")
        cursor.execute("DROP ROLE test_weak")
    told = prepare.fault_of_database(refused.value)
    assert told.startswith("the database: permission denied for database")
    assert "\n" not in told
    assert prepare.fault_of_database(wrong.value) == ""
    assert prepare.fault_of_database(ValueError("x")) == ""


def test_a_database_that_is_not_there_is_told_without_the_password():
    parts = {"host": "127.0.0.1", "port": "1", "user": "a", "password": "hunter2", "dbname": "x"}
    with pytest.raises(prepare.DatabaseUnfit, match="cannot be reached") as refused:
        prepare.connect(parts)
    assert "hunter2" not in str(refused.value)
    assert isinstance(refused.value, Exception)
    assert not isinstance(refused.value, psycopg.Error)
