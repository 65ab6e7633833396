"""A run as it stood after any of its events, and what is different between two of them."""

import pytest

from agentstate.store.commands import NewBudget, NewEvent, Patch, Reserve
from agentstate.store.effects import Effect
from agentstate.store.models import Run
from agentstate.store.payloads import RawJSON
from dashboard.queries import states
from dashboard.queries.states import read_state
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, event


@pytest.fixture
def told(store, still_clock):
    """A run with a change of every kind, and what it should say after each of its events."""
    store.create("42", tags=("a",), attrs=RawJSON('{"m":{"n":1e21}}'),
                 budgets=(NewBudget(name="tokens", cap=100),))  # fmt: skip
    still_clock.advance(seconds=1)
    lease = store.hold("42", "w-1")  # events 2 and 3
    still_clock.advance(seconds=1)
    fence = {"fence": lease.token}
    store.append("42", [event()], add={"steps": 2}, **fence)  # 4
    store.spend("42", 30, budget="tokens", fence=lease.token)
    still_clock.advance(seconds=1)
    store.ask(
        Patch(
            run="42",
            notes="one\ntwo",
            tags_add=("b",),
            tags_remove=("a",),
            attrs={"m.k": RawJSON("0.10")},
            **fence,
        )
    )  # fmt: skip  5
    store.append("42", [NewEvent(type="mail", effect=Effect(key="m-1", state="begun"))], **fence)
    still_clock.advance(seconds=1)
    store.ask(Reserve(run="42", budget="tokens", amount=20, id="h", **fence))
    store.append("42", [event()], add={"steps": 3, "files": -1}, **fence)  # 7
    return lease


def state(seq):
    return read_state(Run.objects.get(key="42"), seq)


def test_the_state_is_told_after_any_event(told):
    first, held, after = state(1), state(3), state(5)

    assert (first.status, first.owner, first.tags, first.counters) == ("pending", None, ["a"], {})
    assert (held.status, held.owner, held.token, held.attempt) == ("running", "w-1", told.token, 1)
    assert (after.notes, after.tags) == ("one\ntwo", ["b"])
    assert after.attrs == '{"m":{"n":1e21,"k":0.10}}'
    assert (after.counters, after.budgets) == ({"steps": 2}, {"tokens": (30, 0)})
    assert state(6).open_effects == ["m-1"]
    last = state(7)
    assert (last.counters, last.budgets) == ({"steps": 5, "files": -1}, {"tokens": (30, 20)})
    assert state(8) is None


def test_the_last_state_is_what_the_head_row_says(told, store, still_clock):
    still_clock.advance(seconds=90)
    store.sweep()
    assert state(8).lapsed
    store.as_caller(SENIOR).reclaim("run:42", token=told.token, reason="frozen")
    again = store.hold("42", "w-2")
    store.append(
        "42", [NewEvent(type="sent", effect=Effect(key="m-1", state="ended"))], fence=again.token
    )
    store.move("42", "completed", result={"n": 1}, fence=again.token)
    run = Run.objects.get(key="42")
    for seq in range(1, run.last_seq + 1):
        assert state(seq).seq == seq

    last = state(run.last_seq)
    assert (last.status, last.version, last.counters) == ("completed", run.version, run.counters)
    assert (last.owner, last.attempt, last.open_effects) == (None, 2, [])
    assert (last.notes, last.tags, last.attrs, last.result) == (
        run.notes, list(run.tags), run.attrs, run.result)  # fmt: skip


def test_counters_are_added_up_from_the_nearer_end(told):
    run = Run.objects.get(key="42")
    for seq in range(1, 8):
        told_forward = states.read_state(run, seq).counters
        run.last_seq, kept = 10_000, run.last_seq  # as if the other end were far
        assert states.read_state(run, seq).counters == told_forward
        run.last_seq = kept


def test_the_page_shows_one_state_and_the_difference_of_two(told, viewer):
    def show(**query):
        return Page(viewer.get("/runs/42", {"tab": "state"} | query))

    assert "counters.steps 5" in show().text
    page = show(seq="3")
    assert "holder w-1" in page.text
    assert "counters" not in page.text.partition("compared with")[2]

    page = show(seq="5", **{"with": "4"})
    assert [a for t, a in page.tags if t == "tr" and a.get("class") == "is-changed"]
    assert "- a" not in page.text
    for said in ("<del>a</del>", "<ins>b</ins>", "+ one", "&quot;k&quot;: 0.10"):
        assert said in page.html, said
    assert "lines differ" in page.text
    for odd in ("0", "99", "x", "-1", "99999999999999999999"):
        assert show(seq=odd, **{"with": odd}).status == 200


def test_a_state_that_takes_too_long_fails_alone(told, viewer, monkeypatch):
    monkeypatch.setattr(states, "CHANGES_MAX", 2)

    page = Page(viewer.get("/runs/42", {"tab": "state"}))

    assert page.status == 200
    assert "changed too often" in page.text
