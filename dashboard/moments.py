"""The moment that a page is shown as of: what the address says, and what is wrong with it. Pure.

`asof=e118` is after event 118 of the run that the page is about, `asof=2026-03-02T12:40:00Z` that
instant, in UTC unless it names another offset. Nothing else is understood, and nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

from django.utils.http import urlencode

from agentstate.store.payloads import moment

NAME = "asof"
TEXT_CHARS_MAX = 40
# Of an instant that stays one whatever its offset is.
YEARS = (1970, 9000)
_EVENT = re.compile(r"e([1-9][0-9]{0,17})", re.ASCII)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:[Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
# What `zones.settle` makes of a time that came twice: which of the two is for the person to say.
_TWICE = re.compile(r"(.{1,40}) ([+-]\d\d:\d\d) or ([+-]\d\d:\d\d)", re.ASCII)
TWICE = (
    "The clocks were set back, and showed {text} twice. Write {first} behind it for the first of"
    " them, {second} for the second."
)
GRAMMAR = (
    "Write a time such as 2026-03-02T12:40:00Z, which is in UTC, or the number of an event of the"
    " run with an e before it, such as e118."
)


class NotThen(Exception):
    """A page cannot be shown as of what was asked. title, why: for the person who asked."""

    def __init__(self, title: str, why: str, status: int = HTTPStatus.NOT_FOUND) -> None:
        super().__init__(title)
        self.title, self.why, self.status = title, why, status


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Either an instant, or the number of an event after which it is."""

    at: datetime | None = None
    seq: int | None = None


def read(text: str) -> Moment:
    """What the address asks for. Raises NotThen."""
    text = text.strip()
    if twice := _TWICE.fullmatch(text):
        said = TWICE.format(text=twice[1], first=twice[2], second=twice[3])
        raise NotThen("That time came twice", said, HTTPStatus.BAD_REQUEST)
    if event := _EVENT.fullmatch(text):
        return Moment(seq=int(event[1]))
    try:
        return Moment(at=read_time(text))
    except ValueError:
        raise NotThen("This is no moment", GRAMMAR, HTTPStatus.BAD_REQUEST) from None


def read_time(text: str) -> datetime:
    """An instant as the address may say it. Raises ValueError."""
    if not _TIME.fullmatch(text):
        raise ValueError(text)
    at = datetime.fromisoformat(text.upper().replace(" ", "T"))
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if not YEARS[0] <= at.year <= YEARS[1]:
        raise ValueError(text)
    return at.astimezone(UTC)


def check_has_come(at: datetime, now: datetime) -> None:
    """Raises NotThen for a moment that is still to come."""
    if at > now:
        raise NotThen(
            "That moment has not come yet",
            f"By the clock of the database it is {moment(now)} now.",
        )


def of_event(seq: int) -> str:
    return f"e{seq}"


def of_time(at: datetime) -> str:
    return moment(at)


def address(page: str, text: str) -> str:
    """A page as of this moment."""
    return f"{page}?{urlencode({NAME: text})}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Where the page goes to from here. text: of the moment, as the address says it."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """The moment that a page is shown as of.

    page: its address as it is now. text: what was asked for. at: the instant; after it nothing is
    shown. seq: the last event that had happened, of `last_seq` until now; None where the page is
    about no run. exact: it was asked for by its number. notes: what of then is not kept.
    """

    page: str
    text: str
    at: datetime
    seq: int | None = None
    last_seq: int | None = None
    exact: bool = False
    before: Beside | None = None
    after: Beside | None = None
    notes: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """For links that have a query of their own."""
        return urlencode({NAME: self.text})

    @property
    def address(self) -> str:
        return address(self.page, self.text)

    @property
    def before_address(self) -> str:
        return address(self.page, self.before.text) if self.before else ""

    @property
    def after_address(self) -> str:
        return address(self.page, self.after.text) if self.after else ""
