"""OpenAPI tells the truth. (That every answer has the described shape is checked at each call of
every test here: tests/api/asking.py.)"""

import json

import pytest
from jsonschema_rs import Draft202012Validator

from agentstate.api import reference
from agentstate.api.problems import kinds
from agentstate.api.schemas import OPERATIONS
from agentstate.store.callers import SCOPES
from tests.api.asking import _operations

BUILT = {
    "POST /api/v1/runs",
    "GET /api/v1/runs",
    "GET /api/v1/runs/{key}",
    "PATCH /api/v1/runs/{key}",
    "PUT /api/v1/runs/{key}/telemetry",
    "POST /api/v1/runs/{key}/signals",
    "PUT /api/v1/runs/{key}/brake",
    "DELETE /api/v1/runs/{key}/brake",
    "GET /api/v1/runs/{key}/story",
    "GET /api/v1/runs/{key}/actions",
    "POST /api/v1/runs/{key}/budgets",
    "PATCH /api/v1/runs/{key}/budgets/{name}",
    "POST /api/v1/runs/{key}/budgets/{name}/reserve",
    "GET /api/v1/runs/{key}/budgets/{name}/reservations",
    "POST /api/v1/runs/{key}/budgets/{name}/reservations/{id}/commit",
    "POST /api/v1/runs/{key}/budgets/{name}/reservations/{id}/release",
    "POST /api/v1/budgets",
    "GET /api/v1/budgets",
    "GET /api/v1/budgets/{name}",
    "PATCH /api/v1/budgets/{name}",
    "POST /api/v1/budgets/{name}/spend",
    "POST /api/v1/budgets/{name}/reserve",
    "GET /api/v1/budgets/{name}/reservations",
    "POST /api/v1/budgets/{name}/reservations/{id}/commit",
    "POST /api/v1/budgets/{name}/reservations/{id}/release",
    "GET /api/v1/budgets/{name}/ledger",
    "POST /api/v1/batch",
    "GET /api/v1/workers",
    "PUT /api/v1/workers/{name}",
    "POST /api/v1/workers/{name}/drain",
    "GET /api/v1/items",
    "GET /api/v1/receipts",
    "POST /api/v1/runs/{key}/transitions",
    "POST /api/v1/runs/{key}/events",
    "GET /api/v1/runs/{key}/events",
    "GET /api/v1/runs/{key}/verify",
    "GET /api/v1/runs/{key}/export",
    "GET /api/v1/runs/{key}/trace",
    "POST /api/v1/traces",
    "GET /api/v1/runs/{key}/budgets",
    "GET /api/v1/runs/{key}/budgets/{name}",
    "POST /api/v1/runs/{key}/budgets/{name}/spend",
    "GET /api/v1/runs/{key}/budgets/{name}/ledger",
    "POST /api/v1/leases/claim",
    "POST /api/v1/leases/renew",
    "POST /api/v1/leases/{unit}/acquire",
    "POST /api/v1/leases/{unit}/renew",
    "POST /api/v1/leases/{unit}/release",
    "POST /api/v1/leases/{unit}/reclaim",
    "POST /api/v1/leases/{unit}/proposals",
    "GET /api/v1/proposals",
    "GET /api/v1/leases",
    "GET /api/v1/leases/{unit}",
    "GET /api/v1/leases/{unit}/terms",
    "GET /api/v1/leases/{unit}/actions",
    "GET /api/v1/rates",
    "GET /api/v1/contention",
    "GET /api/v1/runs/-/search",
    "GET /api/v1/alerts",
    "POST /api/v1/alerts/{rule}/acknowledge",
    "POST /api/v1/alerts/{rule}/snooze",
    "GET /api/v1/alerts/rules",
    "GET /api/v1/alerts/rules/{rule}/preview",
    "PATCH /api/v1/alerts/rules/{rule}",
    "GET /api/v1/alert-targets",
    "POST /api/v1/alert-targets",
    "PATCH /api/v1/alert-targets/{name}",
    "POST /api/v1/alert-targets/{name}/delete",
    "POST /api/v1/alert-targets/{name}/rotate",
    "POST /api/v1/alert-targets/{name}/test",
    "GET /api/v1/deliveries",
    "POST /api/v1/deliveries/{id}/resend",
    "GET /api/v1/feed",
    "GET /api/v1/feed/consumers",
    "GET /api/v1/feed/consumers/{name}",
    "PUT /api/v1/feed/consumers/{name}",
    "GET /api/v1/time",
    "GET /api/v1/health/live",
    "GET /api/v1/health/ready",
    "GET /api/v1/health/jobs",
}


@pytest.fixture
def openapi(anonymous):
    answer = anonymous.get("/openapi.json")
    assert answer.status == 200
    return answer.json


def calls(openapi):
    return [
        (f"{method.upper()} {path}", call)
        for path, methods in openapi["paths"].items()
        for method, call in methods.items()
    ]


def test_it_lists_what_is_built_and_nothing_else(openapi):
    assert openapi["openapi"].startswith("3.1")
    assert {name for name, _ in calls(openapi)} == BUILT
    assert len(_operations()) == len(BUILT)


