import json

import pytest

from agentstate.store.commands import AnnounceWorker, NewBudget, NewEvent, Patch
from agentstate.store.effects import Effect
from agentstate.store.errors import BudgetExhausted, Refusal, StaleFence
from agentstate.store.payloads import RawJSON
from dashboard.queries import events
from tests.dashboard.reading import Page
from tests.store.asking import ANA, SENIOR, event

EXACT = '{"id":1970670598291982290,"max":9223372036854775807,"f":0.1,"e":1e21,"text":"a\\nb"}'


def show(client, key="42", **query):
    return Page(client.get(f"/runs/{key}", query))


def test_the_head_says_who_holds_it_and_for_how_long(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=1_000),))
    lease = store.hold("42", "w-9")
    store.spend("42", 820, budget="tokens", fence=lease.token)
    still_clock.advance(seconds=19)

    text = show(viewer).text

    assert f"w-9 #{lease.token}" in text
    assert "w-9 holds it and was last heard of 19s ago." in text
    assert "41s left" in text
    assert "82 %" in text


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (10, "w-1 holds it and was last heard of 10s ago."),
        (50, "w-1 holds it but is late: silent for 50s of a lease of 1m."),
        (300, "w-1 let its lease run out 4m ago and nobody has taken the unit since."),
    ],
)
def test_one_sentence_says_what_a_running_run_waits_for(store, still_clock, viewer, seconds, told):
    store.create("42")
    store.hold("42", "w-1", ttl_seconds=60)
    still_clock.advance(seconds=seconds)

    assert told in show(viewer).text


def test_a_new_version_is_marked_on_the_timeline_of_what_ran_then(store, still_clock, viewer):
    store.ask(AnnounceWorker(worker="w-1", version="1.4"))
    still_clock.advance(minutes=1)
    store.create("42")
    still_clock.advance(minutes=1)
    store.ask(AnnounceWorker(worker="w-1", version="1.5"))
    still_clock.advance(minutes=1)

    page = show(viewer)

    assert "workers 1.5, first seen at 2026-03-02 12:02:00 UTC" in page.text
    assert "workers 1.4" not in page.text


def test_one_sentence_says_what_a_free_run_waits_for(store, still_clock, viewer):
    store.create("42")
    still_clock.advance(seconds=90)
    assert "It has waited 1m 30s for its first worker." in show(viewer).text

    lease = store.hold("42", "w-1")
    still_clock.advance(seconds=1)
    store.reclaim("run:42", token=lease.token, owner="w-1", force=True, hold_off_seconds=120)
    assert "Free for anybody but w-1, who is kept off for 2m more." in show(viewer).text

    still_clock.advance(seconds=300)
    assert "Nobody has held it for 5m." in show(viewer).text

    store.as_caller(ANA).move("42", "paused", reason="wait")
    assert "Paused: no worker can take it until somebody resumes it." in show(viewer).text

    store.as_caller(ANA).move("42", "cancelled", reason="not needed")
    assert "It was cancelled after" in show(viewer).text


def test_the_story_has_a_lane_per_term_and_the_refused_writes(store, still_clock, viewer):
    store.create("42")
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=100)
    second = store.hold("42", "w-9")
    store.append("42", [event()], fence=second.token)
    with pytest.raises(StaleFence):
        store.append("42", [event()], fence=first.token)

    page = show(viewer)

    assert f"w-3 #{first.token}" in page.text
    assert "dot-refused" in page.html
    assert "stale-fence: w-3 append" in page.html


def test_events_come_in_order_with_what_they_say(store, viewer):
    store.create("42")
    store.append("42", [event("tool.called", {"tool": "bash", "action": "ls"})])

    page = show(viewer)

    assert page.rows("e-") == ["1", "2"]
    assert "tool: bash action: ls" in page.text


def test_a_long_run_shows_its_newest_and_reads_on_both_ways(store, viewer, monkeypatch):
    """Case O-25 (docs/cases.md)."""
    monkeypatch.setattr(events, "EVENTS_SHOWN", 10)
    store.create("42")
    store.append("42", [event() for _ in range(34)])

    newest = show(viewer)
    assert newest.rows("e-") == [str(n) for n in range(26, 36)]

    earlier = Page(viewer.get(newest.link("before=")))
    assert earlier.rows("e-") == [str(n) for n in range(16, 26)]

    again = Page(viewer.get(earlier.link("after=")))
    assert again.rows("e-") == newest.rows("e-")


