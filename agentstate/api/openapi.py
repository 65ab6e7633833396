"""What OpenAPI says beyond the shapes: headers of answers, codes of refusals, links, examples.

The links let a tool go from a call to those that make sense after it, with what was answered:
bench/fuzz walks along them. The examples are the ones in examples.json, which
tests/api/test_examples.py carries out in their order, against the real server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from agentstate.api import examples
from agentstate.api.problems import MEDIA_TYPE, REPEATABLE, REPLAYED
from agentstate.api.schemas import ProblemTold
from agentstate.phrases import phrase_of
from agentstate.store.errors import RateLimited

REF = "#/components/schemas/{model}"

type Members = dict[str, Any]

TAGS: list[Members] = [
    {"name": "runs", "description": "Runs, their events, and what operators do to them."},
    {"name": "budgets", "description": "Budgets of one run: fenced as every write to it is."},
    {"name": "shared budgets", "description": "Budgets of many runs: a fleet's, a tenant's."},
    {"name": "leases", "description": "Who may work on what, and until when."},
    {"name": "workers", "description": "Worker processes, as they announce themselves."},
    {"name": "batch", "description": "Many operations in one transaction."},
    {"name": "feed", "description": "Every change of every run in one order."},
    {"name": "rates", "description": "How often writes conflict and are retried."},
    {"name": "alerts", "description": "Rules, how each stands, and who is at it."},
    {"name": "alert targets", "description": "Where alerts are told."},
    {"name": "deliveries", "description": "What was told where, and how it ended."},
    {
        "name": "traces",
        "description": "OpenTelemetry: spans come in as runs, runs go out as spans.",
    },
    {"name": "look-ups", "description": "Rows by key, and what became of a request."},
    {"name": "health", "description": "The database's clock; whether this process can work."},
]

# --- parameters ----------------------------------------------------------------------------------

# A parameter's name means the same in every call.
PARAMETERS = {
    "key": "the run's key",
    "unit": "the unit of work; a run's is run:<key>",
    "name": "of the budget, worker, consumer or alert target that the address is about",
    "id": "of the reservation or the delivery, as it was given when it was made",
    "rule": "of the alert; GET /alerts lists them",
    "warn": "from where it warns, in the rule's unit; left out: never",
    "alert": "from where it alerts, in the rule's unit; left out: never",
    "target": "the place that alerts are told to, by its name",
    "status": "any of these, when it is there several times",
    "task": "exactly this one",
    "tag": "with this tag",
    "owner": "held by this worker; of runs: owned by it",
    "parent": "children of this run",
    "filter": "in the language of the console's list, such as `status:running worker:w-3 since:2h`",
    "q": "part of the key or the task, upper and lower case alike",
    "created_after": "from this instant on, itself not included",
    "created_before": "up to this instant, itself not included",
    "updated_after": "from this instant on, itself not included",
    "overdue": "true: past their deadline and not ended; false: all others",
    "order": "newest or oldest first",
    "cursor": "`next` or `prev` of a page of this very list; it is signed and bound to the filters",
    "limit": "at most so many items in the page",
    "after": "what comes behind it: the last number, position, name or sort key that was seen",
    "before": "what comes before it, itself not included",
    "after_seq": "events with numbers above it",
    "type": "events of this type; of any, when it is there several times",
    "types": "event types, or beginnings of them as run.*; several times for several",
    "open_effects": "those alone that began an effect which no event ends",
    "origin": "store: written by the store itself; worker: sent by a worker",
    "state": "in this state",
    "pk": "the partition key: run#<key>, unit#<unit> or budget#<name>",
    "sk_prefix": "sort keys that begin with it",
    "request_id": "the X-Request-Id of the request that is asked about",
    "reason": "why; it is kept with who did it",
    "expected_until": "`until` of the brake that was seen; left out: whichever is on",
    "since": "from the minute of this instant on",
    "until": "up to the minute of this instant, itself included",
    "by": "what to group by; several times for several",
    "run": "writes to this run",
    "operation": "writes of this kind, as append",
    "worker": "writes by this worker",
    "outcome": "ok, failed, or the code of a refusal",
}  # fmt: skip

REQUEST_ID: Members = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "an id to find the request by: printable ASCII, at most 200 characters; anything"
    " else is replaced by an id of ours",
    "schema": {"type": "string"},
}


# --- headers of answers --------------------------------------------------------------------------

HEADERS: dict[str, Members] = {
    "X-Request-Id": {
        "description": "the request's own id, or the one that it was given",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    },
    "Server-Timing": {
        "description": "where the time went, in milliseconds",
        "required": True,
        "schema": {"type": "string", "pattern": "dur=[0-9]"},
    },
    "Cache-Control": {
        "description": "no answer of the API is to be kept by caches",
        "required": True,
        "schema": {"type": "string", "enum": ["no-store"]},
    },
    "ETag": {
        "description": "the version to guard the next write with, as If-Match",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[vb][1-9][0-9]*"$'},
    },
    "Location": {
        "description": "the address of what was made",
        "required": True,
        "schema": {"type": "string", "pattern": "^/api/v1/"},
    },
    REPLAYED: {
        "description": "true: this is the first answer to a repeated request; nothing was written",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Agentstate-Duplicate": {
        "description": "true: what was asked for had been applied before, by another request",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Retry-After": {
        "description": "seconds to wait before the request is sent again",
        "schema": {"type": "integer", "minimum": 1},
    },
    "RateLimit-Policy": {
        "description": "of a key that may call only so often: how often",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "of a key that may call only so often: what is left of it",
        "schema": {"type": "string"},
    },
    "WWW-Authenticate": {
        "description": "how to authenticate",
        "required": True,
        "schema": {"type": "string", "pattern": "^Bearer"},
    },
}
ALWAYS = ("X-Request-Id", "Server-Timing", "Cache-Control")
# Answered before anybody counts time: agentstate/wire.py.
AT_THE_WIRE = (400, 408, 414, 431)
DUPLICATES = frozenset({"change_run", "append_events"})


def answer_headers(operation_id: str, *, etag: str, writes: bool, limited: bool) -> Members:
    """The headers of a call's answer, as a part of its OpenAPI.

    etag: whose version it is; none if empty. limited: a key may call it only so often.
    """
    names = [*ALWAYS]
    names += ["RateLimit-Policy", "RateLimit"] if limited else []
    names += ["ETag"] if etag else []
    names += ["Location"] if operation_id == "create_run" else []
    names += [REPLAYED] if writes else []
    names += ["Agentstate-Duplicate"] if operation_id in DUPLICATES else []
    return _headers(names)


def problem_answer(status: int, codes: Sequence[str]) -> Members:
    """What OpenAPI says of one status of refusals, which has these codes."""
    repeatable = REPEATABLE.intersection(codes)
    names = [name for name in ALWAYS if name != "Server-Timing" or status not in AT_THE_WIRE]
    names += ["WWW-Authenticate"] if status == HTTPStatus.UNAUTHORIZED else []
    names += ["RateLimit-Policy", "RateLimit"] if RateLimited.code in codes else []
    told = _headers(names)
    if repeatable:
        told["headers"]["Retry-After"] = HEADERS["Retry-After"] | (
            {"required": True} if len(repeatable) == len(codes) else {}
        )
    code = {"enum": list(codes)}
    narrowed = {"properties": {"code": code, "status": {"const": status}}}
    schema = {"allOf": [{"$ref": REF.format(model=ProblemTold.__name__)}, narrowed]}
    shown = {
        code: {"$ref": f"#/components/examples/{code}"}
        for code in codes
        if (example := examples.refused(code)) and example.status == status
    }
    return told | {
        "description": f"{phrase_of(status)}: {', '.join(codes)}",
        "content": {MEDIA_TYPE: {"schema": schema} | ({"examples": shown} if shown else {})},
    }


def _headers(names: Sequence[str]) -> Members:
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}}


# --- links ---------------------------------------------------------------------------------------

_KEY, _NAME, _ID = "$request.path.key", "$request.path.name", "$request.path.id"
_TOKEN, _UNIT = "$response.body#/token", "$response.body#/unit"
_ETAG = "$response.header.ETag"
_CLAIMED = "$response.body#/items/0"
_BUDGET = "$response.body#/budget"
_UNDER_CLAIM = {
    "path.key": f"{_CLAIMED}/run",
    "header.Agentstate-Fence": f"{_CLAIMED}/token",
}

# From a call to those that follow from it: parameters, and members of the body (under `body`).
LINKS: dict[str, dict[str, dict[str, Any]]] = {
    "create_run": {
        "read_run": {"path.key": "$response.body#/key"},
        "append_events": {"path.key": "$response.body#/key"},
        "move_run": {"path.key": "$response.body#/key", "header.If-Match": _ETAG},
        "change_run": {"path.key": "$response.body#/key", "header.If-Match": _ETAG},
        "acquire_lease": {"path.unit": "run:{$response.body#/key}"},
        "create_budget": {"path.key": "$response.body#/key"},
        "brake_run": {"path.key": "$response.body#/key"},
        "signal_run": {"path.key": "$response.body#/key"},
        "read_story": {"path.key": "$response.body#/key"},
        "list_events": {"path.key": "$response.body#/key"},
        "list_budgets": {"path.key": "$response.body#/key"},
        "verify_run": {"path.key": "$response.body#/key"},
        "export_run": {"path.key": "$response.body#/key"},
        "read_trace": {"path.key": "$response.body#/key"},
    },
    "read_run": {
        "change_run": {"path.key": _KEY, "header.If-Match": _ETAG},
        "move_run": {"path.key": _KEY, "header.If-Match": _ETAG},
    },
    "append_events": {
        "append_events": {
            "path.key": _KEY,
            "header.If-Match": _ETAG,
            "body": {"expected_seq": "$response.body#/last_seq"},
        },
        "list_events": {"path.key": _KEY},
        "verify_run": {"path.key": _KEY},
    },
    "change_run": {"change_run": {"path.key": _KEY, "header.If-Match": _ETAG}},
    "move_run": {
        "move_run": {"path.key": _KEY, "body": {"from": "$response.body#/status"}},
        "verify_run": {"path.key": _KEY},
    },
    "brake_run": {"lift_brake": {"path.key": _KEY}},
    "list_runs": {"list_runs": {"query.cursor": "$response.body#/next"}},
    "acquire_lease": {
        "renew_lease": {"path.unit": _UNIT, "body": {"token": _TOKEN}},
        "release_lease": {"path.unit": _UNIT, "body": {"token": _TOKEN}},
        "reclaim_lease": {
            "path.unit": _UNIT,
            "body": {"expected_token": _TOKEN, "expected_owner": "$response.body#/owner"},
        },
        "read_lease": {"path.unit": _UNIT},
        "list_terms": {"path.unit": _UNIT},
    },
    "renew_lease": {"release_lease": {"path.unit": _UNIT, "body": {"token": _TOKEN}}},
    "claim_runs": {
        "append_events": _UNDER_CLAIM,
        "change_run": _UNDER_CLAIM,
        "move_run": _UNDER_CLAIM,
        "put_telemetry": _UNDER_CLAIM,
        "create_budget": _UNDER_CLAIM,
        "renew_lease": {
            "path.unit": f"{_CLAIMED}/unit",
            "body": {"token": f"{_CLAIMED}/token"},
        },
        "release_lease": {
            "path.unit": f"{_CLAIMED}/unit",
            "body": {"token": f"{_CLAIMED}/token"},
        },
    },
    "create_budget": {
        call: {"path.key": _KEY, "path.name": _BUDGET}
        for call in (
            "read_budget",
            "spend",
            "reserve",
            "change_cap",
            "list_ledger",
            "list_reservations",
        )
    },
    "reserve": {
        call: {"path.key": _KEY, "path.name": _BUDGET, "path.id": "$response.body#/id"}
        for call in ("commit_reservation", "release_reservation")
    },
    "create_shared_budget": {
        call: {"path.name": _BUDGET}
        for call in (
            "read_shared_budget",
            "spend_shared",
            "reserve_shared",
            "change_shared_budget",
            "list_shared_ledger",
            "list_shared_reservations",
        )
    },
    "reserve_shared": {
        call: {"path.name": _BUDGET, "path.id": "$response.body#/id"}
        for call in ("commit_shared_reservation", "release_shared_reservation")
    },
    "announce_worker": {"drain_worker": {"path.name": "$response.body#/worker"}},
    "set_checkpoint": {"read_consumer": {"path.name": "$response.body#/consumer"}},
    "read_feed": {
        "read_feed": {"query.after": "$response.body#/position"},
        "set_checkpoint": {"body": {"position": "$response.body#/position"}},
    },
}  # fmt: skip


def links_of(operation_id: str) -> Members:
    """The links of a call's answer, as a part of its OpenAPI."""
    links = LINKS.get(operation_id)
    return {"links": {to: _link(to, with_) for to, with_ in links.items()}} if links else {}


