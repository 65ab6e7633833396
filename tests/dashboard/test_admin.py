"""The admin: who gets in, that nothing there goes round the store, people and their passwords."""

import re
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentstate.store import targets
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AnnounceWorker, CreateBudget, NewBudget
from agentstate.store.errors import Refusal
from agentstate.store.keys import create_key
from dashboard.administration import reading
from dashboard.administration.site import PAGE_MS, site
from dashboard.models import Preference, SavedView, Session
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.store.asking import ANA, VIEWER, at_once, rows

OF_STORE = [model for model in site._registry if model._meta.app_label == "agentstate"]
ANSWERED = (302, 400, 403, 404, 405)


@pytest.fixture
def admin(log_in):
    return log_in("root", "admin")


@pytest.fixture
def filled(store):
    """A row in each table that the admin shows."""
    store.create("42")
    store.ask(CreateBudget(run="42", budget=NewBudget(name="tokens", cap=10)))
    store.hold("42", "w-1")
    store.ask(AnnounceWorker(worker="w-1", version="1.0"))
    with pytest.raises(Refusal):
        store.append("42", fence=7)
    with pytest.raises(Refusal):
        store.as_caller(VIEWER).move("42", "paused", reason="please")
    store.as_caller(ANA).move("42", "paused", reason="for now")
    create_key(name="fleet", scopes=("read",), by=SYSTEM)
    targets.create_target(
        name="hook", kind="webhook", address="https://example.org/x", hint="example.org", by=SYSTEM
    )
    for model in OF_STORE:
        assert model._default_manager.exists(), model


def addresses(model):
    """The list, and each way to add, change or delete the first row."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    pk = quote(pk_of(model))
    return (
        reverse(f"{name}_changelist"),
        reverse(f"{name}_add"),
        reverse(f"{name}_change", args=[pk]),
        reverse(f"{name}_delete", args=[pk]),
    )


def pk_of(model):
    """Of a row; not all columns of all tables can be read as they are."""
    return model._default_manager.values_list("pk", flat=True)[0]


def contents(model):
    return rows(f"SELECT t::text FROM {model._meta.db_table} t ORDER BY 1")


def test_only_the_role_admin_gets_in(log_in, filled):
    wanted = ["/admin/", "/admin/auth/user/", "/admin/agentstate/run/", "/admin/auth/user/add/"]
    for address in [*wanted, "/keys", "/keys/-/new", "/keys/fleet/revoke", "/people/vi/link"]:
        answer = Client().get(address)
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/login?next={address}")
    for role in (None, "viewer", "operator", "senior"):
        client = log_in(f"p-{role}", role)
        for address in [*wanted, "/keys", "/keys/-/new", "/keys/fleet/revoke", "/people/vi/link"]:
            answer = client.get(address)
            assert answer.status_code == 403, address
            assert b"Not allowed" in answer.content
            assert client.post(address).status_code in (403, 405), address
        if role:
            assert "/admin/" not in Page(client.get("/audit")).links
    client = log_in("root", "admin")
    for address in [*wanted, "/keys", "/keys/-/new", "/keys/fleet/revoke"]:
        assert client.get(address).status_code == 200
    assert "/admin/" in Page(client.get("/audit")).links
    tried = (
        "SELECT actor, action, object FROM agentstate_refusedaction WHERE actor = %s ORDER BY id"
    )
    assert ("person:p-senior", "admin", "/admin/auth/user/add/") in rows(tried, "person:p-senior")


def test_nothing_there_goes_round_the_store(filled, db):
    """A superuser of Django's, who has each of its permissions, and posts what a form would."""
    client = Client()
    client.force_login(User.objects.create_superuser("django", password="x"))
    before = {model: contents(model) for model in OF_STORE}
    for model in OF_STORE:
        listed, add, change, delete = addresses(model)
        values = {
            field.name: "1" for field in model._meta.get_fields() if getattr(field, "editable", 0)
        }
        pk = str(pk_of(model))
        chosen = {"_selected_action": pk, "index": "0", "select_across": "1", "post": "yes"}
        assert client.get(listed).status_code == 200, listed
        assert client.get(change).status_code == 200, change
        for address, data in (
            (add, values),
            (add, values | {"_save": "Save"}),
            (change, values | {"_save": "Save"}),
            (change, {"_saveasnew": "1"} | values),
            (delete, {"post": "yes"}),
            (listed, chosen | {"action": "delete_selected"}),
            (listed, {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "_save": "Save"}),
        ):
            answer = client.post(address, data)
            assert answer.status_code in (200, *ANSWERED)
            assert answer.status_code != 200 or address == listed
        for method in ("put", "patch", "delete"):
            assert getattr(client, method)(change).status_code in (200, *ANSWERED)
        assert client.get(add).status_code == 403
        assert client.get(delete).status_code == 403
    assert {model: contents(model) for model in OF_STORE} == before


