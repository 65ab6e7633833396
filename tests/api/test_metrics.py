"""/metrics: who may ask, that it tells what happened, and that docs/metrics.md lists all of it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from agentstate import metrics, postgres
from agentstate.django_postgres.base import DatabaseWrapper
from agentstate.store import upkeep, vitals
from tests.api.asking import Api, new_key

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "metrics.md"


def told(key, **headers):
    sent = {"Authorization": f"Bearer {key.text}"} | headers
    return Client().get("/metrics", headers=sent)


def samples(answer):
    assert answer.status_code == 200, answer.text
    return {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def value(found, name, **labels):
    return found.get((f"agentstate_{name}", *sorted(labels.items())), 0.0)


def test_only_a_key_that_may_read_is_told(api, with_scopes):
    assert Client().get("/metrics").status_code == 401
    assert told(with_scopes("write").key).status_code == 403
    assert told(with_scopes("read", name="prometheus").key).status_code == 200
    assert Client().post("/metrics").status_code == 405


def test_it_speaks_the_format_that_is_asked_for(api):
    assert told(api.key)["Content-Type"].startswith("text/plain; version=0.0.4")
    modern = told(api.key, Accept="application/openmetrics-text; version=1.0.0")
    assert modern["Content-Type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


def test_what_was_done_and_refused_is_counted(api):
    before = samples(told(api.key))
    api.create("42")
    api.post("/runs", {"key": "42", "task": "x"})
    api.append("42", Agentstate_Attempt="2")
    api.append("42", expected_seq=7)
    api.get("/runs/42")
    api.get("/runs/unknown")
    Client().get("/no/such/page")
    after = samples(told(api.key))

    def grown(name, **labels):
        return value(after, name, **labels) - value(before, name, **labels)

    create = {"method": "POST", "route": "api/v1/runs", "kind": "writes"}
    assert grown("http_requests_total", **create, status="201") == 1
    assert grown("http_requests_total", **create, status="409") == 1
    read = {"method": "GET", "route": "api/v1/runs/<key>"}
    assert grown("http_requests_total", **read, kind="writes", status="200") == 1
    assert grown("http_request_seconds_count", **read) == 2
    assert grown("http_request_part_seconds_total", part="db") > 0
    assert grown("http_problems_total", code="exists") == 1
    assert grown("http_problems_total", code="seq-conflict") == 1
    assert grown("http_problems_total", code="not-found") == 1
    assert grown("commands_total", operation="append", outcome="ok") == 1
    assert grown("commands_total", operation="append", outcome="seq-conflict") == 1
    assert grown("command_retries_total", operation="append") == 1
    nowhere = {"method": "GET", "route": "none", "kind": "pages", "status": "404"}
    assert grown("http_requests_total", **nowhere) == 1


def test_the_store_is_told_as_it_stands(clock):
    api = Api(new_key("fleet"))
    api.create("42")
    api.create("43")
    api.hold("42", ttl_seconds=10)
    clock.advance(seconds=25)
    found = samples(told(api.key))
    assert value(found, "runs", status="pending") == 1
    assert value(found, "runs", status="running") == 1
    assert value(found, "leases", state="lapsed") == 1
    assert value(found, "lease_lapsed_oldest_seconds") == 15
    assert value(found, "feed_waiting") > 0
    assert value(found, "feed_lag_seconds") >= 25
    assert value(found, "database_connections") >= 1
    assert not any(value(found, "scrape_failed", part=part) for part in vitals.PARTS)


def test_batches_are_told_by_size_whoever_brought_them(api):
    before = samples(told(api.key))
    of_threads, of_a_loop = metrics.LANES["writes"]
    for lane, commands in ((of_threads, 1), (of_threads, 2), (of_a_loop, 60), (of_a_loop, 200)):
        lane.sizes.note(commands)
    after = samples(told(api.key))

    def grown(name, **labels):
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("batch_commands_count", lane="writes") == 4
    assert grown("batch_commands_sum", lane="writes") == 263
    up_to = [grown("batch_commands_bucket", lane="writes", le=f"{n}.0") for n in (1, 2, 50, 100)]
    assert up_to == [1, 2, 2, 3]
    assert grown("batch_commands_bucket", lane="writes", le="200.0") == 4
    assert grown("batch_commands_count", lane="leases") == 0


def test_commands_that_wait_are_told_whoever_brought_them(api, monkeypatch):
    for lane in metrics.LANES["leases"]:
        monkeypatch.setattr(type(lane), "waiting", property(lambda self: 3))
    found = samples(told(api.key))
    assert value(found, "lane_waiting", lane="leases") == 6  # of threads, and of a loop


def test_connections_are_told_by_what_they_are_at(db, api):
    before = samples(told(api.key))
    with DatabaseWrapper(connection.settings_dict).cursor() as mine:
        mine.execute("BEGIN")
        after = samples(told(api.key))
        mine.execute("ROLLBACK")
        at_rest = samples(told(api.key))

    def grown(later, name, **labels):
        return value(later, name, **labels) - value(before, name, **labels)

    assert grown(after, "connections_made_total") == 1
    assert grown(after, "connections", state="busy") == 1
    assert grown(at_rest, "connections", state="busy") == 0
    assert grown(at_rest, "connections", state="idle") == 1
    mine.connection.close()
    assert grown(samples(told(api.key)), "connections", state="idle") == 0

    nowhere = connection.settings_dict | {"HOST": "127.0.0.1", "PORT": "1"}
    with pytest.raises(psycopg.OperationalError):
        DatabaseWrapper(nowhere).connect()
    last = samples(told(api.key))
    assert grown(last, "connections_failed_total") == 1
    assert value(last, "connections", state="connecting") == 0


def test_a_job_says_how_far_behind_it_is(clock):
    with upkeep.beat("note lapsed leases") as this:
        this.did, this.behind = 3, 7
    found = samples(told(new_key("prometheus")))
    assert value(found, "job_behind", job="note lapsed leases") == 7


def test_each_watcher_says_how_long_ago_it_ran_and_one_that_never_did_is_there(clock):
    watching = Api(new_key("prometheus"))
    with upkeep.beat("evaluate alerts"):
        pass
    clock.advance(seconds=3 * upkeep.JOBS["evaluate alerts"] + 6)
    found = samples(told(watching.key))
    known = {dict(labels)["job"] for name, *labels in found if name == "agentstate_job_silent"}
    assert known == set(upkeep.JOBS)
    assert value(found, "job_silent", job="evaluate alerts") == 1
    assert value(found, "job_age_seconds", job="evaluate alerts") == 51
    with upkeep.beat("evaluate alerts"):
        pass
    found = samples(told(watching.key))
    assert value(found, "job_silent", job="evaluate alerts") == 0
    assert value(found, "job_age_seconds", job="evaluate alerts") == 0


def test_what_an_overtaken_worker_writes_is_counted_as_fenced(clock):
    api = Api(new_key("fleet"))
    api.create("42")
    late = api.hold("42", ttl_seconds=10)
    clock.advance(seconds=11)
    api.hold("42", owner="other~0001", ttl_seconds=10)
    before = samples(told(api.key))
    assert api.append("42", Agentstate_Fence=late).code == "stale-fence"
    after = samples(told(api.key))
    fenced = {"operation": "append", "outcome": "stale-fence"}
    assert value(after, "commands_total", **fenced) - value(before, "commands_total", **fenced) == 1


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_stays_open_and_rows_that_are_dead_are_told():
    api = Api(new_key("prometheus"))
    with psycopg.connect(postgres.conninfo(settings.DATABASE_PARTS | {
        "dbname": connection.settings_dict["NAME"]})) as somebody:  # fmt: skip
        somebody.execute("SELECT 1")
        somebody.execute("SELECT pg_sleep(0.05)")
        found = samples(told(api.key))
        assert value(found, "database_oldest_transaction_seconds") >= 0.05
    with connection.cursor() as cursor:
        cursor.execute("VACUUM agentstate_run")  # else autovacuum may, in the middle
    dead_before = value(samples(told(api.key)), "table_dead_rows", table="run")
    api.create("42")
    for n in range(3):
        api.append("42", expected_seq=n + 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
    found = samples(told(api.key))
    assert value(found, "table_dead_rows", table="run") > dead_before


def test_a_part_that_is_slow_is_missing_and_the_others_are_there(api, monkeypatch):
    monkeypatch.setattr(vitals, "PART_TIMEOUT_MS", 20)
    monkeypatch.setattr(vitals, "FEED", "SELECT pg_sleep(5), 0, 0, 0, 0")
    found = samples(told(api.key))
    assert value(found, "scrape_failed", part="feed") == 1
    assert ("agentstate_feed_position",) not in found
    assert value(found, "scrape_failed", part="leases") == 0
    assert ("agentstate_leases", ("state", "live")) in found


def test_no_name_that_callers_choose_is_a_label(api):
    api.create("zebra-run")
    api.hold("zebra-run", owner="zebra-worker")
    api.get("/runs/zebra-run")
    api.get("/runs/zebra-run/nothing/zebra-part")
    api.send("ZEBRA", "/runs", None)
    text = told(api.key).text
    assert "zebra" not in text.lower()
    assert "fleet" not in text


LISTED = re.compile(r"^\| `(agentstate_\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)


def described():
    """Each metric's name, kind and labels, as the code has them."""
    found = {}
    for collector in metrics.REGISTRY._collector_to_names:
        if isinstance(collector, metrics.ProcessCollector):
            continue
        for family in collector.describe():
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, tuple(labels))
    return found


def test_the_documentation_lists_every_metric_with_its_labels():
    written = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in LISTED.findall(DOCS.read_text())
    }
    assert written == described()


@pytest.mark.parametrize("family", sorted(metrics.VITALS))
def test_each_figure_of_the_store_is_one_that_is_read(db, family):
    figures, failed = vitals.read()
    assert not failed
    assert family in figures
