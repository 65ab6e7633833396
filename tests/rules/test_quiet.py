"""Quiet hours: when they are on, also past midnight and at clock changes; what they hold back."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.alerting import State
from agentstate.store.errors import Invalid
from agentstate.store.quiet import DROP, WEEK, Held, Quiet, held

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu")
NIGHT = Quiet(zone="Europe/Berlin", begins=22 * 60, ends=7 * 60)
MIDNIGHT = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)  # 00:30 in Berlin
quiets = st.builds(
    Quiet,
    zone=st.sampled_from(ZONES),
    begins=st.integers(0, 1_439),
    ends=st.integers(0, 1_439),
    days=st.sets(st.sampled_from(WEEK)).map(tuple),
)
instants = st.integers(0, 730 * 86_400).map(
    lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
)


@given(quiet=quiets, now=instants)
def test_they_end_within_a_day_and_have_begun_on_one_of_their_days(quiet, now):
    until = quiet.until(now)

    if until is None:
        return
    assert now < until <= now + timedelta(hours=49)
    there = until.astimezone(ZoneInfo(quiet.zone))
    begun = there.date() - timedelta(days=quiet.ends <= quiet.begins)
    assert begun.weekday() in quiet.days
    # To the minute that was said, unless the clocks there jumped over it.
    if (
        there.replace(fold=0).utcoffset()
        == (until - timedelta(hours=3)).astimezone(there.tzinfo).utcoffset()
    ):
        assert there.hour * 60 + there.minute == quiet.ends


@given(now=instants, zone=st.sampled_from(ZONES))
def test_of_a_whole_day_they_are_always_on_and_without_days_never(now, zone):
    assert Quiet(zone=zone, begins=0, ends=0).until(now) is not None
    assert Quiet(zone=zone, begins=0, ends=0, days=()).until(now) is None


def test_a_night_is_of_the_day_on_which_it_began():
    sunday = Quiet(zone="Europe/Berlin", begins=22 * 60, ends=7 * 60, days=(6,))

    assert NIGHT.until(MIDNIGHT) == datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
    assert sunday.until(MIDNIGHT) == datetime(2026, 3, 2, 6, 0, tzinfo=UTC)  # Monday, 00:30
    assert sunday.until(MIDNIGHT + timedelta(days=1)) is None
    assert NIGHT.until(datetime(2026, 3, 2, 6, 0, tzinfo=UTC)) is None
    assert NIGHT.until(datetime(2026, 3, 2, 21, 0, tzinfo=UTC)) is not None


def test_a_night_in_which_the_clocks_are_set_back_is_longer():
    begins = datetime(2026, 10, 24, 20, 0, tzinfo=UTC)  # 22:00 in summer

    assert NIGHT.until(begins) == begins + timedelta(hours=10)


def test_what_is_at_alert_goes_through_unless_it_shall_not():
    strict = Quiet(zone="UTC", begins=0, ends=0, critical=False)
    dropping = Quiet(zone="UTC", begins=0, ends=0, then=DROP)

    assert held([NIGHT], State.ALERT, MIDNIGHT) is None
    assert held([NIGHT], State.WARN, MIDNIGHT) == Held(until=datetime(2026, 3, 2, 6, tzinfo=UTC))
    assert held([NIGHT, strict], State.ALERT, MIDNIGHT) == Held(until=strict.until(MIDNIGHT))
    assert held([NIGHT, dropping], State.WARN, MIDNIGHT) == Held(until=None)
    assert held([], State.WARN, MIDNIGHT) is None


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("zone", {"zone": "Berlin"}), ("begins", {"begins": 1_440}), ("ends", {"ends": -1}),
        ("days", {"days": (7,)}), ("days", {"days": (1, 1)}), ("then", {"then": "later"}),
    ],
)  # fmt: skip
def test_what_is_no_such_time_is_refused(field, wrong):
    with pytest.raises(Invalid) as refused:
        Quiet(**{"zone": "UTC", "begins": 0, "ends": 60} | wrong)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("begins", "ends", "first", "last"),
    [
        # 2026-03-29 in Berlin: from 02:00 straight to 03:00, which is 01:00 in UTC.
        ("22:00", "02:30", "03-28 21:00", "03-29 01:00"),
        ("02:15", "03:15", "03-29 01:00", "03-29 01:15"),
        ("02:00", "02:45", None, None),
        # 2026-10-25: 02:00 to 03:00 twice, from 00:00 to 02:00 in UTC.
        ("22:00", "02:30", "10-24 20:00", "10-25 01:30"),
        ("02:30", "03:30", "10-25 00:30", "10-25 02:30"),
    ],
)
def test_they_go_by_what_the_clocks_show_where_those_are_set(begins, ends, first, last):
    """S-207: hours that ended in the hour that was jumped over held back for longer."""

    def minutes(text):
        return int(text[:2]) * 60 + int(text[3:])

    def instant(text):
        return datetime.fromisoformat(f"2026-{text}+00:00")

    days = (4, 5, 6) if begins == "22:00" else (6,)
    quiet = Quiet(zone="Europe/Berlin", begins=minutes(begins), ends=minutes(ends), days=days)
    if first is None:
        night = instant("03-29 00:00")
        assert not any(quiet.until(night + timedelta(minutes=n)) for n in range(300))
        return
    assert quiet.until(instant(first)) == instant(last)
    assert quiet.until(instant(first) - timedelta(seconds=1)) is None
    assert quiet.until(instant(last)) is None
