import pytest

from agentstate.store.commands import AnnounceWorker, NewEvent
from agentstate.store.effects import Effect
from agentstate.store.errors import LeaseHeld, StaleFence
from agentstate.store.upkeep import beat
from dashboard.queries import leases as queries
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, event, rows


def show(client, unit="run:42"):
    return Page(client.get(f"/leases/{unit}"))


def reclaim(client, unit="run:42", **fields):
    """Open the page that asks, and send its form with these fields filled in."""
    asked = Page(client.get(f"/leases/{unit}/reclaim"))
    form = {
        name: asked.field(name) for name in ("form_key", "expected_token", "expected_owner")
    } | {"reason": "frozen", "hold_off_seconds": "0"}
    return client.post(f"/leases/{unit}/reclaim", form | fields)


@pytest.fixture
def lapsed(store, still_clock):
    """Run 42, whose holder w-3 has let its lease run out."""
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=60)
    still_clock.advance(seconds=100)
    return lease


@pytest.fixture
def live(store, still_clock):
    store.create("42")
    return store.hold("42", "w-3", ttl_seconds=60)


def test_the_stuck_ones_come_first_the_longest_ago_on_top(store, still_clock, viewer):
    for number, wait in enumerate((30, 20, 10)):
        store.acquire(f"unit-{number}", f"w-{number}", ttl_seconds=30)
        still_clock.advance(seconds=wait)
    store.acquire("unit-live", "w-9", ttl_seconds=600)

    page = Page(viewer.get("/leases"))

    assert page.rows("u-") == ["unit-0", "unit-1", "unit-2", "unit-live"]
    assert "Lapsed 2" in page.text


def test_a_holder_that_is_silent_for_most_of_its_lease_is_late(store, still_clock, viewer):
    store.acquire("slow", "w-1", ttl_seconds=60)
    still_clock.advance(seconds=40)
    store.acquire("quick", "w-2", ttl_seconds=60)

    page = Page(viewer.get("/leases"))

    assert 'aria-label="late"' in page.html
    assert "Renewing late 1" in page.text


def announce(store, *names):
    for name in names:
        store.ask(AnnounceWorker(worker=name))


@pytest.fixture
def every_state(store, still_clock):
    """A unit in each state: two lapsed, late, holder silent, and live."""
    store.acquire("a-lapsed", "w-1", ttl_seconds=10)
    store.acquire("b-late", "w-2", ttl_seconds=80)
    store.acquire("c-silent", "w-3", ttl_seconds=900)
    store.acquire("d-unknown", "w-4", ttl_seconds=300)
    store.acquire("e-live", "w-5", ttl_seconds=900)
    announce(store, "w-1", "w-2", "w-3", "w-5")
    still_clock.advance(seconds=50)
    announce(store, "w-5")


def test_the_late_and_the_silent_stand_before_the_live_ones(every_state, viewer):
    page = Page(viewer.get("/leases"))

    assert page.rows("u-") == ["a-lapsed", "b-late", "c-silent", "d-unknown", "e-live"]
    assert "Lapsed 1 Renewing late 1 Holder silent 1 Live 2" in page.text
    assert 'aria-label="holder silent"' in page.html


@pytest.mark.parametrize(
    ("only", "units"),
    [
        ("lapsed", ["a-lapsed"]),
        ("late", ["b-late"]),
        ("silent", ["c-silent"]),
        ("live", ["d-unknown", "e-live"]),
        ("nonsense", ["a-lapsed", "b-late", "c-silent", "d-unknown", "e-live"]),
    ],
)
def test_only_those_in_one_state_are_shown(every_state, viewer, only, units):
    page = Page(viewer.get("/leases", {"only": only}))

    assert page.rows("u-") == units
    assert "Lapsed 1 Renewing late 1 Holder silent 1 Live 2" in page.text


def test_a_row_says_how_often_its_holder_renews_and_who_waits(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=60)
    for _ in range(3):
        still_clock.advance(seconds=20)
        store.renew("run:42", lease.token)
    store.acquire("mailbox", "w-4", ttl_seconds=600)
    for unit, worker in (("run:42", "w-8"), ("run:42", "w-9"), ("mailbox", "w-9")):
        with pytest.raises(LeaseHeld):
            store.acquire(unit, worker)
    still_clock.advance(seconds=4)

    text = Page(viewer.get("/leases")).text

    assert "w-3 #" in text
    assert "4s / 20s 1m 4s 2 2" in text
    assert "4s / \u2013 4s 1 1" in text


