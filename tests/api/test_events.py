"""Events: appended all or none, read back to the letter, in pages."""

import json

import pytest

from tests.api.asking import Api, new_key
from tests.store.asking import rows

EXACT = [
    '{"id":1970670598291982290,"max":9223372036854775807,"neg":-9007199254740993,"f":0.1,"e":1e21}',
    '{ "b" : 1 ,\t"a":\r\n[ 1.0, 1.00, 1e0, 1E+2, -0.0, -0 ] }',
    '"caf\\u00e9 \\ud83d\\ude00 \\/ \\n é 😀"',
    '{"z":1,"a":2,"Z":3,"":4}',
    "12345678901234567890123456789012345678901234567890.000000000000000000010",
    "null", "true", "0", '""', "[]", "{}", "[ ]", "{ }",
    '{"data": {"data": [{"data": 1.50}]}, "result": 1.10, "attrs": {"x": 1.0}}',
    '"\u2028\u2029\x7f</script>"',
]  # fmt: skip


@pytest.mark.parametrize("data", EXACT)
def test_what_was_sent_comes_back_to_the_letter(api, data):
    api.create("42")
    body = f'{{"events": [{{"data": {data}, "type": "a"}}, {{"type": "b", "data":{data}}}]}}'
    assert api.post("/runs/42/events", body).status == 201
    text = api.get("/runs/42/events?origin=worker").text
    assert text.count(f'"data":{data},') == 2
    assert json.loads(text)["items"][0]["data"] == json.loads(data)


def test_attrs_result_and_progress_come_back_to_the_letter(api):
    raw = '{"n": 1.50, "big": 12345678901234567890, "é": "\\u00e9" }'
    api.post("/runs", f'{{"key": "42", "task": "x", "attrs": {raw}}}')
    token = api.hold("42")
    renewed = f'{{"token": {token}, "progress": {raw}}}'
    assert api.post("/leases/run:42/renew", renewed).status == 200
    assert f'"progress":{raw}' in api.get("/leases/run:42").text
    body = f'{{"to": "completed", "result": {raw}}}'
    assert api.post("/runs/42/transitions", body, Agentstate_Fence=token).status == 200
    text = api.get("/runs/42").text
    assert f'"attrs":{raw}' in text
    assert f'"result":{raw}' in text
    created, *_, completed = api.get("/runs/42/events").text.split('"seq":')[1:]
    assert f'"attrs":{raw}' in created
    assert f'"result":{raw}' in completed


def test_an_append_is_numbered_and_told(api):
    api.create("42")
    answer = api.append("42", {"type": "a"}, {"type": "b", "id": "e-2"}, expected_seq=1)
    assert answer.status == 201
    assert answer.headers["ETag"] == '"v2"'
    told = answer.json
    assert (told["first_seq"], told["last_seq"], told["version"]) == (2, 3, 2)
    items = api.events()
    assert [(e["seq"], e["type"], e["origin"], e["id"]) for e in items] == [
        (1, "run.created", "store", None),
        (2, "a", "worker", None),
        (3, "b", "worker", "e-2"),
    ]
    assert items[1]["at"] == told["at"]
    assert items[1]["actor"] == "key:fleet"


def test_an_expected_number_that_has_moved_is_refused(api):
    api.create("42")
    api.append("42", {"type": "a"}, expected_seq=1)
    answer = api.append("42", {"type": "b"}, expected_seq=1)
    assert answer.refused == (412, "seq-conflict")
    assert (answer["last_seq"], answer["current"]["last_seq"], answer["retry"]) == (2, 2, "reread")
    assert api.append("42", {"type": "b"}, expected_seq=7).refused == (412, "seq-conflict")


def test_a_finished_step_is_one_write(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    token = api.hold("42")
    answer = api.append(
        "42",
        {"type": "step.done"},
        add={"steps_done": 1},
        spend={"budget": "tokens", "amount": 30, "id": "c-1", "note": "one call"},
        to="completed",
        Agentstate_Fence=token,
    )
    assert answer.status == 201
    assert answer["status"] == "completed"
    assert answer["spent"][0]["left"] == 70
    run = api.get("/runs/42")
    assert (run["status"], run["counters"], run["token"]) == ("completed", {"steps_done": 1}, None)
    assert run["budgets"][0]["spent"] == 30


def test_a_charge_that_is_refused_takes_the_whole_append_with_it(api):
    api.create("42", budgets=[{"name": "tokens", "cap": 10}])
    answer = api.append(spend=[{"budget": "tokens", "amount": 11}], add={"n": 1})
    assert answer.refused == (402, "budget-exhausted")
    assert (answer["budget"], answer["cap"], answer["asked"]) == ("tokens", 10, 11)
    run = api.get("/runs/42")
    assert (run["last_seq"], run["counters"], run["budgets"][0]["spent"]) == (1, {}, 0)


def test_event_ids_make_repeating_safe(api):
    api.create("42")
    batch = [{"type": "a", "id": "1", "data": {"x": 1}}, {"type": "b", "id": "2"}]
    first = api.append("42", *batch)
    again = api.append("42", {"type": "a", "id": "1", "data": {"x": 1}}, batch[1])
    assert again.status == 201
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again["first_seq"], again["last_seq"]) == (first["first_seq"], first["last_seq"])
    part = api.append("42", batch[1], {"type": "c", "id": "3"})
    assert part.refused == (409, "partial-duplicate")
    assert part["known"] == [{"id": "2", "seq": 3}]
    other = api.append("42", {"type": "a", "id": "1", "data": {"x": 2}})
    assert other.refused == (422, "event-id-reuse")
    assert api.get("/runs/42")["last_seq"] == 3


