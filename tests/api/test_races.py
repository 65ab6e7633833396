"""Many at the same moment, each on a connection of its own: one wins, the others know why."""

import json

import pytest

from tests.api.asking import Api, new_key
from tests.store.asking import at_once, rows

MANY = 12


@pytest.fixture
def fleet(transactional_db):
    return Api(new_key("fleet"))


def split(answers, won):
    winners = [a for a in answers if a.status == won]
    return winners, [a for a in answers if a.status != won]


def test_the_first_acquire_of_a_unit_has_one_winner(fleet):
    """O-14: a unit that nobody ever had."""
    answers = at_once(MANY, lambda n: Api(fleet.key).acquire("u-new", f"w-{n}"))
    (winner,), losers = split(answers, 200)
    assert {a.refused for a in losers} == {(423, "lease-held")}
    assert {a["owner"] for a in losers} == {winner["owner"]}
    assert fleet.get("/leases/u-new")["token"] == winner["token"]
    assert len(fleet.get("/leases/u-new/terms")["items"]) == 1


def test_one_of_many_appends_after_one_number_is_taken(fleet):
    """Case O-14 (docs/cases.md)."""
    fleet.create("42")
    answers = at_once(
        MANY, lambda n: Api(fleet.key).append("42", {"type": f"by-{n}"}, expected_seq=1)
    )
    (winner,), losers = split(answers, 201)
    assert {(a.refused, a["last_seq"], a["retry"]) for a in losers} == {
        ((412, "seq-conflict"), 2, "reread")
    }
    assert [e["seq"] for e in fleet.events("42")] == [1, 2]
    assert winner["first_seq"] == 2


def test_one_of_many_makes_the_run_and_the_others_see_it(fleet):
    """Case O-14 (docs/cases.md)."""

    def create(n):
        return Api(fleet.key).post("/runs", {"key": "X", "task": f"of {n}"})

    answers = at_once(MANY, create)
    (winner,), losers = split(answers, 201)
    assert {a.refused for a in losers} == {(409, "exists")}
    assert {a["current"]["version"] for a in losers} == {1}
    assert fleet.get("/runs/X")["task"] == winner["task"]


def test_many_who_send_one_request_with_one_key_make_one_run(fleet):
    """O-11: the others get its answer, or are told to come again and then get it."""
    ask = json.dumps({"task": "x"})
    answers = at_once(MANY, lambda n: Api(fleet.key).post("/runs", ask, Idempotency_Key="k"))
    made, waiting = split(answers, 201)
    assert {a.refused for a in waiting} <= {(409, "idempotency-in-flight")}
    made += [fleet.post("/runs", ask, Idempotency_Key="k") for _ in waiting]
    assert len({a["key"] for a in made}) == 1
    assert sum("Idempotent-Replayed" not in a.headers for a in made) == 1
    assert rows("SELECT count(*) FROM agentstate_run") == [(1,)]


def test_cancel_and_complete_have_one_winner(fleet):
    """O-34: exactly one end, and the loser is told which."""
    for n in range(6):
        key = f"r-{n}"
        fleet.create(key, status="running")
        answers = at_once(
            2,
            lambda who, key=key: Api(fleet.key).move(("cancelled", "completed")[who], key=key),
        )
        (winner,), (loser,) = split(answers, 200)
        assert loser.refused == (409, "already-terminal")
        assert loser["current"]["status"] == winner["status"] == fleet.get(f"/runs/{key}")["status"]


def test_what_is_not_there_is_made_by_nobody(fleet):
    """O-14: a compare-and-set on an unknown run, and a renewal of a unit never acquired."""
    body = '{"set": {"notes": "x"}, "expect": {"owner": null}}'
    assert fleet.send("PATCH", "/runs/none", body).refused == (404, "not-found")
    assert fleet.post("/leases/none/renew", {"token": 1}).refused == (409, "lease-lost")
    assert rows("SELECT (SELECT count(*) FROM agentstate_run), count(*) FROM agentstate_lease") == [
        (0, 0)
    ]


def test_a_lost_answer_is_no_conflict_with_oneself(fleet):
    """O-12: the retry of a change, an append, an end and an acquire gets the first answer."""
    fleet.create("42")

    def twice(send):
        first, again = send(), send()
        assert (again.status, again.json) == (first.status, first.json)
        assert again.headers["Idempotent-Replayed"] == "true"
        return first

    lease = fleet.acquire("run:42")
    token = str(lease["token"])
    fleet.move("running", Agentstate_Fence=token)
    version = fleet.get("/runs/42").headers["ETag"]
    change = '{"set": {"notes": "x"}, "id": "c-1"}'
    headers = {"Agentstate_Fence": token}
    twice(lambda: fleet.send("PATCH", "/runs/42", change, If_Match=version, **headers))
    seen = fleet.get("/runs/42")["last_seq"]
    event = {"type": "step.done", "id": "e-1"}
    twice(lambda: fleet.append("42", event, expected_seq=seen, **headers))
    twice(lambda: fleet.move("completed", result={"n": 1}, **headers))
    got = [
        fleet.post("/leases/u-1/acquire", {"owner": "w-1"}, Idempotency_Key="a") for _ in range(2)
    ]
    assert got[0]["token"] == got[1]["token"]
    assert got[1].headers["Idempotent-Replayed"] == "true"
    genuine = fleet.send("PATCH", "/runs/42", '{"set": {"notes": "y"}}', If_Match=version)
    assert genuine.refused[0] in (412, 428)
