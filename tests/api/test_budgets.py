"""Budgets over HTTP."""


def test_a_budget_says_what_is_left_and_its_ledger_why(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    spent = api.post("/runs/42/budgets/tokens/spend", {"amount": 30, "note": "first call"})
    assert spent.status == 200
    assert spent.headers["ETag"] == '"b2"'
    assert (spent["spent"], spent["left"], spent["entry"]) == (30, 70, 2)
    read = api.get("/runs/42/budgets/tokens")
    assert read.headers["ETag"] == '"b2"'
    assert read["left"] == 70
    assert api.get("/runs/42/budgets")["items"] == [read.json]
    assert api.get("/runs/42")["budgets"] == [read.json]
    opened, charged = api.get("/runs/42/budgets/tokens/ledger")["items"]
    assert (opened["kind"], opened["cap"], opened["spent"]) == ("open", 100, 0)
    assert (charged["kind"], charged["spent"], charged["note"]) == ("spend", 30, "first call")
    assert charged["actor"] == "key:fleet"


def test_a_charge_beyond_the_cap_is_402_and_says_what_is_left(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    api.post("/runs/42/budgets/tokens/spend", {"amount": 60})
    answer = api.post("/runs/42/budgets/tokens/spend", {"amount": 41})
    assert answer.refused == (402, "budget-exhausted")
    assert {n: answer[n] for n in ("budget", "cap", "spent", "reserved", "asked", "retry")} == {
        "budget": "tokens", "cap": 100, "spent": 60, "reserved": 0, "asked": 41, "retry": "never",
    }  # fmt: skip
    assert answer["current"]["left"] == 40
    assert api.post("/runs/42/budgets/tokens/spend", {"amount": 40})["left"] == 0


def test_the_same_charge_again_is_one_charge(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    ask = {"amount": 30, "id": "call-1"}
    first = api.post("/runs/42/budgets/tokens/spend", ask)
    again = api.post("/runs/42/budgets/tokens/spend", ask)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again["entry"] == first["entry"]
    assert api.get("/runs/42/budgets/tokens")["spent"] == 30


def test_the_ledger_goes_on_after_a_number(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    for _ in range(4):
        api.post("/runs/42/budgets/tokens/spend", {"amount": 1})
    page = api.get("/runs/42/budgets/tokens/ledger?limit=2")["items"]
    rest = api.get(f"/runs/42/budgets/tokens/ledger?after={page[-1]['n']}")["items"]
    assert [e["n"] for e in page + rest] == [1, 2, 3, 4, 5]
    assert api.get("/runs/42/budgets/tokens/ledger?limit=501")["field"] == "limit"


def test_a_budget_that_is_not_there_is_404(api):
    api.create("42")
    for answer in (
        api.get("/runs/42/budgets/none"),
        api.get("/runs/42/budgets/none/ledger"),
        api.post("/runs/42/budgets/none/spend", {"amount": 1}),
    ):
        assert answer.refused == (404, "not-found")
    assert api.get("/runs/42/budgets")["items"] == []
