"""What comes with a form: read strictly, and told to the store so that twice is once."""

from __future__ import annotations

import hashlib
import uuid

from agentstate.store.callers import Circumstances
from agentstate.store.errors import Refusal
from dashboard.pages import ConsoleRequest, circumstances
from dashboard.refused import is_open

WHOLE_MAX = 2**63 - 2


def whole(text: str | None) -> int | None:
    """A whole number from 0 on, or None for whatever else is there."""
    if text and text.isascii() and text.isdigit() and len(text) < 20:
        return min(int(text), WHOLE_MAX)
    return None


def one_line(text: str) -> str:
    """A text typed by a person: runs of white space become one space, none at the ends."""
    return " ".join(text.split())


def key_again(request: ConsoleRequest, refused: Refusal | None) -> str:
    """The key of the form that is shown after this request: the same while only its fields are
    mended, a new one once the store has refused it, for the next try is another command."""
    sent = request.POST.get("form_key", "") if refused is None or is_open(refused) else ""
    return sent or uuid.uuid4().hex


def form_circumstances(request: ConsoleRequest) -> Circumstances:
    """The form's own key and what was sent with it: sent twice, it acts once."""
    key = request.POST.get("form_key", "")
    if not (key.isascii() and key.isalnum() and 16 <= len(key) <= 64):
        return circumstances(request)
    told = sorted((n, v) for n, v in request.POST.lists() if n != "csrfmiddlewaretoken")
    fingerprint = hashlib.sha256(repr((request.path, told)).encode()).digest()
    return circumstances(request, key=key, fingerprint=fingerprint)
