"""A hot shared budget in slots: it refuses nothing while it has room, and admits nothing beyond."""

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from django.db import connection

from agentstate import store as the_store
from agentstate.store import audit, reads, repair, splits
from agentstate.store.asks import Ask
from agentstate.store.commands import (
    Batch,
    BudgetState,
    ChangeCap,
    Charge,
    CommitReservation,
    CreateBudget,
    DropDeadHolds,
    NewBudget,
    ReleaseReservation,
    Reserve,
    Reserved,
    Settled,
    Spend,
    Spent,
    SplitBudget,
)
from agentstate.store.errors import (
    BudgetExhausted,
    CapBelowUse,
    EventIdReuse,
    Exists,
    Invalid,
    NotAllowed,
    VersionConflict,
)
from agentstate.store.execute import execute_all
from tests.store.asking import ANA, FLEET, SENIOR, at_once, results, rows
from tests.store.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent


class Fleet:
    """The shared budget `fleet`, asked from slot to slot."""

    def __init__(self, store):
        self.store, self.slot = store, 0

    def create(self, cap=100, slots=4):
        budget = NewBudget(name="fleet", cap=cap, slots=slots)
        return self.store.ask(CreateBudget(run=None, budget=budget))

    def spend(self, amount, run=None, budget="fleet", id=None):
        return self.store.ask(Spend(run=run, charge=Charge(budget=budget, amount=amount, id=id)))

    def reserve(self, amount, id="h1", run=None, budget="fleet", ttl_seconds=60):
        return self.store.ask(
            Reserve(run=run, budget=budget, amount=amount, id=id, ttl_seconds=ttl_seconds)
        )

    def commit(self, amount, id="h1", run=None, budget="fleet"):
        return self.store.ask(CommitReservation(run=run, budget=budget, id=id, amount=amount))

    def release(self, id="h1", run=None, budget="fleet"):
        return self.store.ask(ReleaseReservation(run=run, budget=budget, id=id))

    def cap(self, cap, if_match=None, by=SENIOR):
        ask = ChangeCap(run=None, budget="fleet", cap=cap, reason="more", if_match=if_match)
        return self.store.as_caller(by).ask(ask)

    def split(self, slots, if_match=None, by=SENIOR):
        ask = SplitBudget(budget="fleet", slots=slots, reason="hot", if_match=if_match)
        return self.store.as_caller(by).ask(ask)

    def view(self):
        return reads.budget(run_key=None, name="fleet")

    def sums(self):
        """Cap, reserved and spent of the whole, and whether it is overdrawn."""
        found = self.view().budget
        return found.cap, found.reserved, found.spent, found.overdrawn

    def used(self):
        """What each slot has, by number."""
        return [slot.spent + slot.reserved for slot in self.view().slots]

    def shifts(self):
        ((count,),) = rows("SELECT count(*) FROM agentstate_budgetentry WHERE kind = 'shift'")
        return count


@pytest.fixture
def fleet(store, clock, monkeypatch):
    """`fleet.slot = n` has all that follows charge slot n."""
    fleet = Fleet(store)
    monkeypatch.setattr(splits, "slot_number", lambda: fleet.slot)
    yield fleet
    assert audit.verify() == []


@pytest.fixture
def each_its_own(store, monkeypatch):
    """Every thread charges a slot of its own, as processes do, and asks on its own connection."""
    numbers = {}

    def number():
        return numbers.setdefault(threading.get_ident(), len(numbers))

    monkeypatch.setattr(splits, "slot_number", number)
    yield Fleet(store)
    assert audit.verify() == []


def alone(command, by=FLEET):
    """Without the lane, in which commands that come at once would go as one."""
    (outcome,) = execute_all([Ask(command=command, by=by)])
    return outcome


def spending(amount, id=None, run=None, budget="fleet"):
    return Spend(run=run, charge=Charge(budget=budget, amount=amount, id=id))


