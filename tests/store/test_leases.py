"""One holder at a time, by the database's clock, and nothing from one who was overtaken."""

import pytest

from agentstate.store.errors import (
    AlreadyTerminal,
    AttemptsExhausted,
    FenceRequired,
    HolderChanged,
    LeaseHeld,
    LeaseLost,
    NotAllowed,
    NotFound,
    StaleFence,
)
from agentstate.store.models import Lease, LeaseTerm
from agentstate.store.rowsql import RENEWALS_KEPT
from tests.store.asking import ANA, OTHER_FLEET, SENIOR, VIEWER, event, rows


def test_the_texts_own_scenario_a_crashed_holders_lease_ages_out(store, clock):
    a = store.acquire("unit-7", "A", ttl_seconds=60)
    clock.advance(seconds=10)
    with pytest.raises(LeaseHeld) as refused:
        store.acquire("unit-7", "B")
    assert refused.value.facts["owner"] == "A"
    assert refused.value.facts["expires_in_ms"] == 50_000

    clock.advance(seconds=60)
    b = store.acquire("unit-7", "B", ttl_seconds=60)

    assert b.token > a.token
    assert b.taken_from == "A"
    assert (b.expires_at - clock.now).total_seconds() == 60


@pytest.mark.parametrize(("microseconds", "held"), [(-1, True), (0, False), (1, False)])
def test_at_expires_at_itself_the_lease_is_over(store, clock, microseconds, held):
    first = store.acquire("unit-7", "A", ttl_seconds=60)
    clock.advance(seconds=60, microseconds=microseconds)

    if held:
        store.renew("unit-7", first.token)
        with pytest.raises(LeaseHeld):
            store.acquire("unit-7", "B")
    else:
        with pytest.raises(LeaseLost) as lost:
            store.renew("unit-7", first.token)
        assert lost.value.facts["reason"] == "expired"
        assert store.acquire("unit-7", "B").token > first.token


def test_a_renewal_gives_ttl_from_now_and_keeps_the_token(store, clock):
    first = store.acquire("unit-7", ttl_seconds=60)
    clock.advance(seconds=20)

    renewed = store.renew("unit-7", first.token, ttl_seconds=10)

    assert renewed.token == first.token
    assert renewed.expires_in_ms == 10_000


def test_a_holder_that_slept_through_its_lease_cannot_write(store, clock):
    store.create("42", budgets=(budget(),))
    first = store.hold("42", "w-1")
    clock.advance(seconds=61)
    second = store.acquire("run:42", "w-2")
    before = store.run("42")

    for write in (
        lambda: store.append("42", [event("tool.returned")], fence=first.token),
        lambda: store.move("42", "completed", fence=first.token),
        lambda: store.spend("42", 5, fence=first.token),
    ):
        with pytest.raises(StaleFence) as refused:
            write()
        assert refused.value.current["owner"] == "w-2"
        assert refused.value.current["expires_in_ms"] == 60_000
    with pytest.raises(LeaseLost) as lost:
        store.renew("run:42", first.token)

    assert lost.value.facts["reason"] == "taken"
    assert second.token > first.token
    assert store.run("42") == before
    assert store.types("42", origin="worker") == []
    assert store.refusals() == ["stale-fence", "stale-fence", "stale-fence", "lease-lost"]
    assert {worker for (worker,) in rows("SELECT worker FROM agentstate_refusal")} == {"w-1"}


def budget(cap: int = 100):
    from agentstate.store.commands import NewBudget

    return NewBudget(name="budget", cap=cap)


def test_a_lapsed_lease_that_nobody_took_does_not_stop_its_holders_writes(store, clock):
    store.create("42")
    lease = store.hold("42")
    clock.advance(seconds=3600)

    assert store.append("42", fence=lease.token).first_seq == 4


def test_a_run_that_was_ever_leased_takes_nothing_without_a_token(store, clock):
    store.create("42")
    lease = store.hold("42")
    store.release("run:42", lease.token)

    with pytest.raises(FenceRequired):
        store.append("42")
    with pytest.raises(StaleFence):
        store.append("42", fence=lease.token)


def test_a_token_counts_only_with_the_key_it_was_given_to(store, clock):
    store.create("42")
    lease = store.hold("42")
    other = store.as_caller(OTHER_FLEET)

    with pytest.raises(StaleFence):
        other.append("42", fence=lease.token)
    with pytest.raises(LeaseLost):
        other.renew("run:42", lease.token)
    with pytest.raises(LeaseLost):
        other.release("run:42", lease.token)
    store.renew("run:42", lease.token)


