"""Runs: made, read, moved, listed."""

import json
from datetime import timedelta

import pytest
from django.core import signing

from agentstate.api.cursors import SALT
from tests.api.asking import Api, new_key
from tests.store.asking import rows

FULL = {
    "key": "42",
    "task": "audit checkout",
    "status": "running",
    "tags": ["b", "a"],
    "attrs": {"repo": "x"},
    "deadline_at": "2030-01-02T03:04:05.678901+02:00",
    "deadline_policy": "fail",
    "max_attempts": 3,
    "retain_seconds": 600,
    "budgets": [{"name": "usd", "unit": "usd_micros", "cap": 5}, {"name": "tokens", "cap": 7}],
    "events": [{"type": "step.planned", "data": {"n": 1}}, {"type": "step.done"}],
}


def test_a_run_is_answered_as_it_is_read(api):
    made = api.post("/runs", FULL)
    assert made.status == 201
    assert made.headers["Location"] == "/api/v1/runs/42"
    assert made.headers["ETag"] == '"v1"'
    read = api.get("/runs/42")
    assert made.json == read.json
    assert read.headers["ETag"] == '"v1"'
    assert read["version"] == 1
    assert read["last_seq"] == 3
    assert read["deadline_at"] == "2030-01-02T01:04:05.678901Z"
    assert read["tags"] == ["a", "b"]
    assert [b["budget"] for b in read["budgets"]] == ["tokens", "usd"]


def test_a_run_without_a_key_gets_one(api):
    made = api.post("/runs", {"task": "x"})
    assert api.get(f"/runs/{made['key']}")["key"] == made["key"]
    assert made.headers["Location"].endswith(made["key"])


def test_a_key_that_is_known_is_refused_with_what_is_there(api):
    api.create("42")
    answer = api.post("/runs", {"key": "42", "task": "another"})
    assert answer.refused == (409, "exists")
    assert answer["current"]["version"] == 1
    assert answer["retry"] == "never"


def test_a_child_of_a_leased_run_needs_its_token(api):
    api.create("parent")
    token = api.hold("parent")
    body = {"key": "child", "task": "x", "parent": "parent"}
    assert api.post("/runs", body).refused == (428, "fence-required")
    assert api.post("/runs", body, Agentstate_Fence="999").refused == (409, "stale-fence")
    assert api.post("/runs", body, Agentstate_Fence=token).status == 201
    assert api.get("/runs/child")["parent"] == "parent"
    assert [r["key"] for r in api.get("/runs?parent=parent")["items"]] == ["child"]
    assert api.post("/runs", {"task": "x", "parent": "none"}).refused == (404, "not-found")


def test_a_token_without_a_parent_means_nothing_and_is_refused(api):
    answer = api.post("/runs", {"task": "x"}, Agentstate_Fence="7")
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "Agentstate-Fence"


def test_moves_follow_the_table_and_say_what_is_allowed(api):
    api.create("42")
    answer = api.move("completed")
    assert answer.refused == (409, "illegal-transition")
    assert answer["allowed"] == ["running", "cancelled"]
    moved = api.move("running", **{"from": "pending"})
    assert moved.json.keys() == {"run", "status", "version", "last_seq", "at"}
    assert (moved.status, moved["version"], moved.headers["ETag"]) == (200, 2, '"v2"')
    assert api.move("running", **{"from": "pending"}).refused == (409, "illegal-transition")
    done = api.post("/runs/42/transitions", '{"to": "completed", "result": {"b": 1, "a": 1.50}}')
    assert done["status"] == "completed"
    assert '"result":{"b": 1, "a": 1.50}' in api.get("/runs/42").text
    assert api.move("failed").refused == (409, "already-terminal")
    assert api.move("nonsense")["field"] == "to"


def test_a_result_goes_with_the_end_only(api):
    api.create("42")
    assert api.move("running", result=1).refused == (422, "invalid")


def test_what_is_not_there_is_404(api):
    for answer in (
        api.get("/runs/none"),
        api.get("/runs/none/events"),
        api.get("/runs/none/budgets"),
        api.move("running", key="none"),
        api.append("none"),
        api.acquire("run:none"),
    ):
        assert answer.refused == (404, "not-found")
        assert answer["retry"] == "never"


def test_if_match_lets_a_write_pass_only_at_that_version(api):
    api.create("42")
    assert api.append(If_Match='"v1"')["version"] == 2
    answer = api.append(If_Match='"v1"')
    assert answer.refused == (412, "version-conflict")
    assert answer["detail"] == "expected v1, found v2"
    assert (answer["retry"], answer["current"]["version"]) == ("reread", 2)
    assert api.move("running", If_Match='"v1"').refused == (412, "version-conflict")
    assert api.move("running", If_Match="*").status == 200
    assert api.get("/runs/42")["last_seq"] == 3