def test_a_charge_goes_to_one_slot_and_everybody_sees_the_whole(fleet):
    fleet.create(cap=100, slots=4)
    first = fleet.spend(10)
    fleet.slot = 2
    second = fleet.spend(5)

    assert (first.slot, first.left, first.entry) == (0, 90, 3)
    assert (second.slot, second.spent, second.left, second.cap) == (2, 15, 85, 100)
    assert second.version == fleet.view().budget.version == 1
    assert fleet.used() == [10, 0, 5, 0]
    assert fleet.sums() == (100, 0, 15, False)
    assert [v.budget.name for v in reads.shared_budgets(limit=10).items] == ["fleet"]


def test_an_amount_larger_than_any_slots_room_is_admitted_while_the_whole_has_it(fleet):
    fleet.create(cap=100, slots=4)
    assert fleet.spend(97).left == 3
    with pytest.raises(BudgetExhausted) as refused:
        fleet.spend(4)
    facts, current = refused.value.facts, refused.value.current
    assert [facts[n] for n in ("budget", "cap", "spent", "reserved", "asked")] == [
        "fleet", 100, 97, 0, 4]  # fmt: skip
    assert (current["budget"], current["left"], current["version"]) == ("fleet", 3, 1)
    assert rows("SELECT budget, code FROM agentstate_refusal") == [("fleet", "budget-exhausted")]
    for slot in range(3):
        fleet.slot = slot
        fleet.spend(1)
    assert fleet.sums() == (100, 0, 100, False)


@pytest.mark.long
@pytest.mark.many
def test_caps_move_rarely_while_one_slot_takes_everything(fleet):
    """The slot that asks gets half of what is left: so it asks about as often as 100 halves."""
    fleet.create(cap=800, slots=8)
    before = fleet.shifts()
    for _ in range(800):
        fleet.spend(1)
    with pytest.raises(BudgetExhausted):
        fleet.spend(1)
    assert fleet.sums() == (800, 0, 800, False)
    assert fleet.shifts() - before < 8 * 12


def test_levels_below_are_charged_with_their_slot_and_all_admit_or_none(fleet):
    fleet.create(cap=100, slots=4)
    team = NewBudget(name="team", cap=60, parent="fleet")
    fleet.store.ask(CreateBudget(run=None, budget=team))
    for key in ("a", "b"):
        fleet.store.create(key, budgets=(NewBudget(name="budget", cap=50, parent="team"),))
    fleet.slot = 3
    done = fleet.spend(40, run="a", budget="budget")
    assert (done.budget, done.spent, done.left, done.slot) == ("budget", 40, 10, None)
    with pytest.raises(BudgetExhausted) as refused:
        fleet.spend(30, run="b", budget="budget")
    assert refused.value.facts["budget"] == "team"
    fleet.cap(45)
    with pytest.raises(BudgetExhausted) as refused:
        fleet.spend(6, run="a", budget="budget")
    assert (refused.value.facts["budget"], refused.value.facts["cap"]) == ("fleet", 45)
    fleet.spend(5, run="b", budget="budget")
    assert fleet.used() == [0, 0, 0, 45]


def test_a_hold_is_settled_in_its_own_slot_whoever_settles_it(fleet):
    fleet.create(cap=100, slots=4)
    fleet.reserve(20)
    fleet.slot = 1
    fleet.reserve(10, id="h2")
    fleet.slot = 3

    done = fleet.commit(15)
    assert (done.spent, done.reserved, done.left) == (15, 10, 75)
    assert fleet.used() == [15, 10, 0, 0]
    assert fleet.release("h2").reserved == 0
    assert fleet.release("h2").replayed
    assert fleet.commit(15).replayed
    assert fleet.used() == [15, 0, 0, 0]


def test_ids_are_known_whichever_slot_they_came_by(fleet):
    fleet.create(cap=100, slots=4)
    fleet.spend(1, id="before")
    first = fleet.spend(10, id="c1")
    fleet.reserve(10)
    fleet.slot = 2
    again = fleet.spend(10, id="c1")
    assert again.replayed
    assert (again.entry, again.slot) == (first.entry, 0)
    assert fleet.reserve(10).replayed
    with pytest.raises(EventIdReuse):
        fleet.spend(11, id="c1")
    with pytest.raises(EventIdReuse):
        fleet.reserve(11)
    assert fleet.sums() == (100, 10, 11, False)


