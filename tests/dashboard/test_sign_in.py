"""Signing in: passwords, how often they may be tried, and the second step."""

import json
import re
import threading
import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from allauth.mfa.webauthn.internal.auth import WebAuthn
from django.contrib.auth.hashers import MD5PasswordHasher, make_password
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.test import Client, override_settings

from agentstate.store import retention
from agentstate.store.models import OperatorAction
from dashboard.models import Session, Try
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page

TABLE = "ALTER TABLE agentstate_operatoraction"


def sign_in(client, name="ana", password=None, **more):
    return client.post("/login", {"username": name, "password": password or f"pass-{name}"}, **more)


def code_of(secret, *, steps=0):
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps))


def test_a_right_password_is_no_try_and_a_wrong_one_is(db, still_clock):
    person("ana", "viewer")
    for _ in range(8):
        assert sign_in(Client()).status_code == 302
    assert not Try.objects.filter(tries__gt=0).exists()
    for _ in range(5):
        assert sign_in(Client(), password="no").status_code == 200

    out = sign_in(Client())

    assert (out.status_code, out["Retry-After"]) == (429, "300")
    assert "Tried too often. Try again in 5 minutes." in Page(out).text
    assert sign_in(Client(), "nobody", "no").status_code == 200  # others are not held up
    still_clock.advance(seconds=301)
    assert sign_in(Client()).status_code == 302


def test_an_address_may_try_so_many_names_and_a_proxy_tells_whose_it_is(db, still_clock):
    for number in range(20):
        sign_in(Client(), f"name-{number}", "no", REMOTE_ADDR="2001:db8::1")
    assert sign_in(Client(), "name-x", "no", REMOTE_ADDR="2001:db8::ff").status_code == 429
    assert sign_in(Client(), "name-x", "no", REMOTE_ADDR="2001:db9::1").status_code == 200
    behind = {"HTTP_X_FORWARDED_FOR": "6.6.6.6, 192.0.2.7", "REMOTE_ADDR": "2001:db8::1"}
    assert sign_in(Client(), "name-y", "no", **behind).status_code == 429
    with override_settings(PROXIES=1):
        assert sign_in(Client(), "name-y", "no", **behind).status_code == 200
    assert retention.purge("counted tries") == 0
    still_clock.advance(seconds=400)
    assert retention.purge("counted tries") > 20


def test_forty_wrong_ones_at_once_cost_five_hashes(transactional_db, monkeypatch):
    person("ana", "viewer")
    hashed, verify = [], MD5PasswordHasher.verify
    monkeypatch.setattr(
        MD5PasswordHasher, "verify", lambda *args: hashed.append(1) or verify(*args)
    )
    statuses, start = [], threading.Barrier(40)

    def guess(number):
        start.wait()
        try:
            address = f"192.0.2.{number}"
            statuses.append(sign_in(Client(), password="no", REMOTE_ADDR=address).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=guess, args=[number]) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(statuses) == [200] * 5 + [429] * 35
    assert len(hashed) == 5


def test_nobody_signs_up_and_what_is_not_needed_is_not_there(db):
    away = ("/signup", "/accounts/login/", "/password/reset", "/login/oidc", "/login/oidc/done")
    for address in (*away, "/account/codes/download"):
        assert Client().get(address).status_code == 404, address


def test_the_account_is_for_who_is_logged_in_also_without_a_role(db, log_in):
    for address in ("/account", "/account/app", "/account/password", "/account/keys/new",
                    "/account/codes", "/login/again"):  # fmt: skip
        assert Client().get(address)["Location"].startswith("/login?next=/"), address
    page = Page(log_in("new", None).get("/account"))
    assert "no role" in page.text
    assert "this one" in page.text


@pytest.mark.parametrize(
    ("host", "scheme", "told"),
    [
        ("localhost:8000", "http", None), ("ops.example.org", "https", None),
        ("127.0.0.1:8000", "http", "not to 127.0.0.1, but to localhost"),
        ("[::1]:8000", "https", "not to [::1]"), ("ops.example.org", "http", "with HTTPS alone"),
    ],
)  # fmt: skip
def test_where_a_browser_takes_no_security_key_the_page_says_so(
    log_in, settings, host, scheme, told
):
    """A button there would do nothing at all."""
    settings.ALLOWED_HOSTS = ["*"]
    client = log_in("ana", "operator")
    page = Page(client.get("/account", headers={"host": host}, secure=scheme == "https"))
    assert ("/account/keys/new" in page.links) is (told is None)
    assert told is None or told in page.text


def with_app(client, name="ana"):
    """The secret of an authenticator app that was just added."""
    assert client.get("/account/app")["Location"] == "/login/again?next=%2Faccount%2Fapp"
    again = client.post(
        "/login/again?next=/account/app", {"password": f"pass-{name}", "next": "/account/app"}
    )
    assert again["Location"] == "/account/app"
    wrong = client.post("/account/app", {"code": "000000"})
    assert "Incorrect code" in Page(wrong).text
    secret, done = add_app(client)
    assert done["Location"] == "/account/codes"
    return secret


