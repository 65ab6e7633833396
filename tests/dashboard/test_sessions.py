"""Whose session it is, and what becomes of it when their rights change."""

from datetime import UTC, datetime

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

from agentstate.store.models import OperatorAction
from dashboard import pages
from dashboard.models import Session
from dashboard.sessions import SessionStore
from tests.dashboard.conftest import person
from tests.store.asking import ANA, Asking


@pytest.fixture
def limits(settings):
    settings.SESSION_IDLE_SECONDS, settings.SESSION_COOKIE_AGE = 7_200, 43_200


@pytest.fixture
def ana(transactional_db):
    return person("ana", "operator")


def logged_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def statements_on_people(client: Client) -> list[str]:
    with CaptureQueriesContext(connection) as asked:
        assert client.get("/workers", headers={"HX-Request": "true"}).status_code == 200
    return [one["sql"] for one in asked if "auth_" in one["sql"] or "session" in one["sql"]]


def test_who_asks_and_in_which_roles_is_one_statement(ana):
    client = logged_in(ana)
    assert len(statements_on_people(client)) == 1


def test_a_role_that_is_taken_away_is_gone_at_the_next_request(ana):
    client = logged_in(ana)
    assert client.get("/runs").status_code == 200
    ana.groups.clear()
    assert client.get("/runs").status_code == 403
    ana.groups.add(Group.objects.get(name="viewer"))
    assert client.get("/runs").status_code == 200


@pytest.mark.parametrize("change", ["inactive", "role", "session"])
def test_a_download_ends_with_the_right_to_it(ana, change, monkeypatch):
    monkeypatch.setattr(pages, "LOOK_AGAIN_SECONDS", 0)
    client = logged_in(ana)
    for name in ("one", "two"):
        Asking().as_caller(ANA).create(name)
        Asking().as_caller(ANA).move(name, "cancelled", reason="because")
    lines = client.get("/audit/-/export?format=jsonl").streaming_content
    assert b"two" in next(lines)
    if change == "inactive":
        User.objects.update(is_active=False)
    elif change == "role":
        ana.groups.clear()
    else:
        Session.objects.all().delete()
    with pytest.raises(PermissionDenied):
        list(lines)


@pytest.mark.parametrize("change", ["inactive", "password", "deleted", "session"])
def test_a_session_ends_with_what_it_stands_on(ana, change):
    client = logged_in(ana)
    assert client.get("/runs").status_code == 200
    if change == "inactive":
        ana.is_active = False
        ana.save()
    elif change == "password":
        ana.set_password("another-1-password")
        ana.save()
    elif change == "deleted":
        ana.delete()
        assert not Session.objects.exists()
    else:
        Session.objects.all().delete()
    answer = client.get("/runs")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login?next=/runs")


def test_requests_of_several_people_in_one_thread_are_each_their_own(ana):
    first, second = logged_in(ana), logged_in(person("bo", "viewer"))
    nobody = Client()
    for _ in range(2):
        assert b">ana<" in first.get("/runs").content
        assert b">bo<" in second.get("/runs").content
        assert nobody.get("/runs").status_code == 302


def test_a_session_of_nobody_has_no_person(transactional_db):
    client = Client()
    session = client.session
    session["left"] = "something"
    session.save()
    assert Session.objects.get().user is None
    assert client.get("/runs").status_code == 302


def test_a_stream_asks_the_same_way(ana):
    async def ask() -> list[int]:
        client = AsyncClient()
        await client.aforce_login(ana)
        statuses = [(await client.get("/live/console?run=" + "x" * 300)).status_code]
        await ana.groups.aclear()
        statuses.append((await client.get("/live/console?run=" + "x" * 300)).status_code)
        await Session.objects.all().adelete()
        statuses.append((await client.get("/live/console")).status_code)
        return statuses

    assert async_to_sync(ask)() == [400, 403, 401]


def test_a_session_ends_unused_and_after_all_its_time(ana, clock, limits, settings):
    client = logged_in(ana)
    for _ in range(6):
        assert client.get("/runs").status_code == 200
        clock.advance(seconds=settings.SESSION_IDLE_SECONDS - 1)
    clock.advance(seconds=10)
    assert client.get("/runs").status_code == 302  # six times two hours
    client = logged_in(ana)
    clock.advance(seconds=settings.SESSION_IDLE_SECONDS + 1)
    assert client.get("/runs").status_code == 302


def test_the_last_use_is_noted_to_the_minute(ana, clock):
    client = logged_in(ana)
    began = Session.objects.get().seen_at
    clock.advance(seconds=59)
    assert len(statements_on_people(client)) == 1
    assert Session.objects.get().seen_at == began
    clock.advance(seconds=2)
    assert len(statements_on_people(client)) == 2
    assert (Session.objects.get().seen_at - began).total_seconds() == 61
    assert Session.objects.get().started_at == began


def test_what_is_over_is_cleared_and_what_goes_on_stays(ana):
    logged_in(ana)
    Session.objects.update(expire_date=datetime(2020, 1, 1, tzinfo=UTC))
    stays = logged_in(ana)
    SessionStore.clear_expired()
    assert Session.objects.count() == 1
    assert stays.get("/runs").status_code == 200


def test_signing_out_everywhere_ends_all_sessions_of_one_person(ana):
    here, there, other = logged_in(ana), logged_in(ana), logged_in(person("bo", "viewer"))
    assert "another browser" in here.get("/account").content.decode()

    assert here.post("/account/sign-out").url == "/login"

    assert [c.get("/runs").status_code for c in (here, there, other)] == [302, 302, 200]
    (told,) = OperatorAction.objects.all()
    assert (told.actor, told.action, told.object) == ("person:ana", "person.signed-out", "ana")


def test_an_admin_signs_others_out_and_nobody_else_does(ana):
    client, bo = logged_in(ana), person("bo", "admin")
    assert client.get("/people/bo/sign-out").status_code == 200
    assert client.post("/people/bo/sign-out", {"reason": "x"}).status_code == 403
    admin = logged_in(bo)
    assert admin.post("/people/ana/sign-out", {}).status_code == 422
    assert admin.post("/people/ana/sign-out", {"reason": "lost laptop"}).status_code == 302
    assert client.get("/runs").status_code == 302
    assert admin.get("/people/nobody/sign-out").status_code == 404
    assert OperatorAction.objects.get().reason == "lost laptop"
