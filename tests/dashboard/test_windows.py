"""Which part of the time a chart shows: what an address says, and what it cannot say."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import windows
from dashboard.windows import BY_MINUTES, BY_SECONDS, COLUMNS_MOST, DAY, Ways, read_window

NOW = datetime(2026, 3, 2, 12, 0, 34, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

edges = st.one_of(
    st.just(""),
    st.text(max_size=30),
    st.datetimes().map(str),
    st.integers(-30 * 86_400, 30 * 86_400).map(
        lambda seconds: (NOW + timedelta(seconds=seconds)).isoformat()
    ),
)


def look(**query):
    named = {name.rstrip("_"): value for name, value in query.items()}
    return read_window(named, now=NOW)


@given(
    since=edges,
    until=edges,
    name=st.sampled_from(["", "1h", "24h", "7d", "x"]),
    slots=st.sampled_from([BY_MINUTES, BY_SECONDS]),
)
def test_whatever_an_address_says_it_is_whole_columns_and_not_too_many(since, until, name, slots):
    query = {"from": since, "to": until, "window": name}
    window = read_window(query, now=NOW, slots=slots)

    assert window.since < window.until
    assert window.span == window.count * window.slot
    assert 1 <= window.count <= COLUMNS_MOST + 2
    assert window.slot in slots
    assert (window.since - windows.EPOCH) % window.slot == timedelta()
    assert window.until <= max(NOW, window.since + slots[0] * 5) + window.slot
    assert window.span <= timedelta(days=31) + 2 * window.slot
    assert bool(window.name) or not window.error


@given(minutes=st.integers(1, 40_000), length=st.integers(1, 20_000))
def test_a_part_that_was_asked_for_is_all_there(minutes, length):
    since = NOW - minutes * MINUTE
    until = min(NOW, since + length * MINUTE)
    window = look(from_=since.isoformat(), to=until.isoformat())

    assert window.is_part
    assert window.since <= since < until <= window.until


@given(since=edges, until=edges, name=st.sampled_from(["", "1h", "24h", "7d"]))
def test_a_part_of_then_ends_at_that_moment_and_is_as_long(since, until, name):
    query = {"from": since, "to": until, "window": name}
    usual = read_window(query, now=NOW, slots=BY_SECONDS)
    then = windows.ending_by(usual, NOW)

    assert then.until <= NOW + timedelta(microseconds=1)
    assert (then.span, then.slot, then.name) == (usual.span, usual.slot, usual.name)
    assert then.until == usual.until or then.until > NOW


def test_a_length_of_then_is_said_to_be_before():
    assert windows.ending_by(look(window="24h"), NOW).said == "the 24 hours before"


def test_without_a_word_it_is_the_usual_length_with_the_running_column():
    window = read_window({}, now=NOW, usual=DAY)

    assert (window.said, window.name) == ("the last 24 hours", "24h")
    assert window.until - window.slot <= NOW < window.until
    assert window.slot == timedelta(minutes=15)
    assert window.at(NOW) == window.count - 1
    assert window.at(NOW - timedelta(days=9)) == 0


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"from_": "2026-03-02 11:00", "to": "2026-03-02T11:20"}, "2026-03-02 11:00 to 11:20"),
        ({"from_": "2026-03-02T12:00+01:00", "to": "2026-03-02T11:20Z"}, "11:00 to 11:20"),
        ({"from_": "2026-03-01 23:50", "to": "2026-03-02 00:10"}, "23:50 to 2026-03-02 00:10"),
        ({"from_": "2026-03-02 11:00"}, "2026-03-02 11:00 to 12:00"),
        ({"to": "2026-03-02 11:00"}, "2026-03-02 10:00 to 11:00"),
        ({"from_": "2026-03-02 11:00", "to": "2999-01-01"}, "2026-03-02 11:00 to 12:01"),
    ],
)
def test_two_times_are_a_part_in_utc(query, said):
    window = look(**query)

    assert said in window.said
    assert not window.error


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"from_": "yesterday"}, "“yesterday” is no time. Write it as 2026-03-01 14:30."),
        ({"from_": "2026-03-02", "to": "25:00"}, "“25:00” is no time."),
        ({"from_": "2026-03-02", "to": "2026-03-01"}, "has to be before the second one"),
        ({"from_": "2026-03-02", "to": "2026-03-02"}, "has to be before the second one"),
        (
            {"from_": "2026-03-09"},
            "Nothing has happened yet after that time: it is 2026-03-02 12:00",
        ),
        ({"from_": "0001-01-01"}, "is no time"),
        ({"from_": "\0"}, "is no time"),
    ],
)
def test_what_is_no_part_is_said_and_the_usual_one_is_shown(query, error):
    window = look(**query)

    assert error in window.error
    assert window.said == "the last 60 min"


def drawn(query):
    return read_window(dict(parse_qsl(query[1:])), now=NOW)


def test_the_ways_beside_it_lead_earlier_closer_wider_and_later():
    window = look(from_="2026-03-02 10:00", to="2026-03-02 11:00")
    ways = Ways(window, {"cap": "5", "from": "x", "after": "y", "window": "1h"}, now=NOW)

    found = {way.name: drawn(way.query) for way in ways.beside()}

    assert {name: part.said.partition(" ")[2] for name, part in found.items()} == {
        "earlier": "09:00 to 10:00",
        "closer": "10:15 to 10:45",
        "wider": "09:30 to 11:30",
        "later": "11:00 to 12:00",
    }
    assert all(dict(parse_qsl(way.query[1:]))["cap"] == "5" for way in ways.beside())
    assert all("after" not in way.query for way in ways.beside() + ways.lengths())
    assert [drawn(way.query).name for way in ways.lengths()] == ["1h", "24h", "7d"]


def test_at_its_ends_there_is_no_way_on():
    recent = {way.name for way in Ways(look(), {}, now=NOW).beside()}
    small = look(from_="2026-03-02 10:00", to="2026-03-02 10:05")

    assert "later" not in recent
    assert "closer" not in {way.name for way in Ways(small, {}, now=NOW).beside()}
