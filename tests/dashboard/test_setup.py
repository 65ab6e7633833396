"""The first-run page: one admin, by whoever has the code that the start printed."""

import threading

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from agentstate.store.models import OperatorAction, Refusal
from dashboard import first_run
from dashboard.models import SetupCode
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page

PASSWORD = "correct-horse-1"


def send(client=None, *, name="ana", code="", password=PASSWORD, again=PASSWORD, **more):
    fields = {"name": name, "code": code, "password": password, "again": again}
    return (client or Client()).post("/setup", fields, **more)


def test_the_code_makes_the_first_admin_once_and_then_there_is_no_page(db):
    person("vi", "viewer")
    old, code = first_run.make_code(), first_run.make_code()
    assert code not in str(SetupCode.objects.values_list())
    assert "/setup" in Page(Client().get("/login")).links
    assert Client().get("/setup").status_code == 200
    assert send(code=old).status_code == 403
    assert "The code is missing" in Page(send(code="")).text
    assert "Somebody is called that already" in Page(send(code=code, name="vi")).text

    client = Client()
    done = send(client, code=f" {code.upper()} ")

    assert done["Location"] == "/"
    assert "admin" in Page(client.get("/runs")).text
    told = OperatorAction.objects.order_by("id").values_list("actor", "action", "after")
    assert list(told) == [
        ("system:command line", "setup-code.made", {}),
        ("system:command line", "setup-code.made", {}),
        ("person:ana", "person.created", {"role": "admin"}),
    ]
    refused = set(Refusal.objects.values_list("operation", "code", "actor"))
    assert ("make-first-admin", "not-allowed", "person:ana") in refused
    assert send(code=code, name="bo").status_code == 404
    assert Client().get("/setup").status_code == 404
    assert not SetupCode.objects.exists()
    assert first_run.make_code() is None
    assert "/setup" not in Page(Client().get("/login")).links


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"name": ""}, "cannot be blank"),
        ({"name": "a b"}, "Enter a valid username"),
        ({"name": "a\0b"}, "Enter a valid username"),
        ({"name": "x" * 200}, "at most 150"),
        ({"password": "short", "again": "short"}, "too short"),
        ({"again": "another"}, "The two differ"),
    ],
)
def test_what_was_typed_wrong_is_said_and_costs_no_try(db, typed, told):
    code = first_run.make_code()
    for _ in range(3):
        answer = send(code=code, **typed)
        assert answer.status_code == 422
        assert told in Page(answer).text
    assert not User.objects.exists()
    assert send(code=code).status_code == 302


def test_the_code_is_tried_ten_times_from_wherever(db, still_clock):
    code = first_run.make_code()
    for number in range(10):
        assert send(code="wrong", REMOTE_ADDR=f"192.0.2.{number}").status_code == 403
    out = send(code=code, REMOTE_ADDR="192.0.2.99")
    assert out.status_code == 429
    assert "Tried too often" in Page(out).text
    still_clock.advance(seconds=301)
    assert send(code=code).status_code == 302


def test_two_at_once_make_one(transactional_db):
    code, statuses, start = first_run.make_code(), [], threading.Barrier(4)

    def become(name):
        start.wait()
        try:
            statuses.append(send(code=code, name=name).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=become, args=[f"p-{number}"]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(statuses) == [302, 404, 404, 404]
    assert User.objects.count() == 1


@pytest.mark.parametrize("how", ["superuser", "off"])
def test_any_admin_closes_it(db, how):
    first_run.make_code()
    if how == "superuser":
        User.objects.create_superuser("root")
    else:
        User.objects.filter(pk=person("ana", "admin").pk).update(is_active=False)
    assert Client().get("/setup").status_code == 404


@pytest.mark.parametrize("name", ["..", "\u3164", "a b"])
def test_no_admin_is_made_whose_name_no_page_could_show_or_reach(db, name):
    """S-109 (docs/sweeps.md)."""
    sent = {"name": name, "password": "correct-horse-9", "again": "correct-horse-9"}
    code = first_run.make_code()
    answer = Client().post("/setup", sent | {"code": code})
    assert answer.status_code == 422
    assert not User.objects.exists()