def test_what_waited_long_ago_waits_no_more(store, still_clock, viewer):
    store.create("42")
    store.hold("42", "w-3", ttl_seconds=900)
    with pytest.raises(LeaseHeld):
        store.acquire("run:42", "w-8")
    still_clock.advance(minutes=6)

    assert "/ \u2013 6m 0 1" in Page(viewer.get("/leases")).text


def test_the_board_says_when_lapsed_leases_were_last_looked_for(store, still_clock, viewer):
    assert "Nobody has swept yet" in Page(viewer.get("/leases")).text

    with beat("note lapsed leases"):
        pass
    still_clock.advance(seconds=4)

    assert "No lease held Last sweep 4s ago." in Page(viewer.get("/leases")).text


def test_a_panel_that_takes_too_long_leaves_the_others(store, viewer, monkeypatch):
    from dashboard.queries.clock import TooSlow

    store.acquire("unit", "w-1")

    def slow(**named):
        raise TooSlow

    monkeypatch.setattr(queries, "read_strip", slow)

    page = Page(viewer.get("/leases"))

    assert "took too long" in page.text
    assert page.rows("u-") == ["unit"]


def test_an_empty_board_says_so(viewer):
    text = Page(viewer.get("/leases")).text

    assert "Nothing is stuck" in text
    assert "No lease held" in text


