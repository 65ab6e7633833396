"""Where an instant stands on a chart, which times are written, and what is marked."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dashboard.axes import MARKS_APART, TEXTS_MOST, Mark, axis_of

START = datetime(2026, 3, 2, 11, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)

moments = st.integers(-3_600, 7_200).map(lambda s: START + timedelta(seconds=s))
marks = st.lists(
    st.builds(
        Mark, at=moments, kind=st.sampled_from(["action", "deploy"]), title=st.just("ana: did it")
    ),
    max_size=60,
)


@given(marks=marks)
def test_marks_that_would_touch_are_one_and_none_is_lost(marks):
    axis = axis_of(START, START + HOUR, marks)

    inside = [mark for mark in marks if START <= mark.at < START + HOUR]
    assert sum(mark.count for mark in axis.marks) == len(inside)
    for kind in ("action", "deploy"):
        places = [mark.x for mark in axis.marks if mark.kind == kind]
        assert all(b - a >= MARKS_APART for a, b in pairwise(places))
    assert {kind for kind, _ in axis.legend} == {mark.kind for mark in inside}


@given(seconds=st.integers(1, 40 * 86_400), left=st.integers(0, 100))
def test_times_are_in_order_inside_and_not_too_many(seconds, left):
    axis = axis_of(START, START + timedelta(seconds=seconds), left=left)

    places = [tick.x for tick in axis.ticks]
    assert places == sorted(places)
    assert len(places) <= TEXTS_MOST + 1
    assert all(0 <= x <= axis.width for x in places)
    (x0, t0), (x1, t1) = (knot.split(":") for knot in axis.knots.split(" "))
    assert (float(x0), float(x1)) == (left, left + 1_000)
    assert int(t1) - int(t0) == seconds * 1_000


@given(a=moments, b=moments)
def test_later_is_never_further_left(a, b):
    axis = axis_of(START, START + HOUR)

    assert (axis.x(a) <= axis.x(b)) == (a <= b) or axis.x(a) == axis.x(b)


def test_midnight_is_written_as_its_day():
    axis = axis_of(START - timedelta(hours=23), START + HOUR)

    assert "2 Mar" in [tick.text for tick in axis.ticks]
    assert "18:00" in [tick.text for tick in axis.ticks]


def at(seconds, kind="action", title="ana: paused"):
    return Mark(at=START + timedelta(seconds=seconds), kind=kind, title=title)


def test_several_in_one_place_tell_each_and_of_many_their_number():
    few = axis_of(START, START + HOUR, [at(5), at(6, title="bo: resumed"), at(7, "deploy", "w 2")])
    many = axis_of(START, START + HOUR, [at(n) for n in range(9)])

    assert [(mark.count, mark.title) for mark in few.marks] == [
        (2, "2 operator actions: ana: paused; bo: resumed"), (1, "w 2"),
    ]  # fmt: skip
    assert [mark.title for mark in many.marks] == ["9 operator actions"]
    assert len(many.happened) == 9
    assert (few.told, many.told) == ("2 operator actions, 1 new version", "9 operator actions")