def test_releasing_twice_is_harmless_and_the_next_token_is_higher(store, clock):
    lease = store.acquire("unit-7", "A")
    store.release("unit-7", lease.token)

    assert store.release("unit-7", lease.token).replayed
    with pytest.raises(LeaseLost) as lost:
        store.renew("unit-7", lease.token)
    assert lost.value.facts["reason"] == "released"
    assert store.acquire("unit-7", "B").token > lease.token


def test_a_late_release_does_not_touch_the_successor(store, clock):
    first = store.acquire("unit-7", "A", ttl_seconds=5)
    clock.advance(seconds=6)
    second = store.acquire("unit-7", "B")

    with pytest.raises(LeaseLost):
        store.release("unit-7", first.token)
    store.renew("unit-7", second.token)


def test_an_operator_reclaims_a_lapsed_lease_and_the_former_holder_is_fenced_at_once(store, clock):
    store.create("42")
    lease = store.hold("42")
    clock.advance(seconds=61)

    done = store.as_caller(ANA).reclaim("run:42", token=lease.token, reason="w-1 is frozen")

    assert done.token > lease.token
    with pytest.raises(StaleFence):
        store.append("42", fence=lease.token)
    with pytest.raises(LeaseLost) as lost:
        store.renew("run:42", lease.token)
    assert lost.value.facts["reason"] == "reclaimed"
    assert lost.value.facts["by"] == "person:ana"
    assert lost.value.facts["why"] == "w-1 is frozen"
    assert store.types("42")[-1] == "lease.reclaimed"
    assert rows("SELECT actor, action, object, reason FROM agentstate_operatoraction") == [
        ("person:ana", "lease.reclaimed", "run:42", "w-1 is frozen")
    ]
    assert store.acquire("run:42", "w-2").token > done.token


def test_a_reclaim_names_the_holder_it_means(store, clock):
    first = store.acquire("u-9", "w-1", ttl_seconds=5)
    clock.advance(seconds=6)
    second = store.acquire("u-9", "w-2", ttl_seconds=5)
    clock.advance(seconds=6)

    with pytest.raises(HolderChanged) as refused:
        store.as_caller(ANA).reclaim("u-9", token=first.token, owner="w-1")

    assert refused.value.current["owner"] == "w-2"
    assert refused.value.current["token"] == second.token
    assert store.lease("u-9").token == second.token


def test_a_live_lease_is_taken_only_with_force_and_the_scope_for_it(store, clock):
    lease = store.acquire("u-9", "w-1")

    with pytest.raises(LeaseHeld):
        store.as_caller(SENIOR).reclaim("u-9", token=lease.token)
    with pytest.raises(NotAllowed) as refused:
        store.as_caller(ANA).reclaim("u-9", token=lease.token, force=True)
    assert refused.value.facts["scope"] == "override"
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).reclaim("u-9", token=lease.token, force=True)
    assert store.lease("u-9").token == lease.token

    store.as_caller(SENIOR).reclaim("u-9", token=lease.token, force=True)
    assert store.lease("u-9").token is None


def test_a_reclaim_can_keep_the_worker_off_for_a_while(store, clock):
    store.create("42")
    lease = store.hold("42", "w-1~aa")
    clock.advance(seconds=61)
    store.as_caller(ANA).reclaim("run:42", token=lease.token, owner="w-1~aa", hold_off_seconds=30)

    with pytest.raises(LeaseHeld):
        store.acquire("run:42", "w-1~bb")
    assert store.claim("w-1~bb").items == ()
    clock.advance(seconds=30)
    assert store.acquire("run:42", "w-1~bb").token > lease.token


def test_claim_gives_the_oldest_waiting_run_and_sets_it_running(store, clock):
    for key in ("old", "young"):
        store.create(key)
        clock.advance(seconds=1)

    (first,) = store.claim("w-1").items
    (second,) = store.claim("w-2").items

    assert (first.run, second.run) == ("old", "young")
    assert store.types("old") == ["run.created", "lease.acquired", "run.running"]
    assert (first.status, first.attempt, first.version) == ("running", 1, 3)
    assert store.claim("w-3").items == ()