def _link(to: str, with_: Mapping[str, Any]) -> Members:
    parameters = {name: value for name, value in with_.items() if name != "body"}
    return {
        "operationId": to,
        "parameters": parameters,
        **({"requestBody": with_["body"]} if "body" in with_ else {}),
    }


# --- the whole document --------------------------------------------------------------------------


def completed(schema: Any) -> Any:
    """ninja's document, with what it does not say by itself."""
    components = schema["components"]
    problem = ProblemTold.model_json_schema(ref_template=REF)
    components["schemas"][ProblemTold.__name__] = problem
    components["headers"] = HEADERS
    components["parameters"] = {REQUEST_ID["name"]: REQUEST_ID}
    components["examples"] = examples.problems()
    for scheme in components["securitySchemes"].values():
        scheme["description"] = "Authorization: Bearer as_…, a key with one of the call's x-scopes"
    for call in _calls(schema):
        _describe_parameters(call)
        _show_examples(call)
    return schema


def _calls(schema: Any) -> Iterator[Members]:
    for methods in schema["paths"].values():
        yield from methods.values()


def _describe_parameters(call: Members) -> None:
    for parameter in call["parameters"]:
        if not parameter.get("description"):
            parameter["description"] = PARAMETERS.get(parameter["name"], "")
    call["parameters"].append({"$ref": f"#/components/parameters/{REQUEST_ID['name']}"})


def _show_examples(call: Members) -> None:
    """Each example twice: what is sent, and what is answered to it."""
    for name, example in examples.of(call["operationId"]).items():
        if example.sent is not None:
            content = call["requestBody"]["content"]["application/json"]
            told = {"summary": example.summary, "value": example.sent}
            content.setdefault("examples", {})[name] = told
        for parameter in call["parameters"]:
            value = example.parameters.get(parameter.get("name", ""))
            if value is not None:
                shown = {"summary": example.summary, "value": value}
                parameter.setdefault("examples", {})[name] = shown
        answer = call["responses"][example.status]
        contents = answer["content"]
        content = contents.get("application/json") or next(iter(contents.values()))
        told = {"summary": example.summary, "value": example.answer}
        content.setdefault("examples", {})[name] = told
