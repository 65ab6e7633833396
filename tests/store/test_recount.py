"""What a killed process had counted and not written is counted again from events and refusals."""

from datetime import timedelta

import pytest
from django.core.management import call_command

from agentstate.store import minutes, partitions, recount, retention
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import (
    Append,
    Batch,
    Charge,
    CreateRun,
    ImportedEvent,
    ImportRun,
    NewBudget,
)
from agentstate.store.errors import (
    BatchRefused,
    BudgetExhausted,
    FenceRequired,
    LeaseHeld,
    NotAllowed,
    SeqConflict,
    StaleFence,
)
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import RawJSON
from tests.store.asking import VIEWER, at_once, event, rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db, monkeypatch):
    """And nothing written but by the test."""
    monkeypatch.setattr(minutes, "PAUSE_SECONDS", float("inf"))
    TALLY.forget()


def work(store, clock):
    """A bit of everything that writes events or is refused, over three minutes."""
    store.create("42", budgets=(NewBudget(name="budget", cap=5),))
    store.create("43", events=(event(), event()))
    store.ask(CreateRun(task="without a key"))
    lease = store.hold("42")
    clock.advance(seconds=40)
    for refused, ask in (
        (SeqConflict, lambda: store.append("42", expected_seq=0, fence=lease.token)),
        (FenceRequired, lambda: store.append("42")),
        (StaleFence, lambda: store.append("42", fence=lease.token + 9)),
        (LeaseHeld, lambda: store.acquire("run:42", "w-2")),
        (BudgetExhausted, lambda: store.spend("42", 9, fence=lease.token)),
        (NotAllowed, lambda: store.as_caller(VIEWER).move("42", "paused")),
        (BatchRefused, lambda: batch(store, "42", "43")),
    ):
        for _ in range(2):
            with pytest.raises(refused):
                ask()
    for _ in range(2):
        with pytest.raises(BudgetExhausted):  # answered from its record the second time
            store.ask(_charging(lease.token), key="k")
        batch(store, "43", "43", fence=None)
    clock.advance(seconds=61)
    store.claim(limit=5)
    clock.advance(seconds=61)
    store.sweep()


def _charging(token):
    charge = Charge(budget="budget", amount=9)
    return Append(run="42", events=(event(),), spend=(charge,), fence=token)


def batch(store, *runs, **more):
    operations = tuple(
        Append(run=run, events=(event(),), expected_seq=None, **more) for run in runs
    )
    return store.ask(Batch(operations=operations))


def counted():
    """What can be made again of the minutes."""
    events = rows(
        "SELECT minute, run_key, sum(events)::int FROM agentstate_minute GROUP BY 1, 2"
        " HAVING sum(events) > 0 ORDER BY 1, 2"
    )
    refusals = rows(
        "SELECT minute, run_key, operation, worker, outcome, count FROM agentstate_minute"
        " WHERE outcome NOT IN ('ok', 'lease-held') ORDER BY 1, 2, 3, 4, 5"
    )
    return events, refusals


def test_minutes_and_rows_agree_whatever_was_asked(store, clock):
    work(store, clock)
    TALLY.write()
    clock.advance(minutes=3)

    assert recount.difference() == []
    assert recount.rebuild() == 0


def test_what_was_lost_is_counted_exactly_as_it_would_have_been(store, clock):
    work(store, clock)
    TALLY.write()
    whole = counted()
    rows("DELETE FROM agentstate_minute")
    clock.advance(minutes=3)
    lost = recount.difference()
    assert {wrong.counted for wrong in lost} == {0}

    assert recount.rebuild() == len(lost) > 0
    assert counted() == whole
    assert recount.rebuild() == 0
    assert counted() == whole


def test_a_part_that_was_lost_and_one_that_came_twice_are_mended(store, clock):
    work(store, clock)
    TALLY.write()
    whole = counted()
    rows("DELETE FROM agentstate_minute WHERE operation = 'create'")
    rows("UPDATE agentstate_minute SET count = count * 2 WHERE outcome = 'stale-fence'")
    rows("UPDATE agentstate_minute SET events = events * 2 WHERE operation = 'batch'")
    clock.advance(minutes=3)
    recount.rebuild()
    assert counted() == whole


def test_one_run_alone_is_counted_again(store, clock):
    work(store, clock)
    clock.advance(minutes=3)
    TALLY.forget()
    assert {wrong.run for wrong in recount.difference(run="43")} == {"43"}
    recount.rebuild(run="43")
    assert recount.difference(run="43") == []
    assert recount.difference() != []


def test_a_tally_that_comes_late_is_found_by_the_next_rebuild(store, clock):
    store.create("42", events=(event(),))
    clock.advance(minutes=3)
    recount.rebuild()
    TALLY.write()
    assert [(w.told, w.counted) for w in recount.difference()] == [(2, 4)]
    recount.rebuild()
    assert recount.difference() == []


def test_the_current_minute_and_the_one_before_are_left_alone(store, clock):
    store.create("42")
    TALLY.forget()
    clock.advance(seconds=119)
    assert recount.difference() == []
    clock.advance(seconds=1)
    assert len(recount.difference()) == 1


def test_writers_go_on_while_it_counts(store, clock):
    work(store, clock)
    TALLY.forget()
    clock.advance(minutes=3)
    store.create("44")

    def one(number):
        return recount.rebuild() if number < 2 else store.append("44").last_seq

    outcomes = at_once(6, one)
    assert all(isinstance(outcome, int) for outcome in outcomes)
    TALLY.write()
    clock.advance(minutes=2)
    assert recount.difference() == []


def test_an_imported_history_is_counted_in_its_own_minutes(store, clock):
    at = clock.now - timedelta(hours=2)
    created = ImportedEvent(
        seq=1, version=1, type="run.created", origin="store", at=at,
        data=RawJSON('{"status": "pending"}'),
    )  # fmt: skip
    store.as_caller(SYSTEM).ask(
        ImportRun(key="old", task="x", status="pending", created_at=at, events=(created,))
    )
    TALLY.write()
    assert rows("SELECT run_key, events FROM agentstate_minute WHERE minute = %s", at)[0] == (
        "old",
        1,
    )
    clock.advance(minutes=3)
    assert recount.difference() == []


def test_a_run_that_went_with_its_week_changes_no_minute(store, clock):
    clock.set(clock.now - timedelta(days=365))
    partitions.ensure_ahead()
    store.create("42", retain_seconds=60)
    with pytest.raises(SeqConflict):
        store.append("42", expected_seq=0)
    store.move("42", "cancelled")
    TALLY.write()
    clock.advance(days=8)
    before = counted()
    while retention.drop_oldest_week():
        pass
    store.create("42")
    TALLY.write()
    clock.advance(minutes=3)
    assert recount.rebuild() == 0
    assert counted()[1] == before[1] != []
    partitions.ensure_ahead()


def test_verify_notes_it_without_failing_and_counts_again_when_asked(store, clock, capsys):
    store.create("42")
    TALLY.forget()
    clock.advance(minutes=3)
    call_command("verify")
    out = capsys.readouterr().out
    assert "Note: 1 counts per minute differ" in out
    assert "2026-03-02T12:00 42: events: 0 instead of 1" in out
    call_command("verify", repair_projections=True)
    assert "1 rows were made again" in capsys.readouterr().out
    call_command("verify")
    assert "Note" not in capsys.readouterr().out