def test_events_are_filtered_by_origin_and_type(store, viewer):
    store.create("42")
    store.append("42", [event("tool.called"), event("model.responded")])

    assert show(viewer, origin="worker").rows("e-") == ["2", "3"]
    assert show(viewer, origin="store").rows("e-") == ["1"]
    assert show(viewer, type="tool").rows("e-") == ["2"]
    assert "3 events matches" in show(viewer, type="none").text


def test_an_open_page_gets_only_what_is_newer(store, viewer):
    store.create("42")
    store.append("42", [event("one"), event("two"), event("three")])

    fresh = Page(viewer.get("/runs/42/refresh", {"after": "2"}))

    assert fresh.rows("e-") == ["3", "4"]
    assert {"head", "tabs"} <= set(fresh.ids)


def test_a_payload_comes_back_digit_by_digit_wherever_it_is_shown(store, viewer):
    store.create("42")
    store.append("42", [NewEvent(type="x", data=RawJSON(EXACT))])

    for page in (show(viewer), show(viewer, event="2"), show(viewer, event="2", view="json")):
        assert "1970670598291982290" in page.text
    assert "9223372036854775807" in show(viewer, event="2", view="json").text
    whole = viewer.get("/runs/42/events/2/payload")
    assert whole.content.decode() == EXACT
    assert whole["Content-Disposition"] == 'attachment; filename="42-2.json"'


def test_a_huge_payload_is_a_head_and_a_file(store, viewer):
    """Case O-25 (docs/cases.md)."""
    store.create("42")
    text = json.dumps({"out": "y" * 900_000})
    store.append("42", [NewEvent(type="x", data=RawJSON(text))])

    page = show(viewer, event="2")

    assert len(page.html) < 150_000
    assert "too much to lay out here" in page.text
    assert viewer.get("/runs/42/events/2/payload").content.decode() == text


def test_a_number_that_no_event_has_is_said(store, viewer):
    store.create("42")

    for number in ("7", "0", "99999999999999999999", "-1", "x"):
        assert show(viewer, event=number).status == 200
    assert "no event number 7" in show(viewer, event="7").text
    assert viewer.get("/runs/42/events/7/payload").status_code == 404
    assert viewer.get("/runs/42/events/99999999999999999999/payload").status_code == 404


def test_an_unknown_run_is_a_404_with_the_nearest_keys(store, viewer):
    store.create("checkout-41")

    page = show(viewer, "checkout-42")

    assert page.status == 404
    assert "/runs/checkout-41" in page.links


@pytest.mark.parametrize("key", ["..", "%2e%2e", "a%2Fb", "a%20b", "100%25", "%00", "%E2%80%AE"])
def test_a_key_that_cannot_be_is_a_plain_404(viewer, key):
    assert viewer.get(f"/runs/{key}").status_code == 404


@pytest.mark.parametrize("key", ["a.b", "2026-03-12T09:40:00", "a:b@c~d-e_f", "A" * 196])
def test_every_key_that_can_be_made_can_be_opened(store, viewer, key):
    """Case O-23 (docs/cases.md)."""
    store.create(key)

    page = Page(viewer.get("/runs"))
    opened = Page(viewer.get(page.link("^/runs/(?!-/)")))

    assert opened.status == 200
    assert key in opened.text


