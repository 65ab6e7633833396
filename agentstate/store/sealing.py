"""Secrets that have to be read again: sealed with the site's own key before they are stored.

A key of a caller is only ever compared, so a hash of it is enough (keys.py); an address of Slack
has to be used. A copy of the database alone opens nothing.
"""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PURPOSE = b"agentstate: alert targets"


class Unreadable(Exception):
    """It was sealed under another key than the site has now."""


def seal(text: str) -> str:
    """The text as it may be stored."""
    return _box().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """What was sealed, here or on another machine of the site. Raises Unreadable."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise Unreadable("sealed under another AGENTSTATE_SECRET_KEY") from None


def _box() -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str | bytes) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE)
    return base64.urlsafe_b64encode(derive.derive(key if isinstance(key, bytes) else key.encode()))
