import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from agentstate.store import rates
from agentstate.store.commands import AnnounceWorker, BrakeRun, NewBudget, Patch
from agentstate.store.errors import CONFLICTS, FENCED, Refusal
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import RawJSON
from dashboard import charts, contention_charts
from dashboard.families import BY_NAME, FAMILIES, family_of
from dashboard.queries import contention as queries
from dashboard.templatetags.console import NOTHING
from tests.dashboard.reading import Page
from tests.store.asking import ANA, event, rows
from tests.store.test_collisions import scans_of

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


def test_the_columns_of_conflicts_are_what_failed_or_what_was_wanted(store, still_clock, viewer):
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
        ("status", 2), ("attrs.plan.n", 1), ("counters.steps", 1), ("expected_seq", 1),
    ]  # fmt: skip
    assert found.clashes.conflicts == 5


def test_one_sentence_names_what_where_and_who(store, still_clock, viewer):
    store.create("42")
    for _ in range(4):
        refuse(lambda: store.ask(Patch(run="42", add={"steps": 1}, if_match=9)))
    count(still_clock.now, outcome="version-conflict", times=12, operation="patch")

    text = show(viewer).text

    assert "16 writes of 17 met another writer first in 60 min (94.1 %)." in text
    # Of the twelve nobody kept whom they met, as of an older release.
    assert "Of these, 100 % are on 42 and 75 % come from w-3." in text


def test_when_nothing_stands_out_it_says_that(still_clock, viewer):
    for n in range(4):
        count(still_clock.now, outcome="seq-conflict", run=f"run-{n}", worker=f"w-{n}")
    text = show(viewer).text
    assert "No single cause stands out: at most 25 % are on run-0 and 25 % come from w-0." in text
    assert "Begin with the fullest row of the map below" in text


def test_fenced_held_and_over_budget_are_told_apart_from_conflicts(still_clock, viewer):
    count(still_clock.now, times=20)
    count(still_clock.now, outcome="stale-fence", times=3)
    count(still_clock.now, outcome="lease-held", worker="w-9", times=2)
    count(still_clock.now, outcome="budget-exhausted")
    text = show(viewer).text
    assert "No conflict in 60 min (26 writes)." in text
    assert "3 calls of overtaken workers were fenced off, all from w-3." in text
    assert "2 times a worker asked for what another one holds." in text
    assert "1 charge was refused for a cap." in text
    assert "See why w-3 was silent for longer than its lease; give it a longer ttl" in text


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


# --- beside yesterday ----------------------------------------------------------------------------


