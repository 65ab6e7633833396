import pytest
from django.db import OperationalError, connection

from agentstate.caching import CACHES_OF
from agentstate.store import feed, partitions
from agentstate.store.commands import SetCheckpoint
from agentstate.store.policy import POLICY
from agentstate.store.states import MOVES, Status
from agentstate.store.upkeep import JOBS
from dashboard.queries import panels
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
