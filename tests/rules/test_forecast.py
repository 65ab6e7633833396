"""When a budget runs dry, and when that cannot be said."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.forecast import CHARGES_LEAST, Burn, foresee, in_words

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


def told(left, **burn):
    return in_words(foresee(left=left, burn=Burn(**burn), now=NOW), NOW)


@given(left=st.integers(1, 10**15), spent=st.integers(1, 10**12),
       charges=st.integers(CHARGES_LEAST, 10**6), seconds=st.integers(60, 900))  # fmt: skip
def test_what_is_left_lasts_until_then_at_that_rate(left, spent, charges, seconds):
    over = timedelta(seconds=seconds)
    found = foresee(left=left, burn=Burn(spent=spent, charges=charges, over=over), now=NOW)

    assert found.rate == pytest.approx(spent * 3_600 / seconds)
    if found.dry_at is None:
        assert left / found.rate > 24 * 365 - 1
    else:
        hours = (found.dry_at - NOW) / timedelta(hours=1)
        assert hours * found.rate == pytest.approx(left, rel=1e-6, abs=found.rate / 1e6)


@given(left=st.integers(-5, 10**15), spent=st.integers(0, 10**12), charges=st.integers(0, 9),
       seconds=st.integers(0, 900))  # fmt: skip
def test_it_says_a_time_or_why_it_has_none_and_never_both(left, spent, charges, seconds):
    burn = Burn(spent=spent if charges else 0, charges=charges, over=timedelta(seconds=seconds))
    found = foresee(left=left, burn=burn, now=NOW)

    assert (found.dry_at is None) == bool(found.why)
    assert found.is_dry == (left <= 0)
    assert found.dry_at is None or found.dry_at >= NOW


@pytest.mark.parametrize(
    ("left", "burn", "words"),
    [
        (400, {"spent": 100, "charges": 4}, "dry at 13:00 at the rate of the last 15 minutes"),
        (48_000, {"spent": 1_000, "charges": 9}, "dry on Tue 00:00 at the rate of the last 15"),
        (400_000, {"spent": 100, "charges": 4}, "dry on 2026-04-13 at the rate"),
        (10**9, {"spent": 100, "charges": 4}, "not within a year at this rate"),
        (400, {}, "nothing was spent in the last 15 minutes"),
        (400, {"spent": 0, "charges": 0, "over": timedelta(seconds=20)}, "too young to tell: 20"),
        (400, {"spent": 100, "charges": 2}, "too few to tell: 2 charges in the last 15 minutes"),
        (400, {"spent": 100, "charges": 1}, "too few to tell: one charge in the last 15 minutes"),
        (400, {"spent": 90, "charges": 9, "over": timedelta(seconds=40)}, "too young to tell: 40"),
        (0, {"spent": 100, "charges": 9}, "nothing is left"),
        (-7, {"spent": 100, "charges": 9}, "nothing is left"),
        (30, {"spent": 60, "charges": 9, "over": timedelta(minutes=2)}, "rate of the last 2 min"),
    ],
)
def test_it_is_said_in_words(left, burn, words):
    assert words in told(left, **burn)


def test_a_rate_is_known_also_when_nothing_is_left():
    found = foresee(left=0, burn=Burn(spent=100, charges=9), now=NOW)

    assert (found.rate, found.is_dry) == (400, True)
