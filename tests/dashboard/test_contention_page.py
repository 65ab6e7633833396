from datetime import timedelta

import pytest

from agentstate.store.commands import NewBudget
from agentstate.store.errors import Refusal
from dashboard.families import BY_NAME, FAMILIES, family_of
from dashboard.queries import contention as queries
from tests.dashboard.reading import Page
from tests.store.asking import event


def refuse(ask):
    with pytest.raises(Refusal):
        ask()


def test_without_a_refusal_it_says_so(store, viewer):
    store.create("42")

    text = Page(viewer.get("/contention")).text

    assert "Nothing was refused in the last hour" in text


def test_it_counts_per_family_run_worker_and_code(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=10),))
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=100)
    second = store.hold("42", "w-9")
    for _ in range(3):
        refuse(lambda: store.append("42", [event()], fence=first.token))
    refuse(lambda: store.append("42", [event()], fence=second.token, expected_seq=1))
    refuse(lambda: store.spend("42", 99, budget="tokens", fence=second.token))

    found = queries.read(now=still_clock.now, window=timedelta(hours=1), slots=60)

    assert found.total == 5
    assert found.families == {"fenced": 3, "conflict": 1, "held": 0, "budget": 1, "other": 0}
    assert [(row.name, row.total) for row in found.runs] == [("42", 5)]
    assert [(row.name, row.total) for row in found.workers] == [("w-3", 3), ("w-9", 2)]
    assert [(row.name, row.total) for row in found.codes] == [
        ("stale-fence", 3),
        ("budget-exhausted", 1),
        ("seq-conflict", 1),
    ]
    assert sum(slot.total for slot in found.slots) == 5


def test_one_sentence_names_what_where_and_who(store, still_clock, viewer):
    store.create("42")
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=100)
    store.hold("42", "w-9")
    for _ in range(4):
        refuse(lambda: store.append("42", [event()], fence=first.token))

    text = Page(viewer.get("/contention")).text

    assert (
        "4 commands were refused in the last hour, all of them fenced: a worker that had lost its"
        " lease tried to write, and nothing of it was stored. 100 % concern 42; 100 % came from"
        " w-3." in text
    )


def test_what_is_older_than_the_window_is_not_counted(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42")
    refuse(lambda: store.append("42", [event()], fence=lease.token, expected_seq=1))
    still_clock.advance(hours=2)

    assert "Nothing was refused" in Page(viewer.get("/contention")).text
    assert "1 command was refused" in Page(viewer.get("/contention", {"window": "24h"})).text
    assert Page(viewer.get("/contention", {"window": "nonsense"})).status == 200


def test_each_code_is_in_one_family():
    codes = [code for family in FAMILIES for code in family.codes]

    assert len(codes) == len(set(codes))
    assert family_of("a-code-of-tomorrow") == "other"
    assert set(BY_NAME) == {"fenced", "conflict", "held", "budget", "other"}
