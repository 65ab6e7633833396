"""A hot run takes its writes at a rate, exact over all connections, and nobody is lost for it."""

from datetime import timedelta
from functools import partial

import pytest

from agentstate.store import audit, feed
from agentstate.store.asks import Ask
from agentstate.store.commands import (
    Append,
    Appended,
    Batch,
    Braked,
    BrakeRun,
    Charge,
    CommitReservation,
    NewBudget,
    Patch,
    Reserve,
    Spend,
)
from agentstate.store.errors import (
    AlreadyTerminal,
    BatchRefused,
    ExpectationFailed,
    Invalid,
    NotAllowed,
    RunHot,
    StaleFence,
)
from agentstate.store.execute import execute_all
from agentstate.store.hot import HOT
from agentstate.store.minutes import TALLY
from agentstate.store.models import OperatorAction
from tests.store.asking import ANA, FLEET, Asking, at_once, event, results, rows


@pytest.fixture(autouse=True)
def _nothing_remembered(transactional_db):
    """Each refusal below is the database's, unless a test is about the process's memory."""
    HOT.forget()
    yield
    HOT.forget()


def brake(store, key="42", per_second=2, seconds=60, reason="it floods the database"):
    ask = BrakeRun(run=key, per_second=per_second, seconds=seconds, reason=reason)
    return store.as_caller(ANA).ask(ask)


def lift(store, key="42"):
    return store.as_caller(ANA).ask(BrakeRun(run=key, per_second=None, reason="quiet again"))


def refused(ask, *args, **more):
    HOT.forget()
    with pytest.raises(RunHot) as hot:
        ask(*args, **more)
    HOT.forget()
    return hot.value


def test_writes_beyond_the_brake_are_told_when_the_next_one_fits(store, clock):
    store.create("42")
    brake(store, per_second=2)
    store.append("42")
    store.append("42")

    hot = refused(store.append, "42")
    assert (hot.retry_after_ms, hot.current["per_second"]) == (500, 2)
    clock.advance(seconds=0.5)
    store.append("42")
    refused(store.append, "42")
    assert store.types("42", origin="worker") == ["step.done"] * 3


def test_a_brake_is_an_event_an_action_and_ends_by_itself(store, clock):
    store.create("42")
    done = brake(store, per_second=1, seconds=5)
    assert (done.per_second, done.until) == (1, clock.now + timedelta(seconds=5))
    store.append("42")
    refused(store.append, "42")
    clock.advance(seconds=5)
    for _ in range(10):
        store.append("42")

    assert store.types("42", origin="store") == ["run.created", "run.changed"]
    (action,) = OperatorAction.objects.values("action", "actor", "reason", "after")
    assert (action["action"], action["actor"]) == ("run.braked", "person:ana")
    assert action["after"]["brake"]["per_second"] == 1
    assert lift(store).replayed


def test_a_brake_can_be_lifted_and_lifting_it_again_changes_nothing(store, clock):
    store.create("42")
    brake(store, per_second=1)
    store.append("42")
    assert (lift(store).per_second, lift(store).replayed) == (None, True)
    store.append("42")
    names = OperatorAction.objects.order_by("id").values_list("action", flat=True)
    assert list(names) == ["run.braked", "run.brake-lifted"]


def test_only_an_operator_brakes_and_only_a_run_that_goes_on(store):
    store.create("42")
    with pytest.raises(NotAllowed):
        store.as_caller(FLEET.__class__(kind="key", name="w", scopes=frozenset({"write"}))).ask(
            BrakeRun(run="42", per_second=1, seconds=1, reason="x")
        )
    store.move("42", "cancelled")
    with pytest.raises(AlreadyTerminal):
        brake(store)