def test_no_secret_and_no_payload_is_shown(filled, admin):
    secrets = rows("SELECT encode(salt, 'hex'), encode(digest, 'hex') FROM agentstate_apikey")
    secrets += rows("SELECT address, secret FROM agentstate_alerttarget")
    hashes = [user.password for user in User.objects.all()]
    for model in site._registry:
        if not model._default_manager.exists():
            continue
        for address in addresses(model)[::2]:
            html = admin.get(address).content.decode()
            for secret in [*(text for row in secrets for text in row), *hashes]:
                assert secret not in html, address
    shown = {name for one in site._registry.values() for name in one.get_fields(None) or ()}
    assert not shown & {"salt", "digest", "secret", "address", "password", "attrs", "result"}


def test_big_tables_are_not_counted_and_say_that_they_are_estimated(store, admin, monkeypatch):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO agentstate_refusal (at, code, operation, actor, wanted, found, attempt)"
            " SELECT agentstate_now(), 'x', 'append', 'key:a', '{}', '{}', 1"
            " FROM generate_series(1, 2500)"
        )
        cursor.execute("ANALYZE agentstate_refusal")
    with CaptureQueriesContext(connection) as asked:
        page = Page(admin.get("/admin/agentstate/refusal/"))
    assert re.search(r"~2\d\d\d", page.text)
    said = [one["sql"].lower() for one in asked if "agentstate_refusal" in one["sql"]]
    assert said
    assert all("count(" not in one for one in said)
    assert all("limit" in one for one in said if "pg_class" not in one)
    assert "1000+" in Page(admin.get("/admin/agentstate/refusal/?code=x")).text
    assert admin.get("/admin/agentstate/refusal/?p=20").status_code == 200
    assert admin.get("/admin/agentstate/refusal/?p=21").status_code == 302
    assert "No results" not in Page(admin.get("/admin/agentstate/refusal/?p=1")).text
    monkeypatch.setattr(reading, "estimate", lambda table: -1)
    assert "~1001" in Page(admin.get("/admin/agentstate/refusal/")).text


def test_a_list_reads_no_more_statements_for_more_rows(store, admin):
    def statements():
        with CaptureQueriesContext(connection) as asked:
            assert admin.get("/admin/agentstate/lease/").status_code == 200
        return len(asked)

    store.create("r-0")
    few = statements()
    for number in range(1, 9):
        store.create(f"r-{number}")
    assert statements() == few


@pytest.mark.parametrize(
    "address",
    [
        "/admin/agentstate/run/?status=%00", "/admin/agentstate/run/?q=%00",
        "/admin/agentstate/run/?nonsense=1", "/admin/agentstate/run/?o=99", "/admin/auth/user/9/",
        "/admin/agentstate/run/?p=99999", "/admin/agentstate/lease/_00/change/",
        "/admin/agentstate/lease/%00/change/", "/admin/agentstate/worker/%00/delete/",
        "/admin/agentstate/refusal/99999999999999999999999999/change/", "/admin/nothing/",
        "/admin/agentstate/run/x/change/", "/admin/search/?s=run", "/admin/search/?s=run&page=x",
        "/admin/jsi18n/", "/admin/autocomplete/", "/admin/r/1/1/", "/admin/login/", "/admin",
        "/admin/auth/user/?e=1", "/admin/auth/group/1/change/", "/keys/nobody/revoke",
        "/people/%00/link", "/people/nobody/link", "/password/x/y", "/admin/password_change/",
    ],
)  # fmt: skip
def test_whatever_is_asked_is_answered(admin, address):
    assert admin.get(address).status_code in (200, *ANSWERED)


