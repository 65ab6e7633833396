"""API keys at the console: shown once, kept as a hash, ended by name."""

import re

import pytest
from django.test import Client

from agentstate.store.keys import Unauthenticated, every_key, find_caller
from tests.dashboard.reading import Page
from tests.store.asking import rows


@pytest.fixture
def admin(log_in):
    return log_in("root", "admin")


def typed(page: Page, **values):
    return {"form_key": page.field("form_key"), "name": "fleet", "scopes": ["read", "write"],
            "days": "30", "reason": "the new fleet"} | values  # fmt: skip


def key_in(page: Page) -> list[str]:
    return re.findall(r"as_[0-9a-f]{32}_[\w-]{43}", page.html)


def test_a_key_is_shown_once_whatever_is_sent_again(store, admin):
    form = typed(Page(admin.get("/keys/-/new")))
    first = admin.post("/keys/-/new", form)
    (text,) = key_in(Page(first))
    assert "no-store" in first.headers["Cache-Control"]
    caller = find_caller(text)
    assert (caller.name, caller.scopes) == ("fleet", {"read", "write"})
    (key,) = every_key()
    assert round((key.expires_at - key.created_at).total_seconds() / 86_400, 2) == 30

    again = Page(admin.post("/keys/-/new", form))
    assert key_in(again) == []
    assert "was sent before" in again.text
    taken = admin.post("/keys/-/new", typed(Page(admin.get("/keys/-/new"))))
    assert taken.status_code == 422
    assert len(every_key()) == 1
    for address in ("/keys", "/audit", "/admin/agentstate/apikey/", "/keys/fleet/revoke"):
        assert text[40:] not in admin.get(address).content.decode()
    assert rows("SELECT actor, action, object, reason FROM agentstate_operatoraction") == [
        ("person:root", "key.created", "fleet", "the new fleet")
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"name": "a b"}, {"name": "x" * 300}, {"name": "a\0b"}, {"scopes": []},
        {"scopes": ["read", "everything"]}, {"days": "0"}, {"days": "x"}, {"days": "99999"},
        {"days": "-1"}, {"reason": " "},
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_no_key_is_made(store, admin, wrong):
    answer = admin.post("/keys/-/new", typed(Page(admin.get("/keys/-/new")), **wrong))
    assert answer.status_code == 422
    assert key_in(Page(answer)) == []
    assert every_key() == ()


def test_a_key_is_ended_by_its_name_with_a_reason(store, admin):
    """S-405 (docs/sweeps.md): a name that was mistyped was told below the reason as well."""
    made = Page(admin.post("/keys/-/new", typed(Page(admin.get("/keys/-/new")))))
    (text,) = key_in(made)
    form = {"form_key": "a" * 32, "reason": "it leaked", "typed": "fleet"}
    for wrong in ({"reason": ""}, {"typed": "flee"}):
        refused = admin.post("/keys/fleet/revoke", form | wrong)
        assert refused.status_code == 422
        assert Page(refused).text.count("Type fleet to end it.") == ("typed" in wrong)
        assert find_caller(text).name == "fleet"
    for _ in range(2):
        assert admin.post("/keys/fleet/revoke", form).status_code in (200, 302)
    with pytest.raises(Unauthenticated):
        find_caller(text)
    assert "revoked" in Page(admin.get("/keys")).text
    ended = "SELECT reason FROM agentstate_operatoraction WHERE action = 'key.revoked'"
    assert rows(ended) == [("it leaked",)]


def test_nobody_but_an_admin_makes_or_ends_one(store, log_in):
    for role in ("viewer", "operator", "senior"):
        client = log_in(f"p-{role}", role)
        values = {"name": "x", "scopes": ["admin"], "reason": "because"}
        assert client.post("/keys/-/new", values).status_code == 403
    assert Client().post("/keys/-/new", {"name": "x"}).status_code == 302
    assert every_key() == ()
    tried = rows("SELECT actor, action, object FROM agentstate_refusedaction ORDER BY id")
    assert tried[0] == ("person:p-viewer", "key.created", "x")
    assert len(tried) == 3
