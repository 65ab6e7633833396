"""Money is held before it is spent, settled once, and comes back when its worker is dead."""

import pytest

from agentstate import store as the_store
from agentstate.store import audit
from agentstate.store.commands import (
    ChangeCap,
    CommitReservation,
    CreateBudget,
    DropDeadHolds,
    NewBudget,
    ReleaseReservation,
    Reserve,
    Reserved,
)
from agentstate.store.errors import (
    BudgetExhausted,
    CapBelowUse,
    EventIdReuse,
    Exists,
    FenceRequired,
    NotAllowed,
    NotFound,
    ReservationSettled,
    StaleFence,
    VersionConflict,
)
from tests.store.asking import ANA, SENIOR, at_once, results, rows


class Money:
    """One budget of one run, or with run None a shared one."""

    def __init__(self, store, run="42", budget="budget"):
        self.store, self.run, self.budget = store, run, budget

    def reserve(self, amount, id="h1", ttl_seconds=60, fence=None):
        return self.store.ask(
            Reserve(
                run=self.run, budget=self.budget, amount=amount, id=id, ttl_seconds=ttl_seconds,
                fence=fence,
            )
        )  # fmt: skip

    def commit(self, amount, id="h1", fence=None):
        return self.store.ask(
            CommitReservation(run=self.run, budget=self.budget, id=id, amount=amount, fence=fence)
        )

    def release(self, id="h1", fence=None):
        return self.store.ask(
            ReleaseReservation(run=self.run, budget=self.budget, id=id, fence=fence)
        )

    def sums(self):
        return rows(
            "SELECT cap, reserved, spent, overdrawn FROM agentstate_budget WHERE name = %s",
            self.budget,
        )[0]

    def ledger(self):
        return rows(
            "SELECT kind, amount, spent, reserved FROM agentstate_budgetentry WHERE budget_id ="
            " (SELECT id FROM agentstate_budget WHERE name = %s) ORDER BY n OFFSET 1",
            self.budget,
        )


@pytest.fixture
def money(store, clock):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    yield Money(store)
    assert audit.verify() == []


def test_what_was_really_used_is_recorded_and_the_rest_given_back(money):
    held = money.reserve(60)
    assert (held.reserved, held.left, held.expires_in_ms) == (60, 40, 60_000)
    done = money.commit(45)

    assert (done.state, done.spent, done.reserved, done.left) == ("committed", 45, 0, 55)
    assert money.ledger() == [("reserve", 60, 0, 60), ("commit", 45, 45, -60)]


def test_a_hold_counts_against_the_cap(money):
    money.reserve(60)
    with pytest.raises(BudgetExhausted) as refused:
        money.reserve(41, id="h2")
    assert refused.value.facts["reserved"] == 60
    money.release()
    money.reserve(100, id="h3")


def test_repeating_is_harmless_and_another_outcome_is_refused(money):
    money.reserve(60)
    assert money.reserve(60).replayed
    with pytest.raises(EventIdReuse):
        money.reserve(61)
    money.commit(45)
    assert money.commit(45).replayed
    with pytest.raises(ReservationSettled):
        money.commit(46)
    with pytest.raises(ReservationSettled):
        money.release()
    with pytest.raises(ReservationSettled):
        money.reserve(60)
    with pytest.raises(NotFound):
        money.commit(1, id="never")
    assert money.sums() == (100, 0, 45, False)


def test_more_than_was_held_is_recorded_in_full_and_stops_everything_until_the_cap_allows(money):
    money.reserve(60)
    done = money.commit(130)

    assert (done.spent, done.overdrawn) == (130, True)
    assert [(o.budget, o.used, o.entry) for o in audit.overdrafts()] == [("42/budget", 130, 3)]
    with pytest.raises(BudgetExhausted):
        money.store.spend("42", 1)
    raised = money.store.as_caller(SENIOR).ask(
        ChangeCap(run="42", budget="budget", cap=140, reason="approved", if_match=done.version)
    )
    assert not raised.overdrawn
    money.store.spend("42", 10)


def test_a_hold_dies_with_its_ttl_and_gives_room_to_whoever_needs_it(money, clock):
    money.reserve(100, ttl_seconds=10)
    clock.advance(seconds=9)
    with pytest.raises(BudgetExhausted):
        money.store.spend("42", 1)
    clock.advance(seconds=1)

    money.store.spend("42", 100)

    assert money.ledger() == [
        ("reserve", 100, 0, 100),
        ("drop", 100, 0, -100),
        ("spend", 100, 100, 0),
    ]