def add_app(client):
    page = client.get("/account/app").content.decode()
    secret = re.search(r'id="totp-secret">([A-Z2-7]+)<', page)[1]
    return secret, client.post("/account/app", {"code": code_of(secret)})


def test_a_second_step_is_asked_for_once_it_is_there(transactional_db):
    ana = person("ana", "viewer")
    first = Client()
    sign_in(first)
    secret = with_app(first)
    codes = re.findall(r"<li>(\d{8})</li>", first.get("/account/codes").content.decode())
    assert len(codes) == 10
    assert not re.findall(r"<li>\d{8}</li>", first.get("/account/codes").content.decode())
    kept = Authenticator.objects.get(user=ana, type="totp").data["secret"]
    assert secret not in kept

    client = Client()
    assert sign_in(client)["Location"] == "/login/second"
    assert client.get("/runs").status_code == 302  # not yet
    assert "Incorrect code" in Page(client.post("/login/second", {"code": "000000"})).text
    code = code_of(secret, steps=1)
    assert client.post("/login/second", {"code": code})["Location"] == "/"
    assert client.get("/runs").status_code == 200

    replay = Client()
    sign_in(replay)
    assert replay.post("/login/second", {"code": code}).status_code == 200
    assert replay.post("/login/second", {"code": codes[0]})["Location"] == "/"
    spent = Client()
    sign_in(spent)
    assert spent.post("/login/second", {"code": codes[0]}).status_code == 200
    for _ in range(5):
        told = Page(spent.post("/login/second", {"code": "000000"})).text
    assert "Tried too often" in told

    assert first.post("/account/app/off")["Location"] == "/account"
    assert not Authenticator.objects.exists()
    assert sign_in(Client())["Location"] == "/"
    told = list(OperatorAction.objects.order_by("id").values_list("actor", "action", "after"))
    assert told == [
        ("person:ana", "person.second-step-added", {"kind": "totp"}),
        ("person:ana", "person.second-step-added", {"kind": "recovery_codes"}),
        ("person:ana", "person.second-step-removed", {"kind": "totp"}),
        ("person:ana", "person.second-step-removed", {"kind": "recovery_codes"}),
    ]


def test_a_code_is_good_once_however_it_is_written(transactional_db):
    person("ana", "viewer")
    first, second = Client(), Client()
    sign_in(first)
    secret = with_app(first)
    code = code_of(secret, steps=1)
    for client in (first, second):
        client.cookies.clear()
        sign_in(client)
    assert first.post("/login/second", {"code": code})["Location"] == "/"
    for written in (code, f"{code[:3]} {code[3:]}", f"{code[:3]}-{code[3:]}", f"{code}."):
        cache.clear()  # as another process, which keeps its own
        assert second.post("/login/second", {"code": written}).status_code == 200, written
        assert second.get("/runs").status_code == 302


def test_whatever_is_said_to_be_a_keys_answer_is_answered(transactional_db):
    person("ana", "viewer")
    client, half = Client(), Client()
    sign_in(client)
    with_app(client)
    sign_in(half)
    response = {"clientDataJSON": "e30", "attestationObject": "oWNmbXQ", "signature": "AAAA",
                "authenticatorData": "A" * 60}  # fmt: skip
    key = {"id": "AAAA", "rawId": "AAAA", "type": "public-key", "response": response}
    said = ["", "1", "[]", "{}", '{"id": 1}', "[" * 100_000, json.dumps(key)]
    for name, value in (("id", "\0"), ("rawId", 5), ("type", "\ud800"), ("response", [])):
        said.append(json.dumps(key | {name: value}))
    for name in response:
        for value in (10**40, "\0", "////", {"a": 1}):
            said.append(json.dumps(key | {"response": response | {name: value}}))
    for one in said:
        assert client.get("/account/keys/new").status_code == 200
        assert client.post("/account/keys/new", {"credential": one}).status_code == 200, one
        assert half.post("/login/second", {"credential": one}).status_code == 200, one
    named = {"credential": json.dumps(key), "name": "x" * 61}
    refused = client.post("/account/keys/new", named, headers={"host": "localhost"})
    assert "at most 60 characters" in Page(refused).text
    assert half.get("/runs").status_code == 302


def test_who_passed_with_a_password_that_was_changed_begins_anew(transactional_db):
    ana = person("ana", "viewer")
    first, second = Client(), Client()
    sign_in(first)
    secret = with_app(first)
    for change in ({"password": make_password("another-1")}, {"is_active": False}):
        sign_in(second, password="pass-ana")
        User.objects.update(**change)
        answer = second.post("/login/second", {"code": code_of(secret, steps=1)})
        assert answer["Location"] == "/login"
        assert second.get("/runs").status_code == 302
        assert second.get("/login/second")["Location"] == "/login"
        User.objects.update(password=ana.password, is_active=True)
        Try.objects.all().delete()  # the same code once more
        cache.clear()