def test_more_than_was_held_takes_room_from_other_slots(fleet):
    fleet.create(cap=100, slots=4)
    fleet.reserve(20)
    done = fleet.commit(90)
    assert (done.spent, done.left, done.overdrawn) == (90, 10, False)
    assert audit.overdrafts() == []
    fleet.slot = 1
    fleet.spend(10)


def test_an_overdraft_is_recorded_in_full_and_stops_every_slot_until_the_cap_allows(fleet):
    fleet.create(cap=100, slots=4)
    fleet.reserve(50)
    fleet.slot = 1
    fleet.reserve(20, id="h2")
    fleet.slot = 2
    done = fleet.commit(130)

    assert (done.spent, done.reserved, done.left, done.overdrawn) == (130, 20, 0, True)
    assert [(o.budget, o.cap, o.used) for o in audit.overdrafts()] == [("fleet", 100, 150)]
    # Given back while it is over: that makes no room in any slot.
    assert fleet.release("h2").overdrawn
    for slot in range(4):
        fleet.slot = slot
        with pytest.raises(BudgetExhausted) as refused:
            fleet.spend(1)
        assert (refused.value.facts["spent"], refused.value.facts["cap"]) == (130, 100)
    assert fleet.cap(120).overdrawn
    with pytest.raises(CapBelowUse):
        fleet.cap(119)
    raised = fleet.cap(140)
    assert (raised.overdrawn, raised.left) == (False, 10)
    fleet.spend(10)
    assert audit.overdrafts() == []


def test_what_is_given_back_can_end_an_overdraft(fleet):
    fleet.create(cap=100, slots=2)
    fleet.reserve(40)
    fleet.slot = 1
    fleet.reserve(40, id="h2")
    fleet.commit(70, id="h1")
    assert fleet.sums() == (100, 40, 70, True)
    assert not fleet.release("h2").overdrawn
    fleet.spend(30)
    assert fleet.sums() == (100, 0, 100, False)


def test_a_budget_is_split_while_it_has_holds_and_each_comes_back_to_where_it_was_made(fleet):
    fleet.create(cap=100, slots=1)
    fleet.store.create("a", budgets=(NewBudget(name="budget", cap=100, parent="fleet"),))
    fleet.spend(10, id="c1")
    fleet.reserve(30)
    fleet.reserve(20, run="a", budget="budget")
    done = fleet.split(4, if_match=4)

    assert isinstance(done, BudgetState)
    assert (done.left, done.version, len(done.slots)) == (40, 5, 4)
    assert [slot.cap for slot in done.slots] == [10, 10, 10, 10]
    assert fleet.spend(10, id="c1").replayed
    assert fleet.reserve(30).replayed
    assert fleet.commit(45).left == 25
    assert fleet.release(run="a", budget="budget").reserved == 0
    assert fleet.sums() == (100, 0, 55, False)
    assert fleet.split(8).slots[7].cap > 0
    fleet.slot = 7
    fleet.spend(45)
    assert fleet.sums() == (100, 0, 100, False)
    assert rows("SELECT action, before::text, after::text FROM agentstate_operatoraction") == [
        ("budget.split", '{"slots": 1, "version": 4}', '{"slots": 4, "version": 5}'),
        ("budget.split", '{"slots": 4, "version": 7}', '{"slots": 8, "version": 8}'),
    ]


def test_a_split_asks_who_may_what_was_seen_and_takes_no_slot_away(fleet):
    fleet.create(cap=100, slots=4)
    team = NewBudget(name="team", cap=60, parent="fleet")
    fleet.store.ask(CreateBudget(run=None, budget=team))
    with pytest.raises(NotAllowed):
        fleet.split(8, by=ANA)
    with pytest.raises(VersionConflict):
        fleet.split(8, if_match=2)
    with pytest.raises(Invalid, match="none is taken away"):
        fleet.split(3)
    with pytest.raises(Invalid, match="without a parent"):
        fleet.store.as_caller(SENIOR).ask(SplitBudget(budget="team", slots=2, reason="hot"))
    assert fleet.split(4).version == 1
    for wrong in (0, 65, True, "4"):
        with pytest.raises(Invalid):
            fleet.split(wrong)
    with pytest.raises(Invalid):
        NewBudget(name="x", cap=1, parent="fleet", slots=2)
    with pytest.raises(Invalid):
        fleet.store.create("a", budgets=(NewBudget(name="x", cap=1, slots=2),))
    with pytest.raises(Invalid):
        NewBudget(name="fleet#0", cap=1)
    with pytest.raises(Exists):
        fleet.create()
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(0,)]


