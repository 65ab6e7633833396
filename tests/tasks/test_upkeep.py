"""The periodic tasks: each gives its one command, and every start that is scheduled exists."""

from datetime import timedelta

import pytest
from django.db import connection

from agentstate.store import feed, partitions, reads
from agentstate.store.callers import PLAIN, SYSTEM
from agentstate.store.callers import Circumstances as Under
from agentstate.store.commands import AcquireLease, CreateRun, NewBudget, Reserve, Transition
from agentstate.store.execute import execute
from agentstate.store.models import Budget, Event, Feed, Heartbeat, IdempotencyRecord, Outbox, Run
from agentstate.store.upkeep import JOBS, FrequentBeat
from tasks import upkeep
from tasks.alerts import deliver_alerts, evaluate_alerts
from tasks.app import app
from tasks.bulks import work_bulks
from tasks.schedule import MODULES, ROUTES, SCHEDULE

pytestmark = pytest.mark.django_db(transaction=True)


def create(key="r-1", under=PLAIN):
    execute(CreateRun(key=key, task="Fix it"), by=SYSTEM, under=under)


def test_everything_that_is_scheduled_or_routed_is_a_task():
    app.loader.import_default_modules()
    names = {entry["task"] for entry in SCHEDULE.values()} | set(ROUTES)

    assert names <= set(app.tasks)
    assert set(MODULES) <= set(app.conf.include)
    assert all(entry["options"]["expires"] >= entry["schedule"] for entry in SCHEDULE.values())


def test_a_lease_that_ran_out_is_told_of_once_however_often_the_sweep_runs(clock):
    create()
    execute(AcquireLease(unit="run:r-1", owner="w-1~0001", ttl_seconds=5), by=SYSTEM)
    upkeep.note_lapsed_leases()
    clock.advance(seconds=5)
    upkeep.note_lapsed_leases()
    upkeep.note_lapsed_leases(limit=10, of_a_newer_release=True)

    assert list(Event.objects.filter(type="lease.lapsed").values_list("actor", flat=True)) == [
        "system:sweep"
    ]


def test_a_run_past_its_deadline_ends_as_its_policy_says(clock):
    for key, policy in (("r-1", "fail"), ("r-2", "cancel"), ("r-3", "report")):
        deadline_at = clock.now + timedelta(seconds=60)
        ask = CreateRun(key=key, task="Fix it", deadline_at=deadline_at, deadline_policy=policy)
        execute(ask, by=SYSTEM)
    upkeep.carry_out_deadlines()
    assert set(Run.objects.values_list("status", flat=True)) == {"pending"}

    clock.advance(seconds=61)
    upkeep.carry_out_deadlines()
    upkeep.carry_out_deadlines()

    assert dict(Run.objects.values_list("key", "status")) == {
        "r-1": "failed",
        "r-2": "cancelled",
        "r-3": "pending",
    }


def test_what_a_dead_worker_held_of_a_budget_is_given_back(clock):
    budgets = (NewBudget(name="tokens", cap=10),)
    execute(CreateRun(key="r-1", task="Fix it", budgets=budgets), by=SYSTEM)
    execute(Reserve(run="r-1", budget="tokens", amount=10, id="h-1", ttl_seconds=30), by=SYSTEM)
    upkeep.drop_dead_holds()
    assert Budget.objects.get().reserved == 10

    clock.advance(seconds=31)
    upkeep.drop_dead_holds()
    upkeep.drop_dead_holds()

    assert Budget.objects.get().reserved == 0


def test_what_waits_in_the_outbox_gets_its_positions_once():
    create("r-1")
    create("r-2")
    upkeep.move_feed()
    upkeep.move_feed()

    assert Outbox.objects.count() == 0
    assert sorted(Feed.objects.values_list("position", "run_key")) == [(1, "r-1"), (2, "r-2")]


def test_the_coming_weeks_have_their_partitions(clock):
    clock.advance(weeks=20)
    upkeep.make_partitions()
    upkeep.make_partitions()

    assert partitions.weeks_ahead() == partitions.WEEKS_AHEAD
    assert heartbeat("make partitions")[1] == 0


def test_answers_are_purged_when_their_day_is_over_and_not_before(clock):
    create("r-1", Under(idempotency_key="k-1", fingerprint=b"1"))
    clock.advance(hours=23)
    create("r-2", Under(idempotency_key="k-2", fingerprint=b"2"))
    upkeep.purge()
    assert IdempotencyRecord.objects.count() == 2

    clock.advance(hours=1)
    upkeep.purge()

    assert list(IdempotencyRecord.objects.values_list("key", flat=True)) == ["k-2"]


