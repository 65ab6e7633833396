"""Reading a request's body: bounded while it is read, strict JSON, payloads kept as their text."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from django.http import HttpRequest
from django.http.request import UnreadablePostError
from ninja.parser import Parser

from agentstate.store import payloads
from agentstate.store.errors import Invalid, Refusal, TooLarge
from agentstate.store.payloads import BODY_BYTES_MAX, Malformed

# Members whose value is a payload: its text is kept as it came, and nobody decodes it to use it.
PAYLOADS = frozenset({"data", "attrs", "result", "progress", "set", "replace"})

_JSON = re.compile(r'application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?', re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")


class Unacceptable(Exception):
    """A request that HTTP itself refuses, with a status that no refusal of the store has."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status, self.refusal = status, Malformed(detail)


class PayloadParser(Parser):
    """ninja's parser, with our reading of bodies and of what follows a `?`."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body's members, payloads as RawJSON. Leaves its text in `request.body_text`.

        Raises Malformed, Invalid, UnstorableText, TooLarge, or Unacceptable (411, 415).
        """
        text = read_text(request)
        body = payloads.parse(text, raw=PAYLOADS)
        if not isinstance(body, dict):
            raise Invalid("body", "a JSON object")
        request.body_text = text  # type: ignore[attr-defined]
        return body

    def parse_querydict(
        self, data: Any, list_fields: list[str], request: HttpRequest
    ) -> dict[str, Any]:
        """The parameters of an address. Raises Invalid for one that is there twice, or that is no
        UTF-8: Django would put another character in its place."""
        check_encoding(request)
        twice = [n for n in data if n not in list_fields and len(data.getlist(n)) > 1]
        if twice:
            raise Invalid(twice[0], "once")
        return {n: data.getlist(n) if n in list_fields else data[n] for n in data}


def check_encoding(request: HttpRequest) -> None:
    """Raises Invalid, with the name of the parameter whose octets are no UTF-8."""
    for pair in request.META.get("QUERY_STRING", "").split("&"):
        name, _, value = pair.partition("=")
        try:
            unquote_to_bytes(name).decode()
            unquote_to_bytes(value).decode()
        except UnicodeDecodeError:
            raise Invalid(unquote(name) or "query", "UTF-8, with % before each octet") from None


def read_text(request: HttpRequest) -> str:
    """The body as text. Raises Malformed, TooLarge, or Unacceptable (411, 415)."""
    _check_type(request)
    raw = _read(request)
    if not raw:
        raise Malformed("the body is empty; send a JSON object")
    try:
        return raw.decode()
    except UnicodeDecodeError as wrong:
        raise Malformed(f"byte {wrong.start} of the body is not UTF-8") from None


def read_bytes(request: HttpRequest) -> bytes:
    """The body as it came, of whatever type. Raises Malformed, TooLarge, or Unacceptable (411)."""
    return _read(request)


def _check_type(request: HttpRequest) -> None:
    if not _JSON.fullmatch(request.META.get("CONTENT_TYPE", "").strip()):
        raise Unacceptable(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as Content-Type: application/json"
        )
    if request.META.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        raise Unacceptable(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body without a Content-Encoding"
        )


def _read(request: HttpRequest) -> bytes:
    length = request.META.get("CONTENT_LENGTH") or ""
    try:
        if _LENGTH.fullmatch(length):
            return _read_exactly(request, int(length))
        return _read_chunked(request)
    except (OSError, UnreadablePostError):
        raise Malformed("the body ended before all of it had come") from None


def _read_exactly(request: HttpRequest, length: int) -> bytes:
    if length > BODY_BYTES_MAX:
        raise _too_large(length)
    raw = request.read(length)
    if len(raw) < length:
        raise Malformed(f"the body ended after {len(raw)} of {length} bytes")
    return raw


def _read_chunked(request: HttpRequest) -> bytes:
    """A body of unknown length. Django takes it for empty, so the server's stream is read itself,
    if the server says that it ends there: another one would wait for ever.
    """
    environ = getattr(request, "environ", {})
    if "HTTP_TRANSFER_ENCODING" not in environ:
        return b""
    if not environ.get("wsgi.input_terminated") and "asgi.scope" not in environ:
        raise Unacceptable(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length")
    raw: bytes = environ["wsgi.input"].read(BODY_BYTES_MAX + 1)
    if len(raw) > BODY_BYTES_MAX:
        raise _too_large(None)
    return raw


def _too_large(actual: int | None) -> Refusal:
    return TooLarge(
        f"a body has at most {BODY_BYTES_MAX} bytes",
        limit=BODY_BYTES_MAX,
        actual=actual,
    )
