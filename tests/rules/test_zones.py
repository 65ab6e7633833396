"""Times in the zone of a page: written, typed and read again; the two hours of a clock change."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.http import QueryDict
from django.utils import timezone
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard import moments, windows, zones
from dashboard.axes import axis_of
from dashboard.closeups import instant

# Clocks that go back by an hour, by half of one (Lord Howe), at midnight, in the south, and never.
NAMES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe",
    "America/Havana", "America/Santiago", "Asia/Kathmandu", "Asia/Tokyo", "Africa/Casablanca",
)  # fmt: skip
HOUR = timedelta(hours=1)
# Berlin's 02:00 to 03:00 of this morning came twice.
BACK = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
zone_names = st.sampled_from(NAMES)
instants = st.integers(0, 86_400 * 365 * 3).map(
    lambda s: datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
)


def around(name: str) -> list[datetime]:
    """The hours beside each change of the zone's clocks in two years."""
    zone, found = zones.find(name), []
    at = datetime(2026, 1, 1, tzinfo=UTC)
    while at.year < 2028:
        if at.astimezone(zone).utcoffset() != (at + HOUR).astimezone(zone).utcoffset():
            found.append(at)
        at += HOUR
    return found


CHANGES = {name: around(name) for name in NAMES}
beside_changes = st.sampled_from([n for n in NAMES if CHANGES[n]]).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.builds(
            lambda at, s: at + timedelta(seconds=s),
            st.sampled_from(CHANGES[name]),
            st.integers(-10_800, 10_800),
        ),
    )
)
anywhere = st.tuples(zone_names, instants)


@given(case=anywhere | beside_changes)
@example(case=("Europe/Berlin", BACK - timedelta(minutes=30)))
@example(case=("Europe/Berlin", BACK + timedelta(minutes=30)))
def test_what_stands_in_a_field_is_read_as_the_same_instant(case):
    name, at = case
    zone = zones.find(name)
    with timezone.override(zone):
        text = zones.typed(at)
        sent = QueryDict(mutable=True)
        sent.update({"from": text, "to": text, "asof": text} | {zones.FIELD: name})
        settled = zones.settle(sent) or sent

    for field in zones.TYPED:
        assert instant(settled[field]) == at
        assert moments.read(settled[field]).at == at


@given(case=anywhere | beside_changes, later=st.integers(1, 7_200))
def test_two_instants_are_never_written_alike(case, later):
    name, at = case
    other = at + timedelta(seconds=later)
    with timezone.override(zones.find(name)):
        assert zones.full(at) != zones.full(other)
        assert zones.stamp(at) != zones.stamp(other)
        assert zones.typed(at) != zones.typed(other)
        assert zones.in_both(at).startswith(f"{at:%Y-%m-%d %H:%M:%S} UTC")


@given(case=beside_changes)
def test_a_time_without_an_offset_is_that_one_or_said_to_be_two(case):
    name, at = case
    zone = ZoneInfo(name)
    text = f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S}"
    try:
        assert zones.read(text, zone) == at
    except zones.Twice as twice:
        assert at in (twice.first, twice.second)
        assert twice.first < twice.second
        for one in (twice.first, twice.second):
            assert f"{one.astimezone(zone):%Y-%m-%d %H:%M:%S}" == text


@given(name=zone_names, minute=st.integers(0, 60 * 24 * 730), within=st.integers(0, 59))
def test_a_time_that_the_clocks_jumped_over_is_the_jump(name, minute, within):
    zone = zones.find(name)
    wall = datetime.fromisoformat("2026-01-01") + timedelta(minutes=minute, seconds=within)
    try:
        at = zones.read(f"{wall:%Y-%m-%d %H:%M:%S}", zone)
    except zones.Twice:
        return
    there = at.astimezone(zone).replace(tzinfo=None)
    if there != wall:  # it was skipped: the clocks show more right away, and less a second before
        assert there > wall
        assert (at - timedelta(seconds=1)).astimezone(zone).replace(tzinfo=None) < wall


def test_the_spring_that_has_no_half_past_two():
    zone = ZoneInfo("Europe/Berlin")

    assert zones.read("2026-03-29 02:30", zone) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


