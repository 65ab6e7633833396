"""Commands that come at once go in one transaction, and none suffers for another."""

import time
from dataclasses import replace
from importlib import import_module
from threading import Event as Signal
from threading import Thread

import pytest
from django.db import connection, transaction

from agentstate import store as the_store
from agentstate.store import audit, lanes
from agentstate.store.asks import Ask
from agentstate.store.callers import Circumstances
from agentstate.store.commands import Append, Appended, Transition
from agentstate.store.errors import NotFound, Unavailable
from agentstate.store.lanes import Lane
from tests.store.asking import FLEET, Asking, at_once, event, results, rows
from tests.store.waiting import wait_for


def asked(run="42"):
    return Ask(command=Append(run=run, events=(event(),)), by=FLEET)


class Busy:
    """A lane whose first command stays at work until it is let go, so that others gather."""

    def __init__(self):
        self.let_go, self.batches = Signal(), []
        self.lane = Lane(together=self.together, alone=self.alone)

    def together(self, asks):
        self.batches.append(len(asks))
        if len(self.batches) == 1:
            self.let_go.wait(30)
        return [("together", ask) for ask in asks]

    def alone(self, ask):
        return ("alone", ask)

    def bring(self, count, **changes):
        outcomes = [None] * count
        asks = [asked() for _ in range(count)]

        def one(n):
            outcomes[n] = self.lane.submit(asks[n])

        threads = [Thread(target=one, args=(n,)) for n in range(count)]
        threads[0].start()
        wait_for(lambda: self.batches)
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(self.lane._waiting) == count - 1)
        self.let_go.set()
        for thread in threads:
            thread.join(30)
        return asks, outcomes


def test_what_gathered_meanwhile_is_one_batch_and_each_gets_its_own_outcome():
    busy = Busy()
    asks, outcomes = busy.bring(20)
    assert busy.batches == [1, 19]
    assert busy.lane.sizes.read() == ([1, 0, 0, 0, 1, 0, 0, 0, 0], 20)
    assert [ask for _, ask in outcomes] == asks


def test_a_batch_has_at_most_200_commands_and_4_mib(monkeypatch):
    monkeypatch.setattr(lanes, "BATCH_COMMANDS", 5)
    busy = Busy()
    busy.bring(12)
    assert busy.batches == [1, 5, 5, 1]
    monkeypatch.setattr(lanes, "BATCH_BYTES", lanes.weight(asked().command) * 3)
    busy = Busy()
    busy.bring(8)
    assert max(busy.batches) == 3


@pytest.mark.parametrize("how", ["rolled back", "raised"])
def test_when_a_batch_fails_each_command_is_done_by_itself_in_its_own_thread(how):
    busy = Busy()

    def together(asks):
        busy.together(asks)
        if how == "raised":
            raise RuntimeError("a bug")

    busy.lane._together = together
    asks, outcomes = busy.bring(6)
    assert outcomes == [("alone", ask) for ask in asks]


