"""Figures of budgets against the ledger itself: read line by line and added up in Python, or asked
of the store's own rules. However the pages read it, the figures are the same.
"""

import random
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agentstate.store import reads
from agentstate.store.commands import (
    ChangeCap,
    Charge,
    CommitReservation,
    CreateBudget,
    NewBudget,
    ReleaseReservation,
    Reserve,
    Spend,
)
from agentstate.store.errors import BudgetExhausted, EventIdReuse, NotFound, ReservationSettled
from agentstate.store.rows import BudgetRow
from dashboard import forecast
from dashboard.queries import budgets, ledgers, refused
from dashboard.replay import Kind, replay
from dashboard.views.budgets import read_what_if
from dashboard.windows import BY_SECONDS, DAY, read_window
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, rows

CAN_HAPPEN = (BudgetExhausted, EventIdReuse, NotFound, ReservationSettled)


def a_story(store, clock, name, *, seed, steps=60):
    """What callers ask of a shared budget in some twenty minutes; some of it is refused."""
    chance = random.Random(seed)
    for number in range(steps):
        clock.advance(seconds=chance.randint(1, 40))
        id = f"{chance.choice('abc')}{chance.randint(0, 9)}"
        amount = 5 * sum(map(ord, id)) % 90 + 1
        charge = Charge(budget=name, amount=amount, id=id)
        whose = {"run": None, "budget": name, "id": id}
        asks = [
            *[Spend(run=None, charge=charge)] * 2,
            *[Spend(run=None, charge=replace(charge, id=None))] * 3,
            *[Reserve(amount=amount, ttl_seconds=9_000, **whose)] * 2,
            CommitReservation(amount=amount // 2, **whose),
            ReleaseReservation(**whose),
        ]
        with suppress(*CAN_HAPPEN):
            store.ask(chance.choice(asks))
        if number == steps // 2:
            change_cap(store, name, 900)


def change_cap(store, name, cap):
    store.as_caller(SENIOR).ask(ChangeCap(run=None, budget=name, cap=cap, reason="more is asked"))


def lines_of(name):
    """The ledger of a budget and its slots, in the order of its times."""
    return rows(
        "SELECT e.at, e.kind, e.spent, e.reserved, e.cap, b.slot FROM agentstate_budgetentry e"
        " JOIN agentstate_budget b ON b.id = e.budget_id"
        " WHERE b.name = %s OR b.name LIKE %s ORDER BY e.at, coalesce(b.slot, -1), e.n",
        name, f"{name}#%",
    )  # fmt: skip


def found(name) -> BudgetRow:
    return reads.budget(run_key=None, name=name).budget


@pytest.fixture(params=[1, 3], ids=["one ledger", "three slots"])
def told(request, store, still_clock):
    """A budget with a story, its own clock, and what it is called."""
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=250, slots=request.param)))
    a_story(store, still_clock, "b", seed=request.param)
    return still_clock


def course_of(clock, **query):
    budget = found("b")
    window = read_window(
        {name.rstrip("_"): at for name, at in query.items()},
        now=clock.now,
        usual=DAY,
        slots=BY_SECONDS,
    )
    turned_away = refused.read(budget, since=window.since, until=window.until)
    course = ledgers.read_course(budget, None, window=window, now=clock.now, refused=turned_away)
    return window, course


def test_a_budget_is_the_sum_of_its_ledger(told):
    budget = found("b")
    lines = lines_of("b")

    assert budget.spent == sum(line[2] for line in lines)
    assert budget.reserved == sum(line[3] for line in lines)
    assert budget.cap == [line[4] for line in lines if line[4] is not None and line[5] is None][-1]
    assert budget.left == max(0, budget.cap - budget.spent - budget.reserved)
    assert budget.spent
    assert budget.reserved


@pytest.mark.parametrize(
    ("since", "until"), [(None, None), (-20, 0), (-15, -5), (-6, -5), (-1_000, -30)]
)
def test_its_course_is_what_the_lines_say_at_each_moment(told, since, until):
    query = {}
    if since is not None:
        ends = [(told.now + timedelta(minutes=minutes)).isoformat() for minutes in (since, until)]
        query = {"from_": ends[0], "to": ends[1]}
    window, course = course_of(told, **query)
    lines = lines_of("b")
    opened = lines[0][0]

    for point in course.points:
        end = point.at + window.slot
        before = [line for line in lines if line[0] < end]
        assert point.spent == sum(line[2] for line in before if line[0] >= point.at)
        if end <= opened or point.at > told.now:
            assert (point.used, point.cap) == (None, None)
            continue
        assert point.used == sum(line[2] + line[3] for line in before)
        caps = [line[4] for line in before if line[4] is not None and line[5] is None]
        assert point.cap == caps[-1]
    told_refusals = rows(
        "SELECT count(*), sum((wanted->>'asked')::int) FROM agentstate_refusal"
        " WHERE code = 'budget-exhausted' AND at >= %s AND at < %s",
        window.since, window.until,
    )[0]  # fmt: skip
    asked = sum(point.refused_amount for point in course.points)
    assert (course.refused, asked or None) == told_refusals
    assert course.begins_at is None