@pytest.mark.parametrize(
    "sent", ["v7", '"7"', '"v07"', '"v0"', '"v-1"', 'W/"v7"', '"v7", "v8"', '"b7"', "", '"v٣"']
)
def test_an_if_match_that_cannot_be_read_is_refused(api, sent):
    api.create("42")
    answer = api.append(If_Match=sent)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "If-Match"
    assert api.get("/runs/42")["last_seq"] == 1


@pytest.mark.parametrize("sent", ["", "0", "-1", "1.0", "+1", "x", str(2**63), "٣", "1 2"])
def test_a_fence_that_cannot_be_read_is_refused(api, sent):
    api.create("42")
    answer = api.append(Agentstate_Fence=sent)
    assert answer.refused == (422, "invalid")
    assert answer["field"] == "Agentstate-Fence"


def test_a_precondition_where_it_has_no_meaning_is_refused(api):
    token = api.acquire("u-1")["token"]
    for path, ask in [
        ("/leases/u-1/renew", {"token": token}),
        ("/leases/u-1/release", {"token": token}),
        ("/leases/u-2/acquire", {"owner": "w-1"}),
        ("/leases/claim", {"owner": "w-1"}),
    ]:
        for name in ("If-Match", "Agentstate-Fence"):
            answer = api.post(path, ask, **{name: '"v1"'})
            assert answer.refused == (422, "invalid")
            assert answer["field"] == name
    assert api.get("/leases/u-1")["state"] == "live"


# --- lists ---------------------------------------------------------------------------------------


def keys_of(answer) -> list[str]:
    return [item["key"] for item in answer["items"]]


def pages(api: Api, query: str, *, towards: str = "next") -> list[list[str]]:
    """All pages from the first one on, or back from the last."""
    found, cursor = [], ""
    while True:
        answer = api.get(f"/runs?{query}{cursor}")
        found.append(keys_of(answer))
        if answer[towards] is None:
            return found
        cursor = f"&cursor={answer[towards]}"


def test_thirty_runs_made_in_one_instant_are_paged_without_loss(clock):
    """Thirty with one created_at, page size 7, forward and back (O-26)."""
    api = Api(new_key("fleet"))
    for n in range(30):
        api.create(f"r-{n}")
    clock.advance(seconds=0.000001)
    api.create("later")
    for order in ("newest", "oldest"):
        forward = pages(api, f"order={order}&limit=7")
        assert [len(page) for page in forward] == [7, 7, 7, 7, 3]
        flat = [key for page in forward for key in page]
        assert sorted(flat) == sorted([*(f"r-{n}" for n in range(30)), "later"])
        assert flat.index("later") == (0 if order == "newest" else 30)

        back, cursor = [], None
        answer = api.get(f"/runs?order={order}&limit=7")
        while answer["next"]:
            cursor = answer["next"]
            answer = api.get(f"/runs?order={order}&limit=7&cursor={cursor}")
        while True:
            back.insert(0, keys_of(answer))
            if answer["prev"] is None:
                break
            answer = api.get(f"/runs?order={order}&limit=7&cursor={answer['prev']}")
        assert back == forward


def test_rows_that_come_meanwhile_push_nobody_over_the_edge(clock):
    """Case O-26 (docs/cases.md)."""
    api = Api(new_key("fleet"))
    for n in range(10):
        clock.advance(seconds=1)
        api.create(f"r-{n}")
    first = api.get("/runs?limit=4")
    clock.advance(seconds=1)
    api.create("new")
    second = api.get(f"/runs?limit=4&cursor={first['next']}")
    assert keys_of(first) + keys_of(second) == [f"r-{n}" for n in range(9, 1, -1)]
    back = api.get(f"/runs?limit=4&cursor={second['prev']}")
    assert keys_of(back) == keys_of(first)
    assert keys_of(api.get(f"/runs?limit=4&cursor={back['prev']}")) == ["new"]


def test_a_page_that_has_become_empty_leads_back(clock):
    api = Api(new_key("fleet"))
    for n in range(3):
        clock.advance(seconds=1)
        api.create(f"r-{n}")
    first = api.get("/runs?status=pending&limit=2")
    api.move("cancelled", key="r-0")
    empty = api.get(f"/runs?status=pending&limit=2&cursor={first['next']}")
    assert (empty["items"], empty["next"]) == ([], None)
    back = api.get(f"/runs?status=pending&limit=2&cursor={empty['prev']}")
    assert keys_of(back) == ["r-2", "r-1"]


