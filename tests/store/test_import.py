"""A run comes in with its whole history, or not at all, and never more than its events prove."""

import json
from dataclasses import replace
from datetime import datetime

import pytest

from agentstate.store import audit
from agentstate.store.commands import (
    ImportedBudget,
    ImportedEntry,
    ImportedEvent,
    ImportRun,
    NewBudget,
)
from agentstate.store.errors import Exists, FenceRequired, Invalid
from agentstate.store.payloads import RawJSON
from tests.store.asking import rows

CREATED = ImportedEvent(
    seq=1, version=1, type="run.created", origin="store", data=RawJSON('{"status":"running"}')
)
STEP = ImportedEvent(
    seq=2, version=2, type="step.done", origin="worker", data=RawJSON('{"n": 1.0}'),
    add=RawJSON('{"steps_done":1}'), id="e1",
)  # fmt: skip
DONE = ImportedEvent(seq=3, version=3, type="run.completed", origin="store")


def a_run(**changes):
    facts = {"key": "42", "task": "audit", "status": "completed", "events": (CREATED, STEP, DONE)}
    return ImportRun(**(facts | changes))


def test_everything_of_it_is_there_afterwards(store):
    entry = ImportedEntry(n=1, kind="open", amount=50, cap=50)
    spent = ImportedEntry(n=2, kind="spend", amount=20, spent=20, token=7)
    budget = ImportedBudget(name="tokens", unit="tokens", cap=50, version=2, entries=(entry, spent))

    made = store.ask(a_run(budgets=(budget,)))

    run = store.run("42")
    assert (made.last_seq, run.version, run.status) == (3, 3, "completed")
    assert run.counters == {"steps_done": 1}
    assert store.events("42")[1].data == '{"n": 1.0}'
    assert store.events("42")[1].event_id == "e1"
    assert rows("SELECT spent, entries FROM agentstate_budget") == [(20, 2)]
    assert rows("SELECT action FROM agentstate_operatoraction") == [("run.imported",)]
    assert audit.verify() == []


def test_a_run_that_was_going_on_goes_on_when_a_worker_claims_it(store, clock):
    store.ask(a_run(status="running", events=(CREATED, STEP), attempt=1))
    with pytest.raises(FenceRequired):
        store.append("42")
    (claim,) = store.claim("w-1").items
    store.append("42", fence=claim.token)
    assert audit.verify() == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"status": "failed"}, "status"),
        ({"events": (CREATED, DONE)}, "events[].seq"),
        ({"events": (STEP,)}, "events[].seq"),
        ({"events": ()}, "events[0]"),
        (
            {
                "events": (
                    CREATED,
                    ImportedEvent(seq=2, version=2, type="x", origin="worker", token=7),
                    DONE,
                )
            },
            "events[1].token",
        ),
        (
            {
                "budgets": (
                    ImportedBudget(
                        name="b",
                        unit="tokens",
                        cap=1,
                        entries=(ImportedEntry(n=1, kind="spend", amount=2, spent=2),),
                    ),
                )
            },
            "budgets.b",
        ),
    ],
)
def test_a_history_that_contradicts_itself_is_refused_whole(store, changes, field):
    with pytest.raises(Invalid) as refused:
        store.ask(a_run(**changes))
    assert refused.value.field == field
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


def test_a_key_that_is_taken_is_refused(store):
    store.create("42", budgets=(NewBudget(name="b", cap=1),))
    with pytest.raises(Exists):
        store.ask(a_run())
    assert store.run("42").last_seq == 1


def test_an_id_that_is_there_twice_is_refused_with_its_place():
    twice = (CREATED, STEP, ImportedEvent(**{**_fields(STEP), "seq": 3, "version": 3}))
    with pytest.raises(Invalid) as refused:
        a_run(status="running", events=twice)
    assert refused.value.field == "events[].id"
    spend = {"kind": "spend", "amount": 1, "spent": 1, "id": "c1"}
    with pytest.raises(Invalid) as refused:
        ImportedBudget(
            name="b",
            unit="tokens",
            cap=9,
            entries=(ImportedEntry(n=1, **spend), ImportedEntry(n=2, **spend)),
        )
    assert refused.value.field == "entries[].id"