@pytest.mark.parametrize(
    "bad",
    [
        {"per_second": 0, "seconds": 1},
        {"per_second": True, "seconds": 1},
        {"per_second": 100_001, "seconds": 1},
        {"per_second": 1},
        {"per_second": 1, "seconds": 0},
        {"per_second": 1, "seconds": 86_401},
        {"per_second": None, "seconds": 1},
        {"per_second": 1, "seconds": 1, "reason": ""},
    ],
)
def test_a_senseless_brake_is_refused_before_the_database(bad):
    with pytest.raises(Invalid):
        BrakeRun(**{"run": "42", "reason": "x"} | bad)


def test_what_counts_and_what_is_never_held_up(store, clock):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    lease = store.hold("42")
    token = {"fence": lease.token}
    held = Reserve(run="42", budget="budget", amount=5, id="h-1", **token)
    store.ask(held)
    clock.advance(seconds=1)
    brake(store, per_second=1)
    store.append("42", **token)

    for counted in (
        Append(run="42", events=(event(),), **token),
        Patch(run="42", notes="n", **token),
        Spend(run="42", charge=Charge(budget="budget", amount=1), **token),
        Reserve(run="42", budget="budget", amount=1, id="h-2", **token),
    ):
        refused(store.ask, counted)
    refused(store.move, "42", "paused", **token)

    store.renew("run:42", lease.token)
    assert store.ask(held).replayed
    store.ask(CommitReservation(run="42", budget="budget", id="h-1", amount=4, **token))
    store.as_caller(ANA).ask(Patch(run="42", tags_add=("hot",)))
    store.as_caller(ANA).move("42", "paused")
    store.as_caller(ANA).move("42", "running")
    store.append("42", to="completed", **token)
    assert store.run("42").status == "completed"
    assert audit.verify() == []


def test_an_overtaken_worker_learns_that_and_not_that_the_run_is_hot(store, clock):
    store.create("42")
    first = store.hold("42", ttl_seconds=5)
    clock.advance(seconds=6)
    second = store.hold("42", "w-2")
    clock.advance(seconds=1)
    brake(store, per_second=1)
    store.append("42", fence=second.token)
    with pytest.raises(StaleFence):
        store.append("42", fence=first.token)


def test_a_repeated_request_gets_its_first_answer_also_on_a_hot_run(store, clock):
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    brake(store, per_second=3)
    store.append("42", [event(id="e-1")])
    store.ask(Patch(run="42", notes="n", id="c-1"))
    store.spend("42", 1, id="s-1")
    refused(store.append, "42")
    with pytest.raises(RunHot):
        store.append("42")  # remembered from here on

    assert store.append("42", [event(id="e-1")]).replayed
    assert store.ask(Patch(run="42", notes="n", id="c-1")).replayed
    assert store.spend("42", 1, id="s-1").replayed


def test_a_request_with_many_operations_counts_once(store, clock):
    store.create("42")
    brake(store, per_second=1)
    many = Batch(operations=(Append(run="42", events=(event(),)),) * 5)
    assert len(store.ask(many).results) == 5
    HOT.forget()
    with pytest.raises(BatchRefused) as no:
        store.ask(many)
    assert {told["code"] for told in no.value.facts["operations"]} == {"run-hot"}


def test_the_sites_own_limit_holds_without_a_brake(store, clock, settings):
    settings.RUN_WRITES_PER_SECOND = 5
    store.create("42")
    for _ in range(10):
        store.append("42")
    assert refused(store.append, "42").current["braked"] is False
    settings.RUN_WRITES_PER_SECOND = 0
    store.append("42")


def test_a_storm_of_refused_writes_leaves_a_row_a_second(store, clock):
    store.create("42")
    brake(store, per_second=1)
    asks = [Ask(command=Append(run="42", events=(event(),)), by=FLEET) for _ in range(50)]
    outcomes = execute_all(asks)
    assert len(results(outcomes, RunHot)) == 49
    assert store.refusals() == ["run-hot"]
    clock.advance(seconds=0.5)
    refused(store.append, "42")
    assert store.refusals() == ["run-hot"]
    clock.advance(seconds=0.6)
    store.append("42")
    refused(store.append, "42")
    assert store.refusals() == ["run-hot"] * 2


