"""Places in a list, as texts that only this API can make: opaque, signed, exact.

A cursor stands between two rows, or on one (`inclusive`), and belongs to the list that it was given
out for: the same order and the same filters. Another list, or a changed text, is Invalid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from django.core import signing

from agentstate.store.errors import Invalid
from agentstate.store.payloads import write
from agentstate.store.reads import Place

SALT = "agentstate.api.cursor"
RULE = "a cursor that this API has given out for this very list"


def write_cursor(place: Place | None, *, of: Mapping[str, Any]) -> str | None:
    """The text of a place in the list that `of` describes; None for no place."""
    if place is None:
        return None
    told = [place.key, place.backward, place.inclusive, _list_digest(of)]
    return signing.Signer(salt=SALT).sign_object(told)


def read_cursor(text: str | None, *, of: Mapping[str, Any]) -> Place | None:
    """The place that a text means; None for None. Raises Invalid."""
    if text is None:
        return None
    try:
        key, backward, inclusive, digest = signing.Signer(salt=SALT).unsign_object(text)
    except (signing.BadSignature, ValueError):
        raise Invalid("cursor", RULE) from None
    if digest != _list_digest(of):
        raise Invalid("cursor", RULE)
    return Place(key=tuple(key), backward=backward, inclusive=inclusive)


def _list_digest(of: Mapping[str, Any]) -> str:
    """Short: it keeps honest callers from mixing lists, and the signature does the rest."""
    return hashlib.sha256(write(dict(of)).encode()).hexdigest()[:12]
