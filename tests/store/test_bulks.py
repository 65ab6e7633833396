"""Bulks: found by a frozen filter, done once per run, whoever dies, stops or is faster."""

import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from agentstate.store import bulking, bulks, filters
from agentstate.store.commands import CreateBulk, Picked, StopBulk
from agentstate.store.errors import Invalid, NotAllowed, NotFound
from agentstate.store.models import BulkAction, BulkItem, Event, OperatorAction, Run
from agentstate.store.retention import AGES, purge
from tests.store.asking import ANA, SENIOR, VIEWER


def begin(store, kind="cancel", by=ANA, key=None, **asked):
    """A bulk of all that match now, seen now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        (now,) = cursor.fetchone()
    usual = {"filter": "" if "picked" not in asked else None, "seen_at": now, "shown": 50}
    command = CreateBulk(kind=kind, reason="a bad deploy", **usual | asked)
    return store.as_caller(by).ask(command, key=key).bulk


def work(steps=1_000):
    """Take it up and go on until it is over, as the task does; how many steps."""
    claim = bulks.claim()
    for taken in range(steps):
        if claim is None or bulks.step(claim) is None:
            return taken
    return steps


def outcomes(bulk):
    return {
        item.run_key: (item.outcome, item.why) for item in BulkItem.objects.filter(bulk_id=bulk)
    }


def counted(bulk):
    row = BulkAction.objects.get(id=bulk)
    assert row.found == BulkItem.objects.filter(bulk_id=bulk).count()
    for outcome in ("done", "skipped", "refused"):
        items = BulkItem.objects.filter(bulk_id=bulk, outcome=outcome)
        assert getattr(row, outcome) == items.count()
    return row.state, row.done, row.skipped, row.refused


def statuses():
    return dict(Run.objects.values_list("key", "status"))


def create(store, count, first=0, **more):
    for number in range(first, first + count):
        store.create(f"r-{number}", **more)


def test_all_that_match_are_done_once_with_an_outcome_and_a_history_each(store):
    """Case O-35 (docs/cases.md)."""
    create(store, 45)
    store.hold("r-1")
    store.move("r-2", "cancelled")
    bulk = begin(store, filter="status:pending,running,cancelled key:r-", shown=44)
    work()

    assert counted(bulk) == ("done", 44, 1, 0)
    assert outcomes(bulk)["r-2"] == ("skipped", "the run is cancelled")
    assert set(statuses().values()) == {"cancelled"}
    name = bulking.name_of(bulk)
    ended = Event.objects.filter(request_id=name)
    assert ended.count() == 44
    assert {(e.type, e.actor) for e in ended} == {("run.cancelled", "person:ana")}
    audit = OperatorAction.objects.filter(request_id=name)
    assert audit.count() == 44
    assert {(a.action, a.reason) for a in audit} == {("run.cancelled", "a bad deploy")}
    (one,) = OperatorAction.objects.filter(action="bulk.cancel")
    assert (one.object, one.actor, one.after["shown"]) == (name, "person:ana", 44)


def test_the_filter_is_frozen_when_it_was_looked_at(store, clock):
    create(store, 1)
    clock.advance(seconds=3_000)
    create(store, 2, first=1)
    seen = clock.now
    clock.advance(seconds=1)
    create(store, 1, first=3)
    clock.advance(seconds=500)
    bulk = begin(store, filter="since:15m status:live", seen_at=seen, shown=2)
    clock.advance(seconds=2_000)
    work()

    assert statuses() == {
        "r-0": "pending", "r-1": "cancelled", "r-2": "cancelled", "r-3": "pending"
    }  # fmt: skip
    asked = BulkAction.objects.get(id=bulk).filter
    assert asked == f"since:{seen - timedelta(minutes=15):%Y-%m-%dT%H:%M:%S.%fZ} status:live"
    assert filters.parse(asked).problems == []


def test_a_lease_that_lapsed_only_after_the_look_is_left_alone(store, clock):
    create(store, 4)
    for number, ttl in enumerate((10, 10, 100, 10)):
        store.hold(f"r-{number}", owner=f"w-{number}", ttl_seconds=ttl)
    clock.advance(seconds=20)
    seen = clock.now
    again = store.acquire("run:r-1", "w-9", 600)
    clock.advance(seconds=100)
    bulk = begin(store, "reclaim", filter="key:r-", seen_at=seen, shown=3, hold_off_seconds=60)
    work()

    found = outcomes(bulk)
    assert found["r-0"] == found["r-3"] == ("done", "")
    assert found["r-1"] == found["r-2"] == ("skipped", bulking.STILL_LIVE)
    assert Run.objects.get(key="r-1").token == again.token
    assert Run.objects.get(key="r-0").token is None


def test_a_run_that_changed_since_it_was_seen_is_left_alone_and_says_who_did_it(store):
    """Case O-35 (docs/cases.md)."""
    create(store, 4)
    picked = tuple(Picked(run=f"r-{n}", status="pending") for n in range(4))
    bulk = begin(store, picked=picked, shown=4)
    store.as_caller(SENIOR).move("r-1", "cancelled")
    store.hold("r-2")
    work()

    found = outcomes(bulk)
    assert found["r-0"] == found["r-3"] == ("done", "")
    assert found["r-1"] == ("skipped", "it was pending, and is cancelled now, by person:bo")
    assert found["r-2"] == ("skipped", "it was pending, and is running now")
    assert statuses()["r-2"] == "running"


def test_a_run_that_changes_in_the_very_moment_is_refused_by_the_store(store, monkeypatch):
    create(store, 2)
    bulk = begin(store)
    look = bulks.look_at

    def look_and_be_late(ids):
        found = look(ids)
        if ids and BulkItem.objects.filter(bulk_id=bulk).exists():
            store.hold("r-1")
        return found

    monkeypatch.setattr(bulks, "look_at", look_and_be_late)
    work()

    assert outcomes(bulk) == {
        "r-0": ("done", ""), "r-1": ("refused", "the run is running, not pending")
    }  # fmt: skip


def test_two_operators_on_the_same_runs_each_row_once_and_the_second_is_told(store):
    create(store, 30)
    first = begin(store, filter="status:live")
    picked = tuple(Picked(run=f"r-{n}", status="pending") for n in range(30))
    second = begin(store, by=SENIOR, picked=picked, shown=30)
    work()
    work()

    assert counted(first) == ("done", 30, 0, 0)
    assert counted(second) == ("done", 0, 30, 0)
    assert outcomes(second)["r-7"] == (
        "skipped",
        f"it was pending, and is cancelled now, by person:ana in {bulking.name_of(first)}",
    )
    assert Event.objects.filter(type="run.cancelled").count() == 30


def test_two_workers_on_one_bulk_do_each_row_once(store):
    create(store, 120)
    bulk = begin(store, by=SENIOR, shown=120)
    claim = bulks.claim()
    assert bulks.claim() is None  # while somebody is at it
    while BulkAction.objects.get(id=bulk).state == "collecting":
        bulks.step(claim)
    together = threading.Barrier(2)

    def go(_number):
        try:
            together.wait()
            while bulks.step(claim) is not None:
                pass
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(go, range(2)))
    while bulks.step(claim) is not None:  # what one had in hand as the other looked
        pass

    assert counted(bulk) == ("done", 120, 0, 0)
    assert Event.objects.filter(type="run.cancelled").count() == 120
    assert OperatorAction.objects.filter(action="run.cancelled").count() == 120


def test_one_that_died_after_the_effect_and_before_the_outcome_is_followed_by_the_same_answer(
    store, clock, monkeypatch
):
    create(store, 30)
    bulk = begin(store)
    claim = bulks.claim()
    bulks.step(claim)
    with monkeypatch.context() as dying:
        dying.setattr(bulks, "SETTLE", "SELECT 1/0")
        with pytest.raises(Exception, match="division"):
            bulks.step(claim)
    assert statuses()["r-29"] == "cancelled"
    assert counted(bulk) == ("working", 0, 0, 0)
    assert bulks.claim() is None
    clock.advance(seconds=bulks.CLAIM_SECONDS)
    work()

    assert counted(bulk) == ("done", 30, 0, 0)
    assert Event.objects.filter(type="run.cancelled").count() == 30
    assert bulks.step(claim) is None  # who lost the claim writes nothing more


def test_stopped_it_begins_nothing_more_and_keeps_what_was_done(store):
    create(store, 45)
    bulk = begin(store)
    assert work(steps=2) == 2
    stop = StopBulk(bulk=bulk, reason="the wrong ones")
    assert not store.as_caller(SENIOR).ask(stop).already
    row = BulkAction.objects.get(id=bulk)
    assert (row.stopped_by, row.stopped_why) == ("person:bo", "the wrong ones")
    assert work() == 0

    assert counted(bulk) == ("stopped", bulks.DONE_AT_ONCE, 0, 0)
    assert list(statuses().values()).count("pending") == 45 - bulks.DONE_AT_ONCE
    assert store.as_caller(ANA).ask(stop).already
    (action,) = OperatorAction.objects.filter(action="bulk.stopped")
    assert (action.reason, action.actor) == ("the wrong ones", "person:bo")
    with pytest.raises(NotFound):
        store.ask(StopBulk(bulk=uuid.uuid4(), reason="no such"))
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).ask(stop)


def test_no_more_are_done_than_were_shown(store):
    create(store, 10)
    bulk = begin(store, shown=4)
    work()

    assert counted(bulk) == ("done", 4, 6, 0)
    assert outcomes(bulk)["r-0"] == ("skipped", bulking.MORE_THAN_SHOWN)  # the newest come first
    assert statuses()["r-9"] == "cancelled"


def test_more_than_fifty_need_a_senior_and_nothing_of_it_is_written_else(store):
    create(store, 1)
    for shown, is_all in ((51, True), (3, False)):
        with pytest.raises(NotAllowed):
            begin(store, shown=shown, is_all=is_all)
        assert begin(store, by=SENIOR, shown=shown, is_all=is_all)
    with pytest.raises(NotAllowed):
        begin(store, by=VIEWER)
    assert BulkAction.objects.count() == 2


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"kind": "explode"}, "kind"),
        ({"filter": "colour:red"}, "filter"),
        ({"filter": None}, "filter"),
        ({"shown": 0}, "shown"),
        ({"kind": "tag"}, "tags"),
        ({"tags": ("a",)}, "tags"),
        ({"kind": "tag", "tags": tuple("abcdefghijk")}, "tags"),
        ({"hold_off_seconds": 5}, "hold_off_seconds"),
        ({"reason": ""}, "reason"),
        ({"picked": (Picked(run="a", status="pending"),) * 2, "filter": None}, "picked"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, field):
    usual = {"kind": "cancel", "filter": "", "seen_at": datetime.now(UTC), "shown": 1}
    with pytest.raises(Invalid) as refused:
        CreateBulk(**usual | {"reason": "because"} | asked)
    assert refused.value.field == field


def test_what_was_seen_too_long_ago_or_will_be_seen_is_refused(store, clock):
    for seconds in (-bulking.SEEN_SECONDS_MAX - 1, 1):
        with pytest.raises(Invalid, match="seen_at"):
            begin(store, seen_at=clock.now + timedelta(seconds=seconds))


def test_the_same_request_begins_one(store, clock):
    assert begin(store, key="form-1") == begin(store, key="form-1")
    assert BulkAction.objects.count() == 1


def test_attrs_are_asked_for_by_who_may_see_them_and_a_search_without_an_index_ends(
    store, monkeypatch
):
    from agentstate.store import search
    from agentstate.store.callers import Caller
    from agentstate.store.payloads import RawJSON

    monkeypatch.setattr(search, "SEARCHED_RUNS", 4)
    monkeypatch.setattr(bulks, "FOUND_AT_ONCE", 2)
    for number in range(14):
        store.create(f"r-{number}", attrs=RawJSON(f'{{"n": {number % 5}}}'))
    blind = Caller(kind="person", name="cy", scopes=frozenset({"read", "operate"}))
    with pytest.raises(NotAllowed):
        begin(store, by=blind, filter="attr.n:0")
    bulk = begin(store, filter="attr.n:0")
    work()

    assert [i.run_key for i in BulkItem.objects.order_by("n")] == ["r-10", "r-5", "r-0"]
    assert counted(bulk) == ("done", 3, 0, 0)


@pytest.mark.parametrize(
    ("kind", "asked", "why", "proof"),
    [
        ("pause", {}, "it is paused already", {"status": "paused"}),
        ("resume", {}, "it is running already", {"status": "running"}),
        ("tag", {"tags": ("x", "y")}, "it has the tags already", {"tags": ["x", "y"]}),
        ("untag", {"tags": ("z",)}, "it does not have the tag", {"tags": []}),
        ("hold", {}, "it is held already", {"hold": True}),
        ("let-go", {}, "it is not held", {"hold": False}),
    ],
)
def test_each_kind_does_what_it_says_and_leaves_out_where_there_is_nothing_to_do(
    store, kind, asked, why, proof
):
    for key in ("r-0", "r-1"):
        store.create(key, tags=("z",) if kind == "untag" else ())
        store.hold(key)
        if kind == "resume":
            store.as_caller(ANA).move(key, "paused")
    first = begin(store, kind, filter="key:r-0", shown=1, **asked)
    work()
    if kind == "let-go":
        assert outcomes(first) == {"r-0": ("skipped", why)}
        begin(store, "hold", filter="key:r-", shown=2)
        work()
    else:
        assert outcomes(first) == {"r-0": ("done", "")}
        again = begin(store, kind, filter="key:r-", shown=2, **asked)
        work()
        assert outcomes(again) == {"r-0": ("skipped", why), "r-1": ("done", "")}
    if kind == "let-go":
        begin(store, kind, filter="key:r-", shown=2)
        work()
    for name, value in proof.items():
        assert set(map(str, Run.objects.values_list(name, flat=True))) == {str(value)}


def test_a_run_that_somebody_keeps_locked_is_tried_again_and_holds_up_no_other(store, monkeypatch):
    monkeypatch.setattr(bulks, "STEP_SECONDS", 0.3)
    create(store, 3)
    bulk = begin(store)
    claim = bulks.claim()
    bulks.step(claim)
    held, let_go = threading.Event(), threading.Event()

    def keep():
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM agentstate_lease WHERE unit = 'run:r-1' FOR UPDATE")
            held.set()
            let_go.wait(30)
            cursor.execute("ROLLBACK")
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(keep)
        held.wait(30)
        bulks.step(claim)
        waiting = BulkItem.objects.get(bulk_id=bulk, run_key="r-1")
        assert (waiting.outcome, waiting.tries) == ("waiting", 1)
        let_go.set()
    while bulks.step(claim) is not None:
        pass
    assert counted(bulk) == ("done", 3, 0, 0)


def test_what_could_never_be_tried_is_refused_in_the_end(store, monkeypatch):
    create(store, 1)
    bulk = begin(store)
    monkeypatch.setattr(bulks, "STEP_SECONDS", -1.0)
    assert work(steps=20) == 1 + bulking.TRIES

    ((outcome, why),) = outcomes(bulk).values()
    assert (outcome, statuses()["r-0"]) == ("refused", "pending")
    assert "could not begin" in why
    assert counted(bulk) == ("done", 0, 0, 1)


def test_old_bulks_go_and_those_at_work_stay(store, clock):
    create(store, 1)
    old, young = begin(store), None
    work()
    clock.advance(seconds=AGES["bulks"].keep.total_seconds() - 60)
    create(store, 1, first=1)
    young = begin(store)
    clock.advance(seconds=120)
    purge("outcomes of bulks")
    purge("bulks")

    assert list(BulkAction.objects.values_list("id", flat=True)) == [young]
    assert not BulkItem.objects.filter(bulk_id=old).exists()


WORKER = """
import sys
import django
from django.conf import settings

settings.DATABASES["default"]["NAME"] = sys.argv[1]
django.setup()
from agentstate.store import bulks

claim = bulks.claim()
while bulks.step(claim) is not None:
    print("step", flush=True)
"""


@pytest.mark.long
@pytest.mark.many
def test_a_worker_that_is_killed_in_its_middle_is_followed_by_another(store, clock):
    """A process of its own ends by SIGKILL wherever it is: nothing is lost, nothing done twice."""
    create(store, 160)
    bulk = begin(store, by=SENIOR, shown=160)
    name = connection.settings_dict["NAME"]
    kills = 0
    while BulkAction.objects.get(id=bulk).state in bulking.AT_WORK and kills < 5:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, name],
            stdout=subprocess.PIPE,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        for _ in range(2):  # it has begun the next step by the time that this one is told
            worker.stdout.readline()
        worker.kill()
        worker.wait()
        worker.stdout.close()
        kills += 1
        clock.advance(seconds=bulks.CLAIM_SECONDS)
    assert kills >= 3
    work()

    assert counted(bulk) == ("done", 160, 0, 0)
    assert Event.objects.filter(type="run.cancelled").count() == 160
    assert OperatorAction.objects.filter(action="run.cancelled").count() == 160