def test_a_process_that_was_refused_refuses_by_itself_for_a_moment_and_counts_it(
    store, clock, django_assert_num_queries
):
    TALLY.forget()
    store.create("42", budgets=(NewBudget(name="budget", cap=9),))
    brake(store, per_second=1)
    store.append("42")
    with pytest.raises(RunHot):
        store.append("42")
    with django_assert_num_queries(0), pytest.raises(RunHot) as hot:
        store.append("42")
    assert 0 < hot.value.retry_after_ms <= 1_000

    with pytest.raises(RunHot):  # a key may have an answer: the database is asked
        store.ask(Append(run="42", events=(event(),)), key="k")
    store.as_caller(ANA).ask(Patch(run="42", tags_add=("hot",)))
    lift(store)
    store.append("42")
    TALLY.write()
    assert rows("SELECT sum(count)::int FROM agentstate_minute WHERE outcome = 'run-hot'") == [(3,)]


def test_sixty_four_writers_on_a_braked_run_all_get_through_at_its_rate(store, clock):
    store.create("42")
    per_second, writers = 8, 64
    brake(store, per_second=per_second, seconds=3_600)
    began = clock.now
    waiting = list(range(writers))
    while waiting:
        HOT.forget()
        outcomes = at_once(len(waiting), partial(_append_as, store, tuple(waiting)))
        assert all(isinstance(o, (RunHot, Appended)) for o in outcomes)
        assert len(results(outcomes, Appended)) == per_second
        waiting = [w for w, o in zip(waiting, outcomes, strict=True) if isinstance(o, RunHot)]
        clock.advance(seconds=1)

    seconds = (clock.now - began).total_seconds() - 1
    assert writers <= per_second + per_second * seconds
    assert len(store.types("42", origin="worker")) == writers
    feed.move()
    assert audit.verify() == []


def _append_as(store, writers, number):
    return store.append("42", [event(id=f"w-{writers[number]}")])


def test_of_two_who_brake_at_once_the_second_is_told_of_the_first(store):
    for n in range(10):
        store.create(f"r-{n}")
        asks = [
            BrakeRun(run=f"r-{n}", per_second=rate, seconds=60, reason="x", expected_until=None)
            for rate in (1, 1_000)
        ]
        outcomes = at_once(2, lambda n, asks=asks: Asking(ANA).ask(asks[n]))

        (won,) = results(outcomes, Braked)
        (lost,) = results(outcomes, ExpectationFailed)
        brake_now = {"per_second": won.per_second, "until": won.until}
        assert lost.current["brake"] == brake_now
        assert lost.facts["failed"] == [
            {"field": "brake.until", "wanted": None, "found": won.until}
        ]
        assert store.run(f"r-{n}").brake_per_second == won.per_second


def test_only_the_brake_that_was_seen_is_replaced_or_lifted(store, clock):
    store.create("42")
    seen = brake(store, per_second=5).until
    clock.advance(seconds=1)
    newer = brake(store, per_second=5)
    for stale in (seen, None):
        for rate in ({"per_second": None}, {"per_second": 9, "seconds": 60}):
            with pytest.raises(ExpectationFailed):
                store.as_caller(ANA).ask(
                    BrakeRun(run="42", reason="x", expected_until=stale, **rate)
                )
    assert store.run("42").brake_until == newer.until

    lifting = BrakeRun(run="42", per_second=None, reason="x", expected_until=newer.until)
    assert not store.as_caller(ANA).ask(lifting).replayed
    assert store.as_caller(ANA).ask(lifting).replayed  # what it wants is so
    with pytest.raises(Invalid):
        BrakeRun(run="42", per_second=None, reason="x", expected_until=seen.replace(tzinfo=None))