def test_a_dropped_holds_late_commit_is_recorded_as_late(money, clock):
    money.reserve(100, ttl_seconds=10)
    clock.advance(seconds=10)
    assert the_store.execute(DropDeadHolds(), by=the_store.SWEEP).holds == 1
    assert the_store.execute(DropDeadHolds(), by=the_store.SWEEP).holds == 0

    done = money.commit(30)

    assert (done.state, done.spent, done.reserved) == ("late", 30, 0)
    assert money.commit(30).replayed


def test_an_overtaken_worker_settles_nothing_and_its_hold_is_given_back(store, clock, money):
    first = store.hold("42", "w-1")
    money.reserve(80, fence=first.token, ttl_seconds=3_600)
    clock.advance(seconds=61)
    second = store.acquire("run:42", "w-2")
    for late in (lambda: money.commit(70, fence=first.token), lambda: money.reserve(1, "h2")):
        with pytest.raises((StaleFence, FenceRequired)):
            late()

    money.reserve(90, id="h3", fence=second.token)

    assert money.sums() == (100, 90, 0, False)
    assert store.refusals() == ["stale-fence", "fence-required"]


def test_the_end_of_a_run_gives_its_holds_back_and_takes_what_was_spent_until_then(
    store, clock, money
):
    lease = store.hold("42")
    money.reserve(80, fence=lease.token)
    store.move("42", "completed", fence=lease.token)
    assert money.sums() == (100, 0, 0, False)

    assert money.commit(50, fence=lease.token).state == "late"
    with pytest.raises(StaleFence):
        money.commit(50, id="h1", fence=lease.token + 1)
    assert money.sums() == (100, 0, 50, False)


def test_a_charge_is_admitted_by_all_levels_or_by_none(store, clock):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="tenant", cap=100)))
    store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=80, parent="tenant")))
    for key in ("a", "b"):
        store.create(key, budgets=(NewBudget(name="budget", cap=70, parent="fleet"),))
    store.spend("a", 50)
    with pytest.raises(BudgetExhausted) as refused:
        store.spend("b", 40)

    assert refused.value.facts["budget"] == "fleet"
    assert refused.value.facts["spent"] == 50
    assert rows("SELECT name, spent FROM agentstate_budget ORDER BY depth, spent") == [
        ("tenant", 50), ("fleet", 50), ("budget", 0), ("budget", 50)]  # fmt: skip
    assert audit.verify() == []


def test_what_a_dead_worker_holds_of_a_shared_budget_makes_room_for_another_run(store, clock):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=100)))
    for key in ("a", "b"):
        store.create(key, budgets=(NewBudget(name="budget", cap=100, parent="fleet"),))
    Money(store, "a").reserve(90, ttl_seconds=10)
    clock.advance(seconds=10)

    store.spend("b", 95)

    assert rows("SELECT reserved, spent FROM agentstate_budget ORDER BY depth DESC, spent") == [
        (0, 0), (0, 95), (0, 95)]  # fmt: skip
    assert audit.verify() == []


def test_a_shared_budget_can_be_charged_itself_and_a_charge_id_holds_there_too(store):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=100)))
    with pytest.raises(Exists):
        store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=1)))
    store.spend(None, 10, budget="fleet", id="c1")
    assert store.spend(None, 10, budget="fleet", id="c1").replayed
    fleet = Money(store, None, "fleet")
    fleet.reserve(20)
    fleet.commit(15)
    assert fleet.sums() == (100, 0, 25, False)


def test_a_cap_is_changed_by_who_may_and_against_the_version_that_was_seen(store, money):
    store.spend("42", 50)

    def change(cap, by=SENIOR, if_match=2):
        return store.as_caller(by).ask(
            ChangeCap(run="42", budget="budget", cap=cap, reason="more", if_match=if_match)
        )

    with pytest.raises(NotAllowed):
        change(200, by=ANA)
    with pytest.raises(CapBelowUse):
        change(49)
    assert change(50).left == 0
    with pytest.raises(VersionConflict):
        change(200)
    assert rows("SELECT actor, action, object, reason FROM agentstate_operatoraction") == [
        ("person:bo", "budget.cap-changed", "42/budget", "more")
    ]


def test_reservations_at_once_never_pass_the_cap(store):
    store.create("42", budgets=(NewBudget(name="budget", cap=37),))
    outcomes = at_once(50, lambda n: Money(store).reserve(1, id=f"h{n}"))
    assert len(results(outcomes, Reserved)) == 37
    assert rows("SELECT reserved FROM agentstate_budget") == [(37,)]
    assert audit.verify() == []


def test_eight_charge_a_new_budget_at_once(store):
    """cap 1.00 in cents, charges of 40: two are admitted, whoever comes first."""
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    outcomes = at_once(8, lambda n: store.spend("42", 40))
    assert len(results(outcomes, BudgetExhausted)) == 6
    assert rows("SELECT spent FROM agentstate_budget") == [(80,)]
