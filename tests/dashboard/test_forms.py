"""Every form that acts: without scripts, twice, after Back, altered, without a session, forged.

One table of forms. Whatever happens, there is one effect at most, and nothing is told as done that
was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import pytest
from django.test import Client

from agentstate import store as the_store
from agentstate.store import alerts, deliveries, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import CreateBudget, NewBudget, PutRule, TryTarget
from agentstate.store.made import Definition
from agentstate.store.minutes import TALLY, Tally
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.store.asking import ANA, rows

HOOK = "https://hooks.example.org/T0/s3cret-path"
NOT_DONE = ("Nothing was done", "Nothing was kept", "Nothing was changed", "Nothing is kept")


class Forms(HTMLParser):
    """The forms of a page as a browser without scripts would send them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._select = self._text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = {"method": a.get("method", "get"), "action": a.get("action", "")}
            self._open["fields"] = {}
            self.forms.append(self._open)
        if self._open is None or (tag != "option" and not a.get("name")):
            return
        fields: dict[str, Any] = self._open["fields"]
        kind = a.get("type", "text")
        if tag == "input" and kind in ("checkbox", "radio"):
            if "checked" in a:
                fields.setdefault(a["name"], []).append(a.get("value", "on"))
        elif tag == "input":
            fields[a["name"]] = [a.get("value", "")]
        elif tag == "textarea":
            self._text = a["name"]
            fields[a["name"]] = [""]
        elif tag == "select":
            self._select = a["name"]
        elif tag == "option" and self._select and ("selected" in a or self._select not in fields):
            fields[self._select] = [a.get("value", "")]

    def handle_data(self, data: str) -> None:
        if self._text and self._open:
            self._open["fields"][self._text][0] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None
        if tag == "select":
            self._select = ""
        if tag == "textarea" and self._text and self._open:
            text = self._open["fields"][self._text]
            text[0] = text[0].removeprefix("\n")  # HTML does not count the first one
            self._text = ""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form that acts. address: of its page. typed: what somebody types. action: of the audit, by
    which its effects are counted. other: what is typed after Back, to send it once more altered.
    """

    address: str
    role: str = "operator"
    typed: Mapping[str, Any] = field(default_factory=dict)
    action: str
    other: Mapping[str, Any] = field(default_factory=lambda: {"reason": "another one"})
    to: str = ""
    with_key: bool = True


WHY = {"reason": "because"}
TARGET = "/alerts/-/targets"
FORMS = {
    "acknowledge": Form(
        address="/alerts/overdue-runs/acknowledge", typed=WHY, action="alert.acknowledged"
    ),
    "snooze": Form(
        address="/alerts/overdue-runs/snooze", typed=WHY | {"minutes": "30"}, action="alert.snoozed"
    ),
    "bounds": Form(
        address="/alerts/fenced/bounds", typed=WHY | {"warn": "7"}, action="alert-rule.changed"
    ),
    "make a rule": Form(
        address="/alerts/-/rules/-/new",
        typed=WHY | {"name": "own-new", "title": "New"},
        action="alert-rule.made",
    ),
    "edit a rule": Form(
        address="/alerts/-/rules/own-mine", typed=WHY | {"warn": "1.5"}, action="alert-rule.edited"
    ),
    "delete a rule": Form(
        address="/alerts/-/rules/own-mine/delete", typed=WHY, action="alert-rule.deleted"
    ),
    "add a target": Form(
        address=f"{TARGET}/-/new",
        role="admin",
        typed={"name": "new", "kind": "webhook", "address": HOOK, "least": "warn"},
        action="target.created",
        other={"address": f"{HOOK}-2"},
    ),
    "change a target": Form(
        address=f"{TARGET}/ops/change",
        role="admin",
        typed=WHY | {"least": "alert"},
        action="target.changed",
    ),
    "another secret": Form(
        address=f"{TARGET}/ops/rotate", role="admin", typed=WHY, action="target.secret-rotated"
    ),
    "delete a target": Form(
        address=f"{TARGET}/ops/delete", role="admin", typed=WHY, action="target.deleted"
    ),
    "try a target": Form(
        address=f"{TARGET}/ops", role="admin", action="target.tested", to="/test", other={}
    ),
    "quiet hours of a target": Form(
        address=f"{TARGET}/ops/quiet",
        role="admin",
        typed=WHY | {"on": "yes", "begins": "22:00", "ends": "07:00"},
        action="quiet-hours.set",
    ),
    "how long something is kept": Form(
        address="/system/retention/refusals",
        role="admin",
        typed=WHY | {"days": "10"},
        action="retention.changed",
        other={"days": "12"},
    ),
    "send again": Form(
        address="delivery", role="admin", action="delivery.resent", other={}
    ),
    "own quiet hours": Form(
        address="/settings/quiet",
        role="viewer",
        typed={"on": "yes", "begins": "22:00", "ends": "07:00"},
        action="quiet-hours.set",
        other={"ends": "08:00"},
    ),
    "settings": Form(
        address="/settings",
        role="viewer",
        typed={"zone": "Europe/Berlin"},
        action="settings",
        other={"zone": "Asia/Tokyo"},
        with_key=False,
    ),
    "reclaim": Form(
        address="/leases/run:lapsed/reclaim",
        typed=WHY | {"hold_off_seconds": "0"},
        action="lease.reclaimed",
    ),
    "a cap": Form(
        address="/budgets/team/cap?cap=700",
        role="senior",
        typed=WHY | {"cap": "700"},
        action="budget.",
    ),
    "notes": Form(address="/runs/42/edit", typed=WHY | {"notes": "look"}, action="run.changed"),
    "signal": Form(
        address="/runs/42/signal", typed=WHY | {"signal": "drain"}, action="run.signalled"
    ),
}  # fmt: skip


@pytest.fixture
def scene(store, still_clock, monkeypatch) -> str:
    """What the forms are about. Returns the address of a delivery."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()
    store.create("42")
    store.create("lapsed")
    store.hold("lapsed", "w-1", ttl_seconds=5)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=500)))
    store.create("late", deadline_at=still_clock.now + timedelta(seconds=5))
    targets.create_target(
        name="ops", kind="webhook", address=HOOK, hint="https://hooks.example.org/…", by=SYSTEM
    )
    definition = Definition(title="Mine", metric="fenced")
    the_store.execute(
        PutRule(rule="own-mine", version=0, definition=definition, warn=1, alert=2, reason="x"),
        by=ANA,
    )
    still_clock.advance(seconds=10)
    alerts.evaluate_all()
    the_store.execute(TryTarget(name="ops"), by=SYSTEM)
    test = next(d for d in deliveries.read() if d.what == "test")
    rows("UPDATE agentstate_delivery SET state = 'failed', settled_at = agentstate_now(),"
         " attempts = 1 WHERE what = 'test' RETURNING 1")  # fmt: skip
    return f"/alerts/-/deliveries/{test.id}"


