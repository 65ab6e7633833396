"""OTLP/HTTP: the two encodings of a batch of spans and of its answer. Pure: no Django, no I/O.

What cannot be read at all raises Malformed; a span that is read and is none (no ids) is counted.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentstate.store.errors import TooLarge
from agentstate.store.payloads import Malformed

PROTOBUF, JSON = "application/x-protobuf", "application/json"
# Of a body once it is unpacked, and of the spans in it. SDKs send 512 at a time, collectors 8192.
BYTES_MAX = 16 * 1024 * 1024
SPANS_MAX = 10_000
# Of a body's gzip. One is usual; each costs time, however little is in it.
MEMBERS_MAX = 1_000
# Of an attribute's value: deeper ones are told as the text of their JSON.
LEVELS_MAX = 24
# Not a field of the protocol's answers, but what each refusal's body is: google.rpc.Status.message.
_STATUS_MESSAGE = 0x12
_DEEP = "nested too deep"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span as plain data: ids in hex (parent "" without one), times in nanoseconds since 1970 by
    the clock of whoever sent it (0: not told), attributes as JSON values.

    status: 0 unset, 1 ok, 2 error. kind: as the protocol counts them. resource: of the process.
    events, links: as JSON values.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str = ""
    kind: int = 1
    start: int = 0
    end: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: int = 0
    message: str = ""
    events: tuple[Mapping[str, Any], ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    resource: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    dropped: int = 0


def unpacked(body: bytes, content_encoding: str) -> bytes:
    """The body without its gzip. Raises Malformed, TooLarge: no more is unpacked than is taken."""
    if content_encoding in ("", "identity"):
        return body
    pieces, size, left = [], 0, body
    while left:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            piece = unpacker.decompress(left, BYTES_MAX + 1 - size)
        except zlib.error:
            raise Malformed("the body is not gzip, as its Content-Encoding says") from None
        size += len(piece)
        if size > BYTES_MAX:
            text = f"unpacked, a body has at most {BYTES_MAX} bytes"
            raise TooLarge(text, limit=BYTES_MAX, actual=None)
        if not unpacker.eof:
            raise Malformed("the gzip of the body ends too early")
        pieces.append(piece)
        left = unpacker.unused_data
        if left and len(pieces) == MEMBERS_MAX:
            text = f"the gzip of a body has at most {MEMBERS_MAX} members"
            raise TooLarge(text, limit=MEMBERS_MAX, actual=None)
    return b"".join(pieces)


def read_spans(body: bytes, content_type: str) -> tuple[list[Span], int]:
    """The spans of an ExportTraceServiceRequest, and how many were none: without a trace id of 16
    and a span id of 8 bytes that are not all zero. Raises Malformed, TooLarge."""
    request = _request_of_json(body) if content_type == JSON else _request(body)
    found: list[Span] = []
    count = 0
    for resource_spans in request.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                count += 1
                if count > SPANS_MAX:
                    text = f"a batch has at most {SPANS_MAX} spans"
                    raise TooLarge(text, limit=SPANS_MAX, actual=None)
                if _is_id(span.trace_id, 16) and _is_id(span.span_id, 8):
                    found.append(_span(span, resource, scope_spans.scope.name))
    return found, count - len(found)


def _request(body: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        return ExportTraceServiceRequest.FromString(body)
    except (DecodeError, RecursionError, ValueError):
        raise Malformed("the body is no ExportTraceServiceRequest in protobuf") from None


def _request_of_json(body: bytes) -> Any:
    """As protobuf's own JSON reader has it, but for ids, which OTLP writes in hex."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        told = json.loads(body.decode() or "{}", object_pairs_hook=_once)
        if _SURROGATE.search(body):
            # Its message class ends in a SystemError for half a pair in a name.
            json.dumps(told, ensure_ascii=False).encode()
        if not isinstance(told, dict):
            raise TypeError("it is no JSON object")
        _rewrite_ids(told)
        return json_format.ParseDict(
            told, ExportTraceServiceRequest(), ignore_unknown_fields=True, max_recursion_depth=200
        )
    except json_format.ParseError as wrong:
        raise Malformed(
            f"the body is no ExportTraceServiceRequest in JSON: {_short(wrong)}"
        ) from None
    except (ValueError, RecursionError, TypeError, AttributeError, OverflowError) as wrong:
        raise Malformed(f"the body is not JSON of this shape: {_short(wrong)}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a name that is there twice: one of the two would be lost."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise ValueError(f"the same name twice in one object ({twice!a})")
    return found


def _short(wrong: Exception) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(wrong))
    return text[:200] or type(wrong).__name__


def _rewrite_ids(told: Any) -> None:
    """From hex to what the reader takes for bytes; what is no hex becomes no id."""
    for span in _inside(told, "resourceSpans", "scopeSpans", "spans"):
        for owner in (span, *_inside(span, "links")):
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in owner:
                    owner[name] = base64.b64encode(_of_hex(owner[name])).decode()


def _inside(told: Any, name: str, *names: str) -> Iterator[dict[str, Any]]:
    inner = told.get(name) if isinstance(told, dict) else None
    for one in inner if isinstance(inner, list) else ():
        if isinstance(one, dict):
            yield from _inside(one, *names) if names else (one,)