def test_its_rate_is_that_of_the_lines_of_the_last_minutes(told):
    for minutes in (0, 5, 14, 16, 60):
        now = told.now + timedelta(minutes=minutes)
        burn = budgets.read_burn(found("b").id, now=now)
        since = now - forecast.OVER
        recent = [line[2] for line in lines_of("b") if line[0] >= since and line[2] > 0]
        assert (burn.spent, burn.charges, burn.over) == (sum(recent), len(recent), forecast.OVER)


def test_its_lines_of_a_part_are_those_of_that_part(told, monkeypatch):
    monkeypatch.setattr(ledgers, "PAGE_ROWS", 7)
    since, until = told.now - timedelta(minutes=15), told.now - timedelta(minutes=4)
    part, _ = course_of(told, from_=since.isoformat(), to=until.isoformat())

    seen, after = [], ""
    while True:
        page = ledgers.read_ledger(found("b").id, now=told.now, after=after, part=part)
        seen += [(line.at, line.kind, line.slot) for line in page.lines]
        if page.older is None:
            break
        after = page.older

    inside = [one for one in lines_of("b") if part.since <= one[0] < part.until]
    assert seen == [(at, kind, slot) for at, kind, _, _, _, slot in reversed(inside)]


def test_of_too_many_lines_the_newest_are_read_and_it_says_since_when(told, monkeypatch):
    _, whole = course_of(told)
    monkeypatch.setattr(ledgers, "COURSE_LINES_MAX", 24)
    _, cut = course_of(told)

    assert cut.begins_at is not None
    known = [n for n, point in enumerate(cut.points) if point.used is not None]
    assert known
    assert [cut.points[n].used for n in known] == [whole.points[n].used for n in known]
    assert 0 < cut.spent < whole.spent


def test_how_full_it_was_is_not_told_when_too_much_has_happened_since(told, monkeypatch):
    monkeypatch.setattr(ledgers, "COURSE_LINES_MAX", 5)
    ends = [(told.now - timedelta(minutes=n)).isoformat() for n in (15, 14)]
    _, course = course_of(told, from_=ends[0], to=ends[1])

    assert all(point.used is None for point in course.points)
    story = ledgers.read_story(
        found("b").id,
        since=told.now - timedelta(minutes=15),
        until=told.now - timedelta(minutes=14),
        refused=refused.Refused(charges=[]),
    )
    assert story is None


def test_of_too_many_lines_in_the_last_minutes_the_rate_is_that_of_fewer(told, monkeypatch):
    monkeypatch.setattr(ledgers, "BURN_LINES_MAX", 3)
    burn = budgets.read_burn(found("b").id, now=told.now)
    lines = [line for line in lines_of("b") if line[0] >= told.now - burn.over]

    assert burn.over < forecast.OVER
    assert burn.spent == sum(line[2] for line in lines)


# --- another cap ---------------------------------------------------------------------------------


def story_of(clock, minutes=90):
    budget = found("b")
    since, until = clock.now - timedelta(minutes=minutes), clock.now + timedelta(seconds=1)
    turned_away = refused.read(budget, since=since, until=until)
    return ledgers.read_story(budget.id, since=since, until=until, refused=turned_away)


def test_the_requests_in_order_hold_together(told):
    story = story_of(told)

    used = 0
    for request in story.requests:
        assert request.used == used
        used += 0 if request.kind is Kind.REFUSED else request.moves
    assert used == found("b").used
    assert len(story.charges) == sum(one.kind is Kind.REFUSED for one in story.requests) > 5
    assert all(one.moves is not None for one in story.requests)


def test_with_the_cap_as_it_was_nothing_would_have_been_otherwise(store, still_clock):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=400)))
    a_story(store, still_clock, "b", seed=5, steps=30)
    since = next(line[0] for line in lines_of("b") if line[1] == "cap")
    minutes = (still_clock.now - since) / timedelta(minutes=1)

    again = replay(story_of(still_clock, minutes).requests, 900)

    assert (again.let_through, again.turned_away, again.repeats) == ((), (), ())
    assert again.used == found("b").used


@pytest.mark.parametrize("cap", [50, 300, 1_000, 2_500])
def test_the_replay_is_what_a_budget_of_that_cap_does_with_the_same_requests(told, store, cap):
    """The requests that left a trace are sent to a budget of the other cap, and counted."""
    story = story_of(told)
    again = replay(story.requests, cap)

    store.ask(CreateBudget(run=None, budget=NewBudget(name="other", cap=cap)))
    through, away, held = set(), set(), set()
    for place, request in enumerate(story.requests):
        name = request.name or f"nameless {place}"
        is_hold = name.startswith("hold")
        if request.kind is Kind.SETTLED:
            amount = rows(
                "SELECT amount FROM agentstate_reservation r JOIN agentstate_budget b"
                " ON b.id = r.budget_id WHERE b.name = 'other' AND reservation_id = %s", name,
            )  # fmt: skip
            if amount and name not in held:
                actual = request.moves + amount[0][0]
                held.add(name)
                store.ask(
                    CommitReservation(run=None, budget="other", id=name, amount=actual)
                    if actual
                    else ReleaseReservation(run=None, budget="other", id=name)
                )
            continue
        before = found("other").used
        try:
            store.ask(
                Reserve(run=None, budget="other", amount=request.moves, id=name, ttl_seconds=9_000)
                if is_hold
                else Spend(
                    run=None, charge=Charge(budget="other", amount=request.moves, id=request.name)
                )
            )
        except BudgetExhausted:
            if request.kind is not Kind.REFUSED:
                away.add(place)
        else:
            if request.kind is Kind.REFUSED and found("other").used > before:
                through.add(place)

    assert set(again.let_through) == through
    assert set(again.turned_away) == away
    assert again.used == found("other").used


