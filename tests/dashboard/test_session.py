import pytest
from django.db import OperationalError
from django.test import Client

from tests.dashboard.conftest import person
from tests.dashboard.reading import Page

PAGES = ["/runs", "/runs/42", "/leases", "/leases/run:42", "/leases/run:42/reclaim", "/contention",
         "/alerts", "/alerts/fenced/acknowledge"]  # fmt: skip


@pytest.mark.parametrize("address", PAGES)
def test_who_is_not_logged_in_is_taken_to_the_login_and_back(db, address):
    answer = Client().get(address, {"q": "status:running"})

    assert answer.status_code == 302
    assert answer.url.startswith(
        "/login?next=" + address.replace(":", "%3A").replace("%3A", ":")[:5]
    )


def test_a_part_of_a_page_takes_the_whole_page_to_the_login(db):
    """Case O-38 (docs/cases.md)."""
    answer = Client().get(
        "/runs/-/refresh",
        headers={
            "HX-Request": "true",
            "HX-Current-URL": "http://testserver/runs?q=status%3Arunning",
        },
    )

    assert answer.status_code == 401
    assert answer["HX-Redirect"] == "/login?next=%2Fruns%3Fq%3Dstatus%253Arunning"
    assert answer.content == b""


def test_an_action_after_the_session_ended_is_not_done_and_leads_back_to_its_page(store):
    """Case O-38 (docs/cases.md)."""
    store.create("42")

    answer = Client().post("/runs/42/cancel", {"reason": "x"})

    assert answer.url == "/login?next=/runs/42/cancel"
    assert store.run("42").status == "pending"


def test_logging_in_leads_to_where_one_was_going(db):
    person("ana", "operator")
    client = Client()

    wrong = client.post("/login", {"username": "ana", "password": "no", "next": "/leases"})
    assert "name and password do not go together" in Page(wrong).text

    right = client.post("/login", {"username": "ana", "password": "pass-ana", "next": "/leases"})
    assert right.url == "/leases"
    elsewhere = Client().post(
        "/login", {"username": "ana", "password": "pass-ana", "next": "//evil.example"}
    )
    assert elsewhere.url == "/"


def test_logging_out_needs_a_form_and_ends_the_session(viewer):
    assert viewer.get("/logout").status_code == 405
    assert "You are signed out." in Page(viewer.post("/logout", follow=True)).text
    assert viewer.get("/runs").status_code == 302


def test_a_form_without_its_token_is_refused(store):
    store.create("42")
    client = Client(enforce_csrf_checks=True)
    client.force_login(person("ana", "operator"))

    answer = client.post("/runs/42/cancel", {"reason": "forged"})

    assert answer.status_code == 403
    assert "send the form again" in Page(answer).text
    assert store.run("42").status == "pending"


def test_somebody_without_a_role_sees_nothing(log_in):
    answer = log_in("new", None).get("/runs")

    assert answer.status_code == 403
    assert "no role yet" in Page(answer).text
    assert "/account" in Page(answer).links


def test_somebody_who_was_shut_out_is_out_at_once(db):
    user = person("ana", "operator")
    client = Client()
    client.force_login(user)
    user.is_active = False
    user.save()

    assert client.get("/runs").status_code == 302


def test_a_page_of_a_person_is_never_cached(viewer):
    answer = viewer.get("/runs")

    assert "no-store" in answer["Cache-Control"]
    assert "private" in answer["Cache-Control"]


def test_the_theme_is_kept_and_sent_with_the_page(viewer):
    answer = viewer.post("/theme", {"theme": "dark", "next": "/leases"})

    assert answer.url == "/leases"
    assert 'data-theme="dark"' in viewer.get("/runs").content.decode()
    viewer.post("/theme", {"theme": "system"})
    assert 'data-theme="dark"' not in viewer.get("/runs").content.decode()
    assert viewer.post("/theme", {"theme": "x", "next": "//evil.example"}).url == "/"


def test_a_hostile_theme_cookie_is_text(viewer):
    viewer.cookies["agentstate_theme"] = '"><script>'

    assert "<script>" not in viewer.get("/runs").content.decode()


def test_what_is_not_there_has_a_page(viewer):
    page = Page(viewer.get("/nothing/here"))

    assert page.status == 404
    assert "no page at this address" in page.text


def test_a_database_that_is_gone_is_said_and_not_a_500(viewer, monkeypatch):
    from dashboard.views import runs

    def gone():
        raise OperationalError("the connection is closed")

    viewer.raise_request_exception = False
    monkeypatch.setattr(runs, "database_now", gone)

    answer = viewer.get("/runs")

    assert answer.status_code == 503
    assert answer["Retry-After"] == "5"
    assert "The database cannot be reached" in Page(answer).text


def test_a_fault_of_ours_shows_no_trace_of_it(viewer, monkeypatch):
    from dashboard.views import runs

    def broken():
        raise RuntimeError("secret detail")

    viewer.raise_request_exception = False
    monkeypatch.setattr(runs, "database_now", broken)

    answer = viewer.get("/runs")

    assert answer.status_code == 500
    assert "secret detail" not in answer.content.decode()
    assert answer["X-Request-Id"] in answer.content.decode()


def test_an_address_that_makes_no_sense_leads_to_the_login_all_the_same(client, db):
    asked = {"HX-Request": "true", "HX-Current-URL": "http://[bad"}
    answer = client.get("/runs", headers=asked)
    assert answer.status_code == 401
    assert answer.headers["HX-Redirect"].startswith("/login")


@pytest.mark.parametrize(
    ("back", "told"), [("/", False), ("/runs", False), ("/leases", True), ("http://[", False)]
)
def test_only_who_was_at_a_page_is_told_that_it_goes_on_there(db, back, told):
    page = Page(Client().get("/login", {"next": back}))

    assert ("You will go on where you were" in page.text) == told
