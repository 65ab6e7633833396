"""What is repeated is answered as the first time, whichever key repeats it, if it may write now.

Own replay holds for the current token whoever wrote it, and on a run that was never leased.
"""

import pytest

from agentstate.store import Caller
from agentstate.store.commands import CommitReservation, NewBudget, Patch, Reserve
from agentstate.store.errors import AlreadyTerminal, StaleFence
from tests.store.asking import Asking, event

OTHER = Caller(kind="key", name="another", scopes=frozenset({"read", "write"}))


@pytest.fixture
def other(store):
    return Asking(by=OTHER)


def test_the_next_holder_repeats_an_event_id_with_another_key(store, other, clock):
    store.create("42")
    first = store.hold("42", "w-1")
    stored = store.append("42", [event(id="step-1")], fence=first.token)
    clock.advance(seconds=61)
    second = other.hold("42", "w-2")

    again = other.append("42", [event(id="step-1")], fence=second.token)

    assert (again.replayed, again.first_seq) == (True, stored.first_seq)
    with pytest.raises(StaleFence):
        other.append("42", [event(id="step-1")], fence=first.token)


def test_an_event_id_of_a_run_that_was_never_leased_is_known_to_every_key(store, other):
    store.create("42")
    store.append("42", [event(id="step-1")])

    assert other.append("42", [event(id="step-1")]).replayed


def test_the_next_holder_repeats_a_change_and_a_reservation_with_another_key(store, other, clock):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    first = store.hold("42", "w-1")
    change = Patch(run="42", add={"n": 1}, id="c-1", fence=first.token)
    hold = Reserve(
        run="42", budget="budget", amount=5, id="h-1", fence=first.token, ttl_seconds=3_600
    )
    version = store.ask(change).version
    clock.advance(seconds=61)
    store.ask(hold)
    second = other.hold("42", "w-2")

    again = other.ask(Patch(run="42", add={"n": 9}, id="c-1", fence=second.token))
    assert (again.replayed, again.version) == (True, version)
    held = Reserve(run="42", budget="budget", amount=5, id="h-1", fence=second.token)
    assert other.ask(held).replayed


def test_who_was_not_given_the_token_that_ended_a_run_adds_nothing_late(store, other):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    lease = store.hold("42")
    store.ask(Reserve(run="42", budget="budget", amount=5, id="h-1", fence=lease.token))
    store.move("42", "completed", result={"ok": 1}, fence=lease.token)
    late = CommitReservation(run="42", budget="budget", id="h-1", amount=5, fence=lease.token)

    with pytest.raises(StaleFence):
        other.ask(late)
    with pytest.raises(StaleFence):
        other.move("42", "completed", result={"ok": 1}, fence=lease.token)
    assert store.ask(late).state == "late"
    assert store.move("42", "completed", result={"ok": 1}, fence=lease.token).replayed


def test_the_same_end_of_a_run_that_was_never_leased_is_a_replay(store, other):
    store.create("42", status="running")
    done = store.move("42", "completed", result={"ok": 1})

    again = other.move("42", "completed", result={"ok": 1})
    assert (again.replayed, again.version) == (True, done.version)
    with pytest.raises(AlreadyTerminal):
        store.move("42", "completed", result={"ok": 2})
    with pytest.raises(AlreadyTerminal):
        store.move("42", "failed")
