"""What beat starts when clocks are wrong, beats are two, or nobody worked for hours."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from agentstate.store.models import Heartbeat
from agentstate.store.upkeep import JOBS, is_due
from tasks import upkeep
from tasks.app import app
from tasks.beat import SteadyScheduler
from tasks.schedule import EXPIRES_SECONDS_MIN, SCHEDULE

START = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


class Host:
    """A host with a wall clock that can be put, a monotonic one that cannot, and a beat."""

    def __init__(self, path, monkeypatch, start=START):
        self.at, self.up_seconds, self.path = start, 1_000.0, path
        self.started = Counter()
        monkeypatch.setattr(app, "now", lambda: self.at)
        monkeypatch.setattr(
            SteadyScheduler, "apply_entry", lambda _, entry, **__: self.started.update([entry.name])
        )
        monkeypatch.setattr(SteadyScheduler, "producer", None)
        self.beat = self.make_beat()

    def make_beat(self):
        return SteadyScheduler(
            app,
            schedule_filename=str(self.path),
            wall=lambda: self.at.timestamp(),
            steady=lambda: self.up_seconds,
        )

    def put_clock(self, **by):
        self.at += timedelta(**by)

    def run(self, seconds):
        """Let so much time go by; what was started meanwhile."""
        self.started.clear()
        for _ in range(int(seconds * 4)):
            while self.beat.tick() == 0:
                pass
            self.at += timedelta(seconds=0.25)
            self.up_seconds += 0.25
        return dict(self.started)

    def start_again(self):
        self.beat.close()
        self.beat = self.make_beat()


@pytest.fixture
def host(tmp_path, monkeypatch):
    host = Host(tmp_path / "beat", monkeypatch)
    yield host
    host.beat.close()


def usual(found, seconds):
    """Whether each job was started as often as it should be, give or take one."""
    return {
        name: (found.get(name, 0), entry["schedule"])
        for name, entry in SCHEDULE.items()
        if abs(found.get(name, 0) - seconds / entry["schedule"]) > 1.5
    } == {}


def test_each_job_is_started_once_a_period(host):
    assert usual(host.run(600), 600)


def test_a_clock_that_is_put_back_an_hour_holds_nothing_up(host):
    host.run(60)
    host.put_clock(hours=-1)

    assert usual(host.run(600), 600)


def test_a_clock_that_is_put_ahead_starts_each_job_once_more_and_not_hundreds(host):
    host.run(60)
    host.put_clock(hours=3)

    assert usual(host.run(600), 600)


def test_a_beat_that_was_away_for_three_hours_starts_each_job_once(host):
    """Case O-45 (docs/cases.md)."""
    host.run(60)
    host.put_clock(hours=3)
    host.up_seconds += 3 * 3_600
    host.start_again()

    assert dict.fromkeys(SCHEDULE, 1).items() == host.run(0.5).items()


def test_a_schedule_that_was_kept_under_a_clock_that_went_ahead_is_planned_from_now(host):
    host.put_clock(days=30)
    host.run(60)
    host.put_clock(days=-30)
    host.start_again()

    assert usual(host.run(600), 600)


@pytest.mark.parametrize(
    "before", [datetime(2026, 3, 29, 0, 55, tzinfo=UTC), datetime(2026, 10, 25, 0, 55, tzinfo=UTC)]
)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Pacific/Apia"])
def test_a_change_to_summer_time_and_back_is_not_noticed(tmp_path, monkeypatch, before, zone):
    """Case O-45 (docs/cases.md)."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        host = Host(tmp_path / "beat", monkeypatch, start=before)
        assert usual(host.run(600), 600)
        host.beat.close()
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


# --- what is started asks the database -----------------------------------------------------------

JOB = "note lapsed leases"


def passes():
    return dict(Heartbeat.objects.values_list("name", "passes"))


@pytest.mark.django_db(transaction=True)
def test_two_beats_have_the_effect_of_one(clock):
    """Case O-45 (docs/cases.md)."""
    for _ in range(60):
        for _ in range(2):
            upkeep.note_lapsed_leases(when_due=True)
        clock.advance(seconds=JOBS[JOB])

    assert passes() == {JOB: 60}


@pytest.mark.django_db(transaction=True)
def test_a_queue_full_of_old_starts_is_one_catch_up(clock):
    tasks = {
        entry["task"]: entry["options"]["expires"] / entry["schedule"]
        for name, entry in SCHEDULE.items()
        if name not in ("move-feed", "work-bulks", "deliver-alerts")
    }
    for name, starts in tasks.items():
        for _ in range(int(starts)):
            app.tasks[name](when_due=True)

    assert sum(tasks.values()) > 100
    assert set(passes().values()) == {1}
    assert len(passes()) == len(tasks)


@pytest.mark.django_db(transaction=True)
def test_a_database_clock_that_was_set_back_holds_nothing_up(clock):
    upkeep.note_lapsed_leases(when_due=True)
    assert not is_due(JOB)
    clock.advance(hours=-1)
    assert is_due(JOB)
    upkeep.note_lapsed_leases(when_due=True)
    assert not is_due(JOB)


@pytest.mark.django_db(transaction=True)
def test_a_start_by_hand_is_never_left(clock):
    upkeep.note_lapsed_leases()
    upkeep.note_lapsed_leases()

    assert passes() == {JOB: 2}


def test_what_waits_is_dropped_only_when_it_is_older_than_two_clocks_differ():
    assert all(
        entry["options"]["expires"] >= max(EXPIRES_SECONDS_MIN, entry["schedule"])
        for entry in SCHEDULE.values()
    )