def test_a_purge_is_bounded_says_what_is_left_and_goes_on_where_it_was(clock, monkeypatch):
    monkeypatch.setattr(upkeep, "PURGE_ROWS", 2)
    monkeypatch.setattr(upkeep, "PURGE_SECONDS", 0)
    for number in range(5):
        create(f"r-{number}", Under(idempotency_key=f"k-{number}", fingerprint=b"1"))
    clock.advance(hours=25)

    upkeep.purge()
    assert IdempotencyRecord.objects.count() == 3
    assert heartbeat("purge what is past its age")[:2] == (2, 3)
    monkeypatch.setattr(upkeep, "PURGE_SECONDS", 60)
    upkeep.purge()
    assert IdempotencyRecord.objects.count() == 0
    assert heartbeat("purge what is past its age") == (3, 0, 2)


def test_a_week_that_is_over_goes_with_its_runs_in_one_start(clock):
    clock.set(clock.now - timedelta(days=365))
    upkeep.make_partitions()
    for number in range(3):
        ask = CreateRun(key=f"r-{number}", task="Fix it", retain_seconds=60)
        execute(ask, by=SYSTEM)
        execute(Transition(run=ask.key, to="cancelled"), by=SYSTEM)
    clock.advance(days=8)
    upkeep.drop_old_weeks()
    upkeep.drop_old_weeks()

    assert (Run.objects.count(), Event.objects.count()) == (0, 0)
    assert heartbeat("drop weeks that are over") == (0, 0, 2)
    upkeep.make_partitions()


def test_a_sweep_says_how_much_of_what_was_due_it_left(clock):
    due = clock.now + timedelta(seconds=5)
    for number in range(5):
        run, budgets = f"r-{number}", (NewBudget(name="tokens", cap=10),)
        ask = CreateRun(
            key=run, task="Fix it", budgets=budgets, deadline_at=due, deadline_policy="fail"
        )
        execute(ask, by=SYSTEM)
        execute(Reserve(run=run, budget="tokens", amount=1, id="h-1", ttl_seconds=5), by=SYSTEM)
        execute(AcquireLease(unit=f"run:{run}", owner="w-1~0001", ttl_seconds=5), by=SYSTEM)
    clock.advance(seconds=20)

    for task, job in (
        (upkeep.note_lapsed_leases, "note lapsed leases"),
        (upkeep.drop_dead_holds, "drop dead holds"),
        (upkeep.carry_out_deadlines, "carry out deadlines"),
    ):
        task(limit=2)
        assert heartbeat(job)[:2] == (2, 3)
        task()
        assert heartbeat(job)[:2] == (3, 0)


def test_what_waits_for_the_feed_is_what_its_mover_is_behind(clock, monkeypatch):
    monkeypatch.setattr(upkeep, "_MOVING", FrequentBeat("move feed"))
    create()
    clock.advance(seconds=1)
    monkeypatch.setattr(feed, "move", lambda: None)
    upkeep.move_feed()
    assert heartbeat("move feed")[1] == 1
    monkeypatch.undo()
    monkeypatch.setattr(upkeep, "_MOVING", FrequentBeat("move feed"))
    upkeep.move_feed()
    assert heartbeat("move feed")[1] == 0


def heartbeat(name):
    return Heartbeat.objects.values_list("did", "behind", "passes").get(name=name)


ALL = (
    upkeep.note_lapsed_leases,
    upkeep.carry_out_deadlines,
    upkeep.end_quiet_traces,
    upkeep.drop_dead_holds,
    upkeep.move_feed,
    upkeep.make_partitions,
    upkeep.purge,
    upkeep.drop_old_weeks,
)


def test_every_task_leaves_a_heartbeat_and_no_transaction_open(clock):
    """Case O-44 (docs/cases.md)."""
    upkeep._MOVING = FrequentBeat("move feed")
    for task in ALL:
        task()
        assert not connection.in_atomic_block

    ours = {beat.name for beat in reads.heartbeats() if not beat.silent and not beat.failed}
    assert ours >= {
        "note lapsed leases",
        "carry out deadlines",
        "drop dead holds",
        "end quiet traces",
        "move feed",
        "make partitions",
        "purge what is past its age",
        "drop weeks that are over",
    }


def test_every_job_says_how_far_behind_it_is(clock):
    upkeep._MOVING = FrequentBeat("move feed")
    for task in (*ALL, evaluate_alerts, deliver_alerts, work_bulks):
        task()

    assert {beat.name: beat.behind for beat in reads.heartbeats()} == dict.fromkeys(JOBS, 0)


def test_every_job_that_is_waited_for_is_started_by_the_clock():
    starts = {entry["schedule"] for entry in SCHEDULE.values()}

    assert set(JOBS.values()) - {JOBS["move feed"]} <= starts
    assert len(SCHEDULE) >= len(JOBS)
