"""A draft is rehearsed with the store's own rules; what they refuse is no history."""

from dataclasses import replace

import pytest

from agentstate.store.commands import Charge, NewBudget, NewEvent
from agentstate.store.errors import Invalid
from agentstate.store.export import run_lines
from agentstate.store.payloads import RawJSON
from tasks.archive import read_archive
from tasks.drafts import RunDraft, Step, UnreadableFile
from tasks.histories import rehearsed
from tasks.samples import OWN_FOLDER, read_drafts


def step(n, amount=10):
    return Step(
        events=(NewEvent(type="tool.called", id=f"c-{n}"), NewEvent(type="tool.returned")),
        add={"steps_done": 1},
        spend=Charge(budget="tokens", amount=amount),
    )


DRAFT = RunDraft(
    key="r-1",
    task="Fix it",
    tags=("b", "a"),
    attrs=RawJSON('{"n": 1.0}'),
    budgets=(NewBudget(name="tokens", cap=20),),
    opening=(NewEvent(type="task.given", data=RawJSON('{"task":"all"}')),),
    steps=(step(1), step(2)),
    status="completed",
    result=RawJSON('{"ok":true}'),
)


def refused(draft):
    with pytest.raises(UnreadableFile) as wrong:
        rehearsed(draft, name="draft.jsonl")
    return str(wrong.value)


def test_a_draft_becomes_the_history_that_a_worker_would_have_left():
    run = rehearsed(DRAFT, name="draft.jsonl")

    assert [(e.seq, e.version, e.type, e.origin) for e in run.events] == [
        (1, 1, "run.created", "store"),
        (2, 1, "task.given", "worker"),
        (3, 2, "tool.called", "worker"),
        (4, 2, "tool.returned", "worker"),
        (5, 3, "tool.called", "worker"),
        (6, 3, "tool.returned", "worker"),
        (7, 4, "run.completed", "store"),
    ]
    assert (run.status, run.result.text, run.tags) == ("completed", '{"ok":true}', ("a", "b"))
    assert [e.add.value() for e in run.events if e.add] == [{"steps_done": 1}] * 2


def test_its_charges_are_the_ledger_of_its_budget():
    (budget,) = rehearsed(DRAFT, name="draft.jsonl").budgets

    assert sum(entry.spent for entry in budget.entries) == 20 == budget.cap
    assert [entry.n for entry in budget.entries] == [1, 2, 3]


def test_work_that_is_still_to_do_stays_pending():
    run = rehearsed(replace(DRAFT, steps=(), status="pending", result=None), name="d")

    assert (run.status, [e.type for e in run.events]) == ("pending", ["run.created", "task.given"])


def test_steps_that_have_not_happened_cannot_be_brought_in():
    with pytest.raises(Invalid, match="pending only without steps"):
        replace(DRAFT, status="pending")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": (step(1), step(2, amount=11))}, "run r-1: step 2: tokens: 11 asked, 10 tokens"),
        ({"budgets": ()}, "run r-1: step 1: no budget tokens"),
        ({"steps": (Step(events=()),)}, "run r-1: step 1: events: 1 to 500 events"),
    ],
)
def test_what_the_rules_refuse_is_no_history(changes, says):
    assert says in refused(replace(DRAFT, **changes))


def test_an_id_that_is_used_twice_would_lose_an_event_and_is_refused():
    with pytest.raises(Invalid, match="each id once in a run"):
        replace(DRAFT, steps=(step(1), step(1)))


def test_a_rehearsed_sample_is_read_back_as_the_same_history():
    for path in OWN_FOLDER.glob("*.jsonl"):
        for draft in read_drafts(path):
            run = rehearsed(draft, name=path.name)
            assert read_archive(text="".join(run_lines(run)), name=path.name) == (run,)