def test_the_page_replays_and_marks_each_refused_charge(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=100)))
    spend(store, 90)
    for amount, id in ((20, "c-1"), (20, "c-1"), (500, None)):
        still_clock.advance(seconds=5)
        with pytest.raises(BudgetExhausted):
            spend(store, amount, id=id)

    page = Page(viewer.get("/budgets/b", {"cap": "130"}))

    assert (
        "With a cap of 130, 1 of the 3 refused charges would have been let through, 20" in page.text
    )
    assert "1 was a try of a charge that would have been let through before" in page.text
    assert "This replays the requests as they came" in page.text
    marks = ["500 still refused", "20 let through before", "20 let through"]
    assert [page.text.index(mark) for mark in marks] == sorted(map(page.text.index, marks))
    assert page.field("cap") == "130"


def spend(store, amount, *, id=None):
    return store.ask(Spend(run=None, charge=Charge(budget="b", amount=amount, id=id)))


def test_a_smaller_cap_tells_what_it_would_have_turned_away(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=100)))
    spend(store, 60)
    spend(store, 30)
    with pytest.raises(BudgetExhausted):
        spend(store, 50)

    page = Page(viewer.get("/budgets/b", {"cap": "55"}))

    assert "With a cap of 55, 0 of the 1 refused charge would have been let through" in page.text
    assert "1 charge that really was admitted, 60 tokens, would have been turned away" in page.text


def test_without_a_refusal_it_says_that_no_cap_had_changed_anything(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=100)))

    page = Page(viewer.get("/budgets/b", {"cap": "5"}))

    assert (
        "No charge was refused in the last 60 min, so no cap would have let more through"
        in page.text
    )


@pytest.mark.parametrize("typed", ["x", "-1", "9" * 30, "1.5"])
def test_what_is_no_cap_is_said_and_nothing_is_replayed(store, still_clock, viewer, typed):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=100)))

    page = Page(viewer.get("/budgets/b", {"cap": typed}))

    assert page.status == 200
    assert "A whole number from 0" in page.text
    assert "With a cap of" not in page.text
    assert page.field("cap") == typed


def test_of_too_many_refusals_only_what_came_after_is_replayed(store, still_clock, monkeypatch):
    monkeypatch.setattr(refused, "READ_MAX", 3)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=100)))
    for n in range(6):
        still_clock.advance(seconds=10)
        spend(store, 2)
        with pytest.raises(BudgetExhausted):
            spend(store, 200 + n)
    window = read_window({}, now=still_clock.now)
    turned_away = refused.read(found("b"), since=window.since, until=window.until)

    told = read_what_if(found("b"), 205, window, turned_away)

    assert turned_away.is_cut
    assert told.story.begins_at == still_clock.now - timedelta(seconds=20)
    assert told.replayed.refused == 3


def test_a_refusal_that_an_older_release_kept_is_replayed_as_far_as_it_says_what_it_asked(
    store, still_clock
):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=10)))
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            spend(store, 20, id="c-1")
    rows("UPDATE agentstate_refusal SET wanted = wanted - 'asked' - 'id' RETURNING id")
    rows(
        'UPDATE agentstate_refusal SET wanted = \'{"amount": {"b": 20, "c": 2}}\''
        " WHERE id = (SELECT max(id) FROM agentstate_refusal) RETURNING id"
    )
    now = datetime.now(UTC) + timedelta(days=9_999)

    charges = refused.read(found("b"), since=now - timedelta(days=99_999), until=now).charges

    assert [(charge.amount, charge.name, charge.used) for charge in charges] == [
        (None, None, 0), (20, None, 0),
    ]  # fmt: skip


def test_a_runs_own_budget_is_not_taken_for_a_shared_one_of_its_name(store, still_clock):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="b", cap=10)))
    store.create("42", budgets=(NewBudget(name="b", cap=10),))
    with pytest.raises(BudgetExhausted):
        store.spend("42", 99, budget="b")
    with pytest.raises(BudgetExhausted):
        spend(store, 98)
    since, until = still_clock.now - timedelta(hours=1), still_clock.now + timedelta(hours=1)
    own = reads.budget(run_key="42", name="b").budget

    assert [c.amount for c in refused.read(own, since=since, until=until).charges] == [99]
    assert [c.amount for c in refused.read(found("b"), since=since, until=until).charges] == [98]
