"""Alerts on screen: what fires first, what to do next, who is at it, and silence that is shown."""

from datetime import timedelta

import pytest

from agentstate.store import alerts
from agentstate.store.alerting import RULES
from agentstate.store.errors import SeqConflict
from agentstate.store.minutes import TALLY, Tally
from agentstate.store.payloads import moment
from dashboard.queries import alerts as queries
from tests.dashboard.reading import Page
from tests.store.asking import rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    """Nothing writes what was counted by itself: on a busy machine slow writes are an alert."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


@pytest.fixture
def firing(store, still_clock):
    """A run is past its deadline, and somebody has looked."""
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=10))
    still_clock.advance(seconds=70)
    alerts.evaluate_all()


def show(client):
    return Page(client.get("/alerts"))


def acknowledge(client, rule="overdue-runs", **fields):
    asked = Page(client.get(f"/alerts/{rule}/acknowledge"))
    form = {name: asked.field(name) for name in ("form_key", "seen_version")}
    return client.post(f"/alerts/{rule}/acknowledge", form | {"reason": "asking"} | fields)


def test_before_anybody_evaluates_it_says_so(viewer):
    page = show(viewer)
    assert "Nobody has evaluated yet." in page.text
    assert page.rows("rule-") == list(RULES)
    assert "Nothing fires" not in page.text


def test_when_nothing_fires_it_says_when_it_was_checked(still_clock, viewer):
    alerts.evaluate_all()
    still_clock.advance(seconds=4)
    page = show(viewer)
    assert f"Nothing fires. {len(RULES)} rules, checked 4s ago." in page.text
    assert "No write was counted in these 5 min" in page.text
    assert "No alert has changed its state yet" in page.text


def test_what_fires_has_its_value_bounds_age_and_next_step(firing, viewer):
    page = show(viewer)
    assert "Past their deadline and not ended: 1." in page.text
    assert "It alerts from 1." in page.text
    assert page.link(r"/runs\?q=overdue%3Ayes")
    assert "late" in page.text
    assert "overdue-runs" not in page.rows("rule-")
    assert "ok → alert" in page.text or "no-data → alert" in page.text


def badge(page):
    found = [t for t in page.html.split("<li") if 'href="/alerts"' in t]
    return "badge" in found[0]


def test_the_badge_counts_what_nobody_is_at(firing, operator):
    assert badge(show(operator))
    answer = acknowledge(operator, reason="the owner is asked")
    assert answer.url == "/alerts"
    page = show(operator)
    assert not badge(page)
    assert "Acknowledged by ana" in page.text
    assert "“the owner is asked”" in page.text
    assert rows("SELECT actor, action, object FROM agentstate_operatoraction") == [
        ("person:ana", "alert.acknowledged", "overdue-runs")
    ]
    assert "the owner is asked" in Page(operator.get("/audit")).text


def test_silence_is_told_and_the_old_state_stays(firing, still_clock, viewer):
    still_clock.advance(minutes=10)
    text = show(viewer).text
    assert "Nobody has evaluated for 10m : what stands here is old." in text
    assert "Past their deadline and not ended: 1." in text


def test_the_same_form_sent_twice_acts_once(firing, operator):
    asked = Page(operator.get("/alerts/overdue-runs/acknowledge"))
    form = {"reason": "asking"} | {n: asked.field(n) for n in ("form_key", "seen_version")}
    for _ in range(2):
        assert operator.post("/alerts/overdue-runs/acknowledge", form).url == "/alerts"
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(1,)]


def test_it_needs_a_reason_and_what_was_seen(firing, operator):
    for wrong in (
        {"reason": "  "}, {"reason": "x" * 501}, {"reason": "a\0b"}, {"reason": "a\x07b"},
        {"seen_version": ""}, {"seen_version": "0"},
    ):  # fmt: skip
        assert acknowledge(operator, **wrong).status_code == 422
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(0,)]


def test_one_that_has_changed_meanwhile_is_not_acknowledged(firing, still_clock, store, operator):
    asked = Page(operator.get("/alerts/overdue-runs/acknowledge"))
    store.move("late", "cancelled")
    still_clock.advance(minutes=2)
    alerts.evaluate_all()
    form = {"reason": "asking"} | {n: asked.field(n) for n in ("form_key", "seen_version")}
    page = Page(operator.post("/alerts/overdue-runs/acknowledge", form))
    assert page.status == 409
    assert "Nothing was done: it has changed since you looked." in page.text
    assert "It does not fire: there is nothing to acknowledge." in page.text


def test_a_viewer_may_look_and_not_acknowledge(firing, viewer):
    assert "Acknowledging needs the role operator" in show(viewer).text
    page = Page(viewer.get("/alerts/overdue-runs/acknowledge"))
    assert "You cannot acknowledge it: it needs the role operator." in page.text
    forged = {"seen_version": "1", "reason": "x", "form_key": "a" * 32}
    assert viewer.post("/alerts/overdue-runs/acknowledge", forged).status_code == 403


def test_an_unknown_rule_is_a_404(operator):
    assert operator.get("/alerts/none/acknowledge").status_code == 404
    assert operator.get("/alerts/%00/acknowledge").status_code == 404
    assert operator.delete("/alerts/overdue-runs/acknowledge").status_code == 405


def test_every_rule_leads_somewhere(db):
    assert set(queries.PLACES) == set(RULES)
    assert {name for name, _ in queries.PLACES.values()} == set(queries.NAMES)


def test_bounds_are_said_in_words():
    words = {name: queries.read_line(rule, None).bounds for name, rule in RULES.items()}
    assert words["budget-nearly-used"] == "warns from 80 %, alerts from 95 %"
    assert words["overdue-runs"] == "alerts from 1"
    assert words["key-expires"] == "warns at 7 days, alerts at 24 h or less"


# --- snooze --------------------------------------------------------------------------------------


def snooze(client, rule="overdue-runs", **fields):
    asked = Page(client.get(f"/alerts/{rule}/snooze"))
    form = {name: asked.field(name) for name in ("form_key", "seen_version")}
    told = {"reason": "known", "minutes": "30"}
    return client.post(f"/alerts/{rule}/snooze", form | told | fields)


def test_a_snoozed_alert_says_until_when_by_whom_and_why_and_leaves_the_badge(firing, operator):
    assert badge(show(operator))
    assert snooze(operator).url == "/alerts"
    page = show(operator)
    assert "Snoozed alert" in page.text
    assert "Snoozed by ana until" in page.text
    assert "“known”" in page.text
    assert not badge(page)
    assert snooze(operator, wake="yes", minutes="").url == "/alerts"
    assert "Snoozed" not in show(operator).text
    assert badge(show(operator))


def test_a_rule_that_does_not_fire_can_be_snoozed_too(firing, operator):
    assert show(operator).link("/alerts/fenced/snooze")
    assert snooze(operator, "fenced").url == "/alerts"
    assert "Snoozed until" in show(operator).text


def test_a_snooze_needs_minutes_a_reason_and_what_was_seen(firing, operator):
    for wrong in (
        {"minutes": ""}, {"minutes": "0"}, {"minutes": "-1"}, {"minutes": "1.5"},
        {"minutes": "43201"}, {"reason": " "}, {"seen_version": ""}, {"seen_version": "x"},
    ):  # fmt: skip
        assert snooze(operator, **wrong).status_code == 422, wrong
    assert snooze(operator, seen_version="9").status_code == 409


def test_a_viewer_may_not_snooze(firing, viewer):
    page = Page(viewer.get("/alerts/overdue-runs/snooze"))
    assert "You cannot snooze it: it needs the role operator." in page.text
    assert "/snooze" not in show(viewer).html
    forged = {"seen_version": "1", "reason": "x", "minutes": "5", "form_key": "a" * 32}
    assert viewer.post("/alerts/overdue-runs/snooze", forged).status_code == 403
    assert viewer.get("/alerts/none/snooze").status_code == 404


def test_while_nobody_judges_that_is_an_alert_and_counts(firing, still_clock, operator):
    acknowledge(operator)
    assert not badge(show(operator))
    still_clock.advance(minutes=10)
    page = show(operator)
    assert badge(page)
    assert "Nobody judged the alerts" in page.text
    assert "Nobody has judged the alerts for 600 s." in page.text


def test_a_change_and_what_fires_lead_to_whom_they_are_about_as_of_then(store, still_clock, viewer):
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=5))
    store.hold("late", "w-1", ttl_seconds=30)
    still_clock.advance(seconds=100)
    alerts.evaluate_all()
    fired = still_clock.now
    still_clock.advance(seconds=3)

    page = Page(viewer.get("/alerts"))

    then = f"?asof={moment(fired)}".replace(":", "%3A")
    assert page.links.count(f"/runs/late{then}") == 2
    assert page.links.count(f"/leases/run:late{then}") == 2
    assert "lapsed 1m 10s ago" in Page(viewer.get(f"/leases/run:late{then}")).text


def test_alerts_about_rates_name_the_runs_that_have_most_of_it(store, still_clock, viewer):
    for key, conflicts in (("calm", 1), ("hot", 12)):
        store.create(key)
        for _ in range(conflicts):
            with pytest.raises(SeqConflict):
                store.append(key, expected_seq=99)
    for _ in range(8):
        store.append("calm")
    TALLY.write()
    alerts.evaluate_all()

    (line,) = [one for one in queries.read().firing if one.rule.name == "conflict-share"]

    assert [one.name for one in line.names] == ["hot", "calm"]
    assert line.names[0].address.startswith("/runs/hot?asof=")
