"""Plain appends by the short way are what the rule in Python makes of them, run by run.

Twins: two runs in the same state, whatever it is, get the same appends at the same moment, the one
by `agentstate_append_events`, the other by the rule. Answers, rows, outbox and counts must agree.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentstate.store import plain
from agentstate.store.asks import Ask
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.commands import Append, Charge, NewEvent
from agentstate.store.effects import Effect
from agentstate.store.errors import Refusal
from agentstate.store.execute import execute_all
from agentstate.store.hot import HOT
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import dump
from agentstate.store.rules.names import AMOUNT_MAX, COUNTERS_MAX
from tests.store.asking import ANA, FLEET, OTHER_FLEET, rows

MANY = {f"c{n}": n for n in range(COUNTERS_MAX)}
PER_SECOND = 4

_numbers = itertools.count()
CALLERS: dict[str, Caller] = {"fleet": FLEET, "other": OTHER_FLEET, "ana": ANA}

# Of a run: what SQL sets, with times in ms beside the clock.
states = st.fixed_dictionaries(
    {},
    optional={
        "ended": st.just(True),
        "leased": st.sampled_from(["now", "before"]),
        "counters": st.sampled_from([MANY, {"steps": AMOUNT_MAX - 2}, {"steps": 3}]),
        "expires_at": st.sampled_from([-1, 0, 1]),
        "hold": st.just(True),
        "brake_until": st.sampled_from([-1, 0, 1]),
        "paced_at": st.sampled_from([-1, 0, 1, 1_500, 1_750, 2_000, 2_900, 3_000, 3_001]),
    },
)
appends = st.fixed_dictionaries(
    {"by": st.sampled_from(["fleet"] * 3 + ["other", "ana"])},
    optional={
        "fence": st.sampled_from(["mine"] * 4 + ["older"]),
        "id": st.sampled_from(["known", "known too", "new", "new too"]),
        "data": st.sampled_from([{"n": 1}, "a\u0041\u2028'\"\\", None]),
        "add": st.sampled_from([{"steps": 1}, {"steps": -3, "c1": 2}, {"another": 1}, {}]),
        "expected_seq": st.sampled_from([0, 1, 2]),
        "if_match": st.sampled_from([0, 1, 2]),
        # Of more events of the same append.
        "more": st.lists(st.sampled_from([None, "known three", "new three"]), max_size=3).filter(
            lambda ids: len({one for one in ids if one}) == len([one for one in ids if one])
        ),
    },
)


def make_run(store, state) -> dict[str, object]:
    """A run in this state; its key and the token that its holder has, or had."""
    key = f"r-{next(_numbers)}"
    store.create(key)
    store.append(key, [NewEvent(type="step.done", data=dump({"n": 1}), id="known")])
    store.append(key, [NewEvent(type="step.more", data=dump(7), id="known three")])
    token = None
    if "leased" in state:
        token = store.hold(key).token
        if state["leased"] == "before":
            store.release(f"run:{key}", token)
    sets, values = [], []
    if "ended" in state:
        store.as_caller(ANA).move(key, "cancelled")
    for name in state.keys() - {"leased", "ended"}:
        value = state[name]
        if name in ("expires_at", "brake_until", "paced_at"):
            sets.append(f"{name} = agentstate_now() + %s * interval '1 ms'")
        else:
            sets.append(f"{name} = %s")
            value = dump(value).text if name == "counters" else value
        if name == "brake_until":
            sets.append("brake_per_second = 2")
        values.append(value)
    if sets:
        rows(
            f"UPDATE agentstate_run SET {', '.join(sets)} WHERE key = %s RETURNING 1", *values, key
        )
    rows("DELETE FROM agentstate_outbox RETURNING 1")
    return {"key": key, "token": token, "run": store.run(key)}


def asks_of(made, wanted) -> list[Ask]:
    run, found = made["run"], []
    for one in wanted:
        fence = {"mine": made["token"], "older": (made["token"] or 2) - 1}.get(one.get("fence"))
        seen = {name: getattr(run, of) + one[name] - 1 for name, of in SEEN if name in one}
        more = tuple(NewEvent(type="step.more", data=dump(7), id=id) for id in one.get("more", []))
        first = NewEvent(type="step.done", data=dump(one.get("data")), id=one.get("id"))
        command = Append(
            run=made["key"],
            events=(first, *more),
            fence=fence,
            add=one.get("add", {}),
            **seen,
        )
        under = Circumstances(request_id=f"req-{one['by']}")
        found.append(Ask(command=command, by=CALLERS[one["by"]], under=under))
    return found


SEEN = (("expected_seq", "last_seq"), ("if_match", "version"))


@contextmanager
def by_the_rule():
    short = plain.is_plain
    plain.is_plain = lambda _: False
    try:
        yield
    finally:
        plain.is_plain = short


def told(outcome, made):
    """An outcome without what names the run, and without who was first (tokens differ)."""
    if isinstance(outcome, Refusal):
        return outcome.code, outcome.current, outcome.retry_after_ms
    return asdict(outcome)


def stored(store, made):
    run = asdict(store.run(made["key"]))
    for name in ("id", "key", "token", "last_token", "ended_token"):
        run.pop(name)
    new = [event for event in log(store, made) if event.seq > made["run"].last_seq]
    events = [asdict(event) | {"run_id": None, "token": event.token and 1} for event in new]
    outbox = rows(
        "SELECT first_seq, last_seq, version, types, at FROM agentstate_outbox WHERE run_key = %s",
        made["key"],
    )
    return run, events, outbox


def log(store, made):
    return store.events(made["key"])


def carried_out(store, state, wanted):
    made = make_run(store, state)
    HOT.forget()
    TALLY._counts.clear()
    outcomes = [told(outcome, made) for outcome in execute_all(asks_of(made, wanted))]
    counts = {
        (operation, worker, outcome): (counted.count, counted.events)
        for (_, _, operation, worker, outcome), counted in TALLY._counts.items()
    }
    HOT.forget()
    return outcomes, stored(store, made), counts


@override_settings(RUN_WRITES_PER_SECOND=PER_SECOND)
def check_one_after_the_other(store, state, wanted):
    """One append a batch: the same to the letter."""
    made = make_run(store, state)
    with by_the_rule():
        twin = make_run(store, state)
    for one in wanted:
        (ask,), (same,) = asks_of(made, [one]), asks_of(twin, [one])
        HOT.forget()
        (outcome,) = execute_all([ask])
        with by_the_rule():
            HOT.forget()
            (expected,) = execute_all([same])
        assert told(outcome, made) == told(expected, twin)
        assert stored(store, made) == stored(store, twin)


few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.damages
@few
@given(state=states, wanted=st.lists(appends, min_size=1, max_size=3))
@example(state={"leased": "now"}, wanted=[{"by": "other", "fence": "mine"}, {"by": "fleet"}])
@example(state={"leased": "now"}, wanted=[{"by": "fleet", "fence": "older"}])
@example(state={"leased": "before"}, wanted=[{"by": "fleet", "fence": "mine"}])
def test_one_after_the_other_it_is_the_rule(store, clock, state, wanted):
    check_one_after_the_other(store, state, wanted)


@pytest.mark.damages
@few
@given(state=states, wanted=st.lists(appends, min_size=2, max_size=6))
@example(
    state={},
    wanted=[
        {"by": "fleet"},
        {"by": "fleet", "id": "known", "data": {"n": 1}, "more": ["known three"]},
    ],
)
def test_in_one_batch_as_many_events_are_numbered_without_a_hole(store, clock, state, wanted):
    """In a batch what is not plain comes after what is, so the order may be another one: any order
    of what came at once is one. The log is whole, and each answer is true of it."""
    with override_settings(RUN_WRITES_PER_SECOND=PER_SECOND):
        made = make_run(store, state)
        before = store.run(made["key"])
        HOT.forget()
        asks = asks_of(made, wanted)
        outcomes = execute_all(asks)
        HOT.forget()
    events, run = log(store, made), store.run(made["key"])
    assert [event.seq for event in events] == list(range(1, run.last_seq + 1))
    by_seq = {event.seq: event for event in events}
    new = [o for o in outcomes if not isinstance(o, Refusal) and not o.replayed]
    size = sum(o.last_seq - o.first_seq + 1 for o in new)
    assert run.last_seq - before.last_seq == size
    assert run.version - before.version == len(new)
    sums = dict(before.counters)
    for ask, outcome in zip(asks, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            continue
        for asked, seq in zip(
            ask.command.events, range(outcome.first_seq, outcome.last_seq + 1), strict=True
        ):
            event = by_seq[seq]
            assert (event.type, event.event_id, event.data) == (
                asked.type,
                asked.id,
                asked.data.text,
            )
            # What is there already may have come with several writes; the last one's counts.
            is_last = seq == outcome.last_seq or not outcome.replayed
            assert event.version == outcome.version if is_last else event.version < outcome.version
        if not outcome.replayed:
            for name, amount in ask.command.add.items():
                sums[name] = sums.get(name, 0) + amount
    assert run.counters == sums
    outbox = rows(
        "SELECT min(first_seq), max(last_seq), sum(last_seq - first_seq + 1) FROM agentstate_outbox"
        " WHERE run_key = %s",
        made["key"],
    )
    assert outbox == [(before.last_seq + 1, run.last_seq, size) if new else (None, None, None)]


@pytest.mark.damages
def test_what_it_counts_is_what_the_rule_counts(store, clock):
    wanted = [{"by": "fleet", "fence": "mine"}, {"by": "fleet", "fence": "mine"}, {"by": "other"}]
    counted = carried_out(store, {"leased": "now"}, wanted)[2]
    with by_the_rule():
        assert carried_out(store, {"leased": "now"}, wanted)[2] == counted
    assert counted["append", "w-1", "ok"] == (2, 2)


EFFECT = NewEvent(type="a", effect=Effect(key="mail", state="begun"))


@pytest.mark.parametrize(
    "more",
    [
        {"to": "running"},
        {"spend": (Charge(budget="tokens", amount=1),)},
        {"events": (NewEvent(type="a"), EFFECT)},
        {"events": (EFFECT,)},
    ],
)
def test_what_is_not_plain_is_the_rules_alone(more):
    whole = {"run": "42", "events": (NewEvent(type="a"),)}
    assert plain.is_plain(Ask(command=Append(**whole), by=FLEET))
    several = {"events": (NewEvent(type="a"), NewEvent(type="b"))}
    assert plain.is_plain(Ask(command=Append(**whole | several), by=FLEET))
    assert not plain.is_plain(Ask(command=Append(**whole | more), by=FLEET))
    under = Circumstances(idempotency_key="k", fingerprint=b"f")
    assert not plain.is_plain(Ask(command=Append(**whole), by=FLEET, under=under))


@pytest.mark.damages
def test_a_day_of_paced_writes_takes_no_more_than_the_limit(store, clock):
    """The burst at once, then one each quarter of a second: by the short way as by the rule."""
    with override_settings(RUN_WRITES_PER_SECOND=PER_SECOND):
        made = make_run(store, {})
        HOT.forget()
        outcomes = execute_all(asks_of(made, [{"by": "fleet"}] * 12))
        done = [outcome for outcome in outcomes if not isinstance(outcome, Refusal)]
        assert len(done) == 2 * PER_SECOND - 2  # two were written to make it
        clock.set(clock.now + timedelta(milliseconds=250))
        HOT.forget()
        (one, other) = execute_all(asks_of(made, [{"by": "fleet"}] * 2))
        assert not isinstance(one, Refusal)
        assert other.code == "run-hot"
        HOT.forget()
