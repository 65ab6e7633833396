from datetime import UTC, datetime, timedelta

import pytest

from agentstate.store import rates
from agentstate.store.commands import NewBudget, Patch
from agentstate.store.errors import CONFLICTS, FENCED, Refusal
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import RawJSON
from dashboard import charts
from dashboard.families import BY_NAME, FAMILIES, family_of
from dashboard.queries import contention as queries
from tests.dashboard.reading import Page
from tests.store.asking import event

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db):
    TALLY.forget()


def refuse(ask):
    with pytest.raises(Refusal):
        ask()


def show(client, **query):
    TALLY.write()
    return Page(client.get("/contention", query))


def count(at, *, run="42", worker="w-3", outcome="ok", times=1, operation="append", **more):
    """As if it had been counted: the page looks at nothing else."""
    for _ in range(times):
        TALLY.add(
            at=at,
            run_key=run,
            operation=operation,
            worker=worker,
            outcome=outcome,
            **({"attempt": 1, "latency_ms": 1} | more),
        )


def read(clock, *, window=timedelta(hours=1), slot=timedelta(minutes=1)):
    TALLY.write()
    return queries.read(now=clock.now, window=window, slot=slot)


def test_without_a_conflict_it_says_so_with_what_was_written(still_clock, viewer):
    count(still_clock.now, times=12)
    page = show(viewer)
    assert "No conflict in 60 min (12 writes)." in page.text
    assert "Nothing was refused in this window." in page.text
    assert "Where and when" not in page.text


def test_without_a_write_it_says_that(still_clock, viewer):
    assert "Nothing was written in 60 min." in show(viewer).text


def test_it_counts_per_family_run_worker_and_code(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=10),))
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=100)
    second = store.hold("42", "w-9")
    for _ in range(3):
        refuse(lambda: store.append("42", [event()], fence=first.token))
    refuse(lambda: store.append("42", [event()], fence=second.token, expected_seq=1))
    refuse(lambda: store.spend("42", 99, budget="tokens", fence=second.token))

    found = read(still_clock)

    assert found.total.refused == 5
    assert found.families == {"fenced": 3, "conflict": 1, "held": 0, "budget": 1, "other": 0}
    assert [(row.name, row.total) for row in found.runs] == [("42", 5)]
    assert [(row.name, row.total) for row in found.workers] == [("w-3", 3), ("w-9", 2)]
    assert [(row.name, row.total) for row in found.codes] == [
        ("stale-fence", 3),
        ("budget-exhausted", 1),
        ("seq-conflict", 1),
    ]
    assert sum(slot.total for slot in found.slots) == 5
    assert [(heat.run, heat.total) for heat in found.heat] == [("42", 4)]
    assert found.slots[-1].at == found.until - found.slot <= still_clock.now < found.until
    assert show(viewer).status == 200


def test_the_columns_of_conflicts_come_from_what_was_wanted(store, still_clock, viewer):
    store.create("42")
    for ask in (
        {"add": {"steps": 1}, "expect": {"status": "running"}},
        {"add": {"steps": 1}, "if_match": 9},
        {"attrs": {"plan.n": RawJSON("1")}, "if_match": 9},
    ):
        refuse(lambda ask=ask: store.ask(Patch(run="42", **ask)))
    refuse(lambda: store.append("42", expected_seq=0))
    refuse(lambda: store.move("42", "running", if_match=9))

    found = read(still_clock)

    assert [(row.name, row.total) for row in found.columns] == [
        ("counters.steps", 2), ("attrs.plan.n", 1), ("expected_seq", 1), ("status", 1),
    ]  # fmt: skip
    assert found.columns_of == 5


def test_one_sentence_names_what_where_and_who(store, still_clock, viewer):
    store.create("42")
    for _ in range(4):
        refuse(lambda: store.ask(Patch(run="42", add={"steps": 1}, if_match=9)))
    count(still_clock.now, outcome="version-conflict", times=12, operation="patch")

    text = show(viewer).text

    assert "16 writes of 17 met another writer first in 60 min (94.1 %)." in text
    assert (
        "Of these, 100 % are on 42, 100 % are about counters.steps and 75 % come from w-3." in text
    )
    assert "Make counters.steps an add: adds never conflict." in text


