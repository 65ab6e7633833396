"""Whatever happens, the answer is one of the contract."""

import pytest
from django.conf import settings
from django.db import connection

from agentstate.api.advice import ADVICE
from agentstate.api.management.commands import write_problem_docs
from agentstate.api.problems import STATUS, kinds
from agentstate.store import reads
from agentstate.store.errors import Retry, every_refusal
from tests.api.asking import BASE


def test_every_refusal_has_a_status():
    assert set(every_refusal().values()) == set(STATUS)
    assert len({cls.code for cls in STATUS}) == len(STATUS)


def test_statuses_and_retries_are_those_of_the_contract():
    by_status = {kind.code: (kind.status, kind.retry) for kind in kinds()}
    assert by_status["stale-fence"] == (409, Retry.NEVER)
    assert by_status["lease-held"] == (423, Retry.LATER)
    assert by_status["seq-conflict"] == (412, Retry.REREAD)
    assert by_status["budget-exhausted"] == (402, Retry.NEVER)
    assert by_status["idempotency-in-flight"] == (409, Retry.SAME_REQUEST)
    assert by_status["fence-required"] == (428, Retry.NEVER)


def test_docs_say_what_the_code_says():
    path = settings.BASE_DIR / "docs" / "problems.md"
    assert path.read_text(encoding="utf-8") == write_problem_docs.document(), (
        "run: ./run manage write_problem_docs"
    )


def test_each_problem_has_its_page(anonymous):
    index = anonymous.get("/problems/")
    for kind in kinds():
        page = anonymous.get(f"/problems/{kind.code}")
        assert page.status == 200
        assert page.headers["Content-Type"].startswith("text/html")
        assert f"<code>{kind.code}</code>" in page.text
        assert "An example" in page.text
        assert page.text.count("<li>") >= len(kind.advice.do)
        assert all(f"<code>{name}</code>" in page.text for name in kind.advice.facts)
        assert f"/problems/{kind.code}" in index.text
    assert anonymous.get("/problems/no-such-code").refused == (404, "not-found")


def test_a_problem_is_explained_as_json_and_as_markdown_too(anonymous):
    for kind in kinds():
        found = anonymous.get(f"/problems/{kind.code}", Accept="application/json")
        assert found.headers["Content-Type"] == "application/json"
        assert (found["code"], found["retry"], found["status"]) == (
            kind.code, kind.retry, kind.status)  # fmt: skip
        assert found["example"]["answer"]["code"] == kind.code
        assert found["do"]
    text = anonymous.get("/problems/stale-fence", Accept="text/markdown")
    assert text.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert text.text.startswith("# stale-fence\n")
    assert "](/problems/lease-lost)" in text.text


def test_each_code_has_advice_and_what_is_near_to_it_exists():
    codes = {kind.code for kind in kinds()}
    assert set(ADVICE) == codes
    for code, advice in ADVICE.items():
        assert set(advice.near) <= codes - {code}, code
        assert advice.do, code


@pytest.mark.parametrize(
    "path",
    ["/api/", "/api/v1/", "/api/v2/runs", "/api/v1/runs/42/nothing", "/health/", "/health/x",
     "/api/v1/runs/", "/api/v1/runs/42/", "/problems/a/b"],
)  # fmt: skip
def test_an_address_that_is_none_is_a_problem_too(api, path):
    answer = api.get(path)
    assert answer.refused == (404, "not-found")
    assert answer["instance"] == path


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/runs/42", "GET, HEAD, PATCH"),
        ("PUT", "/runs", "GET, HEAD, POST"),
        ("GET", "/runs/42/transitions", "POST"),
        ("GET", "/leases/claim", "POST"),
        ("POST", "/problems/", "GET, HEAD"),
        ("POST", "/health/live", "GET, HEAD"),
        ("OPTIONS", "/runs", "GET, HEAD, POST"),
    ],
)
def test_a_method_that_is_not_for_an_address(api, method, path, allowed):
    answer = api.send(method, path)
    assert answer.refused == (405, "malformed")
    assert {m.strip() for m in answer.headers["Allow"].split(",")} == set(allowed.split(", "))


def test_head_is_get_without_content(api):
    api.create("42")
    head, get = api.send("HEAD", "/runs/42", content_type=""), api.get("/runs/42")
    assert (head.status, head.text, head.headers["ETag"]) == (200, "", get.headers["ETag"])
    assert int(head.headers["Content-Length"]) > 100
    assert api.send("HEAD", "/runs/unknown", content_type="").status == 404


def test_a_fault_of_ours_is_told_with_its_request_id_and_nothing_else(api, monkeypatch, caplog):
    monkeypatch.setattr(reads, "run", lambda key: {}["the secret of the house"])
    answer = api.get("/runs/42", X_Request_Id="req-7")
    assert answer.refused == (500, "internal")
    assert answer["request_id"] == "req-7"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "req-7" in caplog.text
    assert "Traceback" in caplog.text


def test_a_fault_before_the_endpoint_is_told_the_same_way(api, monkeypatch):
    monkeypatch.setattr("agentstate.api.door._check_path", lambda request: 1 / 0)
    assert api.get("/runs/42").refused == (500, "internal")


def test_a_database_that_is_away_is_503_and_comes_back(transactional_db, api):
    connection.close()
    settings_dict = connection.settings_dict
    port = settings_dict["PORT"]
    try:
        settings_dict["PORT"] = "1"
        for answer in (api.get("/runs"), api.post("/runs", {"task": "x"}), api.get("/time")):
            assert answer.refused == (503, "unavailable")
            assert answer.headers["Retry-After"] == "1"
            assert "port" not in answer.text
            assert "socket" not in answer.text
        ready = api.get("/health/ready")
        assert ready.status == 503
        assert ready["checks"]["database"] == "does not answer"
        assert api.get("/health/live").status == 200
    finally:
        connection.close()
        settings_dict["PORT"] = port
    assert api.get("/runs").status == 200


def test_a_database_that_can_only_be_read_is_read_and_a_write_is_503(transactional_db, api):
    api.create("42")
    event = {"events": [{"type": "a.b"}]}
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentstate_apikey SET last_used_at = NULL")
        cursor.execute("SET default_transaction_read_only = on")  # as on one that recovers
    assert api.get("/runs/42").status == 200
    answer = api.post("/runs/42/events", event)
    assert answer.refused == (503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    # The connection may lead to one that only stands by now: the next call has another.
    assert api.post("/runs/42/events", event).status == 201


def test_every_answer_says_how_long_it_took_and_is_not_kept_by_caches(api):
    api.create("42")
    for answer in (api.get("/runs/42"), api.get("/runs/no"), api.get("/nowhere")):
        assert answer.headers["Server-Timing"].startswith("total;dur=")
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("sent", ["req-7", "0197-abc", "x" * 200, "a" * 1])
def test_a_request_id_of_the_caller_comes_back(api, sent):
    assert api.get("/time", X_Request_Id=sent).headers["X-Request-Id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 201, "with space", "ключ", "new\x1fline"])
def test_a_request_id_that_cannot_be_kept_is_replaced(api, sent):
    made = api.get("/time", X_Request_Id=sent).headers["X-Request-Id"]
    assert made != sent
    assert len(made) >= 16


def test_the_instance_is_an_address_that_can_be_followed(api):
    answer = api.get(f"{BASE}/runs/%C3%A9%20x")
    assert answer.refused == (422, "invalid")
    assert answer["instance"] == "/api/v1/runs/%C3%A9%20x"
