"""Each unit as a lock with fencing tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from bench.torture.final import Final, Term
from bench.torture.history import OK, REFUSED, UNKNOWN, Op
from bench.torture.order import (
    INVENTED,
    LOST,
    OVERLAP,
    STALE,
    Finding,
    Placed,
    check_order,
)
from bench.torture.runs import claimed_by


def check_units(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """Terms never overlap, tokens only grow, and nothing is done under one that was superseded."""
    by_unit: dict[str, list[Op]] = defaultdict(list)
    granting: set[str] = set()
    for op in ops:
        if (op.kind == "acquire" and op.outcome != REFUSED) or op.kind == "claim":
            granting.add(op.id)
        if op.kind in ("acquire", "renew", "release", "reclaim"):
            by_unit[op.on.removeprefix("unit:")].append(op)
        for item in claimed_by(op) if op.kind == "claim" else ():
            by_unit[item.on].append(item)
    for unit in by_unit.keys() | final.terms.keys():
        terms = final.terms.get(unit, [])
        yield from check_terms(f"unit {unit}", terms, granting)
        yield from check_unit(f"unit {unit}", by_unit[unit], terms)


def check_terms(what: str, terms: list[Term], granting: set[str]) -> Iterator[Finding]:
    """The store's own record. An owner's name ends with the id of the call that made it."""
    before: Term | None = None
    owners: dict[str, int] = {}
    for term in sorted(terms, key=lambda t: (t.starts_at, t.token)):
        if before is not None:
            if before.ends_at is None or before.ends_at > term.starts_at:
                yield Finding(OVERLAP, what, f"tokens {before.token} and {term.token}")
            if before.token >= term.token:
                yield Finding(STALE, what, f"token {term.token} after {before.token}")
        before = term
        mark = mark_of(term.owner)
        if mark not in granting:
            yield Finding(
                INVENTED, what, f"token {term.token} of {term.owner}: no call, or refused"
            )
        if mark in owners:
            yield Finding(
                "doubled", what, f"{mark} was given tokens {owners[mark]} and {term.token}"
            )
        owners[mark] = term.token


def mark_of(owner: str) -> str:
    return owner.rpartition("~")[2]


def check_unit(what: str, ops: list[Op], terms: list[Term]) -> Iterator[Finding]:
    """Grants and what was done under them, in the order of tokens and against time."""
    by_token = {term.token: term for term in terms}
    by_mark = {mark_of(term.owner): term.token for term in terms}
    placed: list[Placed] = []
    for op in ops:
        name = f"{op.kind} {op.id}"
        if op.kind in ("acquire", "claimed"):
            token = op.answer.get("token") if op.outcome == OK else by_mark.get(op.id)
            if op.outcome == OK and token not in by_token:
                yield Finding(LOST, what, f"{name} was granted token {token}")
            if token is not None and op.outcome != REFUSED:
                placed.append(Placed(token, op.invoked_at, op.effective_end, name))
        elif op.outcome == OK and not (op.kind == "release" and op.replayed):
            # What was done under a token stands before the next grant: after it, it is refused.
            placed.append(Placed(op.ask["token"] + 0.5, op.invoked_at, op.ended_at, name))
            if op.ask["token"] not in by_token:
                yield Finding(INVENTED, what, f"{name} under token {op.ask['token']} of no term")
    yield from check_order(what, placed)
    yield from check_expiry(what, ops, sorted(by_token))


def check_expiry(what: str, ops: list[Op], tokens: list[int]) -> Iterator[Finding]:
    """A grant comes when the holder before has let go or its time was up, by the store's clock.

    at, expires_at in answers: seconds by that clock. tokens: of all the unit's terms. Only where it
    is known what became of the holder's last call (an unanswered one may have made the term
    shorter), and nobody whose grant was not answered held the unit between the two.
    """
    next_token = dict(pairwise(tokens))
    grants = sorted(
        (op for op in ops if op.kind in ("acquire", "claimed") and op.outcome == OK),
        key=lambda op: int(op.answer["token"]),
    )
    uses: dict[int, list[Op]] = defaultdict(list)
    unclear: set[int] = set()
    for op in ops:
        if op.kind not in ("renew", "release", "reclaim"):
            continue
        token = op.ask["token"]
        if op.outcome == UNKNOWN or op.kind != "renew":
            # A refused release let nothing go, but it saw that the token was over.
            unclear.add(token)
        elif op.outcome == OK:
            uses[token].append(op)
    for one, following in pairwise(grants):
        token = one.answer["token"]
        if token in unclear or one.ask.get("renewed_elsewhere") or one.kind == "claimed":
            continue
        if next_token.get(token) != following.answer["token"]:
            continue
        last = max([one, *uses[token]], key=lambda op: op.invoked_at)
        until, at = last.answer["expires_at"], following.answer["at"]
        if at < until:
            yield Finding(
                OVERLAP,
                what,
                f"token {following.answer['token']} was given at {at:.6f},"
                f" {until - at:.3f} s before token {token} was over",
            )
