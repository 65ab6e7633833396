"""A run's events in three ways, what is looked for in them, and the timeline's closeups."""

import json
from datetime import timedelta

import pytest

from agentstate.store.commands import NewEvent
from agentstate.store.payloads import RawJSON, dump
from dashboard.closeups import told
from dashboard.queries import events
from tests.dashboard.reading import Page
from tests.store.asking import event


def show(client, key="42", **query):
    return Page(client.get(f"/runs/{key}", query))


@pytest.fixture
def worked(store, still_clock):
    """Events 4 to 9 of a worker, two seconds apart: three calls and what came of them."""
    store.create("42")
    lease = store.hold("42", "w-1", ttl_seconds=600)
    for number in range(3):
        for verb, data in (
            ("called", {"action": f"ls {number}"}),
            ("returned", {"exit_code": number // 2, "observation": f"file-{number}.txt"}),
        ):
            still_clock.advance(seconds=2)
            store.append("42", [event(f"tool.{verb}", data)], fence=lease.token)
        if number == 0:
            store.append("42", [event("model.responded", {"text": "ok"})], fence=lease.token)
    return lease


def test_compact_puts_what_belongs_together_in_one_row(worked, viewer):
    page = show(viewer, show="compact")

    assert page.rows("e-") == ["1", "2", "3", "5", "6", "10"]
    assert "tool \u00d74" in page.text
    assert "called \u00d72 returned \u00d72" in page.text
    assert "6.0 s" in page.text


def test_raw_shows_the_payload_as_it_is_kept(worked, viewer, store):
    text = '{ "b" : 1e21,\n "a":0.10 }'
    store.append("42", [NewEvent(type="x", data=RawJSON(text))], fence=worked.token)

    page = show(viewer, show="raw")

    assert "{ &quot;b&quot; : 1e21,\n &quot;a&quot;:0.10 }" in page.html
    assert page.rows("e-")[-1] == "11"


@pytest.mark.parametrize(
    ("find", "found"),
    [
        ("FILE-1", ["8"]),
        ("tool.called", ["4", "7", "9"]),
        ("key:fleet", ["1", "2", "3", *(str(n) for n in range(4, 11))]),
        ("100%", []),
        ("_", ["2", "5", "8", "10", "1"]),
    ],
)
def test_events_are_searched_by_type_payload_and_actor(worked, viewer, find, found):
    assert sorted(show(viewer, find=find).rows("e-")) == sorted(found)


def test_what_is_looked_for_may_be_written_with_escapes(store, viewer):
    store.create("42")
    data = [json.dumps({"t": 'say "Grüße"\nnow'}), json.dumps({"t": "Grüße"}, ensure_ascii=False)]
    store.append("42", [NewEvent(type="x", data=RawJSON(one)) for one in data])

    assert show(viewer, find="grüße").rows("e-") == ["2", "3"]
    assert show(viewer, find='say "Grüße"').rows("e-") == ["2"]
    page = show(viewer, find="grüße", event="2")
    assert page.html.count("<mark>Grüße</mark>") >= 1
    assert "1 found" in show(viewer, event="2", mark="GRÜSSE".replace("SS", "ß")).text


def test_errors_only_are_told_by_type_or_by_what_the_payload_says(store, viewer):
    store.create("42")
    said = [
        ("tool.failed", {}), ("llm.timeout", {}), ("x", {"error": "no such file"}),
        ("x", {"exit_code": 2}), ("x", {"ok": False}), ("x", {"is_error": True}),
        ("x", {"error": None}), ("x", {"error": ""}), ("x", {"exit_code": 0}), ("x", {"ok": True}),
        ("terror.x", {}), ("x", {"text": 'an "error": yes'}), ("x", {"errors": []}),
    ]  # fmt: skip
    store.append("42", [event(kind, data) for kind, data in said])

    assert show(viewer, errors="1").rows("e-") == ["2", "3", "4", "5", "6", "7"]


def test_whoever_may_not_see_payloads_finds_nothing_in_them(worked, log_in):
    nobody = log_in("nora", "viewer")
    wanted = events.EventFilter(text="file-1", payloads=False)

    assert show(nobody, find="file-1").rows("e-") == ["8"]
    run = events.Event.objects.first().run_id
    assert events.read_events(run, newest=10, wanted=wanted).lines == []
    wanted = events.EventFilter(errors=True, payloads=False)
    assert events.read_events(run, newest=10, wanted=wanted).lines == []


def test_looking_stops_in_time_and_says_how_far_it_came(store, viewer, monkeypatch):
    monkeypatch.setattr(events, "SEARCH_SECONDS", -1)
    store.create("42")
    store.append("42", [event("x", {"n": n}) for n in range(30)])

    page = show(viewer, find="zzz")
    assert "None among" in page.text
    assert page.link("find=zzz.*before=32")

    monkeypatch.setattr(events, "SEARCH_SECONDS", 60)
    monkeypatch.setattr(events, "STEP_FIRST", 4)
    monkeypatch.setattr(events, "STEP_FAST_SECONDS", 0)
    assert show(viewer, find='"n":7').rows("e-") == ["9"]
    assert show(viewer, find='"n":7', after="9").rows("e-") == []
    assert show(viewer, find='"n":7', after="3").rows("e-") == ["9"]
    assert show(viewer, find='"n":7', before="9").rows("e-") == []


def test_pages_of_what_was_found_go_on_where_they_ended(store, viewer, monkeypatch):
    monkeypatch.setattr(events, "EVENTS_SHOWN", 5)
    store.create("42")
    store.append("42", [event("x" if n % 2 else "y") for n in range(24)])

    newest = show(viewer, type="x")
    assert newest.rows("e-") == ["17", "19", "21", "23", "25"]
    earlier = Page(viewer.get(newest.link("before=")))
    assert earlier.rows("e-") == ["7", "9", "11", "13", "15"]
    assert Page(viewer.get(earlier.link("after="))).rows("e-") == newest.rows("e-")


def test_an_open_page_goes_on_with_what_it_was_narrowed_to(worked, store, viewer):
    """The address that is open counts: its parts were exchanged since the page was loaded."""
    store.append("42", [event("tool.failed"), event("x")], fence=worked.token)
    headers = {
        "HX-Request": "true",
        "HX-Current-URL": "http://testserver/runs/42?errors=1&show=compact&event=5",
    }

    fresh = Page(viewer.get("/runs/42/refresh", {"after": "9"}, headers=headers))

    assert fresh.rows("e-") == ["11"]  # 10 went wrong as well, and stands in the same row
    other = Page(viewer.get("/runs/42/refresh", {"after": "10"}, headers=headers | {
        "HX-Current-URL": "http://testserver/runs/42?tab=state"}))  # fmt: skip
    assert ("a", "page") in [(t, a.get("aria-current")) for t, a in other.tags]
    assert 'tab=state" data-hot="s" aria-current="page"' in other.html


def test_a_closeup_draws_a_part_and_its_links_keep_the_rest(worked, still_clock, viewer):
    start, end = still_clock.now - timedelta(seconds=5), still_clock.now - timedelta(seconds=1)
    whole = show(viewer, origin="worker")
    part = show(viewer, origin="worker", **{"from": told(start), "to": told(end)})

    assert part.html.count('class="dot"') == 2 < whole.html.count('class="dot"') == 6
    assert "All of the run; the part below is marked" in part.html
    assert "overview-window" not in whole.html
    for key in ("+", "-", "<", ">", "0"):
        links = [a for t, a in part.tags if t == "a" and a.get("data-hot") == key]
        assert "origin=worker" in links[0]["href"], key
    assert show(viewer, **{"from": "x", "to": "'"}).status == 200


def test_a_closeup_of_a_long_run_is_as_fine_as_it_can_be(store, still_clock, viewer, monkeypatch):
    from dashboard.queries import marks

    monkeypatch.setattr(marks, "MARKS_EXACT", 30)
    monkeypatch.setattr(marks, "MARKS_SAMPLED", 10)
    store.create("42")
    began = still_clock.now
    for _ in range(90):
        still_clock.advance(seconds=1)
        store.append("42", [event("x")])
    run = store.run("42")
    there = (began + timedelta(seconds=40), began + timedelta(seconds=44))

    found = marks.read_marks_between(run, *there)

    assert [(mark.first_seq, mark.count) for mark in found] == [(n, 1) for n in range(41, 46)]
    assert sum(mark.count for mark in marks.read_marks(run)) == 91
    assert show(viewer, **{"from": told(there[0]), "to": told(there[1])}).status == 200


def test_renewals_are_ticks_and_late_ones_are_told(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-1")
    for seconds in (20, 40, 20):
        still_clock.advance(seconds=seconds)
        store.renew("run:42", lease.token)
    page = show(viewer)
    assert (page.html.count('"renewal"'), page.html.count("renewal is-late")) == (2, 1)

    store.release("run:42", lease.token)
    again = show(viewer)
    assert (again.html.count('"renewal"'), again.html.count("renewal is-late")) == (2, 1)


def test_parts_and_the_run_above_are_on_the_timeline(store, viewer):
    store.create("42")
    store.create("42-a", parent="42")
    store.create("42-b", parent="42")

    assert show(viewer).html.count('class="part status-pending"') == 2
    below = show(viewer, "42-a")
    assert "part of" in below.html
    assert "/runs/42" in below.links


def test_what_is_not_allowed_says_why(store, viewer, operator):
    store.create("42")

    assert show(viewer).text.count("needs the role operator") >= 5
    menu = show(operator).html.partition("More")[2]
    assert "menu-not" not in menu


def test_a_large_payload_is_searched_where_it_is_too_large_to_be_shown(store, viewer):
    store.create("42")
    text = json.dumps({"out": "y" * 500_000 + "<needle>" + "z" * 300_000})
    store.append("42", [NewEvent(type="x", data=RawJSON(text))])

    page = show(viewer, event="2", mark="NEEDLE")

    assert "&lt;<mark>needle</mark>&gt;" in page.html
    assert "1 found" in page.text
    assert len(page.html) < 150_000


def test_half_characters_break_no_page(store, viewer):
    """Case O-19 (docs/cases.md)."""
    store.create("42")
    store.append("42", [NewEvent(type="x", data=dump({"t": "\x1b[31m" + "a" * 90}))])

    for way in ("all", "compact", "raw"):
        assert show(viewer, event="2", show=way).status == 200
