"""What another cap would have let through: the requests of a budget decided again, in their order.

Pure. Every request is taken as it came: a caller that had been admitted would have asked otherwise
afterwards, so this says what the cap would have done to these requests and no more. Only this level
is decided again; what the levels above and below it would have said is not known.

The store's rule is the one of `store/rules/budgets.py`: a charge or a hold is admitted when what is
spent and reserved, with it, is not above the cap; what settles a hold is always written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a request was to the budget."""

    CHARGE = "charge"  # a line of the ledger that spent
    HOLD = "hold"  # one that reserved
    SETTLED = "settled"  # what came of a hold: spent, given back, dropped, late
    REFUSED = "refused"  # a charge or a hold that the cap turned away; no line


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A line of the ledger or a refusal.

    used: what was spent and reserved just before. moves: what it added to that, or would have;
    negative: gave back; None: what was asked is not told. name: the charge's or hold's id with its
    run; the same name again is the same thing, and counts once. None: it has none.
    """

    kind: Kind
    used: int
    moves: int | None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the cap would have done. let_through, turned_away: places in the requests, of refused
    ones that would have been admitted and of admitted ones that would not.

    unknown: refused ones of which it is not told what they asked for. repeats: places of refused
    ones that would have been admitted at an earlier try already.
    """

    cap: int
    let_through: tuple[int, ...] = ()
    amount: int = 0
    turned_away: tuple[int, ...] = ()
    turned_away_amount: int = 0
    refused: int = 0
    unknown: int = 0
    repeats: tuple[int, ...] = ()
    used: int = 0

    @property
    def still_refused(self) -> int:
        return self.refused - len(self.let_through) - len(self.repeats) - self.unknown


def replay(requests: Sequence[Request], cap: int) -> Replayed:
    """Decide each again under `cap`, in the order of their times.

    What was admitted in reality and is turned away here frees its room for those behind it; what
    settles such a hold then settles nothing. What is let through here stays used to the end: how
    much of a hold would have been spent is not known.
    """
    again = _Again(cap)
    for place, request in enumerate(requests):
        if request.kind is Kind.REFUSED:
            again.refused(place, request)
        else:
            again.admitted(place, request)
    return Replayed(
        cap=cap,
        let_through=tuple(again.through),
        amount=again.amount,
        turned_away=tuple(again.away),
        turned_away_amount=again.away_amount,
        refused=again.asked,
        unknown=again.unknown,
        repeats=tuple(again.repeats),
        used=again.used,
    )


@dataclass(slots=True)
class _Again:
    """The replay as far as it has come. more: what it has used beyond what really was.

    charged: names that it has admitted and reality had refused; lost: holds the other way round.
    """

    cap: int
    more: int = 0
    used: int = 0
    charged: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    through: list[int] = field(default_factory=list)
    amount: int = 0
    away: list[int] = field(default_factory=list)
    away_amount: int = 0
    asked: int = 0
    unknown: int = 0
    repeats: list[int] = field(default_factory=list)

    def refused(self, place: int, request: Request) -> None:
        self.asked += 1
        if request.moves is None:
            self.unknown += 1
        elif request.name in self.charged:
            self.repeats.append(place)
        elif self._has_room(request.used, request.moves):
            self.more += request.moves
            self.amount += request.moves
            self.through.append(place)
            if request.name is not None:
                self.charged.add(request.name)
        self.used = request.used + self.more

    def admitted(self, place: int, request: Request) -> None:
        moves = request.moves or 0
        if request.kind is Kind.SETTLED:
            if request.name in self.lost:
                self.more -= moves
        elif request.name in self.charged:
            # It had been let through at an earlier try: now that it really comes, it adds nothing.
            self.more -= moves
        elif not self._has_room(request.used, moves):
            self.more -= moves
            self.away.append(place)
            self.away_amount += moves
            if request.kind is Kind.HOLD and request.name is not None:
                self.lost.add(request.name)
        self.used = request.used + moves + self.more

    def _has_room(self, used: int, moves: int) -> bool:
        return used + self.more + moves <= self.cap


def fitting(amounts: Sequence[int | None], room: int) -> list[bool]:
    """Which of these charges fit if they come one after the other into so much room, now."""
    found: list[bool] = []
    for amount in amounts:
        fits = amount is not None and amount <= room
        room -= amount if fits and amount is not None else 0
        found.append(fits)
    return found
