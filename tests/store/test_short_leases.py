"""Renewals, refusals at sight and claims by the short ways are what the rules make of them.

Twins: runs in the same state, whatever it is, are asked the same at the same moment, the one by the
short ways, the other by the rules alone. Answers, rows, outbox and counts must agree.
"""

from __future__ import annotations

import itertools
import random
import re
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib import import_module

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentstate import store as store_api
from agentstate.store import Ask, claims, minutes, renewals, rowsql
from agentstate.store.callers import Caller, Circumstances
from agentstate.store.claims import QUIET
from agentstate.store.commands import (
    AcquireLease,
    Claimed,
    ClaimRuns,
    DrainWorker,
    NewEvent,
    Renewed,
    RenewLease,
    Result,
)
from agentstate.store.effects import Effect
from agentstate.store.errors import Refusal
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import RawJSON
from tests.store.asking import ANA, FLEET, OTHER_FLEET, at_once, results, rows

execute = import_module("agentstate.store.execute")

_numbers = itertools.count()
CALLERS: dict[str, Caller] = {"fleet": FLEET, "other": OTHER_FLEET, "ana": ANA}
# So far from every other number that they are told apart in whatever text they stand in.
TOKENS_FROM = 7_000_000_000
NEXT_TOKEN = "SELECT setval('agentstate_fence', greatest(%s, nextval('agentstate_fence')))"

# Of a run and its lease; times in ms beside the clock.
states = st.fixed_dictionaries(
    {"status": st.sampled_from(["pending"] * 2 + ["running", "paused", "cancelled"])},
    optional={
        "lease": st.sampled_from(["held", "released"]),
        "expires_at": st.sampled_from([-1, 0, 1, 30_000]),
        "signal": st.just(True),
        "progress": st.just(True),
        "attempt": st.sampled_from([4, 5]),
        "hold_off_until": st.sampled_from([-1, 0, 1]),
        "term_ended_at": st.just(500),
        "effect": st.just(True),
        "renewals": st.just(45),
        "told": st.sampled_from([-999, -1_000]),
    },
)
CANCEL = '[{"signal":"cancel","reason":"r","by":"person:ana","at":"2026-03-02T12:00:00.000000Z"}]'
OWNERS = ("w-1~a", "w-1~b", "w-2")
asks = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["renew", "renew", "acquire", "claim"]),
        "by": st.sampled_from(["fleet"] * 4 + ["other", "ana"]),
        "owner": st.sampled_from(OWNERS),
        "ttl": st.sampled_from([1, 60]),
    },
    optional={
        "token": st.just("never given"),
        "progress": st.sampled_from(['{"n": 1}', '{"t":"a\\u2028\'\\"\\\\"}']),
        "limit": st.sampled_from([2, 3]),
        "key": st.sampled_from(["k-1", "k-2"]),
    },
)