def test_live_leases_are_read_in_pages(store, viewer, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_ROWS", 3)
    for number in range(7):
        store.acquire(f"unit-{number}", "w-1")

    found, address = [], "/leases"
    while address:
        page = Page(viewer.get(address))
        found += page.rows("u-")
        more = [link for link in page.links if "after=" in link]
        address = "/leases" + more[0] if more else ""

    assert found == [f"unit-{n}" for n in range(7)]


def test_live_leases_that_run_out_first_stand_on_top(store, viewer):
    for unit, ttl_seconds in (("a-long", 900), ("b-short", 30), ("c-middle", 300)):
        store.acquire(unit, "w-1", ttl_seconds=ttl_seconds)

    assert Page(viewer.get("/leases")).rows("u-") == ["b-short", "c-middle", "a-long"]


def test_the_page_that_asks_names_the_unit_and_wants_the_reason_first(lapsed, operator):
    page = Page(operator.get("/leases/run:42/reclaim"))

    assert "Reclaim run:42 ?" in page.text
    reason = next(a for t, a in page.tags if t == "input" and a.get("name") == "reason")
    assert {"autofocus", "required"} <= set(reason)


def test_only_the_asked_holders_are_shown(store, viewer):
    store.acquire("a", "w-1~x")
    store.acquire("b", "w-2~x")

    assert Page(viewer.get("/leases", {"owner": "w-2"})).rows("u-") == ["b"]
    assert Page(viewer.get("/leases", {"owner": "\0"})).status == 200


def test_a_lapsed_lease_is_reclaimed_and_its_holder_fenced(store, lapsed, operator):
    answer = reclaim(operator, reason="w-3 is frozen", hold_off_seconds="120")

    assert answer.url == "/leases/run:42"
    assert store.lease("run:42").owner is None
    with pytest.raises(StaleFence):
        store.append("42", [event()], fence=lapsed.token)
    page = show(operator)
    assert "reclaimed by ana: “w-3 is frozen”" in page.text
    assert "Takeover watch" in page.text
    assert "1 late write, all refused" in page.text
    assert rows("SELECT actor, action, reason FROM agentstate_operatoraction") == [
        ("person:ana", "lease.reclaimed", "w-3 is frozen")
    ]
    assert "w-3 is frozen" in Page(operator.get("/audit")).text


def test_the_watch_names_the_new_holder_and_closes_when_it_is_quiet(
    store, still_clock, lapsed, operator
):
    reclaim(operator)
    still_clock.advance(seconds=4)
    new = store.hold("42", "w-9")

    assert f"w-9 #{new.token} after 4s" in show(operator).text
    assert "watching" in show(operator).text

    still_clock.advance(seconds=130)
    assert "over: quiet for" in show(operator).text


def test_a_reclaim_is_refused_when_the_holder_has_changed(store, still_clock, lapsed, operator):
    """Case O-33 (docs/cases.md)."""
    asked = Page(operator.get("/leases/run:42/reclaim"))
    other = store.hold("42", "w-9")

    answer = operator.post(
        "/leases/run:42/reclaim",
        {
            "form_key": asked.field("form_key"),
            "expected_token": asked.field("expected_token"),
            "expected_owner": asked.field("expected_owner"),
            "reason": "frozen",
        },
    )

    page = Page(answer)
    assert page.status == 409
    assert "The holder has changed since you looked. Nothing was done." in page.text
    assert f"Holder w-3 w-9 Token {lapsed.token} {other.token}" in page.text
    assert store.lease("run:42").token == other.token
    store.append("42", [event()], fence=other.token)


def test_after_a_change_the_form_means_the_new_holder(store, still_clock, lapsed, senior):
    asked = Page(senior.get("/leases/run:42/reclaim"))
    other = store.hold("42", "w-9")
    form = {
        "form_key": asked.field("form_key"),
        "expected_token": asked.field("expected_token"),
        "expected_owner": asked.field("expected_owner"),
        "reason": "frozen",
    }
    again = Page(senior.post("/leases/run:42/reclaim", form))

    assert again.field("expected_token") == str(other.token)
    assert again.field("expected_owner") == "w-9"
    assert again.field("form_key") != asked.field("form_key")


def test_released_meanwhile_is_said(store, live, senior):
    asked = Page(senior.get("/leases/run:42/reclaim"))
    store.release("run:42", live.token)

    answer = senior.post(
        "/leases/run:42/reclaim",
        {
            "expected_token": asked.field("expected_token"),
            "expected_owner": "w-3",
            "reason": "frozen",
            "force": "yes",
            "typed_owner": "w-3",
        },
    )

    assert answer.status_code == 409
    assert "there is nothing left to do" in Page(answer).text
    assert "Nobody holds it" in Page(senior.get("/leases/run:42/reclaim")).text


def test_the_same_form_sent_twice_acts_once(store, lapsed, operator):
    asked = Page(operator.get("/leases/run:42/reclaim"))
    form = {
        "form_key": asked.field("form_key"),
        "expected_token": asked.field("expected_token"),
        "expected_owner": asked.field("expected_owner"),
        "reason": "frozen",
    }

    first = operator.post("/leases/run:42/reclaim", form)
    second = operator.post("/leases/run:42/reclaim", form, follow=True)

    assert first.url == "/leases/run:42"
    assert "This was done already" in Page(second).text
    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_an_operator_cannot_take_a_live_lease_and_a_senior_can(store, live, operator, log_in):
    assert "needs the role senior" in Page(operator.get("/leases/run:42/reclaim")).text
    forged = {
        "expected_token": str(live.token),
        "expected_owner": "w-3",
        "reason": "x",
        "force": "yes",
        "typed_owner": "w-3",
    }
    assert operator.post("/leases/run:42/reclaim", forged).status_code == 403
    assert store.lease("run:42").token == live.token

    done = reclaim(log_in("bo", "senior"), force="yes", typed_owner="w-3")

    assert done.status_code == 302
    assert store.lease("run:42").token is None


def test_a_live_lease_is_taken_only_by_a_separate_worded_choice(store, live, senior):
    """Case O-33 (docs/cases.md)."""
    without = reclaim(senior)
    assert without.status_code == 409
    assert "taking a live lease needs force" in Page(without).text

    mistyped = reclaim(senior, force="yes", typed_owner="w-4")
    assert mistyped.status_code == 422
    assert "Type w-3" in Page(mistyped).text
    assert store.lease("run:42").token == live.token


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reason": "   "}, "Say why"),
        ({"reason": "x" * 501}, "At most 500 characters"),
        ({"reason": "a\x07b"}, "no control characters"),
        ({"reason": "a\0b"}, "no U+0000 and no lone surrogate"),
        ({"hold_off_seconds": "-1"}, "Whole seconds from 0 to 86400"),
        ({"hold_off_seconds": "1e3"}, "Whole seconds from 0 to 86400"),
        ({"hold_off_seconds": "99999"}, "Whole seconds from 0 to 86400"),
        ({"expected_token": ""}, "The form has lost what you saw"),
        ({"expected_token": "x"}, "The form has lost what you saw"),
        ({"expected_owner": ""}, "The form has lost what you saw"),
    ],
)
def test_what_is_wrong_with_a_form_is_said_and_nothing_done(store, lapsed, operator, fields, told):
    answer = reclaim(operator, **fields)

    assert answer.status_code == 422
    assert told in Page(answer).text
    assert store.lease("run:42").token == lapsed.token


def test_a_viewer_sees_no_way_and_is_refused_and_written_down(store, lapsed, viewer):
    page = Page(viewer.get("/leases"))
    assert not [link for link in page.links if link.endswith("/reclaim")]

    answer = viewer.post(
        "/leases/run:42/reclaim",
        {"expected_token": str(lapsed.token), "expected_owner": "w-3", "reason": "try"},
    )

    assert answer.status_code == 403
    assert store.lease("run:42").token == lapsed.token
    assert ("not-allowed", "person:vi") in rows("SELECT code, actor FROM agentstate_refusal")


