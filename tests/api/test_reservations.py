"""Budgets in depth, over HTTP: reserving, shared ones above, caps, whole numbers (O-16, O-17)."""

import json

import pytest

from tests.api.asking import Api, new_key
from tests.store.asking import at_once, rows

HOLD = {"amount": 40, "id": "call-1"}


def raise_cap(api, path, cap, **headers):
    return api.send("PATCH", path, json.dumps({"cap": cap, "reason": "more to do"}), **headers)


@pytest.fixture
def run(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    return "/runs/42/budgets/tokens"


@pytest.fixture(params=["of a run", "shared"])
def budget(request, api):
    if request.param == "shared":
        assert api.post("/budgets", {"name": "tokens", "cap": 100}).status == 201
        return "/budgets/tokens"
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    return "/runs/42/budgets/tokens"


def test_what_is_held_is_settled_once(api, budget):
    held = api.post(f"{budget}/reserve", HOLD)
    assert (held.status, held["reserved"], held["left"]) == (200, 40, 60)
    assert held.headers["ETag"] == '"b2"'
    assert api.post(f"{budget}/reserve", HOLD).headers["Idempotent-Replayed"] == "true"
    assert api.post(f"{budget}/spend", {"amount": 61}).refused == (402, "budget-exhausted")
    done = api.post(f"{budget}/reservations/call-1/commit", {"amount": 25})
    assert (done["state"], done["actual"], done["spent"], done["reserved"]) == (
        "committed", 25, 25, 0)  # fmt: skip
    again = api.post(f"{budget}/reservations/call-1/commit", {"amount": 25})
    assert again.headers["Idempotent-Replayed"] == "true"
    other = api.post(f"{budget}/reservations/call-1/commit", {"amount": 26})
    assert other.refused == (409, "reservation-settled")
    assert api.post(f"{budget}/reservations/call-1/release", {}).status == 409
    kinds = [entry["kind"] for entry in api.get(f"{budget}/ledger")["items"]]
    assert kinds == ["open", "reserve", "commit"]
    assert api.get(budget)["spent"] == 25


def test_a_hold_that_is_released_gives_all_back(api, budget):
    api.post(f"{budget}/reserve", HOLD)
    for _ in range(2):
        answer = api.post(f"{budget}/reservations/call-1/release", {})
        assert (answer.status, answer["state"], answer["left"]) == (200, "released", 100)
    assert api.post(f"{budget}/reserve", HOLD).refused == (409, "reservation-settled")


def test_more_than_was_held_is_recorded_in_full(api, budget):
    api.post(f"{budget}/reserve", HOLD)
    done = api.post(f"{budget}/reservations/call-1/commit", {"amount": 140})
    assert (done["spent"], done["overdrawn"], done["left"]) == (140, True, 0)
    assert api.post(f"{budget}/spend", {"amount": 1}).refused == (402, "budget-exhausted")
    assert raise_cap(api, budget, 150)["overdrawn"] is False
    assert api.post(f"{budget}/spend", {"amount": 1}).status == 200


def test_reservations_are_listed_by_state(api, budget):
    for n in range(3):
        api.post(f"{budget}/reserve", {"amount": 1, "id": f"c-{n}"})
    api.post(f"{budget}/reservations/c-1/commit", {"amount": 1})
    listed = api.get(f"{budget}/reservations?limit=2")["items"]
    rest = api.get(f"{budget}/reservations?after={listed[-1]['n']}")["items"]
    assert [r["id"] for r in listed + rest] == ["c-0", "c-1", "c-2"]
    (done,) = api.get(f"{budget}/reservations?state=committed")["items"]
    assert (done["id"], done["actual"], done["expires_in_ms"]) == ("c-1", 1, None)
    assert listed[0]["run"] == ("42" if "runs" in budget else None)
    assert api.get(f"{budget}/reservations?state=open")["field"] == "state"


def test_a_cap_is_changed_by_those_who_may_and_under_its_version(api, budget, with_scopes):
    api.post(f"{budget}/spend", {"amount": 30})
    worker = with_scopes("read", "write", "operate")
    assert raise_cap(worker, budget, 200).refused == (403, "not-allowed")
    stale = raise_cap(api, budget, 200, If_Match='"b1"')
    assert stale.refused == (412, "version-conflict")
    assert stale["current"]["version"] == 2
    below = raise_cap(api, budget, 29, If_Match='"b2"')
    assert below.refused == (409, "cap-below-use")
    changed = raise_cap(with_scopes("override"), budget, 200, If_Match='"b2"')
    assert (changed.status, changed["cap"], changed.headers["ETag"]) == (200, 200, '"b3"')
    for header in ('"v2"', "3", '"b0"'):
        assert raise_cap(api, budget, 200, If_Match=header)["field"] == "If-Match"
    acted = rows("SELECT actor FROM agentstate_operatoraction WHERE action = 'budget.cap-changed'")
    assert acted == [("key:override",)]


def test_of_two_who_raise_a_cap_from_one_page_one_does(transactional_db):
    """O-37: the second is told that it was done already."""
    api = Api(new_key("fleet"))
    api.post("/budgets", {"name": "tokens", "cap": 100})
    outcomes = at_once(
        4, lambda n: raise_cap(Api(api.key), "/budgets/tokens", 110, If_Match='"b1"')
    )
    assert sorted(o.status for o in outcomes) == [200, 412, 412, 412]
    assert api.get("/budgets/tokens")["cap"] == 110


def test_a_charge_is_admitted_by_every_level_or_by_none(api):
    api.post("/budgets", {"name": "tenant", "cap": 50})
    api.post("/budgets", {"name": "team", "cap": 40, "parent": "tenant"})
    api.create("42", budgets=[{"name": "tokens", "cap": 100, "parent": "team"}])
    assert api.post("/runs/42/budgets/tokens/spend", {"amount": 30}).status == 200
    answer = api.post("/runs/42/budgets/tokens/spend", {"amount": 11})
    assert answer.refused == (402, "budget-exhausted")
    assert (answer["budget"], answer["cap"], answer["spent"]) == ("team", 40, 30)
    listed = api.get("/budgets")["items"]
    assert [(b["budget"], b["spent"], b["parent"]) for b in listed] == [
        ("team", 30, "tenant"), ("tenant", 30, None)]  # fmt: skip
    charged = api.get("/budgets/tenant/ledger")["items"][-1]
    assert (charged["kind"], charged["run"], charged["spent"]) == ("spend", "42", 30)


def test_shared_budgets_are_paged_by_name(api):
    for n in range(5):
        api.post("/budgets", {"name": f"b{n}", "cap": 1})
    first = api.get("/budgets?limit=2")
    second = api.get(f"/budgets?limit=2&cursor={first['next']}")
    third = api.get(f"/budgets?limit=2&cursor={second['next']}")
    names = [b["budget"] for page in (first, second, third) for b in page["items"]]
    assert (names, third["next"]) == ([f"b{n}" for n in range(5)], None)
    assert api.get(f"/budgets?limit=2&cursor={third['prev']}")["items"] == second["items"]


def test_a_budget_is_opened_once_and_under_one_that_exists(api):
    api.create("42")
    ask = {"name": "calls", "cap": 5, "unit": "calls"}
    made = api.post("/runs/42/budgets", ask)
    assert (made.status, made["left"], made["unit"]) == (201, 5, "calls")
    again = api.post("/runs/42/budgets", ask)
    assert again.refused == (409, "exists")
    assert again["current"]["cap"] == 5
    missing = api.post("/runs/42/budgets", {"name": "x", "cap": 1, "parent": "none"})
    assert missing.refused == (404, "not-found")
    assert api.post("/budgets", {"name": "x", "cap": 1, "parent": "x"}).status == 422


def test_one_of_a_run_is_fenced(api, run):
    token = api.hold("42")
    assert api.post(f"{run}/reserve", HOLD).refused == (428, "fence-required")
    held = api.post(f"{run}/reserve", HOLD, Agentstate_Fence=token)
    assert held.status == 200
    other = str(int(token) + 1)
    late = api.post(f"{run}/reservations/call-1/commit", {"amount": 1}, Agentstate_Fence=other)
    assert late.refused == (409, "stale-fence")
    assert api.post("/runs/42/budgets", {"name": "b", "cap": 1}).refused == (428, "fence-required")


def test_what_is_not_there_is_404(api, budget):
    assert api.post(f"{budget}/reservations/none/commit", {"amount": 1}).status == 404
    for path in ("/budgets/none", "/budgets/none/ledger", "/budgets/none/reservations"):
        assert api.get(path).refused == (404, "not-found")
    assert api.post("/budgets/none/spend", {"amount": 1}).refused == (404, "not-found")


WRONG = [0, -1, 0.1, 1.0, "1", "0.10", True, None, 2**53, 2**63, 10**400]


@pytest.mark.parametrize("amount", [*WRONG, "NaN"])
def test_amounts_are_whole_numbers_of_the_smallest_unit(api, budget, amount):
    sent = "NaN" if amount == "NaN" else json.dumps(amount)
    for call in ("spend", "reserve"):
        more = ', "id": "r"' if call == "reserve" else ""
        answer = api.post(f"{budget}/{call}", f'{{"amount": {sent}{more}}}')
        assert answer.refused == (422, "invalid")
        assert answer["field"] == "amount"
    for tiny in ("1e-400", "0.000001"):
        assert api.post(f"{budget}/spend", f'{{"amount": {tiny}}}').status == 422
    assert api.get(budget)["spent"] == 0


@pytest.mark.parametrize("bad", ["", "a/b", "..", " x", "é", "a b", "x" * 201, 1, None])
def test_an_id_of_a_reservation_fits_into_an_address(api, budget, bad):
    answer = api.post(f"{budget}/reserve", {"amount": 1, "id": bad})
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "id"


def test_headers_without_a_meaning_are_refused(api):
    api.post("/budgets", {"name": "tokens", "cap": 100})
    for header in ({"Agentstate_Fence": "1"}, {"If_Match": '"b1"'}):
        answer = api.post("/budgets/tokens/spend", {"amount": 1}, **header)
        assert answer.status == 422


def test_ten_tenths_are_one(api):
    """O-17 in micros: ten charges fill the cap to the last, and one more is refused."""
    api.post("/budgets", {"name": "usd", "unit": "usd_micros", "cap": 1_000_000})
    for _ in range(10):
        assert api.post("/budgets/usd/spend", {"amount": 100_000}).status == 200
    assert api.post("/budgets/usd/spend", {"amount": 1}).refused == (402, "budget-exhausted")
    assert (api.get("/budgets/usd")["spent"], api.get("/budgets/usd")["left"]) == (1_000_000, 0)


@pytest.mark.parametrize(("cap", "spent", "amount", "at_a_time", "admitted"), [
    (5_000_000, 4_752_720, 88_400, 4, 2),
    (100, 0, 1, 16, 16),
    (10, 0, 1, 16, 10),
])  # fmt: skip
def test_together_they_are_admitted_up_to_the_cap(
    transactional_db, cap, spent, amount, at_a_time, admitted
):
    """O-16 (a), (c): from as many connections as there are charges."""
    api = Api(new_key("fleet"))
    api.create("42", budgets=[{"name": "usd", "cap": cap}])
    if spent:
        api.post("/runs/42/budgets/usd/spend", {"amount": spent})

    def reserve(n):
        ask = {"amount": amount, "id": f"c-{n}"}
        return Api(api.key).post("/runs/42/budgets/usd/reserve", ask)

    outcomes = at_once(at_a_time, reserve)
    assert sorted(o.status for o in outcomes) == [200] * admitted + [402] * (at_a_time - admitted)
    assert all(o["current"]["left"] < amount for o in outcomes if o.status == 402)
    assert api.get("/runs/42/budgets/usd")["reserved"] == admitted * amount
    assert api.get("/runs/42/verify")["sound"]