@given(
    case=anywhere | beside_changes,
    span=st.sampled_from([20, 300, 3_600, 7_200, 21_600, 86_400, 7 * 86_400, 60 * 86_400]),
)
def test_an_axis_has_round_times_of_the_zone_each_once_and_in_order(case, span):
    name, since = case
    zone = zones.find(name)
    with timezone.override(zone):
        axis = axis_of(since, since + timedelta(seconds=span))
        ticks = axis.ticks

    texts = [tick.text for tick in ticks]
    assert len(ticks) <= 12
    assert [t.x for t in ticks] == sorted(t.x for t in ticks)
    assert span == 86_400 or len(set(texts)) == len(texts)  # a day ends at the hour it began
    if span >= 3_600:
        assert all(re.fullmatch(r"\d\d?:\d[05]( \S+)?|\d\d? [A-Z][a-z]{2}", t) for t in texts)


def test_of_two_midnights_of_one_day_the_first_begins_it():
    with timezone.override(ZoneInfo("America/Havana")):
        texts = [
            tick.text
            for tick in axis_of(
                datetime(2026, 11, 1, 3, 30, tzinfo=UTC), datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
            ).ticks
        ]

    assert (texts.count("1 Nov"), "00:00 CST" in texts) == (1, True)


def test_an_axis_tells_the_two_hours_of_a_clock_change_apart():
    """Case O-28 (docs/cases.md)."""
    with timezone.override(ZoneInfo("Europe/Berlin")):
        texts = [tick.text for tick in axis_of(BACK - 2 * HOUR, BACK + 2 * HOUR).ticks]

    assert texts == ["01:00", "01:30", "02:00 CEST", "02:30 CEST", "02:00 CET", "02:30 CET",
                     "03:00", "03:30", "04:00"]  # fmt: skip


def sent(**fields: str) -> dict[str, str] | None:
    query = QueryDict(mutable=True)
    query.update(fields)
    settled = zones.settle(query)
    return settled.dict() if settled else None


def test_what_is_typed_becomes_instants_in_the_address():
    berlin = {"zone": "Europe/Berlin", "window": "1h"}

    assert sent(**berlin) is None
    assert sent(**{"from": "2026-03-02 12:00"}) is None
    assert sent(**berlin, asof="e118") is None
    assert sent(**berlin | {"from": "2026-03-02T12:00:00Z"}) is None
    assert sent(**berlin | {"from": "gibberish"}) is None
    assert sent(zone="Nowhere/At_All", asof="2026-03-02 12:00") is None
    assert sent(**berlin | {"from": "2026-07-02 12:00", "to": "2026-07-02T13:00:10Z"}) == {
        "window": "1h", "from": "2026-07-02T10:00:00Z", "to": "2026-07-02T13:00:10Z",
    }  # fmt: skip
    # Nothing of the time that may be meant is left out.
    assert sent(**berlin | {"from": "2026-10-25 02:30", "to": "2026-10-25 02:30"}) == {
        "window": "1h", "from": "2026-10-25T00:30:00Z", "to": "2026-10-25T01:30:00Z",
    }  # fmt: skip


def test_a_moment_that_came_twice_is_not_guessed():
    settled = sent(zone="Europe/Berlin", asof="2026-10-25 02:30")

    assert settled
    with pytest.raises(moments.NotThen) as told:
        moments.read(settled["asof"])
    assert "+02:00 behind it for the first" in told.value.why
    assert "+01:00 for the second" in told.value.why
    first = sent(zone="Europe/Berlin", asof="2026-10-25 02:30+02:00")
    assert first is None  # it says which instant it is
    assert moments.read("2026-10-25 02:30+02:00").at == BACK - HOUR / 2


@pytest.mark.parametrize(
    "name", ["", "Berlin", "europe/berlin", "../../etc/passwd", "posix/UTC", "x" * 999]
)
def test_what_is_no_zone_is_none(name):
    assert zones.find(name) is None


def test_a_chart_is_of_the_part_that_its_zone_says():
    now = datetime(2026, 10, 25, 12, 0, tzinfo=UTC)
    with timezone.override(ZoneInfo("Europe/Berlin")):
        part = {"from": "2026-10-25T00:00:00Z", "to": "2026-10-25T02:00:00Z"}
        window = windows.read_window(part, now=now)
        shown = windows.describe_window(window, part, now=now)

    assert window.said == "2026-10-25 02:00 CEST to 03:00"
    assert (shown["typed_from"], shown["typed_to"]) == (
        "2026-10-25 02:00+02:00",
        "2026-10-25 03:00",
    )