class Twin:
    """Some runs of one task, which nobody else has, and what is asked of them."""

    def __init__(self, store, prefix, several):
        self.store, self.prefix = store, prefix
        self.keys = [f"{prefix}-{n}" for n in range(len(several))]
        self.ids: list[str] = []
        for key, state in zip(self.keys, several, strict=True):
            make_run(store, key, prefix, state)
        self.tokens = dict(
            rows("SELECT key, last_token FROM agentstate_run WHERE task = %s", prefix)
        )
        self.ids = [
            str(id) for (id,) in rows("SELECT id FROM agentstate_run WHERE task = %s", prefix)
        ]
        rows("DELETE FROM agentstate_outbox")
        TALLY.forget()
        QUIET.forget()

    def command(self, one):
        key = self.keys[one.get("run", 0) % len(self.keys)]
        token = (self.tokens[key] or TOKENS_FROM) + (5_000 if "token" in one else 0)
        if one["what"] == "renew":
            progress = RawJSON(one["progress"]) if "progress" in one else None
            return RenewLease(
                unit=f"run:{key}", token=token, ttl_seconds=one["ttl"], progress=progress
            )
        if one["what"] == "acquire":
            return AcquireLease(unit=f"run:{key}", owner=one["owner"], ttl_seconds=one["ttl"])
        return ClaimRuns(
            owner=one["owner"],
            ttl_seconds=one["ttl"],
            task=self.prefix,
            limit=one.get("limit", 1),
        )

    def ask(self, one) -> Ask:
        under = Circumstances(request_id=f"req-{one['by']}")
        if "key" in one:
            key = f"{self.prefix}-{one['key']}"
            fingerprint = f"{one['what']}{one['ttl']}".encode()
            under = Circumstances(
                request_id="req", idempotency_key=key, fingerprint=fingerprint, attempt=2
            )
        return Ask(command=self.command(one), by=CALLERS[one["by"]], under=under)

    def told(self, outcomes):
        return self.alike([as_told(outcome) for outcome in outcomes])

    def stored(self):
        """All that is stored of it, and what was counted."""
        of = "(SELECT id FROM agentstate_run WHERE task = %s)"
        found = [
            rows(
                f"SELECT {columns} FROM agentstate_{table} WHERE {where} ORDER BY {order}", *params
            )
            for table, columns, where, order, params in (
                ("run", rowsql.RUN_COLUMNS, "task = %s", "key", [self.prefix]),
                (
                    "lease",
                    f"{rowsql.LEASE_COLUMNS}, renewed_ms",
                    f"run_id IN {of}",
                    "unit",
                    [self.prefix],
                ),
                ("leaseterm", rowsql.TERM_COLUMNS, f"run_id IN {of}", "token", [self.prefix]),
                ("event", rowsql.EVENT_COLUMNS, f"run_id IN {of}", "run_id, seq", [self.prefix]),
                (
                    "outbox",
                    "run_key, first_seq, last_seq, version, types, at",
                    f"run_id IN {of}",
                    "run_key, first_seq",
                    [self.prefix],
                ),
                (
                    "refusal",
                    "at, code, operation, unit, actor, worker, token_sent, token_current, wanted,"
                    " found, request_id, attempt, met, about",
                    f"run_id IN {of}",
                    "id",
                    [self.prefix],
                ),
                (
                    "idempotencyrecord",
                    "principal, key, fingerprint, kind, answer::text, request_id, created_at,"
                    " replays",
                    "key LIKE %s",
                    "key",
                    [f"{self.prefix}-%"],
                ),
            )
        ]
        counted = [
            (key, (counts.count, counts.events, counts.attempts))
            for key, counts in sorted(TALLY._counts.items())
        ]
        met = [(key, counts.count) for key, counts in sorted(TALLY.collisions._counts.items())]
        return self.alike([found, counted, met])

    def alike(self, facts):
        """Without what only its name, its ids and its tokens are: those by their order."""
        text = repr(facts).replace(self.prefix, "X")
        for n, id in enumerate(self.ids):
            text = text.replace(id, f"id-{n}")
        numbers = sorted(
            set(re.findall(r"\b7\d{9}\b", text)) | {str(t) for t in self.tokens.values() if t}
        )
        for n, number in enumerate(numbers):
            text = text.replace(number, f"token-{n}")
        return text


def as_told(outcome):
    if isinstance(outcome, Refusal):
        told = (outcome.code, outcome.detail, outcome.current, outcome.retry_after_ms)
        return (*told, outcome.facts, outcome.replayed)
    return asdict(outcome) if isinstance(outcome, Result) else repr(outcome)


def make_run(store, key, task, state):
    """A run in this state: made by commands, then set beside the clock."""
    store.create(key, task=task)
    unit = f"run:{key}"
    fence = {}
    if "effect" in state:
        store.append(key, [NewEvent(type="mail", effect=Effect(key="m", state="begun"))])
    if "lease" in state:
        lease = store.acquire(unit, "w-1~a")
        fence = {"fence": lease.token}
        if "progress" in state:
            store.renew(unit, lease.token, progress=RawJSON('{"step": 3}'))
    if state["status"] in ("running", "paused"):
        store.move(key, "running", **fence)
    if state.get("lease") == "released":
        store.release(unit, lease.token)
    if state["status"] in ("paused", "cancelled"):
        store.as_caller(ANA).move(key, state["status"])
    set_lease(unit, state)
    if "attempt" in state:
        rows("UPDATE agentstate_run SET attempt = %s WHERE key = %s", state["attempt"], key)
    if "told" in state and state.get("lease") == "held":
        rows(
            "INSERT INTO agentstate_refusal (at, code, operation, run_id, unit, actor, worker,"
            " wanted, found, attempt)"
            " SELECT agentstate_now() + %s * interval '1 ms', 'lease-held', 'acquire', id,"
            " 'run:' || key, 'key:fleet', 'w-2', '{}', '{}', 1 FROM agentstate_run WHERE key = %s",
            state["told"],
            key,
        )


