"""Requests that agentstate-client has no name for, or would not send: an ordinary HTTP client's."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
from agentstate_client.payloads import encode

from tasks.simulate.shift import Shift

PLAIN_SECONDS = 30.0
ACCEPTED = "accepted"


def send(
    shift: Shift, method: str, path: str, document: Any, *, fence: int | None = None
) -> tuple[str, str]:
    """One try. The code of the refusal, or `accepted`, or how the connection failed; and why."""
    headers = {
        "Authorization": f"Bearer {shift.key}",
        "Content-Type": "application/json",
        "Idempotency-Key": str(uuid.uuid4()),
    }
    if fence is not None:
        headers["Agentstate-Fence"] = str(fence)
    try:
        answer = httpx.request(
            method,
            f"{shift.url.rstrip('/')}/api/v1/{path}",
            content=encode(document),
            headers=headers,
            timeout=PLAIN_SECONDS,
            trust_env=False,
        )
        if answer.is_success:
            return ACCEPTED, ""
        problem = answer.json()
        return str(problem.get("code")), str(problem.get("detail", ""))
    except (httpx.HTTPError, ValueError) as failure:
        return type(failure).__name__, str(failure)