def test_an_overtaken_worker_writes_nothing_at_all(clock):
    api = Api(new_key("fleet"))
    api.create("42", budgets=[{"name": "tokens", "cap": 100}])
    old = api.hold("42", owner="w-1", ttl_seconds=60)
    clock.advance(seconds=61)
    new = api.acquire("run:42", "w-2")
    assert new["taken_from"] == "w-1"
    assert new["token"] > int(old)
    for late in (
        api.append("42", Agentstate_Fence=old),
        api.move("completed", Agentstate_Fence=old),
        api.post("/runs/42/budgets/tokens/spend", {"amount": 1}, Agentstate_Fence=old),
    ):
        assert late.refused == (409, "stale-fence")
        assert late["current"]["owner"] == "w-2"
        assert late["current"]["expires_in_ms"] == 60_000
        assert late["current"]["last_seq"] == 4
    assert api.post("/leases/run:42/renew", {"token": int(old)}).refused == (409, "lease-lost")
    assert api.append("42").refused == (428, "fence-required")
    assert api.append("42", Agentstate_Fence=str(new["token"])).status == 201


# --- reading -------------------------------------------------------------------------------------


def seqs(answer) -> list[int]:
    return [item["seq"] for item in answer["items"]]


@pytest.fixture
def ten(api):
    """A run with events 2 to 10 of types a and b."""
    api.create("42")
    api.append("42", *[{"type": "ab"[n % 2], "data": n} for n in range(9)])
    return api


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", list(range(1, 11))),
        ("after=7", [8, 9, 10]),
        ("after=10", []),
        ("after=99", []),
        ("before=3", [1, 2]),
        ("after=2&before=5", [3, 4]),
        ("order=newest&limit=3", [10, 9, 8]),
        ("order=newest&limit=3&before=8", [7, 6, 5]),
        ("limit=4", [1, 2, 3, 4]),
        ("type=a", [2, 4, 6, 8, 10]),
        ("type=a&type=run.created&limit=2", [1, 2]),
        ("type=none", []),
        ("origin=store", [1]),
        ("origin=worker&after=8", [9, 10]),
    ],
)
def test_pages_of_events(ten, query, found):
    answer = ten.get(f"/runs/42/events?{query}")
    assert seqs(answer) == found
    assert answer["last_seq"] == 10


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=501", "limit"), ("limit=0", "limit"), ("after=-1", "after"), ("after=x", "after"),
     ("before=1.5", "before"), ("origin=me", "origin"), ("type=", "type"), ("order=asc", "order"),
     ("after=9007199254740992", "after"), ("type=%00", "type"), ("wait=1", "wait")],
)  # fmt: skip
def test_a_parameter_that_breaks_its_rule_is_named(ten, query, field):
    answer = ten.get(f"/runs/42/events?{query}")
    assert answer.status == 422
    assert answer.code in ("invalid", "unstorable-text")
    assert answer["field"] == field


def test_a_page_has_at_most_a_mebibyte_but_always_an_event(api):
    """Some events of a few hundred kB, one as large as may be: no page is larger (O-25)."""
    api.create("42")
    for kilobytes in (400, 400, 400, 1024, 10, 10):
        data = "x" * (kilobytes * 1024 - 2)
        assert api.append("42", {"type": "a", "data": data}).status == 201
    pages, after = [], 0
    while True:
        answer = api.get(f"/runs/42/events?after={after}&limit=500")
        if not answer["items"]:
            break
        pages.append(seqs(answer))
        after = pages[-1][-1]
        assert len(answer.text) < 1024 * 1024 + 10_000
    assert pages == [[1, 2, 3], [4], [5], [6, 7]]
    newest = api.get("/runs/42/events?order=newest&limit=500")
    assert seqs(newest) == [7, 6]


def test_without_payloads_a_page_is_bounded_by_count_alone(api, with_scopes):
    api.create("42")
    for _ in range(4):
        api.append("42", {"type": "a", "data": "x" * 600_000})
    page = with_scopes("read").get("/runs/42/events?limit=500")
    assert seqs(page) == [1, 2, 3, 4, 5]
    assert page["items"][4]["data_bytes"] == 600_002
    assert len(page.text) < 5_000


def test_five_hundred_events_go_at_once(api):
    api.create("42")
    answer = api.append("42", *[{"type": "a", "data": {"n": n}} for n in range(500)])
    assert (answer["first_seq"], answer["last_seq"]) == (2, 501)
    assert api.append("42", *[{"type": "a"}] * 501).refused == (422, "invalid")
    assert rows("SELECT count(*) FROM agentstate_event") == [(501,)]
