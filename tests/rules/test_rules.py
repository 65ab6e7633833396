"""The rules alone: tens of thousands of decisions without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.callers import Caller
from agentstate.store.commands import AcquireLease, NewEvent, ReclaimLease, RenewLease
from agentstate.store.errors import (
    AlreadyTerminal,
    BudgetExhausted,
    EventIdReuse,
    FenceRequired,
    HolderChanged,
    IllegalTransition,
    LeaseHeld,
    LeaseLost,
    NotAllowed,
    PartialDuplicate,
    Refusal,
    StaleFence,
)
from agentstate.store.payloads import RawJSON
from agentstate.store.rows import BudgetRow, EventRow, LeaseRow, RunRow, TermRow
from agentstate.store.rules import budgets, leases, runs, slots
from agentstate.store.states import MOVES, TERMINAL, Status, allowed_moves

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
FLEET = Caller(kind="key", name="fleet", scopes=frozenset({"write"}))
OPERATOR = Caller(kind="person", name="ana", scopes=frozenset({"operate"}))
SENIOR = Caller(kind="person", name="bo", scopes=frozenset({"operate", "override"}))
RUN_ID = UUID(int=1)

statuses = st.sampled_from(list(Status))
moments = st.integers(-200_000_000, 200_000_000).map(lambda us: NOW + timedelta(microseconds=us))
tokens = st.integers(1, 5)
ttls = st.integers(1, 86_400)


def a_run(**changes) -> RunRow:
    row = RunRow(
        id=RUN_ID,
        key="42",
        task="audit",
        status="running",
        version=3,
        last_seq=7,
        created_at=NOW,
        updated_at=NOW,
    )
    return replace(row, **changes)


def held(run: RunRow, token: int, owner: str = "w-1") -> RunRow:
    return replace(run, owner=owner, token=token, holder=FLEET.principal, last_token=token)


def a_lease(token: int | None = 3, expires_at: datetime = NOW, **changes) -> LeaseRow:
    row = LeaseRow(unit="u-1")
    if token is not None:
        row = replace(row, owner="w-1", holder=FLEET.principal, token=token, expires_at=expires_at)
    return replace(row, **changes)


def a_term(token: int = 3, **changes) -> TermRow:
    row = TermRow(
        token=token,
        unit="u-1",
        run_id=None,
        owner="w-1",
        holder=FLEET.principal,
        starts_at=NOW - timedelta(hours=1),
    )
    return replace(row, **changes)


# --- the fence -----------------------------------------------------------------------------------


@given(current=st.none() | tokens, last=tokens, sent=st.none() | tokens)
def test_only_the_current_token_passes_a_run_that_was_ever_leased(current, last, sent):
    run = a_run(last_token=last) if current is None else held(a_run(), current)
    if sent is not None and sent == current:
        runs.check_fence(run, sent, FLEET)
        return
    with pytest.raises(FenceRequired if sent is None else StaleFence):
        runs.check_fence(run, sent, FLEET)


@given(sent=tokens)
def test_a_run_that_was_never_leased_takes_writes_without_a_token_and_none_with_one(sent):
    runs.check_fence(a_run(), None, FLEET)
    with pytest.raises(StaleFence):
        runs.check_fence(a_run(), sent, FLEET)


@given(token=tokens)
def test_a_token_does_nothing_in_other_hands(token):
    thief = replace(FLEET, name="thief")
    with pytest.raises(StaleFence):
        runs.check_fence(held(a_run(), token), token, thief)


# --- moves ---------------------------------------------------------------------------------------


@given(now_in=statuses, to=statuses, token=st.none() | tokens)
def test_a_move_is_in_the_table_or_refused_with_what_is_allowed(now_in, to, token):
    run = a_run(status=str(now_in))
    try:
        runs.check_move(run, to)
    except AlreadyTerminal:
        assert now_in in TERMINAL
    except IllegalTransition as refused:
        assert to not in MOVES[now_in]
        assert refused.facts["allowed"] == list(allowed_moves(now_in))
    else:
        assert to in MOVES[now_in]


@given(to=statuses, token=tokens)
def test_a_terminal_run_has_no_owner_and_no_token_that_counts(to, token):
    run = runs.move(held(a_run(), token), to, now=NOW, result='{"ok":true}')
    if to in TERMINAL:
        assert (run.owner, run.token, run.holder) == (None, None, None)
        assert (run.ended_token, run.ended_at, run.result) == (token, NOW, '{"ok":true}')
        with pytest.raises(StaleFence):
            runs.check_fence(run, token, FLEET)
    else:
        assert run.token == token


def test_an_unknown_status_has_no_legal_move_and_is_not_taken_for_finished():
    """Case O-48 (docs/cases.md)."""
    run = a_run(status="paused_by_policy")
    assert not run.terminal
    with pytest.raises(IllegalTransition):
        runs.check_move(run, "completed")


# --- ids -----------------------------------------------------------------------------------------


@given(
    stored=st.lists(st.sampled_from("abcdef"), unique=True, max_size=5),
    asked=st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=5),
)
def test_known_ids_are_a_replay_whole_in_order_or_refused(stored, asked):
    log = {name: an_event(seq, name) for seq, name in enumerate(stored, 1)}
    batch = [NewEvent(type="x", id=name) for name in asked]
    at = stored.index(asked[0]) if asked[0] in stored else -1
    if not set(asked) & set(stored):
        assert runs.check_ids(batch, log, a_run()) is None
    elif at >= 0 and stored[at : at + len(asked)] == asked:
        assert [e.event_id for e in runs.check_ids(batch, log, a_run()) or []] == asked
    else:
        with pytest.raises(PartialDuplicate):
            runs.check_ids(batch, log, a_run())


def an_event(seq: int, name: str, data: str = "null") -> EventRow:
    return EventRow(
        run_id=RUN_ID,
        seq=seq,
        version=seq,
        type="x",
        origin="worker",
        data=data,
        event_id=name,
        actor=FLEET.principal,
        at=NOW,
    )


@pytest.mark.parametrize(
    ("stored", "asked", "same"),
    [
        ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }', True),
        ('{"a":1}', '{"a":1.0}', False),
        ('"\\u00e9"', '"é"', True),
        ("[1,2]", "[2,1]", False),
    ],
)
def test_the_same_content_is_the_same_json_with_the_same_number_literals(stored, asked, same):
    batch = [NewEvent(type="x", id="a", data=RawJSON(asked))]
    log = {"a": an_event(1, "a", stored)}
    if same:
        assert runs.check_ids(batch, log, a_run())
    else:
        with pytest.raises(EventIdReuse):
            runs.check_ids(batch, log, a_run())


# --- leases --------------------------------------------------------------------------------------


@given(expires_at=moments, now=moments, ttl=ttls, ended=st.none() | moments)
def test_a_unit_is_given_out_only_when_nobody_holds_it(expires_at, now, ttl, ended):
    lease = a_lease(expires_at=expires_at, term_ended_at=ended)
    ask = AcquireLease(unit="u-1", owner="w-2", ttl_seconds=ttl)
    if now < expires_at:
        with pytest.raises(LeaseHeld) as refused:
            leases.acquire(lease, ask, token=4, by=FLEET, now=now)
        assert refused.value.facts["expires_in_ms"] >= 0
        return
    got, term = leases.acquire(lease, ask, token=4, by=FLEET, now=now)
    assert (got.owner, got.token) == ("w-2", 4)
    assert got.expires_at == now + timedelta(seconds=ttl)
    assert term.starts_at >= now
    assert ended is None or term.starts_at >= ended


@given(expires_at=moments, now=moments, ttl=ttls, sent=tokens)
def test_a_renewal_is_for_the_live_holder_and_counts_from_now(expires_at, now, ttl, sent):
    lease = a_lease(3, expires_at)
    ask = RenewLease(unit="u-1", token=sent, ttl_seconds=ttl)
    if sent == 3 and now < expires_at:
        got = leases.renew(lease, None, ask, by=FLEET, now=now)
        assert got.expires_at == now + timedelta(seconds=ttl)
        assert (got.token, got.renewals) == (3, 1)
    else:
        with pytest.raises(LeaseLost) as lost:
            leases.renew(lease, None, ask, by=FLEET, now=now)
        assert lost.value.facts["reason"] == ("expired" if sent == 3 else "unknown")


@given(
    starts_at=moments, expires_at=moments, now=moments,
    ended=st.sampled_from(["lapsed", "released", "reclaimed", "run-terminal"]),
)  # fmt: skip
def test_a_closed_term_lasts_at_least_a_microsecond_and_never_past_now(
    starts_at, expires_at, now, ended
):
    lease, term = a_lease(3, expires_at), a_term(starts_at=starts_at)
    free, closed = leases.close(lease, term, ended, now=now)
    assert closed.ends_at is not None
    assert closed.ends_at > starts_at
    assert closed.ends_at <= max(now, starts_at + leases.SHORTEST_TERM)
    assert (free.token, free.term_ended_at) == (None, closed.ends_at)


@given(
    seen_token=tokens,
    seen_owner=st.sampled_from(["w-1", "w-2"]),
    live=st.booleans(),
    force=st.booleans(),
    by=st.sampled_from([FLEET, OPERATOR, SENIOR]),
)
def test_a_reclaim_takes_what_was_seen_and_a_live_lease_only_by_force(
    seen_token, seen_owner, live, force, by
):
    lease = a_lease(3, NOW + timedelta(seconds=1 if live else -1))
    ask = ReclaimLease(
        unit="u-1", expected_token=seen_token, expected_owner=seen_owner, reason="x", force=force
    )
    try:
        assert leases.check_reclaim(lease, ask, by=by, now=NOW) == lease
    except NotAllowed as refused:
        assert not by.may(refused.facts["scope"])
    except HolderChanged:
        assert (seen_token, seen_owner) != (3, "w-1")
    except LeaseHeld:
        assert live
        assert not force
    else:
        assert (seen_token, seen_owner) == (3, "w-1")
        assert by.may("operate")
        assert not live or (force and by.may("override"))


# --- budgets -------------------------------------------------------------------------------------


@given(
    caps=st.lists(st.integers(0, 50), min_size=1, max_size=3),
    charges=st.lists(st.integers(1, 30), max_size=20),
)
def test_nothing_is_admitted_beyond_a_cap_and_all_levels_agree(caps, charges):
    levels = [
        BudgetRow(id=UUID(int=n), run_id=None, name=f"b{n}", unit="tokens", cap=cap)
        for n, cap in enumerate(caps)
    ]
    admitted = 0
    for amount in charges:
        try:
            levels = budgets.spend(levels, amount)
        except BudgetExhausted as refused:
            level = next(x for x in levels if x.name == refused.facts["budget"])
            assert level.spent + amount > level.cap
        else:
            admitted += amount
        assert {level.spent for level in levels} == {admitted}
        assert all(level.spent <= level.cap for level in levels)


@st.composite
def split_budgets(draw):
    """A budget and its slots as the store leaves them: what is used is within the cap."""
    count = draw(st.integers(2, 8))
    own, *used = draw(st.lists(st.integers(0, 40), min_size=count + 1, max_size=count + 1))
    room = draw(st.integers(0, 60))
    root = BudgetRow(
        id=UUID(int=1000),
        run_id=None,
        name="fleet",
        unit="tokens",
        cap=own + sum(used) + room,
        spent=own,
        slots=count,
    )
    rows = [replace(slots.slot_row(root, n, UUID(int=n)), spent=u) for n, u in enumerate(used)]
    return with_changed(rows, slots.deal(root, rows)[1], root)


def with_changed(rows, changed, root):
    newer = {slot.id: slot for slot in changed}
    return root, [newer.get(slot.id, slot) for slot in rows]


def check_dealt(root, rows):
    """Every unit of the cap is used or in exactly one slot; over the cap there is no room."""
    used = root.used + sum(slot.used for slot in rows)
    assert root.used + sum(slot.cap for slot in rows) == max(root.cap, used)
    assert all(slot.cap >= slot.used for slot in rows)
    assert {slot.overdrawn for slot in rows} == {used > root.cap}


@given(split_budgets(), st.integers(0, 7), st.data())
def test_room_that_is_dealt_anew_is_neither_lost_nor_made(split, number, data):
    root, rows = split
    check_dealt(root, rows)
    asking = rows[number % len(rows)]
    room = root.cap - root.used - sum(slot.used for slot in rows)
    amount = data.draw(st.integers(0, room))
    dealt, changed = slots.deal(root, rows, asking=asking.id, amount=amount)
    _, after = with_changed(rows, changed, dealt)
    check_dealt(dealt, after)
    assert slots.takes(after[asking.slot], amount)
    assert [(s.spent, s.reserved) for s in after] == [(s.spent, s.reserved) for s in rows]
    assert all(s.entries == s.version == before.entries + (s.cap != before.cap)
               for s, before in zip(after, rows, strict=True))  # fmt: skip


@given(split_budgets(), st.integers(1, 200), st.integers(0, 7))
def test_an_overdrawn_budget_has_no_room_in_any_slot(split, over, number):
    root, rows = split
    slot = rows[number % len(rows)]
    room = root.cap - root.used - sum(s.used for s in rows)
    rows[slot.slot] = replace(slot, spent=slot.spent + room + over)
    dealt, changed = slots.deal(root, rows)
    _, after = with_changed(rows, changed, dealt)
    assert dealt.overdrawn
    check_dealt(dealt, after)
    assert not any(slots.takes(s, amount) for s in after for amount in (1, 0, -1))


@given(
    cap=st.integers(0, 300),
    count=st.integers(2, 8),
    charges=st.lists(st.tuples(st.integers(0, 7), st.integers(1, 90)), max_size=40),
)
def test_slots_refuse_exactly_what_one_row_would_refuse(cap, count, charges):
    """Whichever slots the charges come by, in whatever order."""
    root = BudgetRow(
        id=UUID(int=1000), run_id=None, name="fleet", unit="tokens", cap=cap, slots=count
    )
    rows = [slots.slot_row(root, n, UUID(int=n)) for n in range(count)]
    rows = with_changed(rows, slots.deal(root, rows)[1], root)[1]
    admitted = 0
    for number, amount in charges:
        slot = rows[number % count]
        if not slots.takes(slot, amount) and admitted + amount <= cap:
            changed = slots.deal(root, rows, asking=slot.id, amount=amount)[1]
            rows = with_changed(rows, changed, root)[1]
        if slots.takes(rows[slot.slot], amount):
            rows[slot.slot] = budgets.enter(rows[slot.slot], spent=amount)
            admitted += amount
        else:
            assert admitted + amount > cap
        check_dealt(root, rows)
    assert sum(slot.spent for slot in rows) == admitted <= cap


def test_every_refusal_has_a_code_a_title_and_a_reason_to_be():
    from agentstate.store.errors import every_refusal

    for code, cls in every_refusal().items():
        assert issubclass(cls, Refusal)
        assert code == cls.code
        assert cls.title
        assert cls.__doc__
