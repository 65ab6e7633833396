"""Leases over an outage. One outlives it when its time is not over, by the database's clock, at the
moment when the database can be used again: then it is still its holder's, and nobody else's."""

from __future__ import annotations

import http.client
from typing import Any

from bench.outages.probes import Answer, ask, until
from bench.outages.site import Site

LONG_SECONDS = 600
SHORT_SECONDS = 5  # over before the shortest outage that is long enough to say so
ASK_SECONDS = 30.0


class Leases:
    """Two units that are taken before each outage, one for long and one for a moment."""

    def __init__(self, *, url: str, key: str) -> None:
        self.url, self.key, self.wrong = url, key, list[str]()
        self.outlived = self.ended = 0
        self._tokens: dict[str, int] = {}

    def take(self, outage: str) -> None:
        self._tokens = {}
        for unit, seconds in ((f"long-{outage}", LONG_SECONDS), (f"short-{outage}", SHORT_SECONDS)):
            got = self._ask(f"/leases/{unit}/acquire", {"owner": "before", "ttl_seconds": seconds})
            if got.status != 200:
                self.wrong.append(f"{unit} could not be taken before the outage: {got.members}")
            else:
                self._tokens[unit] = int(got.members["token"])

    def check(self, site: Site) -> None:
        """After the outage: what the database's clock says of each is what callers are told."""
        for unit, token in self._tokens.items():
            with site.session() as session:
                row = session.execute(
                    "SELECT expires_at > agentstate_now(), token FROM agentstate_lease"
                    " WHERE unit = %s", [unit],
                ).fetchone()  # fmt: skip
            if row is None:
                self.wrong.append(f"{unit} is gone")
            elif row[0]:
                self.outlived += 1
                self._check_held(unit, token)
            else:
                self.ended += 1
                self._check_ended(unit, token)

    def _check_held(self, unit: str, token: int) -> None:
        other = self._ask(f"/leases/{unit}/acquire", {"owner": "other", "ttl_seconds": 60})
        self._expect(unit, "somebody else acquires it", other, 423, "lease-held")
        renewed = self._ask(f"/leases/{unit}/renew", {"token": token, "ttl_seconds": LONG_SECONDS})
        self._expect(unit, "its holder renews it", renewed, 200)
        freed = self._ask(f"/leases/{unit}/release", {"token": token})
        self._expect(unit, "its holder releases it", freed, 200)

    def _check_ended(self, unit: str, token: int) -> None:
        renewed = self._ask(f"/leases/{unit}/renew", {"token": token, "ttl_seconds": 60})
        self._expect(unit, "its former holder renews it", renewed, 409, "lease-lost")
        other = self._ask(f"/leases/{unit}/acquire", {"owner": "other", "ttl_seconds": 1})
        self._expect(unit, "somebody else acquires it", other, 200)
        if other.status == 200 and int(other.members["token"]) <= token:
            self.wrong.append(f"{unit}: the next token is not higher")

    def _expect(self, unit: str, what: str, got: Answer, status: int, code: str = "") -> None:
        if got.status != status or (code and got.members.get("code") != code):
            self.wrong.append(f"{unit}: {what}: {got.status} {got.members}")

    def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        """The answer; one that says "not now" is waited out."""
        last = Answer(0, {}, None)

        def answered() -> bool:
            nonlocal last
            try:
                last = ask(self.url, self.key, "POST", path, body)
            except (OSError, http.client.HTTPException):
                return False
            return last.status != 503

        until(answered, ASK_SECONDS)
        return last
