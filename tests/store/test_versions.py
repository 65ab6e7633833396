"""When a version was first seen, which charts mark; and what a refused charge leaves to be read."""

import json
from datetime import timedelta

import pytest
from django.db import transaction

from agentstate.store import retention, versions
from agentstate.store.commands import (
    AnnounceWorker,
    Append,
    Charge,
    CreateBudget,
    NewBudget,
    Reserve,
    Spend,
)
from agentstate.store.errors import BudgetExhausted
from tests.store.asking import at_once, event, rows


def announce(store, worker, version):
    return store.ask(AnnounceWorker(worker=worker, version=version))


def seen(clock):
    found = versions.first_seen(
        since=clock.now - timedelta(days=900), until=clock.now + timedelta(seconds=1), limit=9
    )
    return [(one.what, one.version, one.at) for one in found]


def test_a_version_is_new_once_however_many_workers_say_it(store, clock):
    first = clock.now
    for n in range(3):
        announce(store, f"w-{n}", "1.4.2")
        clock.advance(minutes=5)
    announce(store, "w-0", "1.5.0")
    second = clock.now
    clock.advance(hours=2)
    announce(store, "w-0", "1.4.2")
    announce(store, "w-9", None)

    assert seen(clock) == [("workers", "1.5.0", second), ("workers", "1.4.2", first)]


def test_many_that_are_new_at_once_are_noted_once_and_nobody_waits(store, clock):
    at_once(8, lambda n: announce(store, f"w-{n}", f"2.{n % 2}"))
    for n in range(2):
        announce(store, f"w-{n}", f"2.{n}")

    assert [version for _, version, _ in seen(clock)] == ["2.0", "2.1"]


def test_whoever_finds_another_noting_leaves_it_to_it(store, clock):
    with transaction.atomic():
        values = versions.noted(versions.WORKERS, "1.0", clock.now)
        rows("SELECT pg_advisory_xact_lock(%s)", values["lock"])

        def announce_meanwhile(_):
            return announce(store, "w-1", "2.0")

        at_once(1, announce_meanwhile)
    assert seen(clock) == []

    announce(store, "w-1", "2.0")
    assert [version for _, version, _ in seen(clock)] == ["2.0"]


def test_what_is_still_seen_stays_and_what_is_not_goes_after_its_age(store, clock):
    versions.note_site("0.1.0")
    announce(store, "w-1", "1.0")
    announce(store, "w-2", "0.9")
    for _ in range(91):
        clock.advance(days=1)
        announce(store, "w-1", "1.0")

    assert retention.purge("versions of workers") == 1
    assert {(what, version) for what, version, _ in seen(clock)} == {
        ("site", "0.1.0"), ("workers", "1.0"),
    }  # fmt: skip


def wanted():
    return [
        json.loads(text) for (text,) in rows("SELECT wanted FROM agentstate_refusal ORDER BY id")
    ]


def refuse(ask):
    with pytest.raises(BudgetExhausted):
        ask()


def test_a_refused_charge_keeps_what_it_asked_of_that_level_and_its_id(store, clock):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=10)))
    budgets = (NewBudget(name="tokens", cap=100, parent="team"), NewBudget(name="calls", cap=5))
    store.create("42", budgets=budgets)
    refuse(lambda: store.ask(Spend(run="42", charge=Charge(budget="tokens", amount=11, id="c-1"))))
    refuse(lambda: store.ask(Spend(run=None, charge=Charge(budget="team", amount=12))))
    refuse(lambda: store.ask(
        Reserve(run="42", budget="tokens", amount=13, id="h-1", ttl_seconds=9)
    ))  # fmt: skip
    spend = (
        Charge(budget="tokens", amount=2, id="c-2"),
        Charge(budget="calls", amount=6, id="c-3"),
    )
    refuse(lambda: store.ask(Append(run="42", events=(event(),), spend=spend)))

    found = wanted()

    assert [one["asked"] for one in found] == [11, 12, 13, 6]
    assert [one.get("id") for one in found] == ["c-1", None, "h-1", None]
    assert found[3]["ids"] == {"tokens": "c-2", "calls": "c-3"}
