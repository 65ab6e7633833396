"""How long things are kept: an admin says otherwise, within bounds, and what goes by it."""

from datetime import timedelta

import pytest

from agentstate import store as the_store
from agentstate.store import bundle, feed, recount, retention
from agentstate.store.ages import AGES, UNDER_WAY
from agentstate.store.callers import Caller
from agentstate.store.commands import ChangeAge, SetCheckpoint
from agentstate.store.errors import Invalid, NotAllowed, NotFound, SeqConflict, VersionConflict
from agentstate.store.minutes import TALLY
from tests.store.asking import SENIOR, at_once, rows

ROOT = Caller(kind="person", name="root", scopes=SENIOR.scopes | {"admin"})


def keep(kind, days, version=0, by=ROOT):
    return the_store.execute(
        ChangeAge(kind=kind, version=version, days=days, reason="the disk is full"), by=by
    )


def refuse(store, times=1):
    for _ in range(times):
        with pytest.raises(SeqConflict):
            store.append("42", expected_seq=0)


def test_it_is_changed_as_it_was_seen_written_down_and_set_back(store, clock):
    assert keep("refusals", 10).version == 1
    kept = retention.find("refusals")
    assert (kept.days, kept.keep, kept.changed_by) == (10, timedelta(days=10), "person:root")
    assert kept.changed_why == "the disk is full"

    with pytest.raises(VersionConflict) as late:
        keep("refusals", 12)
    assert late.value.current == {"kind": "refusals", "days": 10, "default": False, "version": 1}
    assert keep("refusals", None, version=1).version == 2
    assert retention.find("refusals").keep == AGES["refusals"].keep
    assert keep("refusals", 9, version=2).version == 3
    assert rows(
        "SELECT action, object, before ->> 'days', after ->> 'days', after ->> 'default',"
        " expected ->> 'version' FROM agentstate_operatoraction ORDER BY id"
    ) == [
        ("retention.changed", "refusals", "30", "10", "false", "0"),
        ("retention.changed", "refusals", "10", "30", "true", "1"),
        ("retention.changed", "refusals", "30", "9", "false", "2"),
    ]
    assert rows("SELECT action, object, outcome FROM agentstate_refusedaction") == [
        ("retention.changed", "refusals", "refused")
    ]


def test_no_less_than_is_promised_and_nothing_that_has_no_age(store):
    for kind, age in AGES.items():
        if not age.keep:
            with pytest.raises(NotFound):
                keep(kind, 30)
            continue
        assert age.why
        assert age.least <= age.keep.days <= age.most
        for days in (age.least - 1, age.most + 1):
            with pytest.raises(Invalid):
                keep(kind, days)
    for days in (0, -1, 1.5, True, "9"):
        with pytest.raises(Invalid):
            keep("refusals", days)
    for kind in ("operator actions", "", "run"):
        with pytest.raises((NotFound, Invalid)):
            keep(kind, 30)
    with pytest.raises(NotAllowed):
        keep("refusals", 10, by=SENIOR)
    assert rows("SELECT 1 FROM agentstate_retentionage") == []


def test_a_consumer_stays_as_long_as_its_feed_and_a_bulk_as_its_outcomes(store):
    with pytest.raises(Invalid, match="not longer than consumers not seen, 30 days"):
        keep("feed", 31)
    keep("consumers not seen", 60)
    keep("feed", 60)
    for days in (59, None):
        with pytest.raises(Invalid, match="not shorter than feed, which stays for 60 days"):
            keep("consumers not seen", days, version=1)
    keep("feed", None, version=1)
    keep("consumers not seen", None, version=1)
    keep("outcomes of bulks", 31)
    keep("bulks", 31)
    with pytest.raises(Invalid, match="not longer than bulks"):
        keep("outcomes of bulks", None, version=1)


def test_what_goes_and_what_is_due_follow_it(store, clock):
    store.create("42")
    refuse(store, times=3)
    feed.move()
    store.ask(SetCheckpoint(consumer="reader", position=1))
    clock.advance(days=20)
    assert retention.purge("refusals") == retention.purge("feed", limit=0) == 0
    assert {p.kind: p.due for p in retention.progress()}["refusals"] == 0

    seen = retention.preview("refusals", 10)
    assert (seen.due, seen.then_due) == (0, 3)
    keep("refusals", 10)
    told = {p.kind: (p.keep, p.default, p.due, p.changed) for p in retention.progress()}
    assert told["refusals"] == (timedelta(days=10), timedelta(days=30), 3, True)
    assert not told["minutes"][3]
    assert retention.purge("refusals", limit=2) == 2
    assert retention.purge("refusals") == 1

    keep("feed", 30)
    assert retention.purge("feed") == 0  # by default it would have been gone a week after it came
    keep("feed", None, version=1)
    assert retention.purge("feed") == 1
    kept_days = bundle._settings()["kept_days"]
    assert (kept_days["refusals"], kept_days["feed"]) == (10, 7)


def test_what_is_below_its_bound_or_of_another_release_does_no_harm(store, clock):
    rows(
        "INSERT INTO agentstate_retentionage (kind, days, version, whole_from, changed_at,"
        " changed_by, changed_why) VALUES ('feed', 1, 1, now(), now(), 'x', 'y'),"
        " ('things of tomorrow', 1, 1, now(), now(), 'x', 'y') RETURNING 1"
    )
    store.create("42")
    feed.move()
    clock.advance(days=6)
    assert retention.purge("feed") == 0
    assert "things of tomorrow" not in retention.ages()
    assert {p.kind: p.keep for p in retention.progress()}["feed"] == timedelta(days=7)


def test_two_at_once_one_is_told_that_somebody_was_faster(store):
    for kind, version in (("refusals", 0), ("refusals", 1)):
        done = at_once(2, lambda n, v=version, k=kind: keep(k, 10 + n, version=v))
        assert sorted(type(one).__name__ for one in done) == ["AgeChanged", "VersionConflict"]
    # Each alone would do; together a consumer would be gone before its feed.
    done = at_once(2, lambda n: keep("feed", 30) if n else keep("consumers not seen", 20))
    assert sorted(type(one).__name__ for one in done) == ["AgeChanged", "Invalid"]


def test_what_went_while_it_was_kept_for_less_is_not_counted_as_missing(store, clock):
    """Lengthened, a kind is whole only from when it was changed; nobody says that minutes are
    wrong whose refusals are gone."""
    clock.advance(days=-100)
    store.create("42")
    refuse(store)
    clock.advance(minutes=2)
    TALLY.write()
    clock.advance(days=12)
    keep("refusals", 10)
    assert retention.purge("refusals") == 1
    now = clock.now
    assert retention.whole_since("refusals") == pytest.approx(
        now - timedelta(days=10), abs=timedelta(minutes=1)
    )
    keep("refusals", 60, version=1)
    since = retention.whole_since("minutes", "refusals", "collisions")
    assert since >= now - timedelta(days=10) + UNDER_WAY
    assert recount.difference() == []
