import os

import pytest
from django.db import OperationalError, connection

from agentstate.caching import CACHES_OF
from agentstate.store import feed, partitions, retention
from agentstate.store.commands import SetCheckpoint
from agentstate.store.policy import POLICY
from agentstate.store.states import MOVES, Status
from agentstate.store.upkeep import JOBS
from dashboard.queries import panels
from dashboard.timings import NAMES_MAX, SAMPLES, TIMINGS, Timings
from dashboard.views import system
from tests.dashboard.reading import Page
from tests.store.asking import rows


def test_the_feed_shows_what_waits_and_how_far_its_readers_are(store, viewer):
    store.create("42")
    feed.move()
    store.ask(SetCheckpoint(consumer="warehouse", position=1))
    store.append("42")
    store.append("42")
    feed.move()
    store.append("42")

    text = Page(viewer.get("/system")).text

    assert "Last position 3" in text
    assert "Waiting to be moved 1" in text
    assert "warehouse 1 2 · " in text


def test_an_empty_site_says_so(viewer):
    with connection.cursor() as cursor:
        for week in partitions.weeks_there(cursor):
            cursor.execute(f"DROP TABLE {partitions.name_of(week)}")

    text = Page(viewer.get("/system")).text

    assert "Nobody has set a checkpoint" in text
    assert "No week is over yet" in text
    assert "Last moved never" in text


def test_the_database_and_its_partitions_have_their_sizes(store, viewer):
    store.create("42")

    text = Page(viewer.get("/system")).text

    assert "PostgreSQL 1" in text
    assert "Week Events, about Size 20" in text
    assert "ahead ·" in text


def test_a_panel_that_takes_too_long_or_breaks_fails_alone(store, viewer, monkeypatch):
    def slow():
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")

    def broken():
        raise OperationalError("the disk is full")

    monkeypatch.setattr(panels, "PANEL_MS", 500)
    monkeypatch.setitem(system.PANELS, "feed", slow)
    monkeypatch.setitem(system.PANELS, "weeks", broken)

    page = Page(viewer.get("/system"))

    assert page.status == 200
    assert panels.SLOW in page.text
    assert panels.BROKEN in page.text
    assert "disk" not in page.text
    assert "PostgreSQL 1" in page.text


def test_every_column_and_every_legal_move_is_on_screen(viewer):
    page = Page(viewer.get("/system?show=rules"))

    for name in POLICY:
        table, column = name.split(".")
        assert f'<span class="faint">{table}.</span>{column}<' in page.html
    legal = sum(len(targets) for targets in MOVES.values())
    assert page.html.count('<span class="mark ') == legal
    assert all(f"to {status}" in page.text for status in Status)
    assert all(copy.holds in page.text for copy in CACHES_OF.values())


@pytest.mark.parametrize("address", ["/system", "/system?show=rules", "/system?show=nothing"])
def test_whoever_may_read_sees_it_and_nobody_else(viewer, log_in, address):
    assert viewer.get(address).status_code == 200
    assert log_in("nobody", None).get(address).status_code == 403


def beat(name, *, ago_seconds, every_seconds=5, failed=None):
    """A job as it would have left its row so long ago."""
    rows(
        "INSERT INTO agentstate_heartbeat (name, every_seconds, started_at, ended_at, took_ms, did,"
        " behind, passes, failed, host)"
        " VALUES (%s, %s, agentstate_now() - make_interval(secs => %s),"
        " agentstate_now() - make_interval(secs => %s), 12, 3, 1700, 9, %s, 'host-1')"
        " ON CONFLICT (name) DO UPDATE SET started_at = excluded.started_at,"
        " ended_at = excluded.ended_at, failed = excluded.failed",
        name,
        every_seconds,
        ago_seconds,
        ago_seconds,
        failed,
    )


def test_a_silent_job_is_red_and_one_on_time_is_not(store, viewer):
    for name, every_seconds in JOBS.items():
        beat(name, ago_seconds=1, every_seconds=every_seconds)
    assert "all on time" in Page(viewer.get("/system")).text

    beat(next(iter(JOBS)), ago_seconds=86_400 * 7)

    assert f"1 of {len(JOBS)} silent" in Page(viewer.get("/system")).text


def test_what_a_failed_job_says_is_text(store, viewer):
    beat("sweep", ago_seconds=1, failed="<b>no</b> connection")

    page = Page(viewer.get("/system"))

    assert "<b>no</b>" not in page.html
    assert "failed sweep <b>no</b> connection" in page.text
    assert " 12 ms 3 1 700 host-1" in page.text


