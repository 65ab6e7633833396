import pytest
from pgmq.base import PGMQConfig
from psycopg.conninfo import conninfo_to_dict

from agentstate import postgres
from agentstate.env import BadSetting

URL = "postgresql://ana:p%20w'%5Cd@db.example:6543/store?sslmode=verify-full&options=-c%20x%3D1"


def test_a_url_is_taken_apart_for_django():
    entry = postgres.django_entry(postgres.parse(URL), application_name="agentstate web")
    assert (entry["HOST"], entry["PORT"], entry["USER"]) == ("db.example", "6543", "ana")
    assert (entry["PASSWORD"], entry["NAME"]) == ("p w'\\d", "store")
    assert entry["OPTIONS"]["sslmode"] == "verify-full"
    # What the address sets comes later, and counts.
    assert entry["OPTIONS"]["options"] == "-c idle_in_transaction_session_timeout=60s -c x=1"
    assert entry["OPTIONS"]["application_name"] == "agentstate web"
    assert entry["ATOMIC_REQUESTS"] is False


def test_a_socket_in_a_url_is_kept():
    parts = postgres.parse("postgresql://ana@/store?host=%2Frun%2Fpostgresql")
    assert parts["host"] == "/run/postgresql"


@pytest.mark.parametrize("url", ["nonsense", "postgresql://host", "postgresql://h:x:y/z"])
def test_what_is_no_url_of_a_database_is_refused_without_showing_it(url):
    with pytest.raises(BadSetting) as refused:
        postgres.parse(url)
    assert "DATABASE_URL" in str(refused.value)
    assert url not in str(refused.value)


def test_the_broker_connects_with_the_very_same_parts(monkeypatch):
    # It would read these for whatever is missing.
    monkeypatch.setenv("DATABASE_URL", "postgresql://other@elsewhere/wrong")
    monkeypatch.setenv("PG_PASSWORD", "wrong")
    sent = conninfo_to_dict(
        PGMQConfig(conn_string=postgres.broker_conninfo(postgres.parse(URL))).dsn
    )
    assert sent == postgres.parse(URL) | postgres.TCP | {"connect_timeout": "5"}


def test_every_connection_ends_when_the_other_end_says_nothing_and_a_url_may_say_when():
    parts = postgres.parse(f"{URL}&tcp_user_timeout=9000")
    for told in (
        postgres.django_entry(parts, application_name="x")["OPTIONS"],
        conninfo_to_dict(postgres.conninfo(parts)),
        conninfo_to_dict(PGMQConfig(conn_string=postgres.broker_conninfo(parts)).dsn),
    ):
        assert {name: told[name] for name in postgres.TCP} == postgres.TCP | {
            "tcp_user_timeout": "9000"
        }


def test_the_broker_finds_the_embedded_socket(monkeypatch):
    monkeypatch.setenv("PGPORT", "9")  # of another database of the user's
    parts = postgres.embedded_parts("/some where/s")
    sent = conninfo_to_dict(PGMQConfig(conn_string=postgres.broker_conninfo(parts)).dsn)
    assert (sent["host"], sent["port"]) == ("/some where/s", "5432")
    assert (sent["user"], sent["dbname"], sent["password"]) == ("agentstate", "agentstate", "")


def test_parts_can_be_changed_and_left_out():
    told = conninfo_to_dict(postgres.conninfo(postgres.parse(URL), dbname="postgres", options=None))
    assert told["dbname"] == "postgres"
    assert "options" not in told
