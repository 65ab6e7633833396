from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise

from dashboard import timeline
from dashboard.timeline import Dot, Part, Renewal, Scale, Span

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


def test_the_texts_of_folds_beside_each_other_do_not_touch():
    starts = accumulate((0, 100_000, 30_000, 9_000, 2_700, 800))
    moments = [start + s for start in starts for s in (0, 1, 2)]
    drawing = timeline.draw(
        start=START,
        now=at(moments[-1]),
        ended_at=at(moments[-1]),
        spans=[span(1, 0, moments[-1])],
        dots=[dot(moment) for moment in moments],
    )

    assert len(drawing.folds) > 2
    for one, other in pairwise(drawing.folds):
        room = other.text_x - one.text_x
        assert room >= (len(one.text) + len(other.text)) * 6 / 2, (one.text, other.text)


def test_renewals_are_ticks_and_a_late_one_is_never_hidden():
    renewals = [Renewal(at=at(n / 10), late=n == 57) for n in range(1, 100)]
    one = replace(span(1, 0, 1_000), renewals=renewals)
    drawing = timeline.draw(
        start=START, now=at(1_000), ended_at=at(1_000), spans=[one], dots=[dot(1), dot(999)]
    )

    placed = drawing.lanes[0].renewals
    assert len(placed) < 10
    assert sum(tick.late for tick in placed) == 1


def test_a_part_of_the_run_has_only_what_is_in_it():
    spans = [span(n, n * 100, n * 100 + 90, "lapsed") for n in range(1, 30)]
    dots = [dot(n * 100 + 5, token=n) for n in range(1, 30)]

    drawing = timeline.draw(
        start=START,
        now=at(4_000),
        ended_at=None,
        spans=spans,
        dots=dots,
        window=(at(500), at(720)),
    )

    assert [lane.sub for lane in drawing.lanes] == ["#5", "#6", "#7"]
    assert (drawing.earlier_terms, drawing.later_terms) == (4, 22)
    assert [lane.colour for lane in drawing.lanes] == ["4", "5", "0"]
    assert drawing.lanes[2].ended == ""  # it goes on after what is drawn
    assert all(timeline.GUTTER <= d.x <= timeline.WIDTH for x in drawing.lanes for d in x.dots)


def test_refused_writes_have_the_colour_of_the_token_they_were_sent_under():
    drawing = timeline.draw(
        start=START,
        now=at(100),
        ended_at=None,
        spans=[span(1, 0, 40, "lapsed"), span(2, 50)],
        dots=[dot(60, token=1, kind="refused"), dot(80, token=9, kind="budget")],
    )

    assert [(d.kind, d.colour) for d in drawing.lanes[-1].dots] == [
        ("refused", "0"),
        ("budget", "none"),
    ]


def test_parts_of_a_run_are_bars_in_a_few_rows():
    parts = [Part(key=f"p-{n}", status="running", starts_at=at(n), ends_at=None) for n in range(9)]
    done = Part(key="done", status="completed", starts_at=at(0), ends_at=at(0.5))
    drawing = timeline.draw(
        start=START,
        now=at(100),
        ended_at=None,
        spans=[],
        dots=[dot(0, token=None)],
        parts=[done, *parts],
        parent=Part(key="above", status="running", starts_at=at(-50), ends_at=None),
    )

    assert len({bar.y for bar in drawing.parts}) == timeline.PART_ROWS
    assert drawing.parts_left_out == 10 - len(drawing.parts) > 0
    assert drawing.parent.x == timeline.GUTTER
    assert drawing.parent.y > max(bar.y for bar in drawing.parts)


def test_gaps_can_be_drawn_in_full():
    moments = [*range(0, 60, 5), *range(9_000, 9_060, 5)]
    for fold, folds in ((True, 1), (False, 0)):
        drawing = timeline.draw(
            start=START,
            now=at(9_060),
            ended_at=at(9_060),
            spans=[span(1, 0, 9_060)],
            dots=[dot(moment) for moment in moments],
            fold=fold,
        )
        assert len(drawing.folds) == folds


def test_however_many_there_are_the_drawing_stays_small():
    dots = [dot(n / 10, kind=("worker", "store", "refused")[n % 3]) for n in range(30_000)]
    drawing = timeline.draw(
        start=START, now=at(3_000), ended_at=None, spans=[span(1, 0)], dots=dots
    )

    placed = [d for lane in drawing.lanes for d in lane.dots]
    assert len(placed) <= 3 * timeline.WIDTH / timeline.MERGE_WIDTH
    assert sum(d.count for d in placed) == 30_000


def test_a_clock_that_was_set_back_breaks_nothing():
    drawing = timeline.draw(
        start=START,
        now=at(-60),
        ended_at=None,
        spans=[span(1, 0)],
        dots=[dot(-30), dot(5)],
    )

    assert drawing.lanes
