"""What a site's settings add to each run that is created without saying so."""

import json

import pytest

from agentstate import env
from agentstate.store.rules import names
from tests.api.asking import Api, new_key
from tests.store.asking import at_once

TOKENS = {"name": "tokens", "unit": "tokens", "cap": 500}


def test_a_run_gets_the_budgets_that_it_does_not_bring(api, settings):
    settings.DEFAULT_BUDGETS = (TOKENS, {"name": "calls", "cap": 5})
    made = api.create("42", budgets=[{"name": "calls", "cap": 9, "unit": "calls"}])
    assert [(b["budget"], b["cap"]) for b in made["budgets"]] == [("calls", 9), ("tokens", 500)]
    assert made["budgets"] == api.get("/runs/42")["budgets"]
    created = {"op": "create", "key": "43", "task": "x"}
    assert api.post("/batch", {"operations": [created]}).status == 200
    assert [b["budget"] for b in api.get("/runs/43/budgets")["items"]] == ["calls", "tokens"]


def test_a_default_budget_is_under_its_shared_one_or_the_run_is_refused(api, settings):
    settings.DEFAULT_BUDGETS = (TOKENS | {"parent": "fleet"},)
    assert api.post("/runs", {"task": "x"}).refused == (404, "not-found")
    api.post("/budgets", {"name": "fleet", "cap": 100})
    assert api.create("42")["budgets"][0]["parent"] == "fleet"


def test_first_charges_at_once_stay_under_the_default_cap(transactional_db, settings):
    """O-16 (b): a run without a budget of its own."""
    settings.DEFAULT_BUDGETS = ({"name": "usd", "unit": "usd_cents", "cap": 100},)
    api = Api(new_key("fleet"))
    api.create("42")

    def spend(n):
        return Api(api.key).post("/runs/42/budgets/usd/spend", {"amount": 40})

    assert sorted(o.status for o in at_once(8, spend)) == [200] * 2 + [402] * 6
    assert api.get("/runs/42/budgets/usd")["spent"] == 80


def test_retention_is_the_sites_unless_the_run_says_its_own(api, settings):
    assert api.create("a")["retain_seconds"] is None
    settings.DEFAULT_RETAIN_SECONDS = 86_400
    assert api.create("b")["retain_seconds"] == 86_400
    assert api.create("c", retain_seconds=60)["retain_seconds"] == 60
    assert api.create("d", retain_seconds=None)["retain_seconds"] is None
    assert api.get("/runs/b")["retain_seconds"] == 86_400


def test_the_settings_have_the_stores_rules():
    for name in ("a", "a-b~c:d@e", "x" * 64, "-a", "a-", "", "a b", "x" * 65, "é"):
        try:
            legal = bool(names.check_budget_name("name", name))
        except names.Invalid:
            legal = False
        assert bool(env.BUDGET_NAME.fullmatch(name)) == legal, name
    assert env.CAP_MAX == names.AMOUNT_MAX


@pytest.mark.parametrize(
    "text",
    [
        "{", "{}", "1", "[1]", "[[]]", '[{"name": "a"}]', '[{"cap": 1}]', "[" * 100_000,
        '[{"name": "a", "cap": "1"}]', '[{"name": "a", "cap": true}]', '[{"name": "a", "cap": -1}]',
        '[{"name": "a", "cap": 1.5}]', '[{"name": "a", "cap": 9007199254740992}]',
        '[{"name": "a b", "cap": 1}]', '[{"name": "a", "cap": 1, "more": 1}]',
        '[{"name": "a", "cap": 1}, {"name": "a", "cap": 2}]',
        json.dumps([{"name": f"b{n}", "cap": 1} for n in range(21)]),
    ],
)  # fmt: skip
def test_budgets_that_break_a_rule_are_refused_at_start(monkeypatch, text):
    monkeypatch.setenv("AGENTSTATE_DEFAULT_BUDGETS", text)
    with pytest.raises(env.BadSetting, match="AGENTSTATE_DEFAULT_BUDGETS"):
        env.budgets("AGENTSTATE_DEFAULT_BUDGETS")


def test_settings_that_are_given_are_read(monkeypatch):
    monkeypatch.setenv("AGENTSTATE_X", json.dumps([TOKENS, {"name": "a", "cap": 0}]))
    assert env.budgets("AGENTSTATE_X") == (TOKENS, {"name": "a", "cap": 0})
    monkeypatch.setenv("AGENTSTATE_X", "")
    assert env.budgets("AGENTSTATE_X") == ()
    assert env.age_seconds("AGENTSTATE_X", at_most=10) is None
    monkeypatch.setenv("AGENTSTATE_X", "7")
    assert env.age_seconds("AGENTSTATE_X", at_most=10) == 7
