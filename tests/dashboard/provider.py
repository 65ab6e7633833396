"""An OpenID Connect provider as a test needs one: a real server on this machine, signed tokens.

`claims` says who would sign in there; a code is good once, for the client and the PKCE challenge
that it was made for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "console", "s3cret"


class Provider:
    """claims: of whoever signs in next. wrong: what it does wrong, by name (see the handler)."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        self.wrong = ""
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []

    def configuration(self) -> dict[str, Any]:
        return {
            "issuer": "http://elsewhere" if self.wrong == "issuer" else self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
        }

    def keys(self) -> dict[str, Any]:
        jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [jwk | {"kid": "one", "use": "sig", "alg": "RS256"}]}

    def authorize(self, asked: dict[str, str]) -> str:
        """Whoever it is agrees at once; the address to go back to."""
        code = secrets.token_urlsafe()
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def redeem(self, sent: dict[str, str], authorization: str) -> dict[str, Any] | None:
        asked = self.codes.pop(sent.get("code", ""), None)
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or authorization != f"Basic {basic}":
            return None
        if asked["code_challenge"] != challenge or asked["redirect_uri"] != sent["redirect_uri"]:
            return None
        now = int(time.time())
        told = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 60} | self.claims
        told |= {"audience": {"aud": "another"}, "expired": {"exp": now - 60}}.get(self.wrong, {})
        key = self.other_key if self.wrong == "signature" else self.key
        token = secrets.token_urlsafe()
        about = {"sub": "somebody-else"} if self.wrong == "person" else {}
        self.tokens[token] = self.claims | about
        return {
            "access_token": token,
            "token_type": "Bearer",
            "id_token": jwt.encode(told, key, algorithm="RS256", headers={"kid": "one"}),
        }


@contextmanager
def provider() -> Iterator[Provider]:
    """It answers while the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def reply(self, value: Any, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            it.asked.append(self.path)
            parts = urlsplit(self.path)
            if it.wrong == "down":
                self.reply({}, 503)
            elif parts.path == "/authorize":
                asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", it.authorize(asked))
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif parts.path == "/userinfo":
                sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
                self.reply(it.tokens.get(sent, {}), 200 if sent in it.tokens else 401)
            elif parts.path == "/keys":
                self.reply(it.keys())
            else:
                self.reply(it.configuration())

        def do_POST(self) -> None:
            it.asked.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            sent = {name: values[0] for name, values in parse_qs(body).items()}
            found = it.redeem(sent, self.headers.get("Authorization", ""))
            self.reply(found or {"error": "invalid_grant"}, 200 if found else 400)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it = Provider(server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield it
    finally:
        server.shutdown()
        server.server_close()
