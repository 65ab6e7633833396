"""Ids sort by the database's clock, and within a millisecond by the order of their making."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.ids import lowest_uuid7, made_at, uuid7

moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001
    lambda at: at.replace(tzinfo=UTC)
)


@given(at=moments)
def test_an_id_is_a_uuid_of_version_7_that_tells_its_millisecond(at):
    made = uuid7(at)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made_at(made) == at.replace(microsecond=at.microsecond // 1000 * 1000)
    assert lowest_uuid7(at) <= made < lowest_uuid7(at + timedelta(milliseconds=1))


def test_many_of_one_millisecond_are_unique_and_in_order():
    at = datetime(2026, 3, 2, tzinfo=UTC)
    made = [uuid7(at) for _ in range(10_000)]
    assert len(set(made)) == len(made)
    assert sum(a > b for a, b in itertools.pairwise(made)) <= 1
