"""Who is looking at a page: a map that merges in any order, expires by itself, and decides nothing.

For each page that somebody has open there is one entry, written by that page's last sign of life.
Two maps are merged entry by entry, and of two signs of one page the later one stands; so processes
can exchange them in any order, twice, or not at all. Stamps are the database's, in microseconds
since 1970. Nothing here is stored, and no column of the store is merged like this: a status, a
lease or a budget needs one who decides (docs/decisions/0011-caches-and-presence.md).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

# Longer: somebody whose machine died is shown longer. Shorter: a lost sign makes people blink.
EXPIRES_SECONDS = 45
_EXPIRES = EXPIRES_SECONDS * 1_000_000
# Of all their pages in all processes; those that are gone count until they expire.
SIGNS_PER_PERSON_MAX = 200
PERSON_CHARS_MAX = 150
# A unit's name has 200 at most, and what stands before it a few.
PAGE_CHARS_MAX = 220
PAGE = re.compile(r"(run|reclaim):[^\x00-\x1f\x7f]+")
INSTANCE = re.compile(r"[0-9a-f]{8,32}")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Sign:
    """The last sign of life of one open page. since: when its first one was.

    The order of the fields breaks ties: of two signs of one instant, that it is gone stands.
    """

    at: int
    gone: bool
    page: str
    since: int


# (person, the page's own number) → its last sign.
type Signs = Mapping[tuple[str, str], Sign]


def merge(one: Signs, other: Signs) -> dict[tuple[str, str], Sign]:
    """What both know. It commutes, associates, and merging again changes nothing."""
    merged = dict(one)
    for key, sign in other.items():
        known = merged.get(key)
        merged[key] = sign if known is None else later(known, sign)
    return merged


def later(one: Sign, other: Sign) -> Sign:
    """The later of two signs of a page, since the earlier of their beginnings."""
    return replace(max(one, other), since=min(one.since, other.since))


def living(signs: Signs, now: int) -> dict[tuple[str, str], Sign]:
    """The signs that count at `now`; also those that say that somebody is gone, or an older sign
    that comes late would bring them back."""
    return {key: sign for key, sign in signs.items() if sign.at > now - _EXPIRES}


def bounded(signs: Signs, most: int = SIGNS_PER_PERSON_MAX) -> dict[tuple[str, str], Sign]:
    """The last `most` signs of each person, so that nobody fills the map. Before or after a merge,
    the same ones stay."""
    if len(signs) <= most:
        return dict(signs)
    by_person: dict[str, list[tuple[Sign, str]]] = {}
    for (person, instance), sign in signs.items():
        by_person.setdefault(person, []).append((sign, instance))
    return {
        (person, instance): sign
        for person, theirs in by_person.items()
        for sign, instance in (theirs if len(theirs) <= most else sorted(theirs, key=_rank)[-most:])
    }


def _rank(found: tuple[Sign, str]) -> tuple[int, bool, str, str]:
    sign, instance = found
    return sign.at, sign.gone, sign.page, instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Onlooker:
    """A person who has a page open, and since when."""

    name: str
    since: datetime


def onlookers(signs: Signs, page: str, now: int) -> list[Onlooker]:
    """Who has the page open at `now`, each person once, the first one first."""
    since: dict[str, int] = {}
    for (person, _), sign in living(signs, now).items():
        if sign.page == page and not sign.gone:
            since[person] = min(since.get(person, sign.since), sign.since)
    return [
        Onlooker(name=person, since=datetime.fromtimestamp(at / 1_000_000, UTC))
        for person, at in sorted(since.items(), key=lambda found: (found[1], found[0]))
    ]


class Board:
    """What this process knows, of itself and of the others; safe among threads."""

    def __init__(self) -> None:
        self._signs: dict[tuple[str, str], Sign] = {}
        self._now = 0
        self._merging = threading.Lock()

    def merge(self, signs: Signs, *, now: int) -> set[str]:
        """Take in what somebody told at `now`; the pages on which other people are seen now.

        A `now` so old that all its signs would have expired says that the database's clock was set
        back: it counts from there on, and what was known of later is not; the next beat says it.
        """
        with self._merging:
            before = _by_page(self._signs, self._now)
            known = self._signs
            if now <= self._now - _EXPIRES:
                self._now, known = now, {key: s for key, s in known.items() if s.at <= now}
            self._now = max(self._now, now)
            self._signs = bounded(living(merge(known, signs), self._now))
            after = _by_page(self._signs, self._now)
        return {page for page in before | after if before.get(page) != after.get(page)}

    def since(self, person: str, instance: str) -> int | None:
        """When the first sign of a page came, as far as is known here."""
        sign = self._signs.get((person, instance))
        return None if sign is None else sign.since

    def others(self, page: str, person: str, *, now: int | None = None) -> list[Onlooker]:
        """Who else has the page open at `now` (None: when something was last heard)."""
        at = self._now if now is None else now
        return [one for one in onlookers(self._signs, page, at) if one.name != person]


def _by_page(signs: Signs, now: int) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    for (person, _), sign in living(signs, now).items():
        if not sign.gone:
            seen.setdefault(sign.page, set()).add(person)
    return seen


# Of this process: merged by its hub, read by its pages.
board: Final = Board()
