"""Limits that end what nobody ends, and text that no table takes."""

import json
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import psycopg
import pytest
from django.conf import settings

from agentstate import postgres
from tests.store.asking import rows
from tests.store.waiting import wait_until_blocked


def test_a_session_that_stands_still_in_a_transaction_is_ended(transactional_db):
    """O-44: else a frozen process keeps its locks, and dead rows of every table, for ever."""
    entry = postgres.django_entry(settings.DATABASE_PARTS, application_name="x")
    ((name,),) = rows("SELECT current_database()")
    asked = postgres.conninfo(settings.DATABASE_PARTS, dbname=name, **options(entry))
    with psycopg.connect(asked, autocommit=True) as session:
        told = session.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert told == ("1min",)


def test_a_renewal_does_not_read_what_an_open_transaction_keeps_from_being_removed(store):
    """O-44: each renewal leaves a dead row behind, and nobody may remove it."""
    lease = store.acquire("busy", "w-1", ttl_seconds=3_600)
    ((name,),) = rows("SELECT current_database()")
    asked = postgres.conninfo(settings.DATABASE_PARTS, dbname=name)
    with psycopg.connect(asked) as idle, psycopg.connect(asked, autocommit=True) as session:
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT FROM agentstate_lease")
        first = [read_by_a_renewal(session, lease) for _ in range(30)]
        for _ in range(600):
            renew_plainly(session, lease, "SELECT")
        last = [read_by_a_renewal(session, lease) for _ in range(30)]
        idle.rollback()
    assert store.lease("busy").renewals == 660
    assert median(last) < 3 * median(first)


def test_a_renewal_that_waited_for_another_goes_the_short_way_all_the_same(store):
    """O-44: it finds the row where it is now, not where it was when it began to wait."""
    lease = store.acquire("busy", "w-1", ttl_seconds=3_600)
    ((name,),) = rows("SELECT current_database()")
    asked = postgres.conninfo(settings.DATABASE_PARTS, dbname=name)
    with (
        psycopg.connect(asked) as one,
        psycopg.connect(asked) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        assert renew_plainly(one, lease, "SELECT")["done"] == {"w-1": [0]}
        waiting = pool.submit(renew_plainly, other, lease, "SELECT")
        wait_until_blocked()
        one.commit()
        assert waiting.result()["done"] == {"w-1": [0]}
        other.commit()
    assert store.lease("busy").renewals == 2


def renew_plainly(session, lease, verb):
    ask = {"n": 0, "unit": lease.unit, "token": lease.token, "by": "key:fleet", "ttl": 3_600}
    statement = f"{verb} agentstate_renew_plain(%s, '20s')"
    return session.execute(statement, [json.dumps([ask])]).fetchone()[0]


def read_by_a_renewal(session, lease):
    """How many pages, those of the function's own statements among them."""
    (told,) = renew_plainly(session, lease, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT")
    return told["Plan"]["Shared Hit Blocks"] + told["Plan"]["Shared Read Blocks"]


def options(entry):
    return {"options": entry["OPTIONS"]["options"]}


def test_behind_a_pooler_nothing_is_asked_that_it_would_refuse():
    """O-44: it has its own limit, in deploy/pgbouncer."""
    entry = postgres.django_entry(settings.DATABASE_PARTS, application_name="x", pooled=True)
    assert "options" not in entry["OPTIONS"]
    ini = (settings.BASE_DIR / "deploy" / "pgbouncer" / "pgbouncer.ini").read_text()
    assert f"idle_transaction_timeout = {postgres.IDLE_TRANSACTION_SECONDS}\n" in ini


ADDRESSES = [
    "/runs?q=%00", "/runs?q=task:a%00b", "/runs/%00", "/runs/42?find=%00", "/runs/42?event=%00",
    "/runs/42?type=%00", "/leases/%00", "/leases?owner=%00", "/workers/%00/drain", "/budgets/%00",
    "/audit?text=%00", "/receipts?text=%00", "/jump?to=%00", "/bulk/new?q=%00&kind=cancel",
    "/alerts/%00/acknowledge", "/runs/-/export?q=%00&format=csv", "/runs/-/suggestions?q=tag:%00",
    "/login?next=%00",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_nul_in_an_address_of_the_console_is_refused_or_finds_nothing(api, log_in, address):
    """O-18: wherever people or links can put one."""
    api.create("42")
    assert log_in("bo", "senior").get(address).status_code in (200, 302, 400, 404, 422)


@pytest.mark.parametrize(
    "path",
    ["/runs?q=%00", "/runs?task=%00", "/runs?tag=%00", "/runs?owner=%00", "/runs/%00",
     "/runs/%00/events", "/runs/42/events?type=%00", "/leases/%00", "/leases?owner=%00",
     "/workers?cursor=%00", "/budgets/%00", "/items?pk=run%2342%00",
     "/items?pk=run%2342&sk_prefix=%00", "/receipts?key=%00", "/feed?types=%00"],
)  # fmt: skip
def test_a_nul_in_an_address_of_the_api_is_refused(api, path):
    """O-18: with the field named, before the database sees it."""
    api.create("42")
    answer = api.get(path)
    assert answer.status in (400, 404, 422), answer.text
    assert answer.code in ("invalid", "unstorable-text", "not-found", "malformed")