def test_each_tab_shows_its_records(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    lease = store.hold("42", "w-3")
    store.spend("42", 40, budget="tokens", fence=lease.token)
    with pytest.raises(BudgetExhausted):
        store.spend("42", 90, budget="tokens", fence=lease.token)
    store.as_caller(SENIOR).reclaim(
        "run:42", token=lease.token, owner="w-3", reason="frozen since noon", force=True
    )

    assert "reclaimed by bo: “frozen since noon”" in show(viewer, tab="ownership").text
    assert "budget-exhausted" in show(viewer, tab="refused").text
    assert "spend 40 tokens" in show(viewer, tab="budget").text
    assert "frozen since noon" in show(viewer, tab="audit").text
    assert show(viewer, tab="nonsense").rows("e-")


def test_another_tab_keeps_the_list_and_the_part_of_the_time_that_is_looked_at(store, viewer):
    store.create("42")
    page = show(viewer, list="worker:w-3", gaps="yes", find="x")

    assert page.link("tab=audit") == "/runs/42?gaps=yes&list=worker%3Aw-3&tab=audit"
    assert page.link("^/runs/42[?]gaps") == "/runs/42?gaps=yes&list=worker%3Aw-3"
    assert show(viewer, tab="audit").link("^/runs/42$") == "/runs/42"


def test_a_run_is_paused_resumed_and_cancelled_with_a_reason(store, operator):
    store.create("42")
    lease = store.hold("42")

    for action, status in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        asked = Page(operator.get(f"/runs/42/{action}"))
        answer = operator.post(
            f"/runs/42/{action}",
            {
                "form_key": asked.field("form_key"),
                "seen_status": asked.field("seen_status"),
                "reason": f"to {action} it",
            },
        )
        assert answer.url == "/runs/42"
        assert store.run("42").status == status

    assert store.types("42", origin="store")[-1] == "run.cancelled"
    with pytest.raises(Refusal):
        store.append("42", [event()], fence=lease.token)


def test_an_action_needs_a_reason(store, operator):
    store.create("42")

    answer = operator.post("/runs/42/cancel", {"seen_status": "pending", "reason": "  "})

    assert answer.status_code == 422
    assert "Say why" in answer.content.decode()
    assert store.run("42").status == "pending"


def test_an_action_on_a_run_that_moved_on_does_nothing_and_says_what_is_so(store, operator):
    store.create("42")
    asked = Page(operator.get("/runs/42/cancel"))
    lease = store.hold("42")
    store.move("42", "completed", fence=lease.token)

    answer = operator.post(
        "/runs/42/cancel", {"seen_status": asked.field("seen_status"), "reason": "late"}
    )

    assert answer.status_code == 409
    assert "Nothing was done" in Page(answer).text
    assert store.run("42").status == "completed"


def test_a_viewer_is_told_why_not_and_cannot_do_it_by_hand_either(store, viewer):
    store.create("42")

    assert "needs the role operator" in Page(viewer.get("/runs/42/cancel")).text
    answer = viewer.post("/runs/42/cancel", {"seen_status": "pending", "reason": "try"})

    assert answer.status_code == 403
    assert store.run("42").status == "pending"


def test_asking_changes_nothing(store, operator):
    """Case O-40 (docs/cases.md)."""
    store.create("42")
    store.hold("42")
    before = store.run("42")

    for address in ("/runs/42/cancel", "/runs/42/pause", "/leases/run:42/reclaim"):
        assert operator.get(address).status_code == 200
        assert operator.put(address).status_code == 405

    assert store.run("42") == before


def test_a_run_past_its_retention_is_hidden_from_the_pages_too(store, still_clock, viewer):
    for key in ("gone-1", "gone-2", "kept-1"):
        store.create(key, retain_seconds=60)
        store.move(key, "cancelled")
    store.ask(Patch(run="kept-1", hold=True))
    still_clock.advance(seconds=60)

    page = viewer.get("/runs/gone-1")
    assert page.status_code == 410
    assert "is past its retention" in page.content.decode()
    assert viewer.get("/runs/gone-1/timeline").status_code == 404
    assert viewer.get("/runs/kept-1").status_code == 200
    listed = viewer.get("/runs").content.decode()
    assert "kept-1" in listed
    assert "gone-" not in listed


def test_effects_that_were_begun_and_not_ended_are_told_while_they_are(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-9")
    assert "Effects begun" not in show(viewer).text

    def begun(key):
        return NewEvent(type="mail.wanted", effect=Effect(key=key, state="begun"))

    appended = store.append("42", [begun("mail-7"), begun("<b>x</b>")], fence=lease.token)
    still_clock.advance(seconds=40)
    page = show(viewer)
    assert "Effects begun and not ended" in page.text
    assert page.text.partition("mail-7 begun ")[2].startswith("40s ago by key:fleet #")
    assert "<b>x</b>" not in page.html
    opened = show(viewer, event=str(appended.first_seq))
    assert "Effect mail-7 begun" in opened.text

    ended = [
        NewEvent(type="mail.sent", effect=Effect(key=key, state="ended"))
        for key in ("mail-7", "<b>x</b>")
    ]
    store.append("42", ended, fence=lease.token)
    assert "Effects begun" not in show(viewer).text