def test_each_kind_of_row_has_its_age_and_what_is_due(store, still_clock, viewer):
    store.acquire("free", "w-1")
    store.release("free", store.lease("free").token)
    still_clock.advance(days=8, seconds=1)

    text = Page(viewer.get("/system")).text

    assert "Free units 7d 8d 1" in text
    assert "Refusals 30d none 0" in text


def test_a_week_says_what_keeps_it(store, still_clock, viewer):
    store.create("keeps-on")
    still_clock.advance(days=15)

    assert "1 run, such as keeps-on" in Page(viewer.get("/system")).text


def test_a_week_of_many_runs_is_not_counted_to_its_end(store, still_clock, viewer, monkeypatch):
    for number in range(3):
        store.create(f"r-{number}")
    still_clock.advance(days=15)
    monkeypatch.setattr(retention, "KEEPING_MAX", 2)

    assert "2+ runs, such as r-0" in Page(viewer.get("/system")).text


def test_a_silent_job_says_by_how_much_it_is_late(store, viewer):
    beat("note lapsed leases", ago_seconds=125)
    assert "late by 2m" in Page(viewer.get("/system")).text


def test_the_broker_in_the_database_says_what_waits(store, viewer):
    text = Page(viewer.get("/system")).text
    assert "Broker has no tables yet pgmq, in the database" in text
    rows("CREATE SCHEMA pgmq")
    rows("CREATE TABLE pgmq.meta (queue_name text)")
    assert "It has no queue yet" in Page(viewer.get("/system")).text
    rows("INSERT INTO pgmq.meta VALUES ('default'), ('odd\"name')")
    for name in ("default", 'odd""name'):
        rows(f'CREATE TABLE pgmq."q_{name}" (vt timestamptz, read_ct int, enqueued_at timestamptz)')
    rows(
        "INSERT INTO pgmq.q_default SELECT clock_timestamp() + n * interval '1 minute', 1,"
        " clock_timestamp() - interval '90 seconds' FROM generate_series(-1, 1) n"
    )
    assert "default 2 1 1m 30s" in Page(viewer.get("/system")).text


def test_a_broker_that_is_away_fails_alone_and_keeps_its_address(store, viewer, settings):
    settings.CELERY_BROKER_URL = "redis://:sesame@127.0.0.1:1/0"
    page = Page(viewer.get("/system"))
    assert "Redis" in page.text
    assert "does not answer" in page.text
    assert "sesame" not in page.html
    assert "PostgreSQL 1" in page.text


def test_the_consoles_own_reads_are_timed_by_page_and_panel(store, viewer, monkeypatch):
    TIMINGS.forget()
    viewer.get("/leases")
    viewer.get("/audit")

    def slow():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")

    monkeypatch.setattr(panels, "PANEL_MS", 200)
    monkeypatch.setitem(system.PANELS, "weeks", slow)
    viewer.get("/system")

    lines = {(line.page, line.part): line for line in TIMINGS.read(most=100)}
    assert (lines["leases", "board"].count, lines["leases", "board"].timeouts) == (1, 0)
    assert lines["actions", "rows"].count == 1
    cut = lines["system", "weeks"]
    assert cut.timeouts == 1
    assert cut.slowest_ms >= cut.p95_ms >= cut.p50_ms >= 200
    assert TIMINGS.read()[0] == cut
    text = Page(viewer.get("/system")).text
    assert f"{system.PROCESS} since" in text
    assert system.PROCESS.endswith(str(os.getpid()))
    assert "system weeks 2" in text


def test_percentiles_are_of_the_newest_reads_and_few_names_are_kept():
    timings = Timings()
    for ms in range(1, 101):
        timings.note("a", ms / 1_000)
    (line,) = timings.read()
    assert (round(line.p50_ms), round(line.p95_ms), round(line.slowest_ms)) == (50, 95, 100)
    for _ in range(SAMPLES):
        timings.note("a", 0.001)
    (line,) = timings.read()
    assert (round(line.p95_ms), round(line.slowest_ms), line.count) == (1, 100, SAMPLES + 100)
    for number in range(NAMES_MAX * 2):
        timings.note(str(number), 0.1)
    assert len(timings.read(most=10_000)) == NAMES_MAX