def test_when_nothing_stands_out_it_says_that(still_clock, viewer):
    for n in range(4):
        count(still_clock.now, outcome="seq-conflict", run=f"run-{n}", worker=f"w-{n}")
    text = show(viewer).text
    assert "No single cause stands out: at most 25 % are on run-0 and 25 % come from w-0." in text
    assert "Begin with the darkest row of the map below" in text


def test_fenced_held_and_over_budget_are_told_apart_from_conflicts(still_clock, viewer):
    count(still_clock.now, times=20)
    count(still_clock.now, outcome="stale-fence", times=3)
    count(still_clock.now, outcome="lease-held", worker="w-9", times=2)
    count(still_clock.now, outcome="budget-exhausted")
    text = show(viewer).text
    assert "No conflict in 60 min (26 writes)." in text
    assert "3 calls of overtaken workers were fenced off, all from w-3." in text
    assert "3 more were refused: 2 held by somebody else and 1 over budget." in text
    assert BY_NAME["fenced"].cure in text


def test_the_tiles_say_what_retries_cost(still_clock, viewer):
    count(still_clock.now, times=8)
    for attempt in (2, 3):
        count(still_clock.now, outcome="version-conflict", attempt=attempt, latency_ms=40)
    count(still_clock.now, outcome="version-conflict", attempt=5, gave_up=True)
    text = show(viewer).text
    assert "Conflicts 27.3 % 3 of 11 writes" in text
    assert "Retries per success 0.38 3 retries, 8 accepted" in text
    assert "Given up 1 changes" in text
    assert "Latency added 10.1 ms" in text
    assert "1 change was given up." in text
    assert "Try 5 or later" in text


def test_what_is_older_than_the_window_is_not_counted(still_clock, viewer):
    count(still_clock.now, outcome="seq-conflict")
    still_clock.advance(hours=2)

    assert "Nothing was written in 60 min." in show(viewer).text
    assert "1 write of 1 met another writer first in 24 hours" in (show(viewer, window="24h").text)
    assert show(viewer, window="nonsense").status == 200


def test_the_map_has_a_link_a_title_and_a_table_and_its_labels_keep_their_ends(still_clock, viewer):
    key = "checkout-regression-of-the-spring-2026-000042"
    count(still_clock.now, run=key, outcome="seq-conflict", times=5)
    count(still_clock.now - timedelta(minutes=9), run=key, outcome="stale-fence")
    page = show(viewer)
    at = still_clock.now.strftime("%H:%M")
    assert f"{at} UTC, {key}: 5 conflicts, 0 fenced of 5 writes" in page.text
    assert "checkout-r…g-2026-000042" in page.html
    assert "Runs by time: conflicts and fenced calls" in page.text
    assert f"{at} 5" in page.text
    assert page.link(f"/runs/{key}")


@pytest.mark.parametrize("text", ["", "42", "x" * 26])
def test_a_short_label_is_not_cut(text):
    assert charts.cut_middle(text, 26) == text
    assert len(charts.cut_middle(text + "y" * 27, 26)) == 26


def test_the_darkest_cell_is_the_fullest():
    figures = [rates.Figures(conflicts=n, writes=n) for n in (0, 1, 50, 100)]
    slots = [queries.Slot(at=NOW + timedelta(minutes=n), total=0, families={}) for n in range(4)]
    heat = queries.Heat(run="42", cells=tuple(figures))
    levels = [cell.level for cell in charts._cells(heat, slots, 10, 100)]
    assert levels == [1, 3, 5]


def test_a_window_that_takes_too_long_says_so(viewer, monkeypatch):
    from dashboard.queries.clock import TooSlow

    def slow(**asked):
        raise TooSlow

    monkeypatch.setattr(queries, "read", slow)
    assert "could not be added up in time" in show(viewer).text


def test_hostile_names_are_text(still_clock, viewer):
    count(still_clock.now, run="<script>1", worker='"><i>x', outcome="seq-conflict")
    page = show(viewer)
    assert "<script>1" not in page.html
    assert '"><i>x' not in page.html


def test_each_code_is_in_one_family():
    codes = [code for family in FAMILIES for code in family.codes]

    assert len(codes) == len(set(codes))
    assert family_of("a-code-of-tomorrow") == "other"
    assert set(BY_NAME) == {"fenced", "conflict", "held", "budget", "other"}
    assert (BY_NAME["conflict"].codes, BY_NAME["fenced"].codes) == (CONFLICTS, FENCED)
