"""What another cap would have let through, against the store's own rules decided anew under it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.errors import BudgetExhausted
from agentstate.store.rows import BudgetRow, HoldRow
from agentstate.store.rules import budgets
from dashboard.replay import Kind, Request, fitting, replay

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)

amounts = st.integers(0, 60)
caps = st.integers(0, 300)
# The same id always asks for the same amount, as a caller that tries again does.
named = st.integers(0, 5).map(lambda n: (f"c-{n}", 7 * n))
charges = st.tuples(st.just("spend"), st.one_of(named, amounts.map(lambda a: (None, a))))
holds = st.tuples(st.just("reserve"), st.integers(0, 5).map(lambda n: (f"h-{n}", 9 * n)))
ends = st.tuples(st.just("settle"), st.tuples(st.integers(0, 5).map("h-{}".format), amounts))
stories = st.lists(st.one_of(charges, holds, ends), max_size=60)


def a_budget(cap, spent=0):
    return BudgetRow(id=UUID(int=1), run_id=None, name="b", unit="tokens", cap=cap, spent=spent)


def a_hold(name, amount):
    return HoldRow(
        budget_id=UUID(int=1), n=1, reservation_id=name, run_id=None, amount=amount, actor="key:x",
        expires_at=NOW + timedelta(minutes=1), created_at=NOW,
    )  # fmt: skip


def really(story, cap, spent=0):
    """The requests that leave a trace, a line or a refusal, and the budget at the end."""
    row, held, stored, requests = a_budget(cap, spent), {}, set(), []
    for what, (name, amount) in story:
        if what == "settle":
            if name in held:
                hold = held.pop(name)
                moved = amount - hold.amount
                requests.append(Request(kind=Kind.SETTLED, used=row.used, moves=moved, name=name))
                (row,) = budgets.settle([row], hold, amount)
            continue
        if name in stored:
            continue  # the first answer again
        kind = Kind.CHARGE if what == "spend" else Kind.HOLD
        try:
            (after,) = (budgets.spend if what == "spend" else budgets.reserve)([row], amount)
        except BudgetExhausted:
            kind, after = Kind.REFUSED, row
        else:
            stored |= {name} - {None}
            if what == "reserve":
                held[name] = a_hold(name, amount)
        requests.append(Request(kind=kind, used=row.used, moves=amount, name=name))
        row = after
    return requests, row


def anew(requests, cap, spent=0):
    """The same requests under another cap, by the store's rule: which are admitted, and the use."""
    row, stored, admitted = a_budget(cap, spent), set(), set()
    for place, request in enumerate(requests):
        if request.kind is Kind.SETTLED:
            if request.name in stored:
                row = budgets.enter(row, reserved=request.moves)
            continue
        if request.name is not None and request.name in stored:
            continue
        try:
            budgets.check_room([row], request.moves)
        except BudgetExhausted:
            continue
        row = budgets.enter(row, reserved=request.moves)
        stored |= {request.name} - {None}
        admitted.add(place)
    return admitted, row.used


@given(story=stories, was=caps, cap=caps, spent=st.integers(0, 50))
def test_it_admits_what_the_rule_admits_under_the_other_cap(story, was, cap, spent):
    requests, _ = really(story, was, spent)

    found = replay(requests, cap)

    admitted, used = anew(requests, cap, spent)
    refused = {n for n, one in enumerate(requests) if one.kind is Kind.REFUSED}
    lines = {n for n, one in enumerate(requests) if one.kind in (Kind.CHARGE, Kind.HOLD)}
    assert set(found.let_through) == admitted & refused
    assert found.amount == sum(requests[n].moves for n in found.let_through)
    assert found.turned_away_amount == sum(requests[n].moves for n in found.turned_away)
    assert found.used == used or not requests
    # One without a name is never the same again.
    once = {requests[n].name for n in found.let_through} - {None}
    assert set(found.turned_away) == {n for n in lines - admitted if requests[n].name not in once}
    assert found.refused == len(refused)


@given(story=stories, cap=caps)
def test_with_the_cap_as_it_was_nothing_is_decided_otherwise(story, cap):
    requests, row = really(story, cap)

    found = replay(requests, cap)

    assert (found.let_through, found.turned_away, found.repeats) == ((), (), ())
    assert found.used == row.used or not requests


@given(story=stories, was=caps, more=st.integers(0, 10_000))
def test_a_cap_above_all_that_was_asked_lets_all_of_it_through(story, was, more):
    requests, _ = really(story, was)
    asked = sum(one.moves for one in requests if one.moves > 0)

    found = replay(requests, asked + more)

    assert found.still_refused == 0
    assert not found.turned_away


@given(story=stories, was=caps, cap=caps)
def test_of_what_is_not_told_nothing_is_guessed(story, was, cap):
    requests, _ = really(story, was)
    untold = [
        Request(kind=one.kind, used=one.used, name=one.name,
                moves=None if one.kind is Kind.REFUSED else one.moves)
        for one in requests
    ]  # fmt: skip

    found = replay(untold, cap)

    assert (found.let_through, found.repeats, found.still_refused) == ((), (), 0)
    assert found.unknown == found.refused


def asked(used, moves, kind=Kind.REFUSED, name=None):
    return Request(kind=kind, used=used, moves=moves, name=name)


def test_a_charge_that_was_tried_again_and_again_is_let_through_once():
    tries = [asked(90, 20, name="c-1") for _ in range(5)]

    found = replay(tries, 110)

    assert found.let_through == (0,)
    assert (found.amount, found.repeats, found.still_refused) == (20, (1, 2, 3, 4), 0)


def test_without_a_name_each_try_is_a_charge_of_its_own():
    found = replay([asked(90, 20) for _ in range(3)], 130)

    assert (found.let_through, found.amount, found.still_refused) == ((0, 1), 40, 1)


def test_what_is_let_through_takes_the_room_of_what_really_was_admitted():
    found = replay([asked(90, 30), asked(90, 10, Kind.CHARGE), asked(100, 5)], 120)

    assert found.let_through == (0,)
    assert (found.turned_away, found.turned_away_amount) == ((1,), 10)
    assert (found.still_refused, found.used) == (1, 120)


@given(sizes=st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=40),
       room=st.integers(-50, 400))  # fmt: skip
def test_what_fits_never_takes_more_than_the_room_and_nothing_is_left_out_that_fits(sizes, room):
    found = fitting(sizes, room)

    left = room
    for amount, fits in zip(sizes, found, strict=True):
        assert fits == (amount is not None and amount <= left)
        left -= amount if fits else 0
    assert left >= min(room, 0)
