"""The API as a script sees it: requests with a key, answers as text and as members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote

from django.test import Client
from django.urls import Resolver404, resolve

from agentstate import store
from agentstate.api.advice import ADVICE
from agentstate.api.urls import api
from agentstate.store.callers import SCOPES
from agentstate.store.keys import NewKey, create_key

BASE = "/api/v1"
SPANS = f"{BASE}/traces"
OF_EACH_PROBLEM = frozenset(
    {"type", "code", "title", "status", "retry", "detail", "instance", "request_id"}
)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    def __getitem__(self, name: str) -> Any:
        return self.json[name]

    @property
    def code(self) -> str:
        """The code of a problem; a failed assertion when the answer is none."""
        problem = self.json
        facts = problem.keys() - OF_EACH_PROBLEM
        # A google.rpc.Status in OTLP's own media type: its message is the detail once more.
        is_of_spans = problem["instance"] == SPANS and "message" in facts
        facts -= {"message"} if is_of_spans else set()
        media = "application/json" if is_of_spans else "application/problem+json"
        assert self.headers["Content-Type"] == media, self.text
        told = ADVICE[problem["code"]].facts
        assert facts <= told.keys(), f"to be told of in advice.py: {facts - told.keys()}"
        assert problem["status"] == self.status, self.text
        assert problem["type"] == f"/problems/{problem['code']}"
        assert problem["request_id"] == self.headers["X-Request-Id"]
        assert {"title", "retry", "detail", "instance"} <= problem.keys()
        return problem["code"]

    @property
    def refused(self) -> tuple[int, str]:
        return self.status, self.code


# Of no call in particular, so not told with each.
UNDOCUMENTED = {405}


def check_documented(method: str, address: str, answer: Answer) -> None:
    """Fail unless OpenAPI describes this answer: its shape, or the code that it refuses with."""
    operation = _operation(method, address)
    if operation is None or answer.status in UNDOCUMENTED:
        return
    if operation.response_models.get(answer.status, ()) is None:
        assert answer.headers["Content-Type"] != "application/json"
    elif answer.status < 300:
        told = operation.response_models[answer.status].model_fields["response"].annotation
        told.model_validate(answer.json)
    else:
        problems = operation.openapi_extra["responses"]
        assert answer.code in problems[answer.status]["description"], answer.text


def _operation(method: str, address: str) -> Any:
    try:
        route = resolve(unquote(address.partition("?")[0])).route
    except Resolver404:
        return None
    return _operations().get((method, route))


@cache
def _operations() -> dict[tuple[str, str], Any]:
    return {
        (method, f"api/v1{router.prefix}{path}".replace("{", "<").replace("}", ">")): operation
        for router in api._get_bound_routers()
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    }


class Api:
    """Calls with one key. Headers are named as they are sent."""

    def __init__(self, key: NewKey | None) -> None:
        self.key = key
        self.client = Client()

    def send(
        self,
        method: str,
        path: str,
        content: bytes | str | None = None,
        *,
        content_type: str = "application/json",
        **headers: str,
    ) -> Answer:
        address = path if path.startswith(("/api", "/health", "/problems")) else BASE + path
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key.text}")
        raw = content.encode() if isinstance(content, str) else content or b""
        response = self.client.generic(method, address, raw, content_type, headers=sent)
        body = b"".join(response.streaming_content) if response.streaming else response.content
        answer = Answer(response.status_code, body.decode(), response.headers)
        check_documented(method, address, answer)
        return answer

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """body: text as it is, anything else as JSON."""
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.send("POST", path, content, **headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, content_type="", **headers)

    # --- short forms -------------------------------------------------------------------------

    def create(self, key: str = "42", **more: Any) -> Answer:
        answer = self.post("/runs", {"key": key, "task": "audit checkout", **more})
        assert answer.status == 201, answer.text
        return answer

    def append(self, key: str = "42", *events: Any, **more: Any) -> Answer:
        headers = {n: more.pop(n) for n in list(more) if n[0].isupper()}
        listed = list(events) or [{"type": "step.done"}]
        return self.post(f"/runs/{key}/events", {"events": listed, **more}, **headers)

    def acquire(self, unit: str, owner: str = "w-1", ttl_seconds: int = 60) -> Answer:
        ask = {"owner": owner, "ttl_seconds": ttl_seconds}
        return self.post(f"/leases/{unit}/acquire", ask)

    def hold(self, key: str = "42", owner: str = "w-1", ttl_seconds: int = 60) -> str:
        """Acquire a run's unit and set it running; the token, as a header has it."""
        answer = self.acquire(f"run:{key}", owner, ttl_seconds)
        assert answer.status == 200, answer.text
        token = str(answer["token"])
        if self.get(f"/runs/{key}")["status"] == "pending":
            moved = self.move("running", key=key, Agentstate_Fence=token)
            assert moved.status == 200, moved.text
        return token

    def move(self, to: str, *, key: str = "42", **more: Any) -> Answer:
        headers = {n: more.pop(n) for n in list(more) if n[0].isupper()}
        return self.post(f"/runs/{key}/transitions", {"to": to, **more}, **headers)

    def events(self, key: str = "42", query: str = "") -> list[Any]:
        return self.get(f"/runs/{key}/events{query}")["items"]


def new_key(name: str, scopes: Sequence[str] = SCOPES, **more: Any) -> NewKey:
    return create_key(name=name, scopes=scopes, by=store.SYSTEM, **more)
