"""What happened, counted from what is stored; and no invariant is broken unseen."""

import io

import pytest
from django.core.management import call_command
from django.db import connection

from agentstate.store import reads
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import (
    Append,
    Charge,
    ClaimRuns,
    CreateRun,
    ImportedBudget,
    ImportedEntry,
    ImportedEvent,
    ImportRun,
    NewBudget,
    NewEvent,
    Transition,
)
from agentstate.store.errors import BudgetExhausted, SeqConflict, StaleFence
from agentstate.store.execute import execute
from agentstate.store.payloads import RawJSON
from tasks.management.commands.summary import Command
from tasks.summary import CHARGES, CONFLICTS, FENCED, lines, summarize

pytestmark = pytest.mark.django_db(transaction=True)


def claim(owner):
    (item,) = execute(ClaimRuns(owner=owner, ttl_seconds=5), by=SYSTEM).items
    return item


def append(item, **more):
    return execute(
        Append(run=item.run, events=(NewEvent(type="a.b"),), fence=item.token, **more), by=SYSTEM
    )


@pytest.fixture
def eventful(clock):
    """Two runs: one taken over from a crashed worker, one from a frozen one that came back."""
    since = reads.now()
    for key in ("r-1", "r-2"):
        budgets = (NewBudget(name="tokens", cap=10),)
        execute(CreateRun(key=key, task="Fix it", budgets=budgets), by=SYSTEM)
        clock.advance(seconds=1)  # the older one is claimed first
    first = [claim("w-1~0001"), claim("w-2~0001")]
    clock.advance(seconds=6)
    second = [claim("w-3~0001"), claim("w-4~0001")]
    with pytest.raises(StaleFence):
        append(first[1])
    append(second[0], spend=(Charge(budget="tokens", amount=7),))
    with pytest.raises(BudgetExhausted):
        append(second[0], spend=(Charge(budget="tokens", amount=7),))
    with pytest.raises(SeqConflict):
        append(second[0], expected_seq=1)
    execute(Transition(run="r-1", to="completed", fence=second[0].token), by=SYSTEM)
    return since


def run_summary(since):
    out, err = io.StringIO(), io.StringIO()
    call_command("summary", f"--since={since}", stdout=out, stderr=err)
    return out.getvalue()


def test_it_tells_crashed_workers_from_those_that_came_back(eventful):
    found = summarize(since=eventful)

    assert found.statuses == {"completed": 1, "running": 1}
    assert (found.created, found.takeovers, found.came_back) == (2, 2, 1)
    assert [found.refused(codes) for codes in (FENCED, CONFLICTS, CHARGES)] == [1, 1, 1]
    assert found.spent == {"tokens": 7}
    assert (found.differences, found.overdrafts) == ((), ())


def test_what_was_before_the_moment_does_not_count(eventful, clock):
    clock.advance(seconds=1)
    found = summarize(since=reads.now())

    assert (found.statuses, found.created, found.events, found.takeovers) == ({}, 0, 0, 0)
    assert found.refusals == found.spent == {}


def test_its_text_is_a_calm_table_and_each_invariant(eventful):
    text = run_summary(eventful)
    told = [" ".join(line.split()) for line in text.splitlines()]

    assert told[:2] == ["", "Since 2026-03-02 12:00:00 UTC"]
    assert "runs 2 1 completed, 1 running" in told
    assert "not heard of again 1 it had crashed" in told
    assert "came back too late 1 its write was fenced off" in told
    assert "holds numbers without a hole" in told
    assert "BROKEN" not in text


@pytest.mark.damages
def test_a_broken_invariant_is_named_with_its_place_and_the_command_fails(eventful):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentstate_budget SET spent = 8 WHERE spent = 7")
    with pytest.raises(SystemExit) as ended:
        run_summary(eventful)
    text = list(lines(summarize(since=eventful)))

    assert ended.value.code == 1
    assert "  BROKEN  spent is the sum of the ledger" in text
    assert any("r-1/tokens: expected spent 7" in line for line in text)


def test_an_overdrawn_budget_is_told_with_the_line_that_did_it_and_is_no_failure(clock):
    entries = (
        ImportedEntry(n=1, kind="open", amount=5, cap=5),
        ImportedEntry(n=2, kind="commit", amount=7, spent=7, overdrawn=True, actor="key:w"),
    )
    budget = ImportedBudget(name="tokens", unit="tokens", cap=5, overdrawn=True, entries=entries)
    event = ImportedEvent(
        seq=1,
        version=1,
        type="run.created",
        origin="store",
        data=RawJSON('{"status":"pending"}'),
    )
    execute(
        ImportRun(key="r-1", task="Fix it", status="pending", budgets=(budget,), events=(event,)),
        by=SYSTEM,
    )
    text = run_summary(reads.now())

    assert "note    r-1/tokens is overdrawn: 7 of 5, since line 2 of its ledger by key:w" in text


@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ("yesterday", "is no RFC 3339 time"),
        ("2026-03-04T05:06:07", "has no offset"),
        ("0001-01-01T00:00:00+14:00", "is no RFC 3339 time"),
    ],
)
def test_a_moment_without_its_place_in_time_is_refused(moment, says, capsys):
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "summary", "--since", moment])

    assert says in capsys.readouterr().err


def test_a_moment_of_another_offset_is_told_as_what_it_is_in_utc():
    """S-204: it said "Since 2026-03-04 07:06:07 UTC"."""
    assert "Since 2026-03-04 05:06:07 UTC" in run_summary("2026-03-04T07:06:07+02:00")