def test_claim_takes_over_what_a_dead_worker_left_and_hands_on_its_progress(store, clock):
    from agentstate.store.payloads import RawJSON

    store.create("42")
    (first,) = store.claim("w-1").items
    store.renew(first.unit, first.token, progress=RawJSON('{"step": 3}'))
    clock.advance(seconds=61)

    (second,) = store.claim("w-2").items

    assert second.taken_from == "w-1"
    assert second.progress == RawJSON('{"step": 3}')
    assert second.attempt == 2
    assert [(t.owner, t.ended) for t in store.terms("run:42")] == [("w-1", "lapsed"), ("w-2", None)]

    # One that told nothing hands on what it was told.
    clock.advance(seconds=61)
    assert store.claim("w-3").items[0].progress == RawJSON('{"step": 3}')


def test_a_run_that_was_never_leased_and_runs_is_not_claimed(store, clock):
    store.create("42", status="running")
    assert store.claim().items == ()


def test_a_run_that_kills_its_workers_fails_after_max_attempts(store, clock):
    store.create("42", max_attempts=2)
    for worker in ("w-1", "w-2"):
        assert store.claim(worker).items
        clock.advance(seconds=61)
    with pytest.raises(AttemptsExhausted):
        store.acquire("run:42", "w-3")

    assert store.claim("w-3").items == ()

    run = store.run("42")
    assert run.status == "failed"
    assert run.result == '{"code":"attempts-exhausted","attempts":2}'
    assert store.types("42")[-1] == "run.failed"
    with pytest.raises(AlreadyTerminal):
        store.acquire("run:42", "w-3")


def test_completing_ends_the_lease_and_a_release_afterwards_is_harmless(store, clock):
    store.create("42")
    lease = store.hold("42")
    store.move("42", "completed", fence=lease.token, result={"ok": True})

    assert store.lease("run:42") is None
    assert store.release("run:42", lease.token).replayed
    with pytest.raises(LeaseLost) as lost:
        store.renew("run:42", lease.token)
    assert lost.value.facts["reason"] == "run-terminal"
    assert [(t.owner, t.ended) for t in store.terms("run:42")] == [("w-1", "run-terminal")]


def test_the_sweep_tells_of_a_lapse_once_and_changes_nothing_else(store, clock):
    store.create("42")
    lease = store.hold("42")
    assert store.sweep() == 0
    clock.advance(seconds=61)

    assert store.sweep() == 1
    assert store.sweep() == 0

    assert store.types("42")[-1] == "lease.lapsed"
    assert store.run("42").status == "running"
    store.append("42", fence=lease.token)


def test_renewing_or_reclaiming_what_was_never_held_creates_nothing(store, clock):
    with pytest.raises(LeaseLost):
        store.renew("u-new", 1)
    with pytest.raises(HolderChanged):
        store.as_caller(ANA).reclaim("u-new", token=1)
    with pytest.raises(NotFound):
        store.acquire("run:nope")
    assert rows("SELECT unit FROM agentstate_lease") == []


def test_terms_never_overlap_even_when_the_clock_is_set_back(store, clock):
    first = store.acquire("unit-7", "A", ttl_seconds=60)
    store.release("unit-7", first.token)
    clock.advance(seconds=-3600)

    store.acquire("unit-7", "B")

    a, b = store.terms("unit-7")
    assert a.ends_at <= b.starts_at
    assert a.ends_at > a.starts_at


def renewed_ms(model, **which):
    return model.objects.get(**which).renewed_ms


def test_when_a_term_was_renewed_is_kept_with_it_and_begins_anew_with_the_next(store, clock):
    first = store.acquire("unit:7", "w-1", ttl_seconds=30)
    for seconds in (10, 10.25):
        clock.advance(seconds=seconds)
        store.renew("unit:7", first.token, ttl_seconds=30)
    assert renewed_ms(Lease, unit="unit:7") == [10_000, 20_250]

    clock.advance(seconds=100)
    second = store.acquire("unit:7", "w-2", ttl_seconds=60)
    clock.advance(seconds=5)
    store.renew("unit:7", second.token)
    store.release("unit:7", second.token)

    terms = LeaseTerm.objects.in_bulk([first.token, second.token])
    assert (terms[first.token].renewed_ms, terms[first.token].ttl_seconds) == ([10_000, 20_250], 30)
    assert (terms[second.token].renewed_ms, terms[second.token].ttl_seconds) == ([5_000], 60)


def test_of_very_many_renewals_the_last_are_kept(store, clock):
    lease = store.acquire("unit:7")
    for _ in range(RENEWALS_KEPT + 5):
        clock.advance(seconds=1)
        store.renew("unit:7", lease.token)

    kept = renewed_ms(Lease, unit="unit:7")
    assert kept == [n * 1_000 for n in range(6, RENEWALS_KEPT + 6)]