def test_leadership_is_handed_on_when_the_leader_fails():
    lane = Lane(together=lambda asks: 1 / 0, alone=lambda ask: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            lane.submit(asked())


def test_whoever_waits_too_long_for_a_turn_is_told_and_leaves_the_queue(monkeypatch):
    monkeypatch.setattr(lanes, "LONGEST_WAIT_SECONDS", 0.05)
    busy = Busy()
    leader = Thread(target=busy.lane.submit, args=(asked(),))
    leader.start()
    wait_for(lambda: busy.batches)
    assert isinstance(busy.lane.submit(asked()), Unavailable)
    busy.let_go.set()
    leader.join(30)
    assert busy.batches == [1]


def test_one_whose_time_to_begin_is_over_leaves_the_queue_and_is_not_begun():
    busy = Busy()
    leader = Thread(target=busy.lane.submit, args=(asked(),))
    leader.start()
    wait_for(lambda: busy.batches)
    late = replace(asked(), under=Circumstances(begin_by=time.monotonic() + 0.05))
    assert isinstance(busy.lane.submit(late), Unavailable)
    busy.let_go.set()
    leader.join(30)
    assert busy.batches == [1]


class LateTurn(lanes._Turn):
    """One whose time is over at the very moment when it is told: too late to be taken out."""

    __slots__ = ()

    def __init__(self, ask):
        super().__init__(ask)
        self.ready = LateSignal()


class LateSignal(Signal):
    asked = 0

    def wait(self, timeout=None):
        self.asked += 1
        told = super().wait(30)
        return told and self.asked > 1


def bring_late(busy, monkeypatch, *, before=0):
    """One that gives up just when it is told, after a first that is at work; what it gets."""
    got = []
    leader = Thread(target=busy.lane.submit, args=(asked(),))
    leader.start()
    wait_for(lambda: busy.batches)
    others = [Thread(target=busy.lane.submit, args=(asked(),)) for _ in range(before)]
    for other in others:
        other.start()
    wait_for(lambda: len(busy.lane._waiting) == before)
    monkeypatch.setattr(lanes, "_Turn", LateTurn)
    late = Thread(target=lambda: got.append(busy.lane.submit(asked())))
    late.start()
    wait_for(lambda: len(busy.lane._waiting) == before + 1)
    monkeypatch.undo()
    busy.let_go.set()
    for thread in (leader, *others, late):
        thread.join(30)
    return got[0]


def test_one_that_is_handed_the_lead_when_its_time_is_over_hands_it_on(monkeypatch):
    busy = Busy()
    assert isinstance(bring_late(busy, monkeypatch), Unavailable)
    assert busy.batches == [1]
    last = asked()
    assert busy.lane.submit(last) == ("together", last)


def test_one_that_went_along_when_its_time_was_over_is_told_what_came_of_it(monkeypatch):
    busy = Busy()
    assert bring_late(busy, monkeypatch, before=1)[0] == "together"
    assert busy.batches == [1, 2]


def test_one_whose_batch_was_rolled_back_when_its_time_was_over_is_done_by_itself(monkeypatch):
    busy = Busy()
    real = busy.lane._together
    busy.lane._together = lambda asks: None if len(asks) > 1 else real(asks)
    assert bring_late(busy, monkeypatch, before=1)[0] == "alone"


def test_sixty_four_writers_on_one_run_are_coalesced_without_an_error(store):
    store.create("42")
    began = rows("SELECT pg_current_xact_id()::text::bigint")[0][0]
    outcomes = at_once(64, lambda n: [store.append("42") for _ in range(5)])
    used = rows("SELECT pg_current_xact_id()::text::bigint")[0][0] - began

    numbers = sorted(done.first_seq for each in outcomes for done in each)
    assert numbers == list(range(2, 322))
    assert used < 200
    assert audit.verify() == []


def test_a_refused_command_spoils_no_other_of_its_batch(store):
    store.create("42")
    outcomes = at_once(20, lambda n: store.append("42" if n % 2 else f"nope-{n}"))
    assert len(results(outcomes, Appended)) == 10
    assert len(results(outcomes, NotFound)) == 10
    assert store.run("42").last_seq == 11


def test_a_run_that_somebody_keeps_locked_does_not_hold_up_the_others(store):
    for key in ("stuck", "a", "b"):
        store.create(key)
    with transaction.atomic():
        rows("SELECT FROM agentstate_run WHERE key = 'stuck' FOR UPDATE")
        done, waiting = [], []

        def write(key):
            try:
                (waiting if key == "stuck" else done).append(Asking().append(key))
            finally:
                connection.close()

        threads = [Thread(target=write, args=(key,)) for key in ("stuck", "a", "stuck", "b")]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(done) == 2)
        assert waiting == []
    for thread in threads:
        thread.join(30)
    assert len(waiting) == 2
    assert store.run("stuck").last_seq == 3


def test_an_exception_in_a_rule_fails_that_command_alone(store, monkeypatch, caplog):
    store.create("42")
    module = import_module("agentstate.store.execute")
    real = module.decide

    def broken(command, draft, **more):
        if isinstance(command, Transition):
            raise ZeroDivisionError
        return real(command, draft, **more)

    monkeypatch.setattr(module, "decide", broken)
    bad = Ask(command=Transition(run="42", to="running"), by=FLEET)
    good, failed = the_store.execute_all([asked(), bad])
    assert good.last_seq == 2
    assert isinstance(failed, ZeroDivisionError)
    assert store.run("42").last_seq == 2