def _of_hex(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (ValueError, TypeError):
        return b""


def _is_id(raw: bytes, length: int) -> bool:
    return len(raw) == length and any(raw)


def _span(span: Any, resource: dict[str, Any], scope: str) -> Span:
    parent = span.parent_span_id
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=parent.hex() if _is_id(parent, 8) else "",
        name=clean(span.name),
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status=span.status.code,
        message=clean(span.status.message),
        events=tuple(
            {
                "name": clean(one.name),
                "at": moment_of(one.time_unix_nano),
                "attributes": _attributes(one.attributes),
            }
            for one in span.events
        ),
        links=tuple(
            {
                "trace": one.trace_id.hex(),
                "span": one.span_id.hex(),
                "attributes": _attributes(one.attributes),
            }
            for one in span.links
        ),
        resource=resource,
        scope=clean(scope),
        dropped=span.dropped_attributes_count,
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    """Of a name that is there twice the last one counts, as in the protocol's own libraries."""
    return {clean(pair.key): _value(pair.value, 1) for pair in pairs}


def _value(value: Any, level: int) -> Any:
    match value.WhichOneof("value"):
        case "string_value":
            return clean(value.string_value)
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            number = value.double_value
            return number if math.isfinite(number) else str(number)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "array_value":
            if level == LEVELS_MAX:
                return _DEEP
            return [_value(one, level + 1) for one in value.array_value.values]
        case "kvlist_value":
            if level == LEVELS_MAX:
                return _DEEP
            return {clean(p.key): _value(p.value, level + 1) for p in value.kvlist_value.values}
    return None


def clean(text: str) -> str:
    """A text that the store can keep: U+0000 is told as the sign for an unknown character."""
    return text.replace("\x00", "\ufffd")


def moment_of(nanoseconds: int) -> str | None:
    """RFC 3339 in UTC with nine digits of a second; None for 0, which says that it is not known."""
    if not nanoseconds:
        return None
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def nanoseconds_of(moment: Any) -> int:
    """What `moment_of` was made of; 0 for what is no such text."""
    if not isinstance(moment, str) or len(moment) != len("2026-01-01T00:00:00.000000000Z"):
        return 0
    try:
        whole = datetime.fromisoformat(f"{moment[:19]}+00:00")
        return int(whole.timestamp()) * 1_000_000_000 + int(moment[20:29])
    except ValueError:
        return 0


# --- answers -------------------------------------------------------------------------------------


def answer(rejected: int, message: str, content_type: str) -> bytes:
    """An ExportTraceServiceResponse; with nothing rejected and nothing to say it is empty."""
    if content_type == JSON:
        part = {"rejectedSpans": str(rejected)} if rejected else {}
        part |= {"errorMessage": message} if message else {}
        return json.dumps({"partialSuccess": part} if part else {}).encode()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    told = ExportTraceServiceResponse()
    if rejected or message:
        told.partial_success.rejected_spans = rejected
        told.partial_success.error_message = message
    return bytes(told.SerializeToString())


def refusal(problem: Mapping[str, Any], content_type: str) -> bytes:
    """A google.rpc.Status, as the protocol wants each refusal, with the code and what it means."""
    message = f"{problem.get('code')}: {problem.get('detail')}"
    if content_type == JSON:
        return json.dumps({"message": message, **problem}, ensure_ascii=False).encode()
    raw = message.encode()
    return bytes([_STATUS_MESSAGE, *_varint(len(raw))]) + raw


def _varint(number: int) -> Iterator[int]:
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number


# --- out -----------------------------------------------------------------------------------------


def document(spans: Iterable[Span]) -> dict[str, Any]:
    """The spans as an ExportTraceServiceRequest in OTLP's JSON, as plain values."""
    groups: dict[str, tuple[Mapping[str, Any], dict[str, list[Any]]]] = {}
    for span in spans:
        key = json.dumps(span.resource, sort_keys=True)
        scopes = groups.setdefault(key, (span.resource, {}))[1]
        scopes.setdefault(span.scope, []).append(_told(span))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _pairs(resource)},
                "scopeSpans": [
                    {"scope": {"name": scope}, "spans": told} for scope, told in scopes.items()
                ],
            }
            for resource, scopes in groups.values()
        ]
    }


def _told(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start),
        "endTimeUnixNano": str(span.end),
        "attributes": _pairs(span.attributes),
        "events": [
            {
                "name": one.get("name", ""),
                "timeUnixNano": str(nanoseconds_of(one.get("at"))),
                "attributes": _pairs(one.get("attributes") or {}),
            }
            for one in span.events
        ],
        "links": [
            {
                "traceId": one.get("trace", ""),
                "spanId": one.get("span", ""),
                "attributes": _pairs(one.get("attributes") or {}),
            }
            for one in span.links
        ],
        "status": {"code": span.status, **({"message": span.message} if span.message else {})},
    }
    if span.parent_id:
        told["parentSpanId"] = span.parent_id
    if span.dropped:
        told["droppedAttributesCount"] = span.dropped
    return told


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _any(value)} for name, value in attributes.items()]


def _any(value: Any) -> dict[str, Any]:
    """An AnyValue. A whole number that 64 bits cannot hold is told as its text."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return (
            {"intValue": str(value)} if -(2**63) <= value < 2**63 else {"stringValue": str(value)}
        )
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value)}}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_any(one) for one in value]}}
    return {}
