from datetime import UTC, datetime, timedelta

from dashboard import timeline
from dashboard.timeline import Dot, Scale, Span

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def dot(seconds: float, *, token: int | None = 1, kind: str = "worker", seq: int = 1) -> Dot:
    return Dot(at=at(seconds), token=token, kind=kind, title="t", seq=seq)


def span(token: int, start: float, end: float | None = None, ended: str = "") -> Span:
    return Span(
        token=token,
        owner=f"w-{token}",
        starts_at=at(start),
        ends_at=None if end is None else at(end),
        lapsed_at=None,
        ended=ended,
        title="",
    )


def test_later_is_never_further_left():
    scale = Scale(at(0), at(4_000), [at(s) for s in (1, 2, 3, 5, 8, 3_000, 3_001, 3_900)])

    places = [scale.x(at(s)) for s in range(0, 4_000, 7)]
    assert places == sorted(places)
    assert places[0] == timeline.GUTTER
    assert scale.x(at(4_000)) == timeline.WIDTH - timeline.RIGHT


def test_a_long_stretch_without_anything_is_folded():
    moments = [at(s) for s in range(0, 60, 5)] + [at(3_600 + s) for s in range(0, 60, 5)]

    scale = Scale(at(0), at(3_660), moments)

    assert len(scale.folded) == 1
    # The two busy minutes get nearly all of the room.
    busy = scale.x(at(55)) - scale.x(at(0)) + scale.x(at(3_655)) - scale.x(at(3_600))
    assert busy > 0.7 * (timeline.WIDTH - timeline.GUTTER)


def test_there_is_a_lane_per_term_and_one_for_what_was_refused():
    drawing = timeline.draw(
        start=START,
        now=at(100),
        ended_at=None,
        spans=[span(1, 5, 40, "lapsed"), span(2, 60)],
        dots=[dot(0, token=None), dot(10), dot(70, token=2), dot(80, token=1, kind="refused")],
    )

    assert [lane.label for lane in drawing.lanes] == ["outside a term", "w-1", "w-2", "refused"]
    assert [len(lane.dots) for lane in drawing.lanes] == [1, 1, 1, 1]
    assert drawing.lanes[1].ended == "lapsed"
    assert drawing.lanes[2].open
    assert len(drawing.bands) == 2  # before the first term, and between the two


def test_only_the_last_terms_have_a_lane_and_the_others_share_one():
    spans = [span(n, n * 10, n * 10 + 9, "lapsed") for n in range(1, 13)]

    drawing = timeline.draw(
        start=START, now=at(200), ended_at=None, spans=spans, dots=[dot(11, token=1)]
    )

    assert drawing.earlier_terms == 4
    assert drawing.lanes[0].label == "earlier terms"
    assert len(drawing.lanes) == 1 + timeline.TERMS_MAX


def test_marks_that_would_touch_are_one_with_a_count():
    drawing = timeline.draw(
        start=START,
        now=at(9),
        ended_at=None,
        spans=[span(1, 0)],
        dots=[dot(5 + n / 1e6, seq=n) for n in range(300)],
    )

    (mark,) = drawing.lanes[0].dots
    assert (mark.count, mark.seq) == (300, 0)


def test_no_label_stands_where_a_folded_stretch_has_its_own():
    for quiet in (300, 1_000, 3_333, 86_400):
        moments = [*range(0, 60, 5), *range(60 + quiet, 120 + quiet, 5)]
        drawing = timeline.draw(
            start=START,
            now=at(moments[-1]),
            ended_at=at(moments[-1]),
            spans=[span(1, 0, moments[-1])],
            dots=[dot(moment) for moment in moments],
        )

        assert drawing.folds
        apart = [abs(t.x - fold.text_x) for t in drawing.ticks for fold in drawing.folds]
        assert min(apart, default=timeline.TEXTS_APART) >= timeline.TEXTS_APART


def test_a_run_of_one_instant_and_one_of_years_can_be_drawn():
    for seconds in (0, 0.000001, 10**9):
        drawing = timeline.draw(
            start=START,
            now=at(seconds),
            ended_at=at(seconds),
            spans=[],
            dots=[dot(0, token=None), dot(seconds, token=None)],
        )
        assert drawing.lanes[0].label == "events"
        assert len(drawing.ticks) <= 40


def test_a_clock_that_was_set_back_breaks_nothing():
    drawing = timeline.draw(
        start=START,
        now=at(-60),
        ended_at=None,
        spans=[span(1, 0)],
        dots=[dot(-30), dot(5)],
    )

    assert drawing.lanes
