"""Our own webhooks, after Standard Webhooks: a JSON body, an id, a time, and a signature of these.

The host's name is looked up once; every address that it has must be one that may be reached, and
one of those is connected to, so nothing can change between the check and the connection. Redirects
are not followed: each would be another address. Of the answer little is read, and all of it has
to come within the limit of time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import ssl
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx
from django.conf import settings

from agentstate import __version__
from agentstate.outside.networks import Forbidden, check
from agentstate.store.delivering import ANSWER_CHARS, Answer, signing
from agentstate.store.targets import SECRET_PREFIX

SECONDS = 10.0
READ_BYTES = 4_096
PORTS = {"http": 80, "https": 443}


async def send(*, address: str, secret: str, message_id: str, body: str, now: datetime) -> Answer:
    """Try it once. now: the database's clock, for the signature. Never raises for what a receiver
    does.
    """
    began = time.monotonic()
    try:
        async with asyncio.timeout(SECONDS):
            status, text, again = await _post(
                httpx.URL(address), body, headers_of(message_id, body, secret, now)
            )
    except TimeoutError:
        return _failed(f"no whole answer within {SECONDS:.0f} s", began)
    except Forbidden as forbidden:
        return _failed(str(forbidden), began)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as broken:
        return _failed(_why(broken), began)
    arrived = 200 <= status < 300
    if 300 <= status < 400:
        text = "redirects are not followed"
    return Answer(
        arrived=arrived, status=status, text=text, again_seconds=again, took_ms=_since(began)
    )


def headers_of(message_id: str, body: str, secret: str, now: datetime) -> dict[str, str]:
    """The headers by which the receiver knows who sent it, and that it was not changed.

    secret: as it is kept, of two while one follows the other (`delivering.signing`).
    """
    at = str(int(now.timestamp()))
    return {
        "content-type": "application/json",
        "user-agent": f"agentstate/{__version__}",
        "webhook-id": message_id,
        "webhook-timestamp": at,
        "webhook-signature": " ".join(
            f"v1,{signature(one, f'{message_id}.{at}.{body}')}" for one in signing(secret, now)
        ),
    }


def signature(secret: str, text: str) -> str:
    """HMAC-SHA256 in base64. secret: `whsec_` and base64."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()


async def _post(
    url: httpx.URL, body: str, headers: Mapping[str, str]
) -> tuple[int, str, float | None]:
    ip = await _checked_address(url)
    named = url.netloc.decode("ascii")
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        verify=ssl.create_default_context() if url.scheme == "https" else False,
        trust_env=False,
        follow_redirects=False,
        timeout=SECONDS,
        limits=limits,
    ) as client:
        request = client.build_request(
            "POST",
            url.copy_with(host=ip),
            content=body,
            headers={**headers, "host": named, "accept-encoding": "identity"},
            # Of the certificate, the name that was asked for counts.
            extensions={"sni_hostname": url.host} if url.scheme == "https" else {},
        )
        answer = await client.send(request, stream=True)
        try:
            text = await _beginning(answer)
        finally:
            await answer.aclose()
        return answer.status_code, text, _again_seconds(answer.headers)


async def _checked_address(url: httpx.URL) -> str:
    """The address to connect to. Raises Forbidden if the name leads to any that may not be."""
    port = url.port or PORTS[url.scheme]
    found = await asyncio.get_running_loop().getaddrinfo(
        url.host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    addresses = [str(where[0]) for *_, where in found]
    for address in addresses:
        check(address, settings.DELIVERY_NETWORKS)
    return addresses[0]


async def _beginning(answer: httpx.Response) -> str:
    """The first bytes of the answer as one line. Raw: what it unpacks to could be huge."""
    read = b""
    async for chunk in answer.aiter_raw(READ_BYTES):
        read += chunk
        if len(read) >= READ_BYTES:
            break
    return one_line(read.decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """For the log: no control characters, at most 500 characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:ANSWER_CHARS]


def _again_seconds(headers: httpx.Headers) -> float | None:
    """Retry-After, as seconds or as a date by this host's clock: it is only advice."""
    sent = headers.get("retry-after", "").strip()
    if sent.isascii() and sent.isdigit() and len(sent) < 10:
        return float(sent)
    try:
        return max(0.0, parsedate_to_datetime(sent).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _why(broken: Exception) -> str:
    """What went wrong, without the address: it may hold a secret."""
    if isinstance(broken, socket.gaierror):
        return "its name was not found"
    if isinstance(broken, httpx.ConnectError):
        said = str(broken).lower()
        if "certificate" in said or "ssl" in said:
            return "its certificate or its TLS is not acceptable"
        return "no connection to it"
    if isinstance(broken, (httpx.ReadError, httpx.WriteError)):
        return "it cut the connection"
    if isinstance(broken, httpx.RemoteProtocolError):
        return "what it answered is not HTTP"
    return f"failed: {type(broken).__name__}"


def _failed(text: str, began: float) -> Answer:
    return Answer(arrived=False, text=text, took_ms=_since(began))


def _since(began: float) -> int:
    return int((time.monotonic() - began) * 1_000)