def test_a_token_of_another_time_is_refused(store, lapsed, operator):
    answer = reclaim(operator, expected_token=str(2**63 - 1))

    assert answer.status_code == 409
    assert store.lease("run:42").token == lapsed.token


def test_unknown_units_are_404s(store, operator):
    assert operator.get("/leases/nope").status_code == 404
    assert operator.get("/leases/nope/reclaim").status_code == 404
    assert operator.get("/leases/a%00b").status_code == 404


def test_a_unit_that_is_no_runs_has_a_page_and_can_be_reclaimed(store, still_clock, operator):
    store.acquire("mailbox:support@example.org", "w-1", ttl_seconds=10)
    still_clock.advance(seconds=60)

    assert reclaim(operator, "mailbox:support@example.org").status_code == 302
    assert "reclaimed by ana" in show(operator, "mailbox:support@example.org").text


def test_two_operators_meet_and_the_second_gets_the_difference(store, lapsed, operator):
    from django.test import Client

    second = Client()
    second.force_login(person("cy", "operator"))
    seen = Page(second.get("/leases/run:42/reclaim"))
    reclaim(operator)

    answer = second.post(
        "/leases/run:42/reclaim",
        {
            "form_key": seen.field("form_key"),
            "expected_token": seen.field("expected_token"),
            "expected_owner": seen.field("expected_owner"),
            "reason": "me too",
        },
    )

    assert answer.status_code == 409
    assert "Nothing was done" in Page(answer).text
    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_the_facts_alone_can_be_asked_for(store, lapsed, operator):
    asked = {"HX-Request": "true", "HX-Target": "facts"}
    link = Page(operator.get("/leases/run:42/reclaim")).html
    assert f"/reclaim?seen={lapsed.token}" in link

    same = Page(operator.get(f"/leases/run:42/reclaim?seen={lapsed.token}", headers=asked))
    store.acquire("run:42", "w-9")
    moved = Page(operator.get(f"/leases/run:42/reclaim?seen={lapsed.token}", headers=asked))

    assert "moved" not in same.ids
    assert "moved" in moved.ids
    assert f"you saw token {lapsed.token}, now w-9 has token" in moved.text
    for page in (same, moved):
        assert "<form" not in page.html


def test_the_facts_tell_how_the_holder_is_and_who_waits(store, still_clock, senior):
    store.create("42")
    announce(store, "w-3")
    lease = store.hold("42", "w-3", ttl_seconds=60)
    store.append("42", [event()], fence=lease.token)
    with pytest.raises(LeaseHeld):
        store.acquire("run:42", "w-8")
    still_clock.advance(seconds=15)
    store.renew("run:42", lease.token)

    text = Page(senior.get("/leases/run:42/reclaim")).text

    assert "Last accepted write 15s ago, event 4" in text
    assert "Heartbeat 15s ago" in text
    assert "Waiting for it, in 5 minutes w-8" in text


def test_what_was_begun_outside_and_not_ended_is_named(store, still_clock, operator):
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=60)
    for key in ("mail-7", "mail-8"):
        begun = NewEvent(type="mail.send", effect=Effect(key=key, state="begun"))
        store.append("42", [begun], fence=lease.token)
    ended = NewEvent(type="mail.sent", effect=Effect(key="mail-8", state="ended"))
    store.append("42", [ended], fence=lease.token)
    still_clock.advance(seconds=100)

    page = Page(operator.get("/leases/run:42/reclaim"))

    assert "Begun and not ended, so perhaps done: mail-7 mail.send, 1m 40s ago" in page.text
    assert "mail-8" not in page.text
    assert "/runs/42?event=4" in page.links


def test_what_an_operator_did_cannot_be_changed_through_the_console(store, lapsed, operator):
    """Case O-36 (docs/cases.md)."""
    store.as_caller(SENIOR).reclaim("run:42", token=lapsed.token, owner="w-3")

    for method in ("post", "put", "patch", "delete"):
        assert getattr(operator, method)("/audit").status_code == 405


def test_a_refresh_of_the_unit_brings_what_may_be_done_now(store, live, still_clock, operator):
    asked = {"HX-Request": "true", "HX-Target": "unit"}
    before = operator.get("/leases/run:42", headers=asked).content.decode()
    still_clock.advance(seconds=100)
    after = operator.get("/leases/run:42", headers=asked).content.decode()

    assert 'id="actions"' in before
    assert 'href="/leases/run:42/reclaim"' not in before
    assert 'href="/leases/run:42/reclaim"' in after
