"""The id by which a request is found again: in its answer, in the log, in the history."""

from __future__ import annotations

import re
import secrets

_LEGAL = re.compile(r"[!-~]{1,200}")


def request_id_of(sent: str) -> str:
    """The caller's own `X-Request-Id`, 1 to 200 printable characters of ASCII; else a new one."""
    return sent if _LEGAL.fullmatch(sent) else secrets.token_hex(16)
