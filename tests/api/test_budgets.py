"""Budgets over HTTP."""

import json


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


def test_a_shared_budget_is_split_and_looks_like_one(api):
    made = api.post("/budgets", {"name": "fleet", "cap": 100, "slots": 2})
    assert made.status == 201
    assert [slot["cap"] for slot in made["slots"]] == [50, 50]
    api.create("42", budgets=[{"name": "tokens", "cap": 90, "parent": "fleet"}])
    spent = api.post("/budgets/fleet/spend", {"amount": 30, "id": "c-1"})
    assert (spent["spent"], spent["left"], spent.headers["ETag"]) == (30, 70, '"b1"')
    api.post("/runs/42/budgets/tokens/spend", {"amount": 60})
    read = api.get("/budgets/fleet")
    assert (read["spent"], read["left"], read["version"]) == (90, 10, 1)
    assert sum(slot["spent"] for slot in read["slots"]) == 90
    assert [b["budget"] for b in api.get("/budgets")["items"]] == ["fleet"]
    assert api.get("/items?pk=budget%23fleet")["items"][0]["spent"] == 90
    assert api.get("/items?pk=budget%23fleet%230").refused == (422, "invalid")
    refused = api.post("/budgets/fleet/spend", {"amount": 11})
    assert refused.refused == (402, "budget-exhausted")
    assert (refused["cap"], refused["spent"], refused["current"]["left"]) == (100, 90, 10)
    again = api.post("/budgets/fleet/spend", {"amount": 30, "id": "c-1"})
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again["entry"], again["slot"]) == (spent["entry"], spent["slot"])


def change(api, ask, **headers):
    return api.send("PATCH", "/budgets/fleet", json.dumps(ask), **headers)


def test_slots_are_changed_by_who_may_against_the_version_that_was_seen(api, with_scopes):
    api.post("/budgets", {"name": "fleet", "cap": 100})
    ask = {"slots": 4, "reason": "hot"}
    assert change(with_scopes("read", "write"), ask).refused == (403, "not-allowed")
    assert change(api, ask, If_Match='"b2"').refused == (412, "version-conflict")
    done = change(api, ask, If_Match='"b1"')
    assert (done.headers["ETag"], len(done["slots"])) == ('"b2"', 4)
    assert change(api, {"cap": 80, "reason": "less"})["left"] == 80
    both = {"slots": 8, "cap": 9}
    for wrong in ({"slots": 2}, {"slots": 0}, {"slots": 65}, {"slots": "4"}, {}, both):
        assert change(api, wrong | {"reason": "hot"}).refused == (422, "invalid")
    assert len(api.get("/budgets/fleet")["slots"]) == 4
    for where, wrong in (
        ("/budgets", {"name": "team", "cap": 1, "parent": "fleet", "slots": 2}),
        ("/budgets", {"name": "fleet#1", "cap": 1}),
        ("/runs/42/budgets", {"name": "b", "cap": 1, "slots": 2}),
    ):
        assert api.post(where, wrong).refused == (422, "invalid")


def test_a_ledger_tells_what_was_refused_in_the_time_of_its_lines(api, clock):
    api.create("42", budgets=[{"name": "tokens", "cap": 10}])
    for amount in (4, 7, 1, 9):
        clock.advance(seconds=1)
        api.post("/runs/42/budgets/tokens/spend", {"amount": amount})

    whole = api.get("/runs/42/budgets/tokens/ledger")
    assert [e["kind"] for e in whole["items"]] == ["open", "spend", "spend"]
    told = [(r["kind"], r["amount"], r["cap"], r["spent"]) for r in whole["refused"]]
    assert told == [("refuse", 7, 10, 4), ("refuse", 9, 10, 5)]
    assert [r["actor"] for r in whole["refused"]] == ["key:fleet", "key:fleet"]

    first = api.get("/runs/42/budgets/tokens/ledger?limit=2")
    rest = api.get("/runs/42/budgets/tokens/ledger?after=2")
    assert [r["amount"] for r in first["refused"]] == [7]
    assert [r["amount"] for r in rest["refused"]] == [9]
    assert api.get("/runs/42/budgets/tokens/ledger?after=3")["refused"] == []


def test_a_shared_ledger_tells_what_that_level_refused_and_no_other(api):
    api.post("/budgets", {"name": "fleet", "cap": 10})
    budgets = [{"name": "fleet", "cap": 5, "parent": "fleet"}, {"name": "calls", "cap": 1}]
    api.create("42", budgets=budgets)
    api.create("43", budgets=[{"name": "tokens", "cap": 100, "parent": "fleet"}])
    assert api.post("/runs/42/budgets/fleet/spend", {"amount": 6}).status == 402
    assert api.post("/runs/42/budgets/calls/spend", {"amount": 2}).status == 402
    assert api.post("/runs/43/budgets/tokens/spend", {"amount": 11}).status == 402

    assert [r["run"] for r in api.get("/budgets/fleet/ledger")["refused"]] == ["43"]
    assert [r["amount"] for r in api.get("/runs/42/budgets/fleet/ledger")["refused"]] == [6]


def test_the_ledgers_of_slots_are_paged_as_one(api):
    api.post("/budgets", {"name": "fleet", "cap": 100, "slots": 4})
    for n in range(7):
        assert api.post("/budgets/fleet/spend", {"amount": 10, "id": f"c{n}"}).status == 200
        api.post("/budgets/fleet/reserve", {"amount": 1, "id": f"h{n}"})
    lines, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/budgets/fleet/ledger?limit=3{cursor}")
        lines += page["items"]
        cursor = page["next"] and f"&cursor={page['next']}"
    assert [e["id"] for e in lines if e["kind"] == "spend"] == [f"c{n}" for n in range(7)]
    assert sum(e["spent"] for e in lines) == api.get("/budgets/fleet")["spent"] == 70
    assert len({(e.get("slot"), e["n"]) for e in lines}) == len(lines)
    first = api.get("/budgets/fleet/reservations?limit=5")
    rest = api.get(f"/budgets/fleet/reservations?cursor={first['next']}")
    assert [h["id"] for h in first["items"] + rest["items"]] == [f"h{n}" for n in range(7)]
    assert rest["next"] is None
    assert api.get("/budgets/fleet/ledger?after=3")["field"] == "after"
    assert api.get(f"/budgets/fleet/ledger?cursor={first['next']}")["field"] == "cursor"


def test_a_shared_ledger_that_is_not_split_goes_on_after_a_number_too(api):
    api.post("/budgets", {"name": "fleet", "cap": 100})
    for _ in range(3):
        api.post("/budgets/fleet/spend", {"amount": 1})
    assert [e["n"] for e in api.get("/budgets/fleet/ledger?after=2")["items"]] == [3, 4]
    page = api.get("/budgets/fleet/ledger?limit=2")
    rest = api.get(f"/budgets/fleet/ledger?cursor={page['next']}")
    assert [e["n"] for e in page["items"] + rest["items"]] == [1, 2, 3, 4]