def test_a_cap_is_changed_over_all_slots(fleet):
    fleet.create(cap=100, slots=4)
    fleet.spend(20)
    fleet.slot = 1
    fleet.reserve(30)
    with pytest.raises(CapBelowUse) as refused:
        fleet.cap(49)
    assert refused.value.facts["used"] == 50
    with pytest.raises(VersionConflict):
        fleet.cap(60, if_match=2)
    assert fleet.cap(50, if_match=1).left == 0
    with pytest.raises(BudgetExhausted):
        fleet.spend(1)
    assert fleet.cap(1_000, if_match=2).left == 950
    fleet.spend(950)


def test_dead_holds_of_other_slots_make_room(fleet, clock):
    fleet.create(cap=100, slots=4)
    fleet.store.create("a", budgets=(NewBudget(name="budget", cap=100, parent="fleet"),))
    fleet.reserve(40, ttl_seconds=10)
    fleet.slot = 1
    fleet.reserve(50, run="a", budget="budget", ttl_seconds=10)
    fleet.slot = 2
    with pytest.raises(BudgetExhausted):
        fleet.spend(11)
    clock.advance(seconds=10)
    fleet.spend(100)
    assert fleet.sums() == (100, 0, 100, False)


def test_dead_holds_under_a_full_level_below_make_room_in_their_slots(fleet, clock):
    fleet.create(cap=1_000, slots=4)
    team = NewBudget(name="team", cap=60, parent="fleet")
    fleet.store.ask(CreateBudget(run=None, budget=team))
    for key in ("a", "b"):
        fleet.store.create(key, budgets=(NewBudget(name="budget", cap=60, parent="team"),))
    fleet.reserve(50, run="a", budget="budget", ttl_seconds=10)
    clock.advance(seconds=10)
    fleet.slot = 1
    fleet.spend(60, run="b", budget="budget")
    assert fleet.used() == [0, 60, 0, 0]
    assert fleet.sums() == (1_000, 0, 60, False)


def test_the_sweep_gives_back_in_every_slot_and_to_the_budget_itself(fleet, clock):
    fleet.create(cap=100, slots=1)
    fleet.reserve(10, ttl_seconds=10)
    fleet.split(4)
    for slot in range(4):
        fleet.slot = slot
        fleet.reserve(20, id=f"s{slot}", ttl_seconds=10)
    clock.advance(seconds=10)
    assert the_store.execute(DropDeadHolds(), by=the_store.SWEEP).holds == 5
    assert fleet.sums() == (100, 0, 0, False)
    done = fleet.commit(5, id="s3")
    assert (done.state, done.spent) == ("late", 5)
    assert fleet.commit(5).state == "late"


def test_a_sweep_while_it_is_overdrawn_takes_the_whole(fleet, clock):
    fleet.create(cap=100, slots=4)
    fleet.reserve(40, id="h2", ttl_seconds=10)
    fleet.reserve(10)
    fleet.commit(90)
    assert fleet.sums() == (100, 40, 90, True)
    clock.advance(seconds=10)
    assert the_store.execute(DropDeadHolds(), by=the_store.SWEEP).holds == 1
    fleet.slot = 3
    fleet.spend(10)
    assert fleet.sums() == (100, 0, 100, False)