def compared(page):
    """Figure → (now, yesterday, which it is), as the table says."""
    table = page.html.partition("Figures of now and of the same time")[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", table)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    plain = [[" ".join(re.sub("<[^>]+>", "", cell).split()) for cell in row] for row in cells]
    return {name: tuple(rest) for name, *rest in plain}


def test_the_same_time_yesterday_stands_beside_each_figure(still_clock, viewer):
    yesterday = still_clock.now - timedelta(days=1)
    count(still_clock.now, times=8)
    count(still_clock.now, outcome="seq-conflict", times=2, attempt=2, latency_ms=12)
    count(yesterday, times=15)
    count(yesterday - timedelta(minutes=59), outcome="seq-conflict", latency_ms=3)
    count(yesterday - timedelta(minutes=60), outcome="seq-conflict", times=50)  # an hour before
    count(yesterday + timedelta(minutes=1), outcome="seq-conflict", times=50)  # is still to come

    page = show(viewer)

    assert compared(page) == {
        "Writes": ("10", "16", "less"),
        "Conflicts": ("2", "1", "more"),
        "Conflicts of all writes": ("20.0 %", "6.2 %", "more"),
        "Retries per success": ("0.25", "0.00", "more"),
        "Changes given up": ("0", "0", "the same"),
        "Latency added to each accepted write": ("3.0 ms", "0.2 ms", "more"),
        "Fenced calls": ("0", "0", "the same"),
        "Refused in all": ("2", "1", "more"),
    }
    assert "2 of 10 writes yesterday 6.2 %" in page.text


def test_without_a_write_yesterday_there_is_no_data_and_not_a_zero(still_clock, viewer):
    count(still_clock.now, times=8)
    assert set(compared(show(viewer)).values()) == {
        (now, "no data", NOTHING) for now in ("8", "0", "0.0 %", "0.00", "0.0 ms")
    }


def test_yesterday_alone_may_fail(still_clock, viewer, monkeypatch):
    def broken(**asked):
        raise DatabaseError("gone")

    monkeypatch.setattr(queries, "read_day_before", broken)
    count(still_clock.now, times=8)
    text = show(viewer).text
    assert "This part could not be read. The rest of the page is not concerned." in text
    assert "No conflict in 60 min (8 writes)." in text


# --- hot runs and the brake ----------------------------------------------------------------------


def test_a_hot_run_leads_to_the_brake_with_what_it_would_do(store, still_clock, operator, viewer):
    store.create("42")
    for minutes, accepted in ((0, 90), (1, 30), (2, 300)):
        at = still_clock.now - timedelta(minutes=minutes)
        count(at, times=accepted)
        count(at, times=accepted * 2, outcome="seq-conflict")

    page = show(operator)

    # 900 in the busiest minute, of which five a second and a burst of five are let through: 305.
    at = (still_clock.now - timedelta(minutes=2)).strftime("%H:%M")
    assert f"840 of 1 261 writes 900 writes from {at}" in page.text
    assert "of 5 a second would have held up at least 595 of them" in page.text
    link = page.link("/runs/42/brake")
    asked = Page(operator.get(link))
    assert asked.field("per_second") == "5"
    assert (
        f"In the last hour it had 1 261 writes, 840 of them conflicts, and 900 in its busiest"
        f" minute, {at}. A brake of 5 a second would have held up at least 595 of them."
    ) in asked.text
    assert "needs the role operator" in show(viewer).text
    assert Page(operator.get("/runs/42/brake?per_second=x")).field("per_second") == ""


def test_a_brake_that_is_on_and_a_run_that_has_ended_are_told(store, still_clock, operator):
    for key in ("42", "43", "44"):
        count(still_clock.now, run=key, outcome="seq-conflict", times=30)
    store.create("42")
    until = still_clock.now + timedelta(seconds=600)
    store.as_caller(ANA).ask(BrakeRun(run="42", per_second=2, seconds=600, reason="hot"))
    store.create("43")
    store.move("43", "cancelled")
    page = show(operator)
    assert f"is on: 2 a second until {until:%H:%M:%S} UTC" in page.text
    assert page.text.count("has ended") == 2  # 44 is not there at all
    assert not [link for link in page.links if "/runs/43/brake" in link]
    assert "of 1 a second takes as many as ever came: it would only have spread them" in page.text


def test_a_few_conflicts_make_no_run_hot(still_clock, operator):
    count(still_clock.now, times=100)
    count(still_clock.now, outcome="seq-conflict", times=24)
    assert "Hot runs" not in show(operator).text


# --- charts --------------------------------------------------------------------------------------


def test_every_chart_has_a_title_a_description_and_a_table(store, still_clock, viewer):
    store.create("42")
    refuse(lambda: store.append("42", expected_seq=0))
    count(still_clock.now, outcome="seq-conflict", latency_ms=7)
    page = show(viewer)
    charts_drawn = re.findall(r'<svg class="chart.*?</svg>', page.html, re.DOTALL)
    assert len(charts_drawn) == 5
    for drawn in charts_drawn:
        names = re.search(r'aria-labelledby="(\S+) (\S+)"', drawn)
        assert f'<title id="{names[1]}">' in drawn
        assert re.search(rf'<desc id="{names[2]}">[^<]+</desc>', drawn)
    assert page.html.count('<details class="as-table">') == 5


def test_added_latency_is_told_by_time_and_beside_what_accepted_writes_took(still_clock, viewer):
    count(still_clock.now, times=10, latency_ms=2)
    count(still_clock.now, outcome="version-conflict", times=2, latency_ms=40)
    before = still_clock.now - timedelta(minutes=5)
    count(before, outcome="version-conflict", latency_ms=5)
    text = show(viewer).text
    at, then = still_clock.now.strftime("%H:%M"), before.strftime("%H:%M")
    assert f"85 ms in the store, most of it at {at}" in text
    assert f"{at} UTC: 80 ms on 2 conflicts, 8.0 ms to each accepted write" in text
    assert f"{then} UTC: 5 ms on 1 conflicts, nothing accepted" in text
    assert "Accepted 10 up to 2 ms up to 2 ms Conflicts 3 up to 50 ms up to 50 ms" in text


def test_attempts_are_told_with_what_became_of_them(still_clock, viewer):
    count(still_clock.now, times=8)
    count(still_clock.now, times=1, attempt=2)
    count(still_clock.now, outcome="version-conflict", times=3, attempt=2)
    count(still_clock.now, outcome="budget-exhausted", times=2, attempt=9)
    text = show(viewer).text
    assert "First try: 8: 8 accepted. Try 2: 4: 1 accepted, 3 conflicts. Try 3: 0." in text
    assert "Try 5 or later 0 0 2 2" in text


def test_of_many_workers_the_others_stand_together(store, still_clock, viewer):
    meetings = [
        queries.Meeting(f"w-{n}", "w-0", Counter(conflict=n), Counter(r=n), Counter(notes=n))
        for n in range(1, 13)
    ]
    meetings.append(queries.Meeting("w-1", "", Counter(fenced=2)))
    drawn = contention_charts.draw_matrix(meetings)
    assert [name.name for name in drawn.losers] == [
        "w-12", "w-11", "w-10", "w-9", "w-8", "w-7", "w-6", "w-5", "all others",
    ]  # fmt: skip
    assert [name.name for name in drawn.winners] == ["w-0", "nobody known"]
    others = {cell.title: cell.level for cell in drawn.cells if "all others" in cell.title}
    assert others == {
        "all others lost to w-0 10 times: 10 conflicts": 5,
        "all others lost to nobody known 2 times: 2 fenced": 1,
    }
    assert sum(cell.count for cell in drawn.cells) == drawn.total == 80
    assert drawn.meetings[0].place == "notes of r"


# --- cost ----------------------------------------------------------------------------------------

YEAR = """
INSERT INTO agentstate_minute (minute, run_key, operation, worker, outcome, count, events,
    latency_ms, attempts, latency)
SELECT date_trunc('minute', agentstate_now()) - n * interval '30 minutes', 'r-' || mod(n, 50),
    'append', 'w-' || mod(n, 7), CASE mod(n, 3) WHEN 0 THEN 'seq-conflict' ELSE 'ok' END, 5, 5, 9,
    array_fill(1::bigint, ARRAY[5]), array_fill(1::bigint, ARRAY[12])
FROM generate_series(0, 17519) AS n
"""
COLLISIONS = """
INSERT INTO agentstate_collision (minute, run_key, outcome, loser, winner, about, count)
SELECT minute, run_key, outcome, worker, 'w-9', 'expected_seq', count FROM agentstate_minute
WHERE outcome = 'seq-conflict'
"""


def test_with_a_year_of_minutes_a_page_reads_no_more_than_its_window(still_clock, viewer):
    rows(YEAR)
    rows(COLLISIONS)
    rows("ANALYZE agentstate_minute, agentstate_collision")
    with CaptureQueriesContext(connection) as asked:
        page = show(viewer, window="24h")
    assert "80 of 240 writes" in page.text
    tables = ("FROM agentstate_minute", "FROM agentstate_collision")
    reads = [one["sql"] for one in asked if any(table in one["sql"] for table in tables)]
    # The window, the runs of its map, and the day before.
    assert len(reads) == 6
    for statement in reads:
        (((plan,),),) = [rows(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.replace('%', '%%')}")]
        assert max(scan["Actual Rows"] for scan in scans_of(plan[0]["Plan"])) <= 96
        assert not [scan for scan in scans_of(plan[0]["Plan"]) if scan["Node Type"] == "Seq Scan"]


def test_a_part_long_ago_is_counted_alone_with_what_was_done_and_is_new_in_it(
    store, still_clock, viewer
):
    store.create("42")
    then = still_clock.now
    count(then, outcome="version-conflict", times=3)
    store.as_caller(ANA).move("42", "cancelled", reason="a mistake")
    store.ask(AnnounceWorker(worker="w-1", version="1.5"))
    still_clock.advance(days=3)
    count(still_clock.now, outcome="version-conflict", times=50)

    page = show(viewer, **{"from": f"{then:%Y-%m-%d %H:%M}", "to": "2026-03-02T12:10"})

    assert "3 writes of 6 met another writer first in 10m from 2026-03-02 12:00" in page.text
    assert "ana: run.cancelled 42 “a mistake”" in page.text
    assert "workers 1.5" in page.text
    knots = [a["data-knots"] for tag, a in page.tags if tag == "svg" and a.get("data-knots")]
    assert len(knots) >= 2
    assert {knot.partition(":")[2].partition(" ")[0] for knot in knots} == {
        str(int(then.timestamp() * 1_000))
    }


@pytest.mark.parametrize("query", [{"from": "x"}, {"from": "2026-03-02", "to": "2026-03-01"}])
def test_what_is_no_part_is_said_and_the_last_hour_is_shown(still_clock, viewer, query):
    page = show(viewer, **query)

    assert page.status == 200
    assert "This is the last 60 min." in page.text
