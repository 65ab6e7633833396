"""What an operator does to a run beside moving it, and what the page shows of it."""

import json
from datetime import timedelta

import pytest

from agentstate.store.commands import (
    AnnounceWorker,
    BrakeRun,
    DrainWorker,
    Patch,
    PutTelemetry,
    SignalRun,
)
from agentstate.store.payloads import dump
from dashboard.access import DEEDS
from dashboard.queries import panels
from dashboard.views import checks, deeds
from tests.dashboard.reading import Page
from tests.store.asking import ANA, SENIOR, rows


def show(client, key="42", **asked):
    return Page(client.get(f"/runs/{key}", asked))


def asked(client, action, key="42"):
    return Page(client.get(f"/runs/{key}/{action}"))


def form_of(page, **fields):
    form = {"form_key": page.field("form_key"), "reason": "because"}
    for name in ("seen", "expected"):
        if [a for t, a in page.tags if t == "input" and a.get("name") == name]:
            form[name] = page.field(name)
    return form | fields


def send(client, action, key="42", **fields):
    return client.post(f"/runs/{key}/{action}", form_of(asked(client, action, key), **fields))


def actions():
    return rows("SELECT action, reason FROM agentstate_operatoraction ORDER BY id")


FIELDS = {
    "signal": {"signal": "drain"},
    "brake": {"per_second": "5", "minutes": "10"},
    "edit": {"notes": "look at it", "seen": "", "tags": "urgent"},
    "keep": {"hold": "yes", "days": ""},
}


@pytest.fixture
def run(store, still_clock):
    store.create("42", tags=("nightly",))
    return store.hold("42", "w-3")


@pytest.mark.parametrize("action", DEEDS)
def test_each_is_one_command_with_its_reason(store, run, operator, action):
    answer = send(operator, action, **FIELDS[action])

    assert answer.url == "/runs/42"
    assert [reason for _, reason in actions()] == ["because"]


@pytest.mark.parametrize("action", DEEDS)
def test_sent_twice_it_acts_once(store, run, operator, action):
    form = form_of(asked(operator, action), **FIELDS[action])

    for _ in range(2):
        assert operator.post(f"/runs/42/{action}", form).status_code == 302

    assert len(actions()) == 1


@pytest.mark.parametrize("action", DEEDS)
def test_a_viewer_sees_why_not_and_is_refused(store, run, viewer, action):
    assert f"/runs/42/{action}" not in show(viewer).links
    assert "needs the role operator" in asked(viewer, action).text
    form = {"reason": "x", "form_key": "0123456789abcdef"} | FIELDS[action]
    assert viewer.post(f"/runs/42/{action}", form).status_code == 403
    assert actions() == []


@pytest.mark.parametrize("action", DEEDS)
@pytest.mark.parametrize("reason", ["", " ", "x" * 501])
def test_a_reason_is_needed_and_short(store, run, operator, action, reason):
    answer = send(operator, action, **(FIELDS[action] | {"reason": reason}))

    assert answer.status_code == 422
    assert actions() == []


@pytest.mark.parametrize("action", DEEDS)
def test_what_is_not_there_is_not_found(operator, action):
    assert operator.get(f"/runs/nothing/{action}").status_code == 404
    assert operator.post(f"/runs/%00/{action}", {"reason": "x"}).status_code == 404


