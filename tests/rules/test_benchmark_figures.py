"""What benchmarks make of their figures: exponents, when a burst is over, what went on growing."""

import math

import pytest

from bench import grounds
from bench.absolute import RAMP_SECONDS, back_after
from bench.steady import Line, told_sizes, told_updates

KIB = 1024


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, -1.0])
def test_the_exponent_is_that_of_the_power_law(power):
    costs = {size: 3.0 * size**power for size in (1, 4, 16)}
    assert math.isclose(grounds.exponent(costs), power, abs_tol=1e-9)


def test_a_burst_is_over_when_three_seconds_on_end_are_quick():
    ramp = [(10, 5.0, 5.0)] * int(RAMP_SECONDS)

    def after(*p99):
        return back_after(ramp + [(10, 5.0, one) for one in p99])

    assert after(50, 9, 9, 12, 9, 9, 9) == 4
    assert after(9, 9, 9) == 0
    assert after(50, 9, math.nan, 9, 9) is None  # of a second without a call nothing is known


def line(at, events, **sizes):
    named = {"agentstate_event": events * 600, "agentstate_minute": 10 * KIB} | sizes
    return Line(
        at=at, events=events, per_second=1, p50=1, p99=1, web_kb=1, server_kb=1, minutes=9,
        sizes=named,
    )  # fmt: skip


def test_what_grows_with_each_event_beyond_the_events_is_named():
    early, late = line(1, 1_000, run=80 * KIB, lease=KIB), line(2, 3_000, run=400 * KIB, lease=KIB)
    _, growing = told_sizes(3_000, {}, [early], [late])
    assert growing == ["run by 0.3 MB"]


def test_updates_are_those_since_the_beginning():
    table, share = told_updates({"run": (100, 0)}, {"run": (200, 90), "still": (0, 0)})
    assert share == 0.9
    assert table.rows == (("run", "100", "90.0%"),)
