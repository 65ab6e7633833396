"""Effects over HTTP: sent with events, told in the log, in claims, and with the run."""

import pytest

BEGUN = {"key": "mail-1", "state": "begun"}
ENDED = {"key": "mail-1", "state": "ended"}


def begin(api, token, data='{"to":"ana"}', key="mail-1"):
    effect = f'{{"key":"{key}","state":"begun"}}'
    body = f'{{"events":[{{"type":"mail.wanted","data":{data},"effect":{effect}}}]}}'
    return api.post("/runs/42/events", body, Agentstate_Fence=str(token))


def end(api, token, key="mail-1"):
    event = {"type": "mail.sent", "effect": {"key": key, "state": "ended"}}
    return api.post("/runs/42/events", {"events": [event]}, Agentstate_Fence=str(token))


def claim(api, owner):
    (item,) = api.post("/leases/claim", {"owner": owner, "ttl_seconds": 60})["items"]
    return item


@pytest.fixture
def token(api, clock):
    api.post("/runs", {"key": "42", "task": "audit"})
    item = claim(api, "w-1")
    assert (item["open_effects"], item["open_effects_count"]) == ([], 0)
    return item["token"]


def test_the_next_holder_is_told_to_the_letter_what_is_open(api, clock, token):
    assert begin(api, token, '{"n":1.0}').status == 201
    clock.advance(seconds=61)
    item = claim(api, "w-2")
    (told,) = item["open_effects"]
    assert (told["key"], told["type"], told["token"]) == ("mail-1", "mail.wanted", token)
    assert told["data"] == {"n": 1.0}
    assert (item["open_effects_count"], told["data_bytes"]) == (1, 9)

    assert end(api, item["token"]).status == 201
    assert api.get("/runs/42")["open_effects_count"] == 0


def test_the_log_tells_the_effect_in_place_of_an_id(api, token):
    begin(api, token)
    end(api, token)
    of_worker = api.get("/runs/42/events?origin=worker")["items"]
    assert [(e["id"], e["effect"]) for e in of_worker] == [(None, BEGUN), (None, ENDED)]


def test_open_ones_are_a_filter_of_the_log(api, token):
    for key in ("a", "b", "c"):
        begin(api, token, key=key)
    end(api, token, "b")
    assert api.get("/runs/42")["open_effects_count"] == 2
    found = api.get("/runs/42/events?open_effects=true&limit=1")["items"]
    assert [e["effect"]["key"] for e in found] == ["a"]
    more = api.get(f"/runs/42/events?open_effects=true&after={found[0]['seq']}")["items"]
    assert [e["effect"]["key"] for e in more] == ["c"]
    newest = api.get("/runs/42/events?open_effects=true&order=newest&limit=1")["items"]
    assert [e["effect"]["key"] for e in newest] == ["c"]


def test_who_may_not_see_payloads_is_told_the_sizes(api, token, with_scopes):
    begin(api, token)
    (event,) = with_scopes("read").get("/runs/42/events?open_effects=true")["items"]
    assert (event["effect"], event["data_bytes"], "data" in event) == (BEGUN, 12, False)


@pytest.mark.parametrize(
    ("effect", "more"),
    [
        ({"key": "a"}, {}),
        ({"key": "a", "state": "over"}, {}),
        ({"key": "", "state": "begun"}, {}),
        ({"key": "a", "state": "begun", "x": 1}, {}),
        ({"key": "a", "state": "begun"}, {"id": "e1"}),
        ({"key": "never-begun", "state": "ended"}, {}),
        ("a", {}),
    ],
)
def test_a_malformed_one_is_refused_and_named(api, token, effect, more):
    before = api.get("/runs/42")["last_seq"]
    event = {"type": "x", "effect": effect, **more}
    answer = api.post("/runs/42/events", {"events": [event]}, Agentstate_Fence=str(token))
    assert answer.refused == (422, "invalid")
    assert api.get("/runs/42")["last_seq"] == before


def test_the_same_begin_again_is_a_replay_and_another_is_refused(api, token):
    first = begin(api, token)
    again = begin(api, token)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json == first.json
    other = begin(api, token, '"another"')
    assert other.refused == (422, "event-id-reuse")
    assert other["effect"] == BEGUN


def test_a_run_is_born_with_one_and_a_batch_ends_it(api, clock):
    event = {"type": "x", "effect": BEGUN}
    made = api.post("/runs", {"key": "42", "task": "t", "events": [event]})
    assert made.status == 201
    operation = {"op": "append", "run": "42", "events": [{"type": "y", "effect": ENDED}]}
    assert api.post("/batch", {"operations": [operation]}).status == 200
    assert api.get("/runs/42")["open_effects_count"] == 0
    assert api.get("/runs/42/verify")["sound"]


def test_a_repeated_acquire_tells_the_same(api, clock, token):
    begin(api, token)
    clock.advance(seconds=61)
    ask = {"owner": "w-2", "ttl_seconds": 60}
    headers = {"Idempotency_Key": "k"}
    first = api.post("/leases/run:42/acquire", ask, **headers)
    again = api.post("/leases/run:42/acquire", ask, **headers)
    assert first["open_effects"] == again["open_effects"] != []
    assert again.headers["Idempotent-Replayed"] == "true"