@pytest.mark.parametrize(
    ("action", "wrong"),
    [
        ("signal", {"signal": "dance"}),
        ("signal", {}),
        ("brake", {"per_second": "0", "minutes": "1"}),
        ("brake", {"per_second": "1.5", "minutes": "1"}),
        ("brake", {"per_second": "5", "minutes": "99999"}),
        ("brake", {"per_second": "9" * 18, "minutes": "1"}),
        ("edit", {"notes": "", "seen": ""}),
        ("edit", {"notes": "x\0y", "seen": ""}),
        ("edit", {"notes": "x" * 10_001, "seen": ""}),
        ("edit", {"notes": "", "seen": "", "tags": "t" * 65}),
        ("keep", {"days": "soon"}),
        ("keep", {"days": "-1"}),
        ("keep", {"days": "99999"}),
        ("keep", {}),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_done(store, run, operator, action, wrong):
    """S-405 (docs/sweeps.md): it was said below the reason, which was fine."""
    answer = send(operator, action, **wrong)

    assert answer.status_code == 422
    assert 'class="note note-bad" role="alert"' in answer.content.decode()
    assert "error-text" not in answer.content.decode()
    assert actions() == []


@pytest.mark.parametrize("action", ["signal", "brake"])
def test_an_ended_run_takes_none_of_these(store, run, operator, action):
    page = asked(operator, action)
    store.as_caller(ANA).move("42", "cancelled", reason="x")

    assert f"/runs/42/{action}" not in show(operator).links
    answer = operator.post(f"/runs/42/{action}", form_of(page, **FIELDS[action]))
    assert answer.status_code == 409
    assert "the run is cancelled" in Page(answer).text


@pytest.mark.parametrize("action", ["edit", "keep"])
def test_an_ended_run_is_still_noted_and_kept(store, run, operator, action):
    store.as_caller(ANA).move("42", "cancelled", reason="x")

    assert send(operator, action, **FIELDS[action]).status_code == 302


def test_a_signal_shows_whether_the_holder_was_told(store, still_clock, run, operator):
    send(operator, "signal", signal="drain")
    assert "not told yet drain by ana" in show(operator).text

    still_clock.advance(seconds=5)
    assert store.renew("run:42", run.token).signals[0].signal == "drain"

    assert "told drain by ana, 5s ago: “because”" in show(operator).text


def test_the_drain_of_its_holder_is_among_the_signals(store, run, operator):
    store.ask(AnnounceWorker(worker="w-3"))
    store.as_caller(ANA).ask(DrainWorker(worker="w-3", reason="the node goes"))

    assert "not told yet drain by ana" in show(operator).text


def test_a_signal_meant_for_another_holder_is_not_sent(store, still_clock, run, operator):
    page = asked(operator, "signal")
    still_clock.advance(seconds=100)
    store.acquire("run:42", "w-9")

    answer = Page(operator.post("/runs/42/signal", form_of(page, signal="cancel")))

    assert answer.status == 409
    assert f"w-3 #{run.token}" in answer.text
    assert "Somebody was faster. Nothing was done." in answer.text
    assert actions() == []


MEANWHILE = {
    "signal": lambda store, lease: store.release("run:42", lease.token),
    "brake": lambda store, lease: store.as_caller(SENIOR).ask(
        BrakeRun(run="42", per_second=1, seconds=600, reason="incident")
    ),
    "edit": lambda store, lease: store.as_caller(SENIOR).ask(Patch(run="42", notes="theirs")),
    "keep": lambda store, lease: store.as_caller(SENIOR).ask(Patch(run="42", retain_seconds=60)),
}


@pytest.mark.parametrize("action", DEEDS)
def test_who_is_faster_by_a_moment_is_seen_too(store, run, operator, action, monkeypatch):
    page = asked(operator, action)
    carry_out = deeds.carry_out

    def with_another_first(request, command):
        MEANWHILE[action](store, run)
        return carry_out(request, command)

    monkeypatch.setattr(deeds, "carry_out", with_another_first)
    answer = Page(operator.post(f"/runs/42/{action}", form_of(page, **FIELDS[action])))

    assert answer.status == 409
    assert "Somebody was faster. Nothing was done." in answer.text
    assert "because" not in [reason for _, reason in actions()]
    monkeypatch.undo()
    again = FIELDS[action] | ({"seen": "theirs"} if action == "edit" else {})
    again = form_of(answer, **again)
    assert operator.post(f"/runs/42/{action}", again).status_code == 302


@pytest.mark.parametrize(
    "expected",
    [
        "", "x", "[]", "{}", "true", "0", "-1", "NaN", "1e400", '"x"', '"2026-01-01"', '"\\ud800"',
        '"0001-01-01T00:00:00+23:59"', '{"hold": 1, "retain_seconds": "\\u0000"}',
        '{"hold": {"lt": 1}, "retain_seconds": null}', "[" * 99_999, "9" * 5_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("action", ["signal", "brake", "keep"])
def test_a_form_that_lost_what_was_seen_does_nothing(store, run, operator, action, expected):
    answer = send(operator, action, **FIELDS[action], expected=expected)

    assert answer.status_code == 422
    assert actions() == []


@pytest.mark.parametrize("action", ["signal", "brake", "keep"])
def test_a_form_of_an_older_release_is_shown_again(store, run, operator, action):
    form = form_of(asked(operator, action), **FIELDS[action])
    del form["expected"]
    answer = Page(operator.post(f"/runs/42/{action}", form))

    assert answer.status == 422
    assert operator.post(f"/runs/42/{action}", form_of(answer, **FIELDS[action])).status_code == 302


def test_notes_that_somebody_changed_meanwhile_are_shown_beside_mine(store, run, operator):
    form = {"form_key": asked(operator, "edit").field("form_key"), "reason": "x", "seen": ""}
    store.as_caller(SENIOR).ask(Patch(run="42", notes="theirs", reason="first"))

    answer = Page(operator.post("/runs/42/edit", form | {"notes": "mine"}))

    assert answer.status == 409
    assert "What changed since you saw it: + theirs" in answer.text
    assert "from how it is now to what you typed: - theirs + mine" in answer.text
    assert "mine</textarea>" in answer.html
    assert store.run("42").notes == "theirs"


def test_tags_are_a_set_whoever_else_adds_some(store, run, operator):
    form = {"form_key": asked(operator, "edit").field("form_key"), "reason": "x", "seen": ""}
    store.as_caller(SENIOR).ask(Patch(run="42", tags_add=("theirs",), reason="first"))

    answer = operator.post(
        "/runs/42/edit", form | {"notes": "", "tags": "mine, and one more", "remove": ["nightly"]}
    )

    assert answer.status_code == 302
    assert store.run("42").tags == ("and one more", "mine", "theirs")


def test_another_choice_in_a_form_that_was_sent_is_not_taken_for_the_first(store, operator):
    store.create("42", tags=("a", "b", "c"))
    form = form_of(asked(operator, "edit"), notes="", tags="")
    assert operator.post("/runs/42/edit", form | {"remove": ["c"]}).status_code == 302
    assert operator.post("/runs/42/edit", form | {"remove": ["a", "c"]}).status_code == 409
    assert store.run("42").tags == ("a", "b")


def test_a_live_run_that_is_written_to_can_be_noted_all_the_same(store, run, operator):
    form = {"form_key": asked(operator, "edit").field("form_key"), "reason": "x", "seen": ""}
    store.append("42", fence=run.token)

    assert operator.post("/runs/42/edit", form | {"notes": "a\r\nb"}).status_code == 302
    assert store.run("42").notes == "a\nb"
    assert "a b" in show(operator).text


def test_a_hold_and_the_days_are_kept_and_shown(store, run, operator):
    send(operator, "keep", hold="yes", days="30")

    assert (store.run("42").hold, store.run("42").retain_seconds) == (True, 30 * 86_400)
    assert "held: it never goes" in show(operator).text
    send(operator, "keep", days="30")
    assert "Kept 30d after its end" in show(operator).text


def test_a_brake_is_shown_and_lifted(store, still_clock, run, operator):
    send(operator, "brake", per_second="5", minutes="10")
    assert "5 writes a second for 10m" in show(operator).text

    assert send(operator, "brake", lift="yes").status_code == 302
    assert "writes a second" not in show(operator).text
    assert [action for action, _ in actions()] == ["run.braked", "run.brake-lifted"]


def test_what_the_holder_says_of_itself_is_shown_with_its_age(store, still_clock, run, viewer):
    said = PutTelemetry(
        run="42",
        host="node-a",
        model="<b>large</b>",
        progress=dump({"step": 4, "of": "<img src=x>"}),
        worker_time=still_clock.now + timedelta(seconds=3),
        fence=run.token,
    )
    store.ask(said)
    still_clock.advance(seconds=7)

    page = show(viewer)

    assert "as of 7s ago" in page.text
    assert "node-a" in page.text
    assert "Off by +3.0 s" in page.text
    assert "step: 4 of: <img src=x>" in page.text
    assert "<b>large</b>" in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_a_deadline_says_how_long_or_by_how_much(store, still_clock, viewer):
    due = still_clock.now + timedelta(minutes=10)
    store.create("42", deadline_at=due, deadline_policy="fail")

    assert "in 10m then it fails" in show(viewer).text
    still_clock.advance(minutes=13)
    assert "overdue by 3m" in show(viewer).text


def test_parent_and_parts_are_links(store, viewer):
    store.create("whole")
    for number in range(10):
        store.create(f"part-{number}", parent="whole")

    page = show(viewer, "whole")

    assert "/runs/part-0" in page.links
    assert "/runs?q=parent:whole" in page.links
    assert "/runs/whole" in show(viewer, "part-3").links
    assert len(Page(viewer.get("/runs", {"q": "parent:whole"})).rows()) == 10


def test_invariants_are_a_badge_and_a_page(store, run, viewer):
    store.append("42", fence=run.token)
    badge = viewer.get(
        "/runs/42/invariants", headers={"HX-Request": "true", "HX-Target": "invariants"}
    )

    last = store.run("42").last_seq
    assert f"{last}/{last}" in Page(badge).text
    assert "All adds up" in Page(viewer.get("/runs/42/invariants")).text
    assert "/runs/42/invariants" in show(viewer).links


def test_a_difference_is_told(store, run, viewer):
    rows("UPDATE agentstate_run SET version = version + 1")
    rows("SET LOCAL agentstate.damaged = 'on'")

    page = Page(viewer.get("/runs/42/invariants"))

    assert "1 difference" in page.text
    assert "version of the last event" in page.text


def test_a_check_that_takes_too_long_fails_alone(store, run, viewer, monkeypatch):
    def slow(**_run):
        rows("SELECT pg_sleep(30)")

    monkeypatch.setattr(checks, "CHECK_MS", 50)
    monkeypatch.setattr(checks.audit, "differences", slow)

    assert "stopped" in Page(viewer.get("/runs/42/invariants")).text
    assert panels.SLOW


def test_a_run_is_exported_as_lines(store, run, viewer):
    store.append("42", fence=run.token)

    answer = viewer.get("/runs/42/export")
    lines = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]

    assert 'filename="42.jsonl"' in answer["Content-Disposition"]
    assert len(lines) == store.run("42").last_seq + 2  # a head and an end
    assert viewer.get("/runs/nothing/export").status_code == 404


def test_the_commands_of_others_show_as_well(store, run, operator):
    store.as_caller(ANA).ask(SignalRun(run="42", signal="pause", reason="wait"))
    store.as_caller(ANA).ask(BrakeRun(run="42", per_second=3, seconds=60, reason="hot"))

    text = show(operator).text

    assert "pause by ana" in text
    assert "3 writes a second" in text


@pytest.mark.parametrize("action", sorted(DEEDS))
def test_a_page_that_asks_tells_of_no_signal_that_nobody_gave(store, run, operator, action):
    assert 'href="#says"' not in asked(operator, action).html
    ask = SignalRun(run="42", signal="pause", reason="the shop is closed")
    store.as_caller(ANA).ask(ask)
    assert "1 signal" in show(operator).text
