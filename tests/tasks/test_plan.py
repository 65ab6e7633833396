"""The plan of faults is even, seeded, and early enough for a demo of a minute."""

from itertools import islice, takewhile

import pytest

from tasks.samples import OWN_FOLDER, read_drafts
from tasks.simulate.feeder import order
from tasks.simulate.plan import Fault, faults
from tasks.simulate.scenario import Scenario

RATES = {Fault.CRASH: 8.0, Fault.FREEZE: 4.0, Fault.RACE: 6.0}
EVERY_FIFTH = Scenario(tight_every=5)
DRAFTS = {d.key: d for path in OWN_FOLDER.glob("*.jsonl") for d in read_drafts(path)}


def within(seconds, *, seed=1, rates=RATES):
    return list(
        takewhile(lambda due: due.at_seconds < seconds, faults(seed=seed, per_minute=rates))
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_minute_holds_enough_of_each_early_enough_to_recover_from(seed):
    early = [due.fault for due in within(45, seed=seed)]

    assert early.count(Fault.CRASH) >= 5
    assert early.count(Fault.FREEZE) >= 2
    assert early.count(Fault.RACE) >= 3


def test_the_same_seed_gives_the_same_plan_and_another_one_another():
    assert within(60) == within(60)
    assert within(60) != within(60, seed=2)


def test_faults_come_in_order_and_hit_anyone():
    found = list(islice(faults(seed=3, per_minute=RATES), 500))

    assert found == sorted(found)
    assert all(0 <= due.draw < 1 for due in found)


def test_a_rate_of_nothing_means_none():
    assert {due.fault for due in within(600, rates={**RATES, Fault.CRASH: 0})} == {
        Fault.FREEZE,
        Fault.RACE,
    }
    assert within(60, rates=dict.fromkeys(Fault, 0)) == []


def test_all_drafts_take_turns_and_every_fifth_budget_is_too_small():
    orders = [order(number=n, drafts=DRAFTS, scenario=EVERY_FIFTH) for n in range(1, 31)]

    for at in range(0, 30, len(DRAFTS)):
        assert {o.draft.key for o in orders[at : at + len(DRAFTS)]} == set(DRAFTS)
    assert [o.number for o in orders if o.tight] == [5, 10, 15, 20, 25, 30]
    assert orders == [order(number=n, drafts=DRAFTS, scenario=EVERY_FIFTH) for n in range(1, 31)]
    assert not any(order(number=n, drafts=DRAFTS, scenario=Scenario()).tight for n in range(1, 31))