@pytest.fixture
def several(clock) -> Api:
    api = Api(new_key("fleet"))
    api.create("a", task="Fix 100% of bugs", tags=["x", "y"])
    clock.advance(minutes=1)
    api.create("b_1", task="fix one bug", tags=["y"])
    clock.advance(minutes=1)
    api.create("b-1", task="write docs", status="running")
    api.hold("b-1", owner="w-7")
    clock.advance(minutes=1)
    api.create("c", task="fix one bug", status="running")
    api.move("failed", key="c")
    return api


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["c", "b-1", "b_1", "a"]),
        ("order=oldest", ["a", "b_1", "b-1", "c"]),
        ("status=pending", ["b_1", "a"]),
        ("status=running&status=failed", ["c", "b-1"]),
        ("task=fix%20one%20bug", ["c", "b_1"]),
        ("tag=y", ["b_1", "a"]),
        ("tag=x", ["a"]),
        ("owner=w-7", ["b-1"]),
        ("q=FIX", ["c", "b_1", "a"]),
        ("q=100%25", ["a"]),
        ("q=b_", ["b_1"]),
        ("q=%25", ["a"]),
        ("q=%5C", []),
        ("q=%20docs%20", ["b-1"]),
        ("parent=none", []),
        ("created_after=2026-03-02T12:00:00Z", ["c", "b-1", "b_1"]),
        ("created_after=2026-03-02T13:00:00%2B01:00&created_before=2026-03-02T12:02:00Z", ["b_1"]),
        ("status=pending&q=bugs&tag=x", ["a"]),
        ("limit=1", ["c"]),
    ],
)
def test_filters_of_the_list(several, query, found):
    assert keys_of(several.get(f"/runs?{query}")) == found


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("limit=", "limit"),
        ("limit=1.0", "limit"), ("limit=1&limit=2", "limit"), ("status=done", "status"),
        ("order=up", "order"), ("q=", "q"), ("q=%00", "q"), ("q=a%00b", "q"), ("q=%0A", "q"),
        ("tag=%00", "tag"), ("owner=a/b", "owner"), ("parent=%2e%2e", "parent"),
        ("created_after=yesterday", "created_after"), ("wait=5", "wait"), ("more=1", "more"),
        ("created_after=2026-03-02T12:00:00+01:00", "created_after"), ("task=", "task"),
        ("cursor=x", "cursor"), ("cursor=", "cursor"), ("cursor=" + "x" * 2000, "cursor"),
        ("cursor=%C3%A9", "cursor"), ("limit=" + "9" * 400, "limit"), ("limit=%D9%A3", "limit"),
    ],
)  # fmt: skip
def test_a_parameter_that_breaks_its_rule_is_named(api, query, field):
    answer = api.get(f"/runs?{query}")
    assert answer.status == 422
    assert answer.code in ("invalid", "unstorable-text")
    assert answer["field"] == field


def test_more_parameters_than_anybody_needs_are_refused(api):
    answer = api.get("/runs?" + "&".join(f"p{n}=1" for n in range(1_001)))
    assert (answer.status, answer["code"]) == (400, "malformed")
    assert api.get("/runs?" + "&".join(["status=pending"] * 1_000)).status == 200


def test_a_cursor_is_good_for_its_own_list_only(several):
    cursor = several.get("/runs?limit=1&status=pending")["next"]
    assert several.get(f"/runs?limit=3&status=pending&cursor={cursor}").status == 200
    for query in ("limit=1", "limit=1&status=running", "limit=1&status=pending&order=oldest"):
        assert several.get(f"/runs?{query}&cursor={cursor}")["field"] == "cursor"
    changed = cursor[:-1] + ("A" if cursor[-1] != "A" else "B")
    assert several.get(f"/runs?limit=1&status=pending&cursor={changed}")["field"] == "cursor"
    other = signing.Signer(salt="another").sign_object([[1, "a"], False, False, "x"])
    assert several.get(f"/runs?cursor={other}")["field"] == "cursor"
    wrong = signing.Signer(salt=SALT).sign_object([])
    assert several.get(f"/runs?cursor={wrong}")["field"] == "cursor"


def test_wait_is_refused_everywhere_with_the_place_where_one_waits(api):
    api.create("42")
    for path in ("/runs", "/runs/42", "/runs/42/events", "/leases", "/time"):
        answer = api.get(f"{path}?wait=10")
        assert answer.refused == (422, "invalid")
        assert "/live/v1" in answer["rule"]
    assert api.post("/runs?wait=1", {"task": "x"})["field"] == "wait"
    assert rows("SELECT count(*) FROM agentstate_run") == [(1,)]


def test_sizes_instead_of_payloads_without_the_scope(api, with_scopes):
    attrs = '{"é": 1.0, "big": 12345678901234567890}'
    api.post("/runs", f'{{"key": "42", "task": "x", "attrs": {attrs}}}')
    api.append("42", {"type": "a", "data": {"secret": "sesame"}})
    read = with_scopes("read").get("/runs/42")
    assert "attrs" not in read.json
    assert read["attrs_bytes"] == len(attrs.encode())
    assert "result" not in read.json
    assert read["result_bytes"] is None
    events = with_scopes("read", name="r2").get("/runs/42/events")
    assert "sesame" not in events.text
    assert "big" not in events.text
    assert events["items"][1]["data_bytes"] == len('{"secret": "sesame"}')
    assert api.get("/runs/42").text.count(attrs) == 1