def set_lease(unit, state):
    sets, values = [], []
    if "expires_at" in state and state.get("lease") == "held":
        sets.append("expires_at = agentstate_now() + %s * interval '1 ms'")
        values.append(state["expires_at"])
    if "hold_off_until" in state:
        sets.append(
            "hold_off_owner = 'w-1~z', hold_off_until = agentstate_now() + %s * interval '1 ms'"
        )
        values.append(state["hold_off_until"])
    if "term_ended_at" in state and state.get("lease") != "held":
        sets.append("term_ended_at = agentstate_now() + %s * interval '1 ms'")
        values.append(state["term_ended_at"])
    if "signal" in state:
        sets.append("signals = %s::json")
        values.append(CANCEL)
    if "renewals" in state and state.get("lease") == "held":
        sets.append("renewals = 45, renewed_ms = ARRAY(SELECT generate_series(1, 40))::bigint[]")
    if sets:
        rows(f"UPDATE agentstate_lease SET {', '.join(sets)} WHERE unit = %s", *values, unit)


@pytest.fixture(autouse=True)
def counts_stay(monkeypatch):
    """What is counted is not written while a test looks at it."""
    monkeypatch.setattr(minutes, "PAUSE_SECONDS", 3_600.0)


@contextmanager
def by_the_rules():
    short = execute.SHORT_WAYS
    execute.SHORT_WAYS = ()
    try:
        yield
    finally:
        execute.SHORT_WAYS = short


def twins(store, several, drained=None):
    number = next(_numbers)
    rows(NEXT_TOKEN, TOKENS_FROM)
    rows("DELETE FROM agentstate_worker")
    if drained is not None:
        ask = DrainWorker(worker=drained, draining=True, reason="deploy")
        store_api.execute(ask, by=ANA)
    made = Twin(store, f"a{number:05}", several)
    with by_the_rules():
        twin = Twin(store, f"b{number:05}", several)
    return made, twin


def check_alike(made, twin, batches):
    for wanted in batches:
        TALLY.forget()
        outcomes = made.told(store_api.execute_all([made.ask(one) for one in wanted]))
        stored = made.stored()
        TALLY.forget()
        with by_the_rules():
            expected = twin.told(store_api.execute_all([twin.ask(one) for one in wanted]))
            assert outcomes == expected
            assert stored == twin.stored()


few = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
HELD = {"status": "running", "lease": "held"}
RENEW = {"what": "renew", "by": "fleet", "owner": "w-2", "ttl": 60}
ACQUIRE = RENEW | {"what": "acquire"}
CLAIM = RENEW | {"what": "claim"}


WAITS = {"status": "pending"}
FREED = {"status": "pending", "lease": "released", "progress": True}


@pytest.mark.damages
@pytest.mark.parametrize(
    ("state", "wanted", "drained"),
    [
        (HELD, [RENEW | {"token": "never given"}, RENEW | {"by": "other"}], None),
        (HELD | {"expires_at": 0}, [RENEW, ACQUIRE], None),
        (HELD | {"signal": True}, [RENEW], None),
        (HELD, [RENEW], "w-1"),
        (HELD | {"renewals": 45}, [RENEW | {"progress": "{}"}], "w-2"),
        (HELD | {"told": -999}, [ACQUIRE, ACQUIRE | {"key": "k-1"}], None),
        (HELD | {"told": -1_000}, [ACQUIRE, ACQUIRE], None),
        (HELD | {"told": -999, "attempt": 5}, [ACQUIRE], None),
        (WAITS, [CLAIM | {"key": "k-1"}, CLAIM | {"key": "k-1"}], None),
        (FREED, [CLAIM], None),
        (WAITS | {"attempt": 5}, [CLAIM], None),
        (WAITS | {"hold_off_until": 1}, [CLAIM], None),
        (WAITS | {"effect": True}, [CLAIM], None),
        (WAITS | {"signal": True}, [CLAIM], None),
        (HELD | {"expires_at": -1}, [CLAIM, CLAIM], None),
    ],
)
def test_one_after_the_other_it_is_the_rule(store, clock, state, wanted, drained):
    made, twin = twins(store, [state], drained)
    check_alike(made, twin, [[one] for one in wanted])