def _fields(row):
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_a_run_with_another_stores_tokens_goes_on_here_without_a_false_alarm(store, clock):
    far = ImportedEvent(
        seq=2, version=2, type="lease.acquired", origin="store", token=2**40,
        data=RawJSON('{"owner":"w-9"}'),
    )  # fmt: skip
    step = ImportedEvent(seq=3, version=3, type="x", origin="worker", token=2**40)
    store.ask(a_run(status="running", events=(CREATED, far, step), attempt=1))
    (claim,) = store.claim("w-1").items
    store.append("42", fence=claim.token)
    assert audit.verify() == []


@pytest.mark.parametrize(
    "at",
    ["0001-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
     "1969-12-31T23:59:59+00:00", "9999-01-01T00:00:00+00:00"],
)  # fmt: skip
def test_a_history_has_no_time_that_its_pages_could_not_tell(at):
    """S-202: pages of a run from the year 1 failed; some times ended the import with an error."""
    told = datetime.fromisoformat(at)
    for make in (
        lambda: a_run(created_at=told),
        lambda: a_run(ended_at=told),
        lambda: a_run(deadline_at=told),
        lambda: replace(CREATED, at=told),
        lambda: ImportedEntry(n=1, kind="open", amount=1, cap=1, at=told),
    ):
        with pytest.raises(Invalid, match="an instant from 1970 to 9998"):
            make()
    last = datetime.fromisoformat("9998-12-31T23:59:59.999999+00:00")
    assert a_run(deadline_at=last).deadline_at == last


LARGEST = 2**53 - 1
OPEN = {"kind": "open", "amount": 9, "cap": 9}
WHOLE = {"kind": "commit", "amount": LARGEST, "spent": LARGEST, "overdrawn": True}
BACK = {"kind": "commit", "amount": -LARGEST, "spent": -LARGEST}


@pytest.mark.parametrize(
    ("entries", "facts", "field"),
    [
        ((OPEN, WHOLE, WHOLE), {"overdrawn": True}, "budgets.b"),
        ((OPEN, WHOLE, WHOLE, BACK, BACK), {}, "budgets.b"),
        ((OPEN,), {"overdrawn": True}, "budgets.b.overdrawn"),
        ((OPEN, {"kind": "cap", "amount": 5, "cap": 5}), {}, "budgets.b.cap"),
    ],
)
def test_a_ledger_has_no_sum_that_no_charge_could_have_made(store, entries, facts, field):
    """S-603, S-604: sums beyond what is counted with; a flag and a cap that no line bears out."""
    lines = tuple(ImportedEntry(n=n, **entry) for n, entry in enumerate(entries, 1))
    budget = ImportedBudget(name="b", unit="tokens", cap=9, entries=lines, **facts)
    with pytest.raises(Invalid) as refused:
        store.ask(a_run(budgets=(budget,)))
    assert refused.value.field == field
    assert rows("SELECT count(*) FROM agentstate_run") == [(0,)]


@pytest.mark.parametrize(
    ("adds", "field"),
    [
        ([{"c": LARGEST}, {"c": 1}, {"c": -1}], "events[].add.c"),
        ([{f"c{n}": 1 for n in range(100)}, {"more": 1}], "events[].add"),
    ],
)
def test_counters_come_in_only_as_appends_could_have_left_them(store, adds, field):
    """S-603."""
    steps = [
        replace(STEP, seq=n, version=n, id=f"e{n}", add=RawJSON(json.dumps(add)))
        for n, add in enumerate(adds, 2)
    ]
    with pytest.raises(Invalid) as refused:
        store.ask(a_run(status="running", events=(CREATED, *steps)))
    assert refused.value.field == field