def test_a_list_that_takes_too_long_ends_in_time(store, admin, monkeypatch):
    monkeypatch.setattr(reading, "RELTUPLES", "SELECT pg_sleep(30)::text::int, %s")
    monkeypatch.setattr(reading, "ROWS_MAX", 1)
    monkeypatch.setattr("dashboard.administration.site.PAGE_MS", 100)
    assert PAGE_MS <= 5_000
    for number in range(3):
        store.create(f"r-{number}")
    answer = admin.get("/admin/agentstate/run/")
    assert (answer.status_code, b"took too long" in answer.content) == (503, True)


def test_the_policy_of_the_admin_is_its_own(admin):
    policy = admin.get("/admin/").headers["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval';" in policy
    html = admin.get("/admin/auth/user/").content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html)
    assert not re.search(r"\son(click|load|change|submit|error)=", html)
    for address in ("/", "/audit", "/keys", "/login", "/password/x/y"):
        assert "unsafe" not in admin.get(address).headers["Content-Security-Policy"]


# --- people --------------------------------------------------------------------------------------


def acted():
    return rows("SELECT actor, action, object FROM agentstate_operatoraction ORDER BY id")


def new(admin, **values):
    typed = {
        "username": "vi",
        "role": "viewer",
        "is_active": "on",
        "password1": "",
        "password2": "",
    }
    return admin.post("/admin/auth/user/add/", typed | values)


def test_a_person_is_made_with_a_typed_password_and_a_role(admin):
    typed = "correct-horse-9"
    assert new(admin, password1=typed, password2=typed).status_code == 302
    vi = User.objects.get(username="vi")
    assert [group.name for group in vi.groups.all()] == ["viewer"]
    assert not vi.is_staff
    client = Client()
    assert client.login(username="vi", password=typed)
    assert client.get("/runs").status_code == 200
    html = admin.get(f"/admin/auth/user/{vi.pk}/change/").content.decode()
    assert typed not in html
    assert vi.password not in html
    assert acted() == [("person:root", "person.created", "vi")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"username": ""}, {"username": "a b"}, {"username": "root"}, {"role": "emperor"},
        {"username": ".."}, {"username": "\u3164"}, {"username": "ROOT"},
        {"password1": "correct-horse-9", "password2": "another"},
        {"password1": "1234", "password2": "1234"},
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_new_person_is_said_and_nobody_is_made(admin, wrong):
    """S-109 (docs/sweeps.md), among them."""
    assert new(admin, **wrong).status_code == 200
    assert list(User.objects.values_list("username", flat=True)) == ["root"]
    assert acted() == []


def test_behind_a_link_a_person_sets_a_password_once(admin):
    new(admin)
    vi = User.objects.get(username="vi")
    assert not vi.has_usable_password()
    assert "shown only now" not in Page(admin.get("/people/vi/link")).text
    page = Page(admin.post("/people/vi/link"))
    (link,) = re.findall(r"http://testserver(/password/[^<\s]+)", page.html)

    Session.objects.create(session_key="left", user=vi, expire_date="2100-01-01T00:00Z")
    client = Client()
    form = client.get(link, follow=True)
    assert "For vi" in Page(form).text
    assert link.rsplit("/", 1)[1] not in form.request["PATH_INFO"]
    here = form.request["PATH_INFO"]
    weak = client.post(here, {"new_password1": "12345", "new_password2": "12345"})
    assert "too common" in Page(weak).text
    typed = {"new_password1": "correct-horse-9", "new_password2": "correct-horse-9"}
    assert client.post(here, typed).headers["Location"] == "/login"
    assert not Session.objects.filter(user=vi).exists()
    assert Client().login(username="vi", password="correct-horse-9")
    assert "This link is over" in Page(Client().get(link, follow=True)).text
    assert "This link is over" in Page(client.post(here, typed)).text
    assert acted()[1:] == [
        ("person:root", "person.link-made", "vi"),
        ("person:vi", "person.password-set", "vi"),
    ]


