"""What benchmarks tell is kept and shown as it was told; the page is made of what is kept."""

import importlib
from dataclasses import replace

import pytest

from bench import document, suite
from bench.report import Goal, Kept, Options, Report, Table, read_kept, write_kept
from bench.turns import Measured, Turns

KEPT = Kept(
    name="appends",
    about="Appends",
    command="./run bench appends",
    made_at="2026-12-01 10:00",
    seconds=61,
    quick=False,
    rounds=5,
    cores=2,
    versions={"PostgreSQL": "18.6"},
    report=Report(
        tables=(Table(title="Rates", columns=("what", "a second"), rows=(("a | b", "1,200"),)),),
        goals=(
            Goal(what="append", asked="≥ 0.3", found="0.41", reached=True),
            Goal(what="tail", asked="< 10", found="12", reached=False, why="The disk is shared."),
        ),
    ),
)


def test_what_is_kept_is_read_as_it_was_told():
    assert read_kept(write_kept(KEPT)) == KEPT


def test_the_page_has_each_goal_and_says_which_was_not_reached_and_why():
    page = document.page([KEPT], {"how": "Ratios.", "appends": "Tried: more threads."})
    assert "| [appends](#appends) | append | ≥ 0.3 | 0.41 |  | yes |" in page
    assert "| [appends](#appends) | tail | < 10 | 12 |  | **no** |" in page
    assert "1 of 2 reached" in page
    assert page.index("Ratios.") < page.index("## Goals") < page.index("Tried: more threads.")
    assert page.endswith("tail: asked < 10, found 12. The disk is shared.\n")
    assert "| a \\| b | 1,200 |" in page
    assert document.QUICK not in page


def test_a_quick_run_is_told_as_such_and_takes_no_full_ones_place(tmp_path):
    quick = replace(KEPT, quick=True)
    assert document.QUICK in document.page([quick], {})
    assert suite.keep(quick, tmp_path)
    assert suite.keep(KEPT, tmp_path)
    assert not suite.keep(quick, tmp_path)
    assert document.read_results(["appends", "http"], tmp_path) == [KEPT]


def test_a_second_full_run_shows_what_the_first_one_found(tmp_path):
    suite.keep(KEPT, tmp_path)
    found = tuple(replace(goal, found=f"again {goal.found}") for goal in KEPT.report.goals)
    suite.keep(replace(KEPT, report=replace(KEPT.report, goals=found)), tmp_path)
    page = document.page(document.read_results(["appends"], tmp_path), {})
    assert "| append | ≥ 0.3 | again 0.41 | 0.41 | yes |" in page


def test_what_was_not_reached_leads_to_what_was_tried():
    silent = replace(KEPT.report.goals[1], why="")
    kept = replace(KEPT, report=replace(KEPT.report, goals=(silent,)))
    assert document.page([kept], {}).endswith("found 12.\n")
    page = document.page([kept], {"appends": "Tried: more threads."})
    assert page.endswith("found 12. What was tried stands in its section.\n")


def test_a_row_with_a_cell_too_few_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2"):
        document.check_shape(Table(title="t", columns=("a", "b"), rows=(("1",),)))


def test_the_committed_page_is_what_the_committed_results_give():
    made = document.page(
        document.read_results(suite.SUITE), document.read_notes(), document.pictured()
    )
    assert document.PAGE.read_text() == made, "./run bench --render"


@pytest.mark.parametrize("name", suite.there())
def test_each_benchmark_says_what_it_is_and_can_be_asked(name):
    module = importlib.import_module(f"bench.{name}")
    assert module.ABOUT
    assert "\n" not in module.ABOUT
    assert callable(module.report)


def test_ratios_are_taken_within_a_round_and_the_first_round_is_not_counted():
    turns = Turns("unit")
    # The machine is half as fast in every other round; the contender is at 0.5 throughout.
    speeds = iter([9_000.0, 100.0, 50.0, 100.0, 50.0])
    now = {"speed": 0.0}

    def unit() -> Measured:
        return Measured(now["speed"])

    def contender() -> Measured:
        return Measured(now["speed"] / 2, 1.0, 3.0)

    for number in range(5):
        now["speed"] = next(speeds)
        turns.play_round(number, "1", {"unit": unit, "ours": contender})
    assert turns.ratio("1", "ours") == 0.5
    assert turns.per_second("1", "unit") == 75
    assert (turns.p50_ms("1", "ours"), turns.p99_ms("1", "ours")) == (1.0, 3.0)
    assert turns.rows() == (
        ("1", "unit", "75", "50 to 100", "1.00", "", ""),
        ("1", "ours", "38", "25 to 50", "0.50", "1.00", "3.00"),
    )


def test_contenders_take_turns_forth_and_back():
    turns, order = Turns("a"), []

    def turn(name):
        def go() -> Measured:
            order.append(name)
            return Measured(1.0)

        return go

    turns.play(Options(rounds=2), {"1": {name: turn(name) for name in "abc"}})
    assert "".join(order) == "cbaabccba"