def test_the_end_of_a_run_gives_back_in_the_slots_of_its_holds(fleet):
    fleet.create(cap=100, slots=4)
    fleet.store.create("a", budgets=(NewBudget(name="budget", cap=100, parent="fleet"),))
    for slot in (1, 2):
        fleet.slot = slot
        fleet.reserve(20, id=f"h{slot}", run="a", budget="budget")
    fleet.slot = 0
    assert fleet.used() == [0, 20, 20, 0]
    fleet.store.move("a", "running")
    fleet.store.move("a", "completed")
    assert fleet.used() == [0, 0, 0, 0]
    assert fleet.commit(30, id="h2", run="a", budget="budget").state == "late"
    assert fleet.used() == [0, 0, 30, 0]


def test_operations_of_a_batch_see_each_other_in_the_slots(fleet):
    fleet.create(cap=100, slots=4)
    done = fleet.store.ask(
        Batch(
            operations=(
                Reserve(run=None, budget="fleet", amount=60, id="h1"),
                CommitReservation(run=None, budget="fleet", id="h1", amount=70),
                spending(20, "c1"),
                spending(20, "c1"),
            )
        )
    )
    assert [r.left for r in done.results] == [40, 30, 10, 10]
    assert done.results[3].replayed


def test_the_ledgers_are_read_as_one_and_a_page_misses_nothing(fleet, clock):
    fleet.create(cap=100, slots=3)
    seen, place = [], None
    for n in range(9):
        fleet.slot = n % 3
        clock.advance(seconds=1)
        fleet.spend(1, id=f"c{n}")
    while True:
        page = reads.shared_ledger(name="fleet", place=place, limit=4)
        seen += [(view.slot, view.entry.n, view.entry.entry_id) for view in page.items]
        if page.next is None:
            break
        place = page.next
    assert [entry_id for *_, entry_id in seen if entry_id] == [f"c{n}" for n in range(9)]
    assert len(seen) == len(set(seen)) == 1 + 3 * 2 + 9
    # Whoever goes on from the last place finds what is written to any ledger since.
    fleet.slot = 0
    fleet.spend(1, id="new")
    more = reads.shared_ledger(name="fleet", place=place, limit=100)
    assert "new" in [view.entry.entry_id for view in more.items]


def test_repair_and_verify_know_slots(fleet):
    fleet.create(cap=100, slots=4)
    fleet.reserve(50)
    fleet.commit(120)
    sums = fleet.sums()
    assert repair.repair_projections() == 0
    rows("UPDATE agentstate_budget SET spent = spent + 1 WHERE slot = 2")
    assert {d.check for d in audit.verify()} == {
        "spent is the sum of the ledger", "caps of the slots add up"}  # fmt: skip
    rows("UPDATE agentstate_budget SET overdrawn = slot IS NULL OR spent + reserved > cap")
    assert repair.repair_projections() > 0
    assert fleet.sums() == sums
    assert audit.verify() == []


# --- at the same moment --------------------------------------------------------------------------


def test_a_hundred_reserve_and_exactly_the_cap_is_admitted(each_its_own):
    each_its_own.create(cap=37, slots=8)
    outcomes = at_once(
        100, lambda n: alone(Reserve(run=None, budget="fleet", amount=1, id=f"h{n}"))
    )
    assert Counter(type(o).__name__ for o in outcomes) == {"Reserved": 37, "BudgetExhausted": 63}
    assert each_its_own.sums() == (37, 37, 0, False)


def test_the_same_id_from_two_slots_at_once_is_one_charge(each_its_own):
    each_its_own.create(cap=10_000, slots=8)
    for n in range(20):
        spent = at_once(4, lambda _, n=n: alone(spending(1, id=f"c{n}")))
        assert sorted(s.replayed for s in results(spent, Spent)) == [False, True, True, True]
        ask = Reserve(run=None, budget="fleet", amount=2, id=f"h{n}")
        held = at_once(4, lambda _, ask=ask: alone(ask))
        assert sorted(s.replayed for s in results(held, Reserved)) == [False, True, True, True]
    assert each_its_own.sums() == (10_000, 40, 20, False)


