"""Scenarios: what is in the files, what is refused, and what a fleet makes of them."""

from itertools import islice

import pytest

from tasks.samples import OWN_FOLDER, read_drafts
from tasks.simulate import scenario
from tasks.simulate.feeder import order
from tasks.simulate.plan import Fault, faults
from tasks.simulate.runs import FAMILY_PART, _budgets, _shared
from tasks.simulate.scenario import BadScenario, Phase, Scenario

DRAFTS = {d.key: d for path in OWN_FOLDER.glob("*.jsonl") for d in read_drafts(path)}


def test_those_that_come_with_the_project_can_be_read():
    found = {name: scenario.read(name) for name in scenario.names()}

    assert set(found) == {"calm", "day", "storm"}
    assert all(plan.about for plan in found.values())
    assert found["calm"].faults == {}
    assert set(found["day"].faults) == set(found["storm"].faults) == set(Fault)
    for stormy in (found["day"], found["storm"]):
        assert 0 not in (stormy.poison_every, stormy.family_every, stormy.tight_every)
        assert stormy.workers > stormy.old_workers > 0
        assert stormy.workers_per_machine > 1


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"wokers": 3}, "wokers: not known"),
        ({"backlog": 3}, "backlog: not known"),
        ({"runs": {"backlog": -1}}, "runs.backlog: a whole number from 0"),
        ({"runs": 3}, "runs: a table"),
        ({"workers": True}, "workers: a whole number"),
        ({"workers": 201}, "workers: a whole number"),
        ({"speed": 0}, "speed: a number above 0"),
        ({"speed": float("nan")}, "speed: a number above 0"),
        ({"faults": {"crash": "often"}}, "faults.crash: a number from 0"),
        ({"faults": {"meteor": 1}}, "faults.meteor: not known"),
        ({"phases": [{"name": "x", "seconds": 3}]}, "phases[0].: name, seconds and backlog"),
        ({"phases": [{"name": "x", "seconds": 0, "backlog": 1}]}, "phases[0].seconds"),
        ({"about": "a\nb"}, "about: a line"),
    ],
)
def test_what_is_not_meant_is_refused_by_its_place(document, where):
    with pytest.raises(BadScenario) as refused:
        scenario.parse(document)
    assert str(refused.value).startswith(where)


def test_a_file_that_is_none_is_refused_with_those_that_there_are(tmp_path):
    broken = tmp_path / "mine.toml"
    broken.write_text("workers = ")
    for name in ("nowhere", str(broken)):
        with pytest.raises(BadScenario, match="one of calm, day, storm"):
            scenario.read(name)


def test_a_file_of_ones_own_is_taken(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text("workers = 9\n[faults]\nrace = 2\n")

    assert scenario.read(str(mine)) == Scenario(workers=9, faults={Fault.RACE: 2.0})


def test_a_day_goes_through_its_phases_and_begins_again():
    day = Scenario(
        backlog=1,
        phases=(Phase(name="a", seconds=10, backlog=4), Phase(name="b", seconds=5, backlog=0)),
    )

    assert [day.backlog_at(at) for at in (0, 9.9, 10, 14.9, 15, 26)] == [4, 4, 0, 0, 4, 0]
    assert Scenario(backlog=7).backlog_at(1_000) == 7


def test_the_same_scenario_makes_the_same_runs_and_the_same_faults():
    storm = scenario.read("storm")
    orders = [order(number=n, drafts=DRAFTS, scenario=storm) for n in range(1, 61)]

    assert orders == [order(number=n, drafts=DRAFTS, scenario=storm) for n in range(1, 61)]
    assert [o.number for o in orders if o.poison] == [10, 20, 30, 40, 50, 60]
    assert [o.number for o in orders if o.children] == [
        n for n in range(1, 61) if n % 4 == 0 and n % 10
    ]
    assert not any(o.tight and (o.children or o.poison) for o in orders)
    one, two = (
        list(islice(faults(seed=storm.seed, per_minute=storm.faults), 50)) for _ in range(2)
    )
    assert one == two
    assert {due.fault for due in one} == set(Fault)


def test_a_family_shares_a_budget_that_a_spree_meets_before_the_members_own():
    family = tuple(DRAFTS.values())[:3]
    for draft in family:
        for budget in _budgets(draft, family="fix-ab12-4"):
            spent = sum(member.spent(budget.name) for member in family)
            assert budget.parent == _shared("fix-ab12-4", budget.name)
            assert budget.cap > spent * FAMILY_PART
    assert len(_shared("k" * 200, "tokens")) <= 64
