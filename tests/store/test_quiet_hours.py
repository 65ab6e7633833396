"""Quiet hours of targets and people: held back, sent later or dropped, and what goes through."""

from datetime import timedelta

import pytest

from agentstate import store as the_store
from agentstate.store import deliveries, targets
from agentstate.store.callers import SYSTEM, Caller
from agentstate.store.commands import (
    ChangeRule,
    ChangeTarget,
    DeleteTarget,
    ResendDelivery,
    SetQuiet,
)
from agentstate.store.errors import Invalid, NotAllowed, NotFound, VersionConflict
from agentstate.store.minutes import TALLY, Tally
from agentstate.store.quiet import DROP, DROPPED_THEN, OVERTAKEN, Quiet
from tests.store.asking import ANA, VIEWER, at_once, results, rows
from tests.store.test_deliveries import end, fire, log, make, try_all

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db, monkeypatch):
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


def hours(clock, **more):
    """Quiet from now on for two hours, by UTC."""
    minute = clock.now.hour * 60 + clock.now.minute
    begins = (minute - 1) % 1_440
    return Quiet(**{"zone": "UTC", "begins": begins, "ends": (begins + 120) % 1_440} | more)


def hush(quiet, whose="target:ops", version=0, by=SYSTEM):
    return the_store.execute(
        SetQuiet(whose=whose, version=version, quiet=quiet, reason="we sleep"), by=by
    )


def warn_only():
    ask = ChangeRule(rule="overdue-runs", version=0, warn=1, alert=None, reason="no haste")
    the_store.execute(ask, by=ANA)


def test_what_is_held_back_is_shown_and_sent_when_they_are_over(store, clock):
    make()
    warn_only()
    quiet = hours(clock)
    hush(quiet)
    fire(store, clock)

    (held,) = deliveries.read()
    assert held.held
    assert held.held_until == quiet.until(clock.now)
    assert targets.find("ops").held == targets.find("ops").waiting == 1
    assert try_all() == []
    end(store, clock)
    clock.advance(seconds=2 * 3_600)
    assert try_all() == ["delivered"]
    assert try_all() == ["delivered"]  # one after the other: first that it began
    assert log() == [("ops", "over", "delivered"), ("ops", "firing", "delivered")]


def test_what_is_at_alert_goes_through_and_ends_what_is_held_back_of_its_rule(store, clock):
    make()
    warn_only()
    hush(hours(clock))
    fire(store, clock)
    the_store.execute(
        ChangeRule(rule="overdue-runs", version=1, warn=None, alert=1, reason="haste"), by=ANA
    )
    from agentstate.store import alerts

    alerts.evaluate_all()

    assert log() == [("ops", "firing", "waiting"), ("ops", "firing", "dropped")]
    assert deliveries.read()[1].answer == OVERTAKEN
    assert try_all() == ["delivered"]
    end(store, clock)  # its end was as grave as it was
    assert try_all() == ["delivered"]


def test_they_drop_what_they_hold_back_and_what_is_at_alert_too_if_they_say_so(store, clock):
    make()
    hush(hours(clock, critical=False, then=DROP))
    fire(store, clock)

    (told,) = deliveries.read()
    assert (told.state, told.answer) == ("dropped", DROPPED_THEN)
    assert try_all() == []


def test_a_persons_hours_count_for_the_targets_that_are_theirs(store, clock):
    make("mine", person="ana")
    make("other")
    warn_only()
    hush(hours(clock), whose="person:ana", by=ANA)
    fire(store, clock)

    states = {d.target: d.held for d in deliveries.read()}
    assert states == {"mine": True, "other": False}
    assert try_all() == ["delivered"]


def test_when_they_are_changed_what_is_held_back_goes_by_what_they_say_now(store, clock):
    make()
    warn_only()
    hush(hours(clock))
    fire(store, clock)
    longer = hours(clock, ends=hours(clock).ends + 60)

    hush(longer, version=1)
    assert deliveries.read()[0].held_until == longer.until(clock.now)
    hush(None, version=2)
    assert try_all() == ["delivered"]
    assert deliveries.read_quiets()["target:ops"].quiet is None


def test_one_that_answers_again_is_not_told_in_its_quiet_hours_but_by_hand(store, clock):
    make()
    warn_only()
    hush(hours(clock))
    fire(store, clock)
    rows("UPDATE agentstate_alerttarget SET failures = 1, failing_since = now() RETURNING 1")
    from agentstate.store.commands import TryTarget

    the_store.execute(TryTarget(name="ops"), by=SYSTEM)
    assert try_all() == ["delivered"]  # the test
    assert try_all() == []
    held = next(d for d in deliveries.read() if d.held)
    the_store.execute(ResendDelivery(delivery=deliveries.read_id(held.id)), by=SYSTEM)
    assert try_all() == ["delivered"]


def test_whose_they_are_to_set_and_once(store, clock):
    make()
    quiet = hours(clock)
    with pytest.raises(NotAllowed):
        hush(quiet, by=ANA)
    with pytest.raises(NotAllowed):
        hush(quiet, whose="person:ana", by=SYSTEM)
    with pytest.raises(NotFound):
        hush(quiet, whose="target:nobody")
    with pytest.raises(Invalid):
        hush(quiet, whose="team:all")
    assert hush(quiet, whose=VIEWER.principal, by=VIEWER).version == 1
    done = at_once(4, lambda _: hush(quiet))
    assert len(results(done, VersionConflict)) == 3
    actions = rows(
        "SELECT action, object FROM agentstate_operatoraction WHERE action LIKE 'quiet%%'"
    )
    assert (
        sorted(actions) == [("quiet-hours.set", "person:vi"), ("quiet-hours.set", "target:ops")]
        or len(actions) == 2
    )
    the_store.execute(DeleteTarget(name="ops", version=1, reason="gone"), by=SYSTEM)
    assert "target:ops" not in deliveries.read_quiets()


def test_a_target_is_given_to_a_person(store, clock):
    make()
    changed = ChangeTarget(name="ops", version=1, person="ana", reason="hers")
    the_store.execute(changed, by=SYSTEM)

    assert targets.find("ops").person == "ana"
    assert Caller(kind="person", name="ana", scopes=frozenset()).principal == "person:ana"