class Reader:
    """Reads the rows again and again in snapshots of its own, until it is told to stop."""

    def __init__(self):
        self.stop, self.snapshots, self.wrong = threading.Event(), 0, []
        self.thread = threading.Thread(target=self.read)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        wait_for(lambda: self.snapshots > 0)
        self.stop.set()
        self.thread.join(30)

    def read(self):
        try:
            while not self.stop.wait(0.002):
                found = reads.budget(run_key=None, name="fleet")
                own = rows(
                    "SELECT max(cap) FILTER (WHERE slot IS NULL),"
                    " sum(cap) FILTER (WHERE slot IS NOT NULL),"
                    " sum(spent + reserved) FILTER (WHERE slot IS NULL),"
                    " bool_and(spent + reserved <= cap), count(*) > 1"
                    " FROM agentstate_budget WHERE run_id IS NULL"
                )[0]
                cap, caps, used_itself, within, is_split = own
                self.snapshots += 1
                if found.budget.used > found.budget.cap or not within:
                    self.wrong.append(found)
                if is_split and caps + used_itself != cap:
                    self.wrong.append(own)
        finally:
            connection.close()


def test_charges_holds_caps_and_splits_at_once_keep_every_sum(each_its_own):
    """Whatever meets: no snapshot ever shows more than the cap, or a cap that is not dealt out."""
    fleet = each_its_own
    fleet.create(cap=400, slots=1)
    fleet.store.create("a", budgets=(NewBudget(name="budget", cap=5_000, parent="fleet"),))

    def work(n):
        done = Counter()
        for step in range(12):
            for command in _commands(n, step):
                outcome = alone(command, by=FLEET)
                done[type(outcome).__name__] += 1
                if isinstance(outcome, (Spent, Settled)) and not outcome.replayed:
                    done["amount"] += getattr(outcome, "actual", 0)
        return done

    with Reader() as reader:
        outcomes = at_once(12, work)
    assert not [o for o in outcomes if isinstance(o, Exception)]
    assert reader.wrong == []
    names = sum((Counter(o) for o in outcomes), Counter())
    assert set(names) <= {
        "Spent", "Reserved", "Settled", "BudgetExhausted", "BudgetState", "CapBelowUse",
        "NotFound", "amount", "Invalid",
    }  # fmt: skip
    assert names["Spent"] > 0
    assert names["BudgetState"] > 0


def _commands(n, step):
    """What worker n asks in a step: all kinds of charges, and now and then an operator's change."""
    hold = f"h{n}-{step}"
    yield spending(1 + (n + step) % 5)
    yield Reserve(run=None, budget="fleet", amount=7, id=hold)
    if n == 0:
        yield ChangeCap(run=None, budget="fleet", cap=400 + 60 * step, reason="more")
    if n == 1 and step % 4 == 3:
        yield SplitBudget(budget="fleet", slots=2 + step, reason="hot")
    if n in (2, 3):
        yield spending(3, run="a", budget="budget")
    if step % 3:
        yield CommitReservation(run=None, budget="fleet", id=hold, amount=(n + step) % 8)
    else:
        yield ReleaseReservation(run=None, budget="fleet", id=hold)


@pytest.mark.long
def test_several_processes_charge_until_they_are_refused(store):
    """Each process draws its slot; together they are admitted exactly what there is."""
    fleet = Fleet(store)
    fleet.create(cap=500, slots=8)
    database = connection.settings_dict["NAME"]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHARGE, database],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    told = [json.loads(child.communicate(timeout=120)[0]) for child in children]

    assert sum(child["spent"] for child in told) == 500
    assert all(child["last"] == "budget-exhausted" for child in told)
    assert fleet.sums() == (500, 0, 500, False)
    assert audit.verify() == []


CHARGE = """
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django
django.setup()
from django.db import connections
connections["default"].settings_dict["NAME"] = sys.argv[1]
from agentstate.store import execute
from agentstate.store.callers import Caller, SCOPES
from agentstate.store.commands import Charge, Spend
from agentstate.store.errors import BudgetExhausted
by = Caller(kind="key", name="fleet", scopes=frozenset(SCOPES))
spent, amount = 0, 3
while amount:
    try:
        execute(Spend(run=None, charge=Charge(budget="fleet", amount=amount)), by=by)
        spent += amount
    except BudgetExhausted as refused:
        last, amount = refused.code, amount - 1
print(json.dumps({"spent": spent, "last": last}))
"""
