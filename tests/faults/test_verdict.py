"""The verdict on a trial: how long each hot run was not served, and what fails a trial."""

from dataclasses import replace

import pytest

from bench.torture.faults import DECK, Fault, deal
from bench.torture.history import History
from bench.torture.order import LOST, Finding
from bench.torture.verdict import Verdict, lines, stops_of

FAULT = Fault("web killed", "web, process 7", 10.0, 11.0)


@pytest.fixture
def good():
    return Verdict(
        seed=7, seconds=10, longest_allowed=10, calls=5, acknowledged=3, refused=1, busy=0,
        unknown=1, runs=1, events=4, feed=2, terms=0, ledger_lines=0, stops=((FAULT, 2.0),),
        findings=(), differences=(),
    )  # fmt: skip


def stop(*acknowledged, things=("run:a",)):
    history = History()
    for thing, sent, answered in acknowledged:
        history.acknowledged_at[thing].append((sent, answered))
    ((_, seconds),) = stops_of([FAULT], history, things)
    return seconds


def test_a_stop_lasts_until_a_write_is_acknowledged_that_was_sent_after_the_fault():
    assert stop(("run:a", 10.5, 11.5), ("run:a", 11.2, 14.0), ("run:a", 12.0, 13.0)) == 2.0


def test_a_stop_lasts_until_the_last_hot_run_is_served():
    both = [("run:a", 11.0, 12.0), ("run:b", 11.0, 15.0)]
    assert stop(*both, things=("run:a", "run:b")) == 4.0


def test_a_run_that_is_never_served_again_is_told():
    assert stop(("run:a", 1.0, 2.0)) is None


def test_a_good_trial_passes(good):
    assert good.passed
    assert "longest stop" in "\n".join(lines(good))


@pytest.mark.parametrize(
    "bad",
    [
        {"findings": (Finding(LOST, "run r", "gone"),)},
        {"differences": ("spent is the sum of the ledger: b: expected 1, found 2",)},
        {"unhappy": ("1 answers were a fault (500)",)},
        {"stops": ((FAULT, 10.1),)},
        {"stops": ((FAULT, None),)},
    ],
)
def test_anything_broken_fails_a_trial_and_is_named(good, bad):
    verdict = replace(good, **bad)

    assert not verdict.passed
    assert len(list(lines(verdict))) > len(list(lines(good)))


def test_a_seed_deals_the_same_faults_and_each_comes():
    first, again = ([next_of(deal(7)) for _ in range(1)] for _ in range(2))
    assert first == again
    names = [name for name, _ in zip(deal(7), range(len(DECK)), strict=False)]
    assert {name for name, _ in names} == set(DECK)


def next_of(dealt):
    name, chance = next(dealt)
    return name, chance.random()
