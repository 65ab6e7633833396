from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest

from dashboard import closeups
from dashboard.closeups import Ways, read_closeup

FIRST = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
LAST = FIRST + timedelta(minutes=10)


def at(minutes: float) -> str:
    return closeups.told(FIRST + timedelta(minutes=minutes))


def look(**query):
    return read_closeup(query, first=FIRST, last=LAST)


def drawn(query):
    """What a way's address draws, in minutes."""
    closeup = look(**dict(parse_qsl(query[1:])))
    return [(edge - FIRST) / timedelta(minutes=1) for edge in (closeup.start, closeup.end)]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"from": "nonsense", "to": "0"},
        {"from": at(8), "to": at(2)},
        {"from": at(3), "to": at(3)},
        {"from": at(11)},
        {"from": "0001-01-01T00:00:00", "to": "9999-12-31T23:59:59+14:00"},
        {"from": at(-5), "to": at(20)},
    ],
)
def test_what_says_no_part_of_the_run_is_all_of_it(query):
    closeup = look(**query)

    assert closeup.whole
    assert closeup.follows
    assert closeups.parameters(closeup) == {}


def test_a_part_is_told_in_the_address_and_read_again():
    closeup = look(**{"from": at(2), "to": at(4), "gaps": "1"})

    assert closeup.window == (FIRST + timedelta(minutes=2), FIRST + timedelta(minutes=4))
    assert closeups.parameters(closeup) == {"from": at(2), "to": at(4), "gaps": "1"}
    assert look(**{"from": at(2)}).follows


def test_closer_and_farther_keep_the_middle_or_the_end_that_is_followed():
    ways = Ways(look(**{"from": at(2), "to": at(6)}), {"origin": "worker"})

    assert drawn(ways.closer().query) == [3, 5]
    assert drawn(ways.farther().query) == [0, 8]
    assert drawn(ways.earlier().query) == [0, 4]
    assert drawn(ways.later().query) == [4, 8]
    assert drawn(ways.all().query) == [0, 10]
    assert "origin=worker" in ways.closer().query
    assert drawn(Ways(look(), {}).closer().query) == [5, 10]
    assert Ways(look(), {}).earlier() is Ways(look(), {}).later() is None


def test_terms_are_gone_through_one_by_one():
    terms = [(FIRST, FIRST + timedelta(minutes=2)), (FIRST + timedelta(minutes=5), None)]

    whole = Ways(look(), {})
    assert drawn(whole.term_beside(terms, step=1).query)[0] == 0
    last = whole.term_beside(terms, step=-1)
    assert drawn(last.query) == [pytest.approx(4.7), 10]
    there = Ways(look(**dict(parse_qsl(last.query[1:]))), {})
    assert drawn(there.term_beside(terms, step=-1).query) == [0, pytest.approx(2.12)]
    assert there.term_beside(terms, step=1) is None
    assert whole.term_beside([], step=1) is None


def test_the_overview_has_all_of_the_run_and_each_bin_leads_there():
    ways = Ways(look(**{"from": at(2), "to": at(4)}), {})
    shown = closeups.overview(ways, [(FIRST, 3), (FIRST + timedelta(minutes=9), 1), (LAST, 1)])

    assert len(shown.bins) == closeups.OVERVIEW_BINS
    assert sum(one.height > 1 for one in shown.bins) == 3
    assert (shown.x, shown.width) == (240, 240)
    assert drawn(shown.bins[0].query) == [0, 2]
    assert drawn(shown.bins[-1].query) == [8, 10]