@pytest.fixture(params=FORMS, ids=str)
def form(request, scene) -> Form:
    found = FORMS[request.param]
    where = scene if found.address == "delivery" else found.address
    return Form(**{**found.__dict__, "address": where})


def open_form(client: Client, form: Form) -> tuple[str, dict[str, Any]]:
    """Somebody opens the form and fills it in: where it goes, and what it sends."""
    answer = client.get(form.address)
    assert answer.status_code == 200
    wanted = "form_key" if form.with_key else "seen_version"
    found = [
        one
        for one in Forms(answer.content.decode()).forms
        if wanted in one["fields"] and one["action"].endswith(form.to)
    ]
    assert [one["method"] for one in found] == ["post"]
    assert found[0]["fields"]["csrfmiddlewaretoken"]
    return found[0]["action"] or form.address, found[0]["fields"] | dict(form.typed)


def effects(form: Form) -> int:
    """How often it was done."""
    if form.action == "settings":
        return int(rows("SELECT coalesce(sum(version), 0) FROM dashboard_preference")[0][0])
    statement = "SELECT count(*) FROM agentstate_operatoraction WHERE action LIKE %s"
    return int(rows(statement, f"{form.action}%")[0][0])


def is_told_as_done(client: Client, answer: Any) -> bool:
    """What the person reads then: the page that was answered, or the one that it leads to."""
    page = client.get(answer.url) if answer.status_code == 302 else answer
    text = Page(page).text
    return page.status_code == 200 and not any(words in text for words in NOT_DONE)