@pytest.mark.long
@pytest.mark.many
@pytest.mark.damages
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    state=states,
    wanted=st.lists(asks, min_size=1, max_size=3),
    drained=st.sampled_from([None, None, "w-1", "w-1~a", "w-2"]),
)
def test_whatever_the_state_it_is_the_rule(store, clock, state, wanted, drained):
    made, twin = twins(store, [state], drained)
    check_alike(made, twin, [[one] for one in wanted])


@pytest.mark.damages
@few
@given(
    several=st.lists(
        st.sampled_from(
            [
                {"status": "pending"},
                {"status": "running", "lease": "released", "progress": True},
                {"status": "pending", "term_ended_at": 500},
                HELD,
                {"status": "running"},
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    limits=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=2, max_size=4),
)
def test_claims_of_one_batch_share_what_waits_as_by_the_rule(store, clock, several, limits):
    made, twin = twins(store, several)
    claims = [
        {"what": "claim", "by": "fleet", "owner": f"w-{n}", "ttl": 60, "limit": limit}
        for n, limit in enumerate(limits)
    ]
    check_alike(made, twin, [claims])


@pytest.mark.damages
@few
@given(several=st.lists(st.sampled_from([HELD, HELD | {"renewals": 45}]), min_size=2, max_size=5))
def test_renewals_and_refusals_of_one_batch_are_those_of_the_rule(store, clock, several):
    made, twin = twins(store, several)
    renewed = [RENEW | {"run": n, "ttl": 60 + n} for n in range(len(several))]
    check_alike(made, twin, [renewed])


@pytest.mark.damages
def test_a_lease_that_lapses_is_claimed_at_that_moment(store, clock):
    """What is remembered of a quiet time ends with it: nothing is claimed late."""
    store.create("42")
    (first,) = store.claim("w-1", ttl_seconds=3).items
    clock.advance(seconds=2)
    assert store.claim("w-2").items == ()
    clock.advance(seconds=1)
    (second,) = store.claim("w-2").items
    assert (second.run, second.taken_from) == ("42", "w-1")
    assert second.token > first.token


@pytest.mark.damages
def test_a_clock_that_is_set_back_hides_no_lapsed_lease(store, clock):
    store.create("42")
    store.claim("w-1", ttl_seconds=600)
    assert store.claim("w-2").items == ()  # until the next second nothing lapses
    rows("UPDATE agentstate_lease SET expires_at = agentstate_now() - interval '59 s'")
    clock.advance(seconds=-58)
    (second,) = store.claim("w-2").items
    assert second.run == "42"


def test_several_kinds_of_claims_in_one_batch_get_each_its_own(store):
    for task in ("audit", "build"):
        store.create(f"r-{task}", task=task)
    made = [
        Ask(command=ClaimRuns(owner="w-1", task=task), by=FLEET)
        for task in ("build", "audit", "none")
    ]
    got = [[item.run for item in claimed.items] for claimed in store_api.execute_all(made)]
    assert got == [["r-build"], ["r-audit"], []]


def test_a_repeated_claim_is_answered_from_the_first(store):
    for n in range(3):
        store.create(f"r-{n}")
    ask = ClaimRuns(owner="w-1")
    first, again = store.ask(ask, key="k"), store.ask(ask, key="k")
    assert again.replayed
    assert again.items[0].token == first.items[0].token
    assert store.ask(ask, key="k-2").items[0].run == "r-1"


@pytest.mark.damages
def test_who_asks_again_for_a_held_unit_is_counted_and_writes_nothing(store, clock):
    store.create("42")
    store.hold("42")
    ask = AcquireLease(unit="run:42", owner="w-2")
    with pytest.raises(Refusal):
        store.ask(ask)  # the first of a second leaves a row
    TALLY.forget()
    before = rows("SELECT xmin, xmax FROM agentstate_lease")
    (refused,) = store_api.execute_all([Ask(command=ask, by=FLEET)])
    assert refused.code == "lease-held"
    assert rows("SELECT xmin, xmax FROM agentstate_lease") == before  # nor was it locked
    assert store.refusals() == ["lease-held"]
    assert [counts.count for counts in TALLY._counts.values()] == [1]
    assert [counts.count for counts in TALLY.collisions._counts.values()] == [1]


@pytest.mark.damages
def test_a_held_unit_of_no_run_is_refused_and_counted_as_by_the_rule(store, clock):
    def refused(unit):
        store.acquire(unit, "w-1")
        asks = [Ask(command=AcquireLease(unit=unit, owner=o), by=FLEET) for o in ("w-2", "w-3")]
        store_api.execute_all(asks)
        TALLY.forget()
        told = [as_told(outcome) for outcome in store_api.execute_all([*asks, *asks])]
        counted = (
            [(key, counts.count) for key, counts in TALLY._counts.items()],
            [(key, count.count) for key, count in TALLY.collisions._counts.items()],
        )
        token = str(store.lease(unit).token)
        columns = "unit, worker, met, about, found"
        kept = rows(f"SELECT {columns} FROM agentstate_refusal WHERE unit = %s", unit)
        return repr((told, counted, kept)).replace(unit, "X").replace(token, "T")

    rows(NEXT_TOKEN, TOKENS_FROM)
    at_sight = refused("gpu-a")
    with by_the_rules():
        assert at_sight == refused("gpu-b")


@pytest.mark.long
@pytest.mark.many
@pytest.mark.damages
def test_sixteen_claimers_share_all_that_waits_and_none_gets_what_another_has(store):
    for n in range(120):
        store.create(f"r-{n}")

    def claim(number):
        got = []
        while True:
            ask = Ask(command=ClaimRuns(owner=f"w-{number}", limit=1 + number % 3), by=FLEET)
            (claimed,) = store_api.execute_all([ask])
            if not claimed.items:
                return got
            got += [item.run for item in claimed.items]

    found = [run for got in at_once(16, claim) for run in got]
    assert sorted(found) == sorted(f"r-{n}" for n in range(120))
    assert rows("SELECT count(DISTINCT unit), count(*) FROM agentstate_leaseterm") == [(120, 120)]


@pytest.mark.long
@pytest.mark.many
@pytest.mark.damages
def test_many_callers_who_renew_overlapping_units_never_wait_in_a_ring(store):
    held = []
    for n in range(60):
        store.create(f"r-{n}")
        held.append((f"run:r-{n}", store.acquire(f"run:r-{n}").token))
    deadlocks = execute.ROLLED_BACK["deadlock detected"]

    def renew(number):
        chance = random.Random(number)
        outcomes = []
        for _ in range(5):
            some = chance.sample(held, 30)
            outcomes += store_api.execute_all(
                [Ask(command=RenewLease(unit=unit, token=token), by=FLEET) for unit, token in some]
            )
        return outcomes

    outcomes = [one for several in at_once(64, renew) for one in several]
    assert len(results(outcomes, Renewed)) == 64 * 5 * 30
    assert execute.ROLLED_BACK["deadlock detected"] == deadlocks
    (renewed,) = rows("SELECT sum(renewals) FROM agentstate_lease")[0]
    assert renewed == 64 * 5 * 30


CLONES = """
INSERT INTO agentstate_run (id, key, task, status, version, last_seq, counters, tags, notes, attrs,
    attempt, max_attempts, deadline_policy, created_by, created_at, updated_at, ended_at, hold)
SELECT gen_random_uuid(), %s || g, task, %s, 1, 1, counters, tags, notes, attrs, 0, 5,
    deadline_policy, created_by, created_at + %s * interval '1 day', updated_at,
    CASE WHEN %s THEN created_at END, false
FROM agentstate_run, generate_series(1, %s) g WHERE key = 'r-0'
"""
READ = """
SELECT relname, idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables
WHERE relname IN ('agentstate_run', 'agentstate_lease') ORDER BY relname
"""


@pytest.mark.long
@pytest.mark.many
@pytest.mark.damages
def test_plans_that_were_made_over_few_rows_read_few_among_many(store):
    """A plan stays with its connection: neither what is finished nor what waits may cost more.

    What ANALYZE saw last was that all units are held: no reason to read those that are not.
    """
    for n in range(60):
        store.create(f"before-{n}")
        store.claim("w-1")
    rows("ANALYZE agentstate_run, agentstate_lease")
    rows("TRUNCATE agentstate_run, agentstate_lease CASCADE")
    for n in range(20):
        store.create(f"r-{n}")
    held = [(item.unit, item.token) for _ in range(8) for item in store.claim("w-1").items]
    for unit, token in held:
        store.renew(unit, token)
    rows(CLONES, "finished-", "completed", -1, True, 20_000)
    rows(CLONES, "waits-", "pending", 1, False, 5_000)
    rows(
        "INSERT INTO agentstate_lease (unit, run_id, ttl_seconds, renewals)"
        " SELECT 'run:' || key, id, 60, 0 FROM agentstate_run WHERE key ~ '^(finished|waits)-'"
    )

    def read(statement, *params):
        with transaction.atomic():
            before = dict(rows(READ))
            rows(statement, *params)
            after = dict(rows(READ))
        return sum(after.values()) - sum(before.values())

    claim = '[{"n":0,"owner":"w-2","by":"key:fleet","ttl":60,"most":1}]'
    for task in (None, "audit checkout"):
        assert read(claims.CALL, claim, "1s", task, None, None, None) < 40
    (unit, token) = held[0]
    renew = f'[{{"n":0,"unit":"{unit}","token":{token},"by":"key:fleet","ttl":60}}]'
    assert read(renewals.CALL, renew, "1s") < 10


def test_what_fails_on_a_later_short_way_undoes_nothing_of_an_earlier_one(store, monkeypatch):
    """Whoever is told that a batch failed tries all of it again: renewed twice it would be."""
    store.create("42")
    unit, lease = "run:42", store.acquire("run:42")

    def fail(*_):
        raise RuntimeError("as a fault of ours would")

    monkeypatch.setattr(claims.ClaimBatch, "run", fail)
    renew = RenewLease(unit=unit, token=lease.token)
    asks = [Ask(command=command, by=FLEET) for command in (renew, ClaimRuns(owner="w-2"))]
    renewed, claimed = store_api.execute_all(asks)
    assert isinstance(renewed, Renewed)
    assert isinstance(claimed, Claimed)  # by the rule
    assert store.lease(unit).renewals == 1


def test_the_number_of_renewals_that_are_kept_is_the_rules():
    from agentstate.store.migrations.sql import leases_plain

    assert f"+ 2 - {rowsql.RENEWALS_KEPT}):]" in leases_plain.RENEW_PLAIN


def test_calls_that_renew_many_take_turns_and_none_waits_for_good(monkeypatch):
    monkeypatch.setattr(renewals, "LONGEST_TURN_SECONDS", 0.01)
    with ExitStack() as others:
        for _ in range(renewals.AT_ONCE):
            others.enter_context(renewals._turn(renewals.MANY))
        assert not renewals._TURNS.acquire(blocking=False)
        with renewals._turn(renewals.MANY):  # after its time, and gives back no turn of others
            assert not renewals._TURNS.acquire(blocking=False)
        with renewals._turn(renewals.MANY - 1):
            pass
        assert not renewals._TURNS.acquire(blocking=False)
    assert renewals._TURNS.acquire(blocking=False)
    renewals._TURNS.release()


def test_one_unit_twice_in_a_batch_goes_the_short_way_once():
    renew = Ask(command=RenewLease(unit="u", token=1), by=FLEET)
    keyed = Ask(
        command=RenewLease(unit="v", token=1),
        by=FLEET,
        under=Circumstances(idempotency_key="k", fingerprint=b"f"),
    )
    assert renewals.choose([renew, keyed, renew]) == [0]