def test_each_call_has_a_name_a_text_and_its_scopes(openapi):
    ids = [call["operationId"] for _, call in calls(openapi)]
    assert len(set(ids)) == len(ids)
    for name, call in calls(openapi):
        assert all(call[part] for part in ("summary", "description", "tags")), name
        assert set(call["x-scopes"]) <= set(SCOPES)
        open_to_all = name.endswith(("/time", "/live", "/ready", "/jobs"))
        assert bool(call.get("security")) == bool(call["x-scopes"]) == (not open_to_all), name


def test_each_refusal_that_it_names_exists(openapi):
    for name, call in calls(openapi):
        for status, answer in call["responses"].items():
            if int(status) >= 300:
                codes = answer["description"].split(": ")[1].split(", ")
                assert set(codes) <= {kind.code for kind in kinds()}, name
                as_problem = ["application/problem+json"]
                # OTLP wants the encoding of the request.
                as_otlp = ["application/json", "application/x-protobuf"]
                of_otlp = name == "POST /api/v1/traces"
                assert list(answer["content"]) == (as_otlp if of_otlp else as_problem)


def test_every_reference_leads_somewhere(openapi):
    schemas = openapi["components"]["schemas"]
    names = str(openapi).split("#/components/schemas/")[1:]
    assert {name.split("'")[0] for name in names} <= set(schemas)


def test_each_parameter_and_each_status_is_told_of(openapi):
    for name, call in calls(openapi):
        for parameter in call["parameters"]:
            assert parameter.get("description") or "$ref" in parameter, (name, parameter)
        assert {"400", "408", "414", "422", "431", "500", "503"} <= set(call["responses"]), name
        for status, answer in call["responses"].items():
            assert {"X-Request-Id", "Cache-Control"} <= set(answer["headers"]), (name, status)


def test_each_answer_with_a_version_has_its_etag(openapi):
    schemas = openapi["components"]["schemas"]
    for name, call in calls(openapi):
        status = min(call["responses"])
        content = call["responses"][status]["content"].get("application/json", {})
        members = schemas.get(content.get("schema", {}).get("$ref", "").split("/")[-1], {})
        versioned = "version" in members.get("properties", {})
        if "/runs" in name or "/budgets" in name:
            assert versioned == ("ETag" in call["responses"][status]["headers"]), name


def test_each_link_leads_to_a_call_and_names_what_that_takes(openapi):
    by_id = {call["operationId"]: call for _, call in calls(openapi)}
    for name, call in calls(openapi):
        for answer in call["responses"].values():
            for link in answer.get("links", {}).values():
                parameters = by_id[link["operationId"]]["parameters"]
                known = {f"{p['in']}.{p['name']}" for p in parameters if "in" in p}
                assert set(link["parameters"]) <= known, (name, link)


def test_examples_fit_what_is_said_of_bodies_and_answers(openapi):
    shown, made = 0, {}
    schemas = {"schemas": openapi["components"]["schemas"]}
    for _, call in calls(openapi):
        for part in (call.get("requestBody", {}), *call["responses"].values()):
            for content in part.get("content", {}).values():
                for example in content.get("examples", {}).values():
                    if "$ref" in example:
                        example = openapi["components"]["examples"][example["$ref"].split("/")[-1]]
                    # Most refusals have the same shape; to read it takes longer than to use it.
                    shape = json.dumps(content["schema"])
                    if shape not in made:
                        schema = content["schema"] | {"components": schemas}
                        made[shape] = Draft202012Validator(schema)
                    made[shape].validate(example["value"])
                    shown += 1
    assert shown > len(BUILT)


def test_bounds_are_those_of_the_rules(openapi):
    schemas = openapi["components"]["schemas"]
    ttl = schemas["AcquireAsked"]["properties"]["ttl_seconds"]
    assert (ttl["minimum"], ttl["maximum"], ttl["default"]) == (1, 86_400, 60)
    assert schemas["AcquireAsked"]["additionalProperties"] is False
    assert schemas["AppendAsked"]["properties"]["events"]["maxItems"] == 500
    assert "RawJSON" not in str(openapi)


def test_the_page_tells_what_each_operation_of_a_batch_takes(openapi):
    found = reference.sections(openapi)
    (batch,) = [call for section in found for call in section.operations if call.id == "batch"]
    assert batch.body[0].kind == "list of objects, at most 100"
    kinds = [member.name for member in batch.body if member.depth == 1]
    assert sorted(kinds) == sorted(OPERATIONS)
    after_check = [m.name for m in batch.body][kinds.index("check") :]
    assert {"run", "if_match", "expected_seq"} <= set(after_check)


def test_the_page_shows_each_call_without_anything_from_elsewhere(anonymous, openapi):
    page = anonymous.get("/docs")
    assert page.status == 200
    for _, call in calls(openapi):
        assert f'id="{call["operationId"]}"' in page.text
    assert "curl -s http://testserver/api/v1/runs " in page.text
    assert "https://" not in page.text
    assert "<script" not in page.text
    assert "style=" not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
