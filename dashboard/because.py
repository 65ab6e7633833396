"""Why a command was refused, in a sentence: from what it wanted and what was found instead.

A refusal keeps both as they were told then; whatever is not there is not said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentstate.store import errors
from agentstate.store.errors import Refusal as Refused
from agentstate.store.models import Refusal
from dashboard.templatetags.console import number


def because(refusal: Refusal) -> str:
    """`it expected version 3, and the run was at 5`; "" for one of which nothing more is known."""
    told = _TOLD.get(refusal.code)
    if told is not None and (said := told(refusal)):
        return said
    title = _TITLES.get(refusal.code, "")
    return title[:1].lower() + title[1:]


def _wanted(refusal: Refusal, name: str) -> Any:
    return refusal.wanted.get(name) if isinstance(refusal.wanted, dict) else None


def _found(refusal: Refusal, name: str) -> Any:
    return refusal.found.get(name) if isinstance(refusal.found, dict) else None


def _version(refusal: Refusal) -> str:
    asked, is_so = _wanted(refusal, "if_match"), _found(refusal, "version")
    if asked is None or is_so is None:
        return ""
    return f"it expected version {asked}, and {is_so} was there"


def _sequence(refusal: Refusal) -> str:
    asked, is_so = _wanted(refusal, "expected_seq"), _found(refusal, "last_seq")
    if asked is None or is_so is None:
        return ""
    return f"it expected the last event to be {asked}, and it was {is_so}"


def _fence(refusal: Refusal) -> str:
    if refusal.token_sent is None:
        return "it came without a token, and the run was leased"
    by = f"token {refusal.token_current} had it" if refusal.token_current else "nobody held it"
    return f"it came under token {refusal.token_sent}, and {by}"


def _held(refusal: Refusal) -> str:
    owner = _found(refusal, "owner")
    return f"{owner} held it" if owner else ""


def _move(refusal: Refusal) -> str:
    status, to = _found(refusal, "status"), _wanted(refusal, "to")
    return f"from {status} to {to} is no legal move" if status and to else ""


def _ended(refusal: Refusal) -> str:
    status = _found(refusal, "status")
    return f"the run was {status}" if status else ""


def _budget(refusal: Refusal) -> str:
    amounts, left, cap = (
        _wanted(refusal, "amount"), _found(refusal, "left"), _found(refusal, "cap"),
    )  # fmt: skip
    if not isinstance(amounts, dict) or type(left) is not int or type(cap) is not int:
        return ""
    asked = " and ".join(number(one) for one in amounts.values() if type(one) is int)
    return f"it asked for {asked}, and {number(left)} of {number(cap)} were left"


def _expectation(refusal: Refusal) -> str:
    expected = _wanted(refusal, "expect")
    names = ", ".join(str(name) for name in expected) if expected else ""
    return f"{names} was not what it expected" if names else ""


_TOLD: dict[str, Callable[[Refusal], str]] = {
    errors.VersionConflict.code: _version,
    errors.SeqConflict.code: _sequence,
    errors.StaleFence.code: _fence,
    errors.FenceRequired.code: _fence,
    errors.LeaseLost.code: _fence,
    errors.LeaseHeld.code: _held,
    errors.IllegalTransition.code: _move,
    errors.AlreadyTerminal.code: _ended,
    errors.BudgetExhausted.code: _budget,
    errors.ExpectationFailed.code: _expectation,
}


def _every(kind: type[Refused]) -> list[type[Refused]]:
    return [kind, *(one for below in kind.__subclasses__() for one in _every(below))]


_TITLES = {kind.code: kind.title for kind in _every(Refused) if "code" in vars(kind)}