def test_whatever_happens_to_a_form_there_is_one_effect_and_no_false_done(form):
    """Case O-37 (docs/cases.md)."""
    before = effects(form)
    somebody = person("bo", form.role)
    client = Client()
    client.force_login(somebody)
    address, fields = open_form(client, form)

    left_empty_or_filled_with_nonsense(client, form, address, fields)
    forged(client, address, fields)
    without_a_session(client, address, fields)
    assert effects(form) == before

    client.force_login(somebody)
    first = client.post(address, fields)
    assert first.status_code in (200, 302), Page(first).text[:400]
    assert is_told_as_done(client, first)
    assert effects(form) == before + 1
    second = client.post(address, fields)  # a double click, or Back and sent again
    assert second.status_code in (200, 302, 404, 409), Page(second).text[:400]
    if form.other:
        altered = client.post(address, fields | dict(form.other))  # Back, and something else typed
        assert altered.status_code in (404, 409, 422), Page(altered).text[:400]
        assert not is_told_as_done(client, altered)
    assert effects(form) == before + 1


def left_empty_or_filled_with_nonsense(
    client: Client, form: Form, address: str, fields: dict[str, Any]
) -> None:
    if not form.other:
        return  # there is nothing to fill in
    hidden = {name: fields[name] for name in fields if name == "form_key"}
    strange = [dict.fromkeys(fields, text) for text in ("\u202e\ud7ff" * 300, "-1")]
    for wrong in ({}, hidden, *strange):
        if wrong.get("notes") == "-1":
            continue  # somebody may note that
        answer = client.post(address, wrong)
        assert answer.status_code in (409, 422), (wrong, Page(answer).text[:300])
        assert not is_told_as_done(client, answer) or answer.status_code == 422


def forged(client: Client, address: str, fields: dict[str, Any]) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    bare = {name: value for name, value in fields.items() if name != "csrfmiddlewaretoken"}
    assert strict.post(address, bare).status_code == 403


def without_a_session(client: Client, address: str, fields: dict[str, Any]) -> None:
    """It leads to the login and back to the page that asks, and is not done by itself then."""
    client.logout()
    answer = client.post(address, fields)
    path = address.partition("?")[0]  # an action never runs by itself: it goes to its page
    assert (answer.status_code, unquote(answer.url)) == (302, f"/login?next={path}")
    back = client.post(answer.url, {"username": "bo", "password": "pass-bo"})
    assert (back.status_code, back.url) == (302, path)
    shown = client.get(address)
    if shown.status_code == 405:  # a button that has no page of its own
        return
    assert shown.status_code == 200
    assert 'class="toasts"' not in shown.content.decode()


def test_a_form_beyond_the_limits_is_told_which_and_nothing_is_done(log_in):
    """S-118 (docs/sweeps.md): "not one that this page can read", whatever was too much."""
    client = log_in("ana", "operator")
    large = client.post("/runs/-/views", {"name": "x" * 2_700_000})
    many = client.post("/runs/-/views", {f"f{n}": "1" for n in range(1_001)})
    assert (large.status_code, many.status_code) == (413, 400)
    assert "at most 2.5 MiB" in Page(large).text
    assert "at most 1,000 fields" in Page(many).text
    for page in (large, many):
        assert "Nothing was changed" in Page(page).text