def form_of(admin, who):
    """What the form of a person sends of what was seen, with the role and "may sign in" as they
    are."""
    html = admin.get(f"/admin/auth/user/{who.pk}/change/").content.decode()
    seen = dict(re.findall(r'name="(initial-\w+)"(?: value="([^"]*)")?', html))
    assert set(seen) == {"initial-role", "initial-is_active"}
    is_active = {"is_active": "on"} if seen["initial-is_active"] == "True" else {}
    return seen | {"role": seen["initial-role"]} | is_active


def change(admin, who, **typed):
    """Send the form with this typed; is_active="" is the box without its mark."""
    fields = form_of(admin, who) | typed
    if not fields.get("is_active"):
        fields.pop("is_active", None)
    return admin.post(f"/admin/auth/user/{who.pk}/change/", fields)


def test_a_role_is_changed_at_once_and_told_in_the_audit(admin):
    vi = person("vi", "viewer")
    client = Client()
    client.force_login(vi)
    assert change(admin, vi, role="senior").status_code == 302
    assert "senior" in Page(client.get("/audit")).text
    assert change(admin, vi, role="senior").status_code == 302
    assert change(admin, vi, role="").status_code == 302
    assert client.get("/audit").status_code == 403
    assert change(admin, vi, role="viewer", is_active="").status_code == 302
    assert client.get("/audit").status_code == 302
    told = rows(
        "SELECT action, before::text, after::text FROM agentstate_operatoraction ORDER BY id"
    )
    assert [action for action, *_ in told] == ["person.changed"] * 3
    assert '"role": "viewer"' in told[0][1]
    assert '"role": "senior"' in told[0][2]


def test_another_password_is_typed_and_ends_the_sessions(admin):
    vi = person("vi", "viewer")
    client = Client()
    client.force_login(vi)
    typed = {"password1": "correct-horse-9", "password2": "correct-horse-9"}
    assert admin.post(f"/admin/auth/user/{vi.pk}/password/", typed).status_code == 302
    assert not Session.objects.filter(user=vi).exists()  # and open streams with it
    assert client.get("/audit").status_code == 302
    assert Client().login(username="vi", password="correct-horse-9")
    assert acted() == [("person:root", "person.password-set", "vi")]
    own = User.objects.get(username="root")
    assert admin.post(f"/admin/auth/user/{own.pk}/password/", typed).status_code == 302
    assert admin.get("/audit").status_code == 200


def test_the_last_admin_stays_one(admin):
    root = User.objects.get(username="root")
    for typed in ({"role": "viewer"}, {"is_active": ""}):
        assert "Nobody else could administer" in Page(change(admin, root, **typed)).text
    other = person("other", "admin")
    other.is_active = False
    other.save()
    assert change(admin, root, role="viewer").status_code == 200
    other.is_active = True
    other.save()
    assert change(admin, root, role="viewer").status_code == 302
    assert admin.get("/admin/").status_code == 403


def test_a_form_of_a_person_that_was_changed_meanwhile_takes_nothing_back(admin, log_in):
    vi, second = person("vi", "senior"), log_in("second", "admin")
    stale, address = form_of(admin, vi), f"/admin/auth/user/{vi.pk}/change/"
    assert change(second, vi, role="").status_code == 302  # the role is taken from them

    refused = Page(admin.post(address, stale))
    assert "Somebody else changed this meanwhile: the role is no role now" in refused.text
    lost = admin.post(address, {"role": "admin", "is_active": "on"})  # without what was seen
    assert (lost.status_code, vi.groups.count()) == (200, 0)
    assert admin.post(address, stale | {"role": ""}).status_code == 302  # what it asks for is so
    assert len(acted()) == 1

    again = dict(re.findall(r'name="(initial-\w+)"(?: value="([^"]*)")?', refused.html))
    assert again == {"initial-role": "", "initial-is_active": "True"}
    assert admin.post(address, again | {"role": "viewer", "is_active": "on"}).status_code == 302
    assert acted()[1:] == [("person:root", "person.changed", "vi")]


