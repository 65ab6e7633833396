"""OTLP/HTTP: spans of agents come in, and a run goes out as spans.

`POST /traces` takes what every SDK of OpenTelemetry sends (`OTEL_EXPORTER_OTLP_ENDPOINT` is its
address but for `/v1/traces`). Its answers are the protocol's, in the encoding of the request; of
refusals too, which is done around ninja and the door (`in_its_encoding`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import Router

from agentstate import metrics
from agentstate.api import fields, problems, schemas
from agentstate.api.access import READ, WRITE, WorkerRequest, need
from agentstate.api.bodies import Unacceptable, read_bytes
from agentstate.api.contract import contract
from agentstate.api.headers import check_unused, circumstances
from agentstate.api.replies import reply
from agentstate.otlp import encoding, taking, telling
from agentstate.store import errors, export, reads
from agentstate.store.errors import TooLarge

OPERATION = "receive_traces"
_TYPE = re.compile(r"(application/x-protobuf|application/json)\s*(;.*)?", re.IGNORECASE)
# Of a document that is made in memory; a longer run goes out by the command line.
EVENTS_MAX = 20_000

router = Router(tags=["traces"])
of_runs = Router(tags=["traces"])

BODY = {
    "required": True,
    "description": "an ExportTraceServiceRequest of OTLP; Content-Encoding may be gzip. At most"
    f" 4 MiB as sent, {encoding.BYTES_MAX // 2**20} MiB unpacked, and {encoding.SPANS_MAX} spans.",
    "content": {
        encoding.JSON: {"schema": {"type": "object"}},
        encoding.PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
    },
}


def _with_body(told: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI says of the body, and of refusals, which are told in the request's encoding."""
    extra = told["openapi_extra"]
    extra["requestBody"] = BODY
    binary = {"schema": {"type": "string", "format": "binary"}}
    extra["responses"][HTTPStatus.OK]["content"] = {encoding.PROTOBUF: binary}
    for status, answer in extra["responses"].items():
        if status >= HTTPStatus.BAD_REQUEST:
            shape = answer["content"].pop(problems.MEDIA_TYPE)
            answer["content"] = {
                encoding.JSON: {"schema": shape["schema"]},
                encoding.PROTOBUF: binary,
            }
    return told


@router.post(
    "",
    **_with_body(
        contract(
            OPERATION,
            answers=schemas.TracesTold,
            access=WRITE,
            takes_body=True,
        )
    ),
)
def receive_traces(request: WorkerRequest) -> HttpResponse:
    """Take spans of agents, as OTLP/HTTP sends them: a run for each trace, events for its spans.

    Spans with an attribute `gen_ai.*` are kept; the others are counted and told as rejected. A
    batch that is sent again writes nothing twice. Answers are the protocol's, in the encoding of
    the request.
    """
    check_unused(request, "If-Match", "Agentstate-Fence")
    sent_as = _encoding(request)
    if sent_as is None:
        detail = f"send the body as Content-Type: {encoding.PROTOBUF} or {encoding.JSON}"
        raise Unacceptable(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    compressed = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if compressed not in ("", "identity", "gzip"):
        detail = "send the body without a Content-Encoding, or with gzip"
        raise Unacceptable(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    body = encoding.unpacked(read_bytes(request), compressed)
    spans, unreadable = encoding.read_spans(body, sent_as)
    under = circumstances(request, repeatable=True)
    taken = taking.take(spans, by=request.caller, under=under)
    if unreadable:
        taken.refused["a trace id has 16 bytes, a span id 8, not all zero"] += unreadable
    metrics.note_spans(
        kept=taken.kept,
        known=taken.known,
        not_genai=taken.not_genai,
        refused=taken.refused.total(),
    )
    told = encoding.answer(taken.rejected, taken.message, sent_as)
    return HttpResponse(told, content_type=sent_as)


def _encoding(request: HttpRequest) -> str | None:
    found = _TYPE.fullmatch(request.META.get("CONTENT_TYPE", "").strip())
    return found[1].lower() if found else None


type View = Callable[..., HttpResponseBase]


def in_its_encoding(view: View) -> View:
    """Refusals as the protocol wants them: a google.rpc.Status in the encoding of the request, with
    the members of the problem where that is JSON."""

    @wraps(view)
    def answer(request: HttpRequest, **parts: Any) -> HttpResponseBase:
        response = view(request, **parts)
        if response.headers.get("Content-Type") == problems.MEDIA_TYPE:
            sent_as = _encoding(request) or encoding.JSON
            assert isinstance(response, HttpResponse)
            response.content = encoding.refusal(json.loads(response.content), sent_as)
            response.headers["Content-Type"] = sent_as
        return response

    return answer


@of_runs.get(
    "/{key}/trace",
    **contract(
        "read_trace",
        answers=schemas.TraceTold,
        access=READ,
        refuses=(errors.NotFound, errors.RunExpired, errors.TooLarge),
    ),
)
def read_trace(request: WorkerRequest, key: fields.RunKey) -> HttpResponse:
    """A run as spans, in the JSON of OTLP: what a collector takes at its own /v1/traces.

    Needs `payloads` too. A run that came as a trace is that trace again. At most 20,000 events:
    longer ones go out by `./run export KEY --format otlp`.
    """
    need(request, "payloads", operation="read_trace")
    view = reads.run(key)
    if view.run.last_seq > EVENTS_MAX:
        text = f"a run of {view.run.last_seq} events: ./run export {key} --format otlp writes it"
        raise TooLarge(text, limit=EVENTS_MAX, actual=view.run.last_seq)
    return reply(encoding.document(telling.spans_of(export.whole(view))))