def test_verify_says_that_a_run_is_sound(transactional_db, api):
    api.create("42", budgets=[{"name": "tokens", "cap": 10}])
    api.hold("42")
    answer = api.get("/runs/42/verify")
    assert answer.json == {"run": "42", "sound": True, "differences": []}


@pytest.mark.damages
def test_verify_tells_what_does_not_follow_from_the_events(transactional_db, api):
    api.create("42")
    rows("UPDATE agentstate_run SET last_seq = 9 WHERE key = '42'")
    assert api.get("/runs/none/verify").refused == (404, "not-found")
    answer = api.get("/runs/42/verify")
    assert answer["sound"] is False
    assert answer["differences"][0].keys() == {"check", "what", "expected", "found"}


def test_a_run_is_hidden_at_the_instant_that_its_retention_is_over(clock):
    api = Api(new_key("fleet"))
    for key in ("gone", "kept"):
        api.create(key, retain_seconds=60 if key == "gone" else None)
        api.move("cancelled", key=key)
    assert api.get("/runs/gone")["expires_at"] == "2026-03-02T12:01:00.000000Z"
    clock.advance(seconds=59.999999)
    assert api.get("/runs/gone").status == 200
    clock.advance(seconds=0.000001)
    assert keys_of(api.get("/runs")) == ["kept"]
    for answer in (
        api.get("/runs/gone"),
        api.get("/runs/gone/events"),
        api.get("/runs/gone/budgets"),
        api.get("/runs/gone/export"),
        api.get("/runs/gone/verify"),
        api.get("/leases/run:gone"),
        api.append("gone"),
        api.acquire("run:gone"),
    ):
        assert answer.refused == (410, "run-expired")


def test_times_are_exact_to_the_microsecond(clock):
    clock.set(clock.now + timedelta(microseconds=123456))
    api = Api(new_key("fleet"))
    api.create("42")
    assert api.get("/runs/42")["created_at"] == "2026-03-02T12:00:00.123456Z"
    assert api.get("/time")["now"] == "2026-03-02T12:00:00.123456Z"


NAMES = [
    "a/b", "..", "../admin", ".", "%2e%2e", "100%", "a b", "a+b", "2026-03-12T09:40:00+00:00",
    "x'y", "a?b#c", "a&b=c", "é", "e\u0301", "😀", "a\u202eb", "a\u200bb", "a ", " a", "-a", "a-",
    "a\n", "a\x00", "a\\b", "a,b", "a;b", "a%2Fb", '"', "<b>", "",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_an_address_could_change_is_refused_when_it_is_made(api, name):
    """Case O-23 (docs/cases.md)."""
    answer = api.post("/runs", {"key": name, "task": "x"})
    assert answer.status == 422
    assert answer["field"] == "key"
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


GOOD = ["a", "A", "0", "a.b", "a..b", "a_b", "a:b", "run:a", "a@b", "a~b", "a--b", "x" * 196]


def test_every_name_that_can_be_made_can_be_reached(api):
    """Case O-23 (docs/cases.md)."""
    for name in GOOD:
        assert api.post("/runs", {"key": name, "task": "x"}).status == 201
        assert api.get(f"/runs/{name}")["key"] == name
        assert api.append(name).status == 201
        encoded = "".join(f"%{byte:02x}" for byte in name.encode())
        assert api.get(f"/runs/{encoded}")["key"] == name
        assert api.acquire(f"run:{name}").status == 200
    assert set(keys_of(api.get("/runs"))) == set(GOOD)


@pytest.mark.parametrize(
    "path",
    ["/runs/%2e%2e", "/runs/a%20b", "/runs/a+b", "/runs/%C3%A9", "/runs/%FF", "/runs/a%00",
     "/runs/a%0A", "/runs/%252e", "/runs/" + "x" * 197, "/runs/-a/events", "/leases/a%20b",
     "/runs/42/budgets/a%20b", "/leases/u%0D/terms"],
)  # fmt: skip
def test_a_name_in_an_address_that_breaks_the_rules_is_422_before_the_database(api, path):
    answer = api.get(path)
    assert answer.status == 422
    assert answer.code in ("invalid", "unstorable-text")
    assert answer["field"] in ("key", "unit", "name")


def test_the_list_shows_no_payloads_however_large(api):
    api.create("42", attrs={"x": "y" * 500_000})
    answer = api.get("/runs")
    assert len(answer.text) < 2_000
    assert json.loads(answer.text)["items"][0]["key"] == "42"