def test_two_forms_of_a_person_at_the_same_moment_have_one_effect(transactional_db, log_in):
    vi, admins = person("vi", "senior"), [log_in("a", "admin"), log_in("b", "admin")]
    forms = [form_of(admins[0], vi) | {"role": role} for role in ("viewer", "")]
    address = f"/admin/auth/user/{vi.pk}/change/"

    statuses = at_once(2, lambda n: admins[n].post(address, forms[n]).status_code)

    assert sorted(statuses) == [200, 302]
    kept = [group.name for group in vi.groups.all()]
    assert kept == ([] if statuses[1] == 302 else ["viewer"])
    told = rows("SELECT before->>'role', after->>'role' FROM agentstate_operatoraction")
    assert told == [("senior", kept[0] if kept else "no role")]


def test_ones_own_password_is_changed_at_its_page_alone(admin):
    """Django's own page for it counts no tries of the old one, and the audit hears of nothing."""
    typed = {"old_password": "pass-root", "new_password1": "correct-horse-9",
             "new_password2": "correct-horse-9"}  # fmt: skip
    answer = admin.post("/admin/password_change/", typed)
    assert answer["Location"] == "/account/password"
    assert admin.get("/admin/password_change/done/")["Location"] == "/account"
    assert User.objects.get(username="root").check_password("pass-root")


def test_the_way_out_and_ones_own_password_are_the_consoles(admin):
    for part in ("password_change/", "password_change/done/"):
        assert admin.get(f"/admin/{part}").headers["Location"].startswith("/account")
    answer = admin.post("/admin/logout/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login")
    assert admin.get("/admin/").headers["Location"].startswith("/login")


def test_pages_call_things_as_the_sidebar_does_and_tell_times_in_the_persons_zone(filled, admin):
    """Not by the names of models, apps and Django's own formats."""
    created = rows("SELECT created_at FROM agentstate_run")[0][0]
    Preference.objects.create(person=User.objects.get(username="root"), zone="Asia/Kolkata")
    pages = {model: Page(admin.get(addresses(model)[0])) for model in (*OF_STORE, User, Group)}
    for model in (*OF_STORE, User):
        pages[f"a {model.__name__}"] = Page(admin.get(addresses(model)[2]))
    pages["first"] = Page(admin.get("/admin/"))
    for name, page in pages.items():
        for word in ("Authentication", "Users", "Groups", "Api keys", "object (", "p.m.", "a.m."):
            assert word not in page.text, (name, word)
    runs = Page(admin.get("/admin/agentstate/run/"))
    there = created.astimezone(ZoneInfo("Asia/Kolkata"))
    assert f"{there:%Y-%m-%d %H:%M:%S}" in runs.text
    assert "Kolkata" in runs.text


def test_nobody_and_no_role_is_deleted_or_renamed(admin):
    vi = person("vi", "viewer")
    role = Group.objects.get(name="viewer")
    change(admin, vi, username="eve", is_superuser="on", is_staff="on")
    vi.refresh_from_db()
    assert (vi.username, vi.is_superuser, vi.is_staff) == ("vi", False, False)
    for address in (f"/admin/auth/user/{vi.pk}/delete/", f"/admin/auth/group/{role.pk}/delete/"):
        assert admin.post(address, {"post": "yes"}).status_code == 403
    assert admin.post(f"/admin/auth/group/{role.pk}/change/", {"name": "x"}).status_code == 403
    assert admin.get("/admin/auth/group/add/").status_code == 403
    assert "vi" in Page(admin.get(f"/admin/auth/group/{role.pk}/change/")).text


def test_a_saved_view_of_somebody_else_is_ended_and_not_changed(admin, still_clock):
    vi = person("vi", "viewer")
    view = SavedView.objects.create(
        owner=vi, name="mine", filter="status:failed", changed_by="vi", changed_at=still_clock.now
    )
    address = f"/admin/dashboard/savedview/{view.pk}"
    assert "status:failed" in Page(admin.get(f"{address}/change/")).text
    assert admin.post(f"{address}/change/", {"name": "x"}).status_code == 403
    assert admin.post(f"{address}/delete/", {"post": "yes"}).status_code == 302
    assert not SavedView.objects.exists()
    assert acted() == [("person:root", "view.deleted", "mine")]
