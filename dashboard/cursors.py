"""Places in a list: opaque to the reader, signed, exact to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.core import signing

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class BadCursor(ValueError):
    """The place in the address is not one that this site made."""


def write(at: datetime, tie: str, *, salt: str) -> str:
    """The place of a row by its instant and what tells it from others of the same instant."""
    # Without a time in it: the same place is the same text, whenever it is written.
    return signing.Signer(salt=salt).sign_object([(at - EPOCH) // MICROSECOND, tie])


def read(text: str, *, salt: str) -> tuple[datetime, str]:
    """The instant and the tie. Raises BadCursor."""
    try:
        micros, tie = signing.Signer(salt=salt).unsign_object(text)
        return EPOCH + micros * MICROSECOND, str(tie)
    except (signing.BadSignature, ValueError, TypeError, OverflowError):
        raise BadCursor from None
