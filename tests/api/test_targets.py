"""Targets and deliveries over the API: secrets that are shown once, changes that are guarded."""

import json

import pytest

from agentstate.store import deliveries
from agentstate.store.delivering import Answer
from tests.store.asking import rows

ADDRESS = "https://hooks.example.org/T0/s3cret-path"


def make(api, name="ops", **more):
    headers = {n: more.pop(n) for n in list(more) if n[0].isupper()}
    sent = {"name": name, "kind": "webhook", "address": ADDRESS} | more
    return api.post("/alert-targets", sent, **headers)


def change(api, name="ops", version=1, reason="quiet", **more):
    sent = {"version": version, "reason": reason} | more
    return api.send("PATCH", f"/alert-targets/{name}", json.dumps(sent))


@pytest.fixture
def target(api):
    made = make(api)
    assert made.status == 201, made.text
    return made


def test_a_secret_is_shown_once_and_an_address_never(api, target):
    assert target["secret"].startswith("whsec_")
    assert target["hint"] == "https://hooks.example.org/…"
    listed = api.get("/alert-targets")
    assert "s3cret" not in target.text + listed.text
    assert "whsec_" not in listed.text
    (item,) = listed["items"]
    assert (item["name"], item["enabled"], item["least"], item["rules"]) == (
        "ops", True, "warn", [])  # fmt: skip


def test_a_repeated_request_makes_one_and_shows_nothing_again(api):
    first = make(api, Idempotency_Key="k")
    again = make(api, Idempotency_Key="k")
    assert (first.status, again.status) == (201, 201)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again["secret"], again["version"]) == (None, 1)
    assert len(api.get("/alert-targets")["items"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"}, {"name": ""}, {"kind": "fax"}, {"address": "x"}, {"least": "ok"},
        {"address": "http://127.0.0.1/"}, {"address": "https://u:p@example.org/"},
        {"rules": ["none"]}, {"rules": "fenced"}, {"reason": "a\nb"}, {"more": 1},
        {"address": "https://example.org/\u0000"}, {"address": None}, {"secret": "whsec_x"},
    ],
)  # fmt: skip
def test_what_cannot_be_a_target_is_refused(api, wrong):
    answer = make(api, **wrong)
    assert answer.status == 422
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(0,)]


def test_a_name_is_taken_once(api, target):
    assert make(api).refused == (409, "exists")


def test_only_admins(with_scopes, target):
    other = with_scopes("read", "payloads", "write", "operate", "override")
    assert other.get("/alert-targets").refused == (403, "not-allowed")
    assert other.get("/deliveries").refused == (403, "not-allowed")
    for answer in (
        make(other, "x"),
        change(other, enabled=False),
        other.post("/alert-targets/ops/delete", {"version": 1, "reason": "x"}),
        other.post("/alert-targets/ops/test", {}),
        other.post(f"/deliveries/msg_{'0' * 32}/resend", {}),
    ):
        assert answer.refused == (403, "not-allowed")


def test_a_change_is_about_what_was_seen(api, target):
    done = change(api, enabled=False, least="alert", rules=["fenced", "fenced"])
    assert (done["enabled"], done["least"], done["rules"], done["version"]) == (
        False, "alert", ["fenced"], 2)  # fmt: skip
    stale = change(api, enabled=True)
    assert stale.refused == (412, "version-conflict")
    assert stale["current"]["version"] == 2
    assert change(api, "none").refused == (404, "not-found")
    for wrong in ({"enabled": "yes"}, {"enabled": 1}, {"reason": ""}, {"version": 0}):
        assert change(api, **wrong).refused == (422, "invalid")
    assert rows("SELECT action, reason FROM agentstate_operatoraction"
                " WHERE action LIKE 'target%%' ORDER BY id") == [
        ("target.created", ""), ("target.changed", "quiet")]  # fmt: skip


def test_a_test_is_in_the_log_and_can_be_sent_again(api, target):
    queued = api.post("/alert-targets/ops/test", {})
    assert queued["target"] == "ops"
    (claim,) = deliveries.claim(limit=5)
    deliveries.settle(claim, Answer(arrived=False, text="no", status=500))
    (line,) = api.get("/deliveries")["items"]
    assert (line["id"], line["what"], line["state"], line["status"], line["answer"]) == (
        queued["delivery"], "test", "failed", 500, "no")  # fmt: skip
    again = api.post(f"/deliveries/{line['id']}/resend", {})
    assert again["delivery"] == line["id"]
    assert api.get("/deliveries")["items"][0]["state"] == "waiting"
    assert api.post("/alert-targets/none/test", {}).refused == (404, "not-found")
    for unknown in (f"msg_{'0' * 32}", "msg_x", "%20x"):
        assert api.post(f"/deliveries/{unknown}/resend", {}).status in (404, 422)


def test_the_log_comes_in_pages(api, target):
    for _ in range(3):
        api.post("/alert-targets/ops/test", {})
        for claim in deliveries.claim(limit=5):
            deliveries.settle(claim, Answer(arrived=True, text=""))
    first = api.get("/deliveries?limit=2")
    rest = api.get(f"/deliveries?limit=2&before={first['next']}")
    assert (len(first["items"]), len(rest["items"]), rest["next"]) == (2, 1, None)
    assert api.get("/deliveries?target=other")["items"] == []
    assert api.get("/deliveries?limit=0").refused == (422, "invalid")


def test_a_deleted_one_is_gone(api, target):
    answer = api.post("/alert-targets/ops/delete", {"version": 1, "reason": "moved"})
    assert (answer.status, answer["name"]) == (200, "ops")
    assert api.get("/alert-targets")["items"] == []
    assert api.post("/alert-targets/ops/delete", {"version": 1, "reason": "moved"}).refused == (
        404,
        "not-found",
    )


def rotate(api, name="ops", *, version=1, reason="it was in a chat", **headers):
    sent = {"version": version, "reason": reason}
    return api.post(f"/alert-targets/{name}/rotate", sent, **headers)


def test_a_rotated_secret_is_another_one_and_shown_once(api, target):
    first = rotate(api, Idempotency_Key="k")
    again = rotate(api, Idempotency_Key="k")
    assert (first.status, first["version"]) == (200, 2), first.text
    assert first["secret"].startswith("whsec_")
    assert first["secret"] != target["secret"]
    assert (again["secret"], again.headers["Idempotent-Replayed"]) == (None, "true")
    assert rotate(api, version=2)["version"] == 3


def test_a_rotation_is_about_what_was_seen_and_for_admins(api, with_scopes, target):
    assert rotate(api, version=7).refused == (412, "version-conflict")
    assert rotate(api, "none").refused == (404, "not-found")
    assert rotate(api, reason="").refused == (422, "invalid")
    assert rotate(with_scopes("read", "operate", "override")).refused == (403, "not-allowed")
