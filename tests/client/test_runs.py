"""A worker's day against the real server: what the client says is what the store has."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from agentstate_client import (
    AlreadyTerminal,
    BudgetExhausted,
    Charge,
    Event,
    Exists,
    FenceRequired,
    IllegalTransition,
    Invalid,
    NewBudget,
    NotAllowed,
    NotFound,
    PayloadTooLarge,
    RawJSON,
    SeqConflict,
    StaleFence,
    Unauthenticated,
    UnstorableText,
    VersionConflict,
)
from agentstate_client.errors import BY_CODE

from agentstate.api.problems import kinds
from agentstate.store.callers import SYSTEM
from agentstate.store.keys import create_key

ODD = (
    '{"id":1970670598291982290, "max":9223372036854775807,"neg":-9007199254740993,'
    '"f":0.1,"e":1e21,"one":1.0,"\\u00e9":"\\u00e9é\\/\\n"}'
)


def test_every_code_of_the_server_is_a_class_of_the_client():
    assert {kind.code for kind in kinds()} <= set(BY_CODE)


def test_a_run_from_its_making_to_its_end(worker):
    client = worker("auditor")
    made = client.create(
        task="audit checkout",
        key="42",
        tags=["eu"],
        attrs={"limit": 12345678901234567890},
        budgets=[NewBudget("tokens", cap=100)],
        events=[Event("job.planned", {"steps": 2})],
    )
    assert (made.key, made.status, made.version, made.last_seq) == ("42", "pending", 1, 2)

    (run,) = client.claim(ttl_seconds=60)
    assert (run.key, run.task, run.attempt, run.status) == ("42", "audit checkout", 1, "running")
    done = run.append(
        Event("model.responded", RawJSON(ODD)),
        Event("tool.returned", {"ok": True}),
        expected_seq=run.last_seq,
        add={"steps_done": 1},
        spend=Charge("tokens", 30),
    )
    assert done.last_seq == done.first_seq + 1 == run.last_seq
    assert [(c.budget, c.spent, c.left) for c in done.spent] == [("tokens", 30, 70)]
    charged = run.budget("tokens").spend(20, note="summary")
    assert (charged.spent, charged.left, charged.cap, charged.overdrawn) == (50, 50, 100, False)
    ended = run.complete({"verdict": "clean"})
    assert (ended.status, ended.replayed) == ("completed", False)

    record = client.run("42").read()
    assert (record.status, record.owner, record.token) == ("completed", None, None)
    assert (record.version, record.last_seq) == (ended.version, ended.last_seq)
    assert record.counters == {"steps_done": 1}
    assert record.attrs == {"limit": 12345678901234567890}
    assert record.result == {"verdict": "clean"}
    assert record.tags == ("eu",)
    assert [(b["budget"], b["spent"]) for b in record.budgets] == [("tokens", 50)]

    events = list(client.run("42").events())
    assert [e.seq for e in events] == list(range(1, record.last_seq + 1))
    assert [e.type for e in events if e.origin == "worker"] == [
        "job.planned",
        "model.responded",
        "tool.returned",
    ]
    said = next(e for e in events if e.type == "model.responded")
    assert said.raw == ODD
    assert said.data["id"] == 1970670598291982290
    assert run.lease is not None
    assert said.token == run.lease.token


def test_a_long_log_is_read_in_pages_to_its_end(worker):
    client = worker()
    run = client.create(task="t", key="long")
    for first in range(0, 1200, 400):
        run.append(*[Event("step.done", n) for n in range(first, first + 400)])
    read = list(run.events(origin="worker"))
    assert [e.data for e in read] == list(range(1200))
    assert [e.seq for e in run.events(after=1199)] == [1200, 1201]


def test_a_move_that_rides_along_leaves_the_handle_at_the_end_of_the_log(worker):
    client = worker()
    client.create(task="t", key="42")
    with client.claim()[0] as run:
        run.append(Event("step.done"), to="pending")
        assert run.last_seq == run.read().last_seq
        assert run.status == "pending"


def test_a_charge_beyond_the_cap_is_refused_with_what_is_left_and_nothing_is_written(worker):
    client = worker()
    client.create(task="t", key="42", budgets=[NewBudget("tokens", cap=10)])
    (run,) = client.claim()
    run.budget("tokens").spend(7)
    before = run.read()
    for write in (
        lambda: run.budget("tokens").spend(4),
        lambda: run.append(Event("step.done"), spend=Charge("tokens", 4)),
    ):
        with pytest.raises(BudgetExhausted) as refused:
            write()
        error = refused.value
        assert (error.budget, error.cap, error.spent, error.asked) == ("tokens", 10, 7, 4)
        assert (error.status, error.retry, error.outcome_unknown) == (402, "never", False)
    after = run.read()
    assert (after.last_seq, after.budgets) == (before.last_seq, before.budgets)
    run.budget("tokens").spend(3)


def test_of_many_that_append_one_number_one_wins_and_the_others_learn_where_it_is(worker):
    client = worker()
    run = client.create(task="t", key="42")
    won: list[int] = []
    lost: list[SeqConflict] = []

    def append() -> None:
        try:
            won.append(run.append(Event("step.done"), expected_seq=1).first_seq)
        except SeqConflict as conflict:
            lost.append(conflict)

    threads = [threading.Thread(target=append) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [2]
    assert [(c.last_seq, c.current["last_seq"], c.retry) for c in lost] == [(2, 2, "reread")] * 7


def test_a_worker_that_was_taken_over_can_write_nothing(worker, clock):
    first, second = worker("w-1"), worker("w-2")
    first.create(task="t", key="42", budgets=[NewBudget("tokens", cap=10)])
    (late,) = first.claim(ttl_seconds=60)
    late.append(Event("step.done", 1))
    clock.advance(seconds=61)
    (run,) = second.claim(ttl_seconds=60)
    assert run.lease.taken_from == first.owner
    assert run.lease.token > late.lease.token
    assert run.attempt == 2

    with pytest.raises(StaleFence) as stale:
        late.append(Event("step.done", 2), spend=Charge("tokens", 1), add={"steps_done": 1})
    assert stale.value.current["owner"] == second.owner
    assert late.lost.is_set()
    with pytest.raises(Exception, match="superseded"):
        late.complete()
    run.append(Event("step.done", 3))
    record = run.read()
    assert [e.data for e in run.events(type="step.done")] == [1, 3]
    assert (record.counters, record.budgets[0]["spent"]) == ({}, 0)


@pytest.mark.parametrize(
    "late_write",
    [
        lambda run: run.append(Event("step.done")),
        lambda run: run.budget("tokens").spend(1),
        lambda run: run.complete(),
        lambda run: run.transition("paused"),
    ],
)
def test_each_late_write_is_refused_by_the_store_itself(worker, clock, late_write):
    first, second = worker("w-1"), worker("w-2")
    first.create(task="t", key="42", budgets=[NewBudget("tokens", cap=10)])
    (late,) = first.claim(ttl_seconds=60)
    clock.advance(seconds=61)
    (run,) = second.claim(ttl_seconds=60)
    with pytest.raises(StaleFence):
        late_write(late)
    assert run.read().status == "running"


def test_a_handle_without_a_lease_writes_only_to_what_was_never_leased(worker):
    client = worker()
    run = client.create(task="t", key="42")
    run.append(Event("step.done"))
    client.claim()[0].release()
    with pytest.raises(FenceRequired):
        run.append(Event("step.done"))


def test_no_run_is_ever_claimed_by_two(worker):
    maker = worker("maker")
    for n in range(40):
        maker.create(task="t", key=f"r-{n}")
    clients = [worker(f"w-{n}") for n in range(6)]
    claimed: list[str] = []
    begin = threading.Barrier(len(clients))

    def claim(client) -> None:
        begin.wait(10)
        while runs := client.claim(limit=3, ttl_seconds=600):
            claimed.extend(run.key for run in runs)
            held.extend(runs)

    held: list[object] = []
    threads = [threading.Thread(target=claim, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(f"r-{n}" for n in range(40))


def test_a_run_that_was_given_back_goes_on_where_it_was(worker):
    first, second = worker("w-1"), worker("w-2")
    first.create(task="t", key="42")
    with first.claim()[0] as run:
        run.append(Event("step.done", 1))
    (again,) = second.claim()
    assert (again.key, again.last_seq) == ("42", again.read().last_seq)
    again.append(Event("step.done", 2), expected_seq=again.last_seq)
    assert [e.data for e in again.events(type="step.done")] == [1, 2]


def test_a_run_is_taken_by_its_key_and_started_by_its_holder(worker):
    client = worker()
    made = client.create(task="t", key="42")
    with made.acquire() as run:
        assert run.read().status == "pending"
        assert run.start().status == "running"
        run.append(Event("step.done"), expected_seq=run.last_seq)
        run.fail({"why": "no route"})
    with pytest.raises(AlreadyTerminal):
        made.acquire()
    assert made.read().result == {"why": "no route"}


def test_completing_twice_is_once_and_the_second_answer_is_the_first(worker):
    client = worker()
    client.create(task="t", key="42")
    (run,) = client.claim()
    first, again = run.complete({"a": 1}), run.complete({"a": 1})
    assert (again.replayed, again.version) == (True, first.version)
    with pytest.raises((AlreadyTerminal, StaleFence)):
        run.complete({"a": 2})


def test_a_version_that_moved_and_a_move_that_is_not_legal_are_told_apart(worker):
    client = worker()
    run = client.create(task="t", key="42")
    run.append(Event("step.done"))
    with pytest.raises(VersionConflict) as moved:
        run.append(Event("step.done"), if_version=1)
    assert moved.value.current["version"] == 2
    with pytest.raises(IllegalTransition) as illegal:
        run.complete()
    assert illegal.value.allowed == ["running", "cancelled"]


def test_a_ttl_out_of_its_range_is_refused_by_name(worker):
    client = worker()
    for ttl in (0, -1, 0.4, 2**31, 2**53, 2**62, 2**63, 86_401, 1e308, "60", True, None):
        for take in (partial(client.lease, "u"), client.claim):
            with pytest.raises(Invalid) as refused:
                take(ttl_seconds=ttl)
            assert refused.value.field == "ttl_seconds", ttl
            assert "86400" in refused.value.rule


ODD_KEYS = [
    "a/b",
    "../admin",
    "%2e%2e",
    "100%",
    "a b",
    "a+b",
    "x'y",
    "a?b#c",
    "a&b=c",
    "é",
    "e\u0301",
    "\U0001f600",
    "a\u202eb",
    "a\u200bb",
    "a ",
    "-a",
    "a" * 197,
]


def test_a_key_that_is_none_is_refused_whichever_way_it_comes(worker):
    client = worker()
    for key in ODD_KEYS:
        with pytest.raises(Invalid) as refused:
            client.create(task="t", key=key)
        assert refused.value.field == "key", key
        run = client.run(key)
        for ask in (run.read, run.acquire, partial(run.append, Event("a"))):
            with pytest.raises((Invalid, NotFound)):
                ask()


def test_a_key_that_is_one_works_everywhere(worker):
    """Case O-23 (docs/cases.md)."""
    client = worker()
    for key in ("a.b_c:d@e~f-g", "2026-03-12T09:40:00", "a" * 196, "0"):
        client.create(task="t", key=key)
        (run,) = client.claim()
        run.append(Event("a"))
        run.complete()
        assert client.run(key).read().key == key


def test_bad_values_are_refused_with_their_place_and_nothing_of_the_batch_is_written(worker):
    client = worker()
    run = client.create(task="t", key="42")
    with pytest.raises(UnstorableText) as nul:
        run.append(Event("a", 1), Event("b", {"out": ["a\u0000b"]}))
    assert nul.value.field == "events[1].data.out[0]"
    with pytest.raises(PayloadTooLarge) as large:
        run.append(Event("a", "x" * (1024 * 1024)))
    assert large.value.limit == 1024 * 1024
    with pytest.raises(Invalid):
        run.append(Event("not a type"))
    with pytest.raises(Invalid):
        run.append()
    assert run.read().last_seq == 1


def test_who_may_not_is_told_what_is_missing(worker):
    with pytest.raises(Unauthenticated):
        worker(key="as_nobody").create(task="t")
    reader = create_key(name="reader", scopes=["read"], by=SYSTEM)
    with pytest.raises(NotAllowed) as refused:
        worker(key=reader.text).create(task="t")
    assert refused.value.scope == "write"


def test_what_exists_or_does_not_is_said(worker):
    client = worker()
    client.create(task="t", key="42")
    with pytest.raises(Exists):
        client.create(task="t", key="42")
    with pytest.raises(NotFound):
        client.run("43").read()


def test_payloads_are_hidden_from_a_key_that_may_not_see_them(worker):
    client = worker()
    client.create(task="t", key="42", events=[Event("a", {"secret": 1})], attrs={"b": 2})
    blind = create_key(name="blind", scopes=["read"], by=SYSTEM)
    run = worker(key=blind.text).run("42")
    assert [(e.raw, e.data) for e in run.events(type="a")] == [(None, None)]
    assert run.read().attrs == {}