def test_what_the_audit_cannot_keep_is_not_done(db):
    ana, client = person("ana", "viewer"), Client()
    sign_in(client)
    again = {"password": "pass-ana", "next": "/account"}
    assert client.post("/login/again?next=/account", again)["Location"] == "/account"
    client.raise_request_exception = False

    def steps():
        return list(Authenticator.objects.order_by("id").values_list("id", "type", "data"))

    def told():
        return list(OperatorAction.objects.order_by("id").values_list("action", "after"))

    def refused_then_done(change):
        """What stands after it: first with an audit that takes no row, then with one that does."""
        kept, rows = steps(), told()
        with connection.cursor() as cursor:
            cursor.execute(f"{TABLE} ADD CONSTRAINT no_row CHECK (false) NOT VALID")
            assert change().status_code == 500
            assert (steps(), told()) == (kept, rows)
            cursor.execute(f"{TABLE} DROP CONSTRAINT no_row")
        assert change().status_code == 302
        return [kind for _, kind, _ in steps()], told()[len(rows) :]

    added, removed = "person.second-step-added", "person.second-step-removed"
    assert refused_then_done(lambda: add_app(client)[1]) == (
        ["totp", "recovery_codes"],
        [(added, {"kind": "totp"}), (added, {"kind": "recovery_codes"})],
    )
    assert refused_then_done(lambda: client.post("/account/codes/new")) == (
        ["totp", "recovery_codes"],
        [("person.recovery-codes", {})],
    )
    key = WebAuthn.add(ana, "yubi", {}).instance
    assert refused_then_done(lambda: client.post(f"/account/keys/{key.pk}/remove")) == (
        ["totp", "recovery_codes"],
        [(removed, {"kind": "webauthn"})],
    )
    assert refused_then_done(lambda: client.post("/account/app/off")) == (
        [],
        [(removed, {"kind": "totp"}), (removed, {"kind": "recovery_codes"})],
    )
    new = {"oldpassword": "pass-ana", "password1": "correct-1", "password2": "correct-1"}
    assert refused_then_done(lambda: client.post("/account/password", new)) == (
        [],
        [("person.password", {})],
    )
    assert client.get("/account").status_code == 200


def test_a_secret_that_cannot_be_opened_lets_nobody_in(db):
    person("ana", "viewer")
    client = Client()
    sign_in(client)
    secret = with_app(client)
    with override_settings(SECRET_KEY="another" * 9):
        other = Client()
        sign_in(other)
        assert other.post("/login/second", {"code": code_of(secret, steps=1)}).status_code == 200
        assert other.post("/login/second", {"code": code_of("", steps=0)}).status_code == 200
    with override_settings(SECRET_KEY="another" * 9, SECRET_KEY_FALLBACKS=[settings_key()]):
        assert client.get("/runs").status_code == 200  # whoever was in stays in
        sign_in(other)
        code = code_of(secret, steps=1)
        assert other.post("/login/second", {"code": code}).status_code == 302


def settings_key():
    from tests import settings

    return settings.SECRET_KEY


def test_another_password_ends_the_other_sessions(transactional_db):
    person("ana", "viewer")
    here, there = Client(), Client()
    sign_in(here)
    sign_in(there)
    new = {"password1": "correct-horse-1", "password2": "correct-horse-1"}
    assert here.post("/account/password", {"oldpassword": "no"} | new).status_code == 200
    assert here.post("/account/password", {"oldpassword": "pass-ana"} | new).url == "/account"
    assert here.get("/runs").status_code == 200
    assert there.get("/runs").status_code == 302
    assert OperatorAction.objects.get().action == "person.password"
    # An open stream of the other one looks at its row alone (live/sessions.py).
    assert Session.objects.get().session_key == here.session.session_key


def test_a_way_in_that_is_sent_twice_leads_in(db):
    person("ana", "viewer")
    client = Client(enforce_csrf_checks=True)
    page = client.get("/login").content.decode()
    fields = {"csrfmiddlewaretoken": re.search(r'csrfmiddlewaretoken" value="(\w+)"', page)[1],
              "username": "ana", "password": "pass-ana"}  # fmt: skip
    assert [client.post("/login", fields)["Location"] for _ in range(2)] == ["/", "/"]
    assert client.post("/settings", fields).status_code == 403
    client.cookies.clear()
    assert client.post("/login", fields).status_code == 403


def test_odd_input_is_an_answer(db):
    for fields in ({}, {"username": "a\0b", "password": "x"}, {"username": "x" * 200,
                   "password": "y"}, {"username": "a", "password": "z" * 5_000}):  # fmt: skip
        assert Client().post("/login", fields).status_code == 200, fields
    assert Client().get("/login?next=http://[").status_code == 200
    assert Client().post("/login/second", {"code": "1"})["Location"] == "/login"
