"""Lists under a name: one's own, the team's, and the one that Runs opens with."""

import pytest
from django.db import connection

from agentstate.store.models import OperatorAction
from dashboard.models import SavedView
from tests.dashboard.reading import Page

TABLE = "ALTER TABLE agentstate_operatoraction"


def keep(client, name, q="status:live since:2h", **more):
    return client.post("/runs/-/views", {"name": name, "q": q, **more})


def act(client, view, action, **more):
    view.refresh_from_db()
    address = f"/runs/-/views/{view.pk}/{action}"
    return client.post(address, {"version": view.version, **more}, follow=True)


def test_a_list_is_kept_under_a_name_with_its_columns_and_as_it_was_typed(store, viewer):
    store.create("42")

    answer = keep(viewer, "  Mine  ", columns="tags,age")
    page = Page(viewer.get("/runs"))

    assert answer.url == "/runs?q=status%3Alive+since%3A2h&columns=tags%2Cage"
    assert page.link(r"q=status%3Alive\+since%3A2h&columns=tags%2Cage")
    assert "Mine" in page.text
    assert SavedView.objects.get().filter == "status:live since:2h"
    assert "Mine" in Page(viewer.get(answer.url)).text.split("All runs")[0]


def test_runs_opens_with_the_view_that_was_chosen_until_it_is_not(store, viewer):
    keep(viewer, "Mine", default="yes")
    view = SavedView.objects.get()

    assert viewer.get("/runs").url == "/runs?q=status%3Alive+since%3A2h"
    assert viewer.get("/runs?q=").status_code == 200

    act(viewer, view, "no-default")
    assert viewer.get("/runs").status_code == 200
    act(viewer, view, "default")
    assert viewer.get("/runs").status_code == 302
    act(viewer, view, "delete")
    assert viewer.get("/runs").status_code == 200


def test_ones_own_are_nobody_elses_and_the_teams_are_everybodys(store, log_in):
    ana, bo = log_in("ana", "operator"), log_in("bo", "viewer")
    keep(ana, "Private")
    keep(ana, "Ours", team="yes")
    private, ours = (SavedView.objects.get(name=name) for name in ("Private", "Ours"))

    seen = Page(bo.get("/runs/-/views")).text
    assert "Ours" in seen
    assert "Private" not in seen
    assert act(bo, private, "delete").status_code == 404
    assert act(bo, ours, "delete").status_code == 403
    assert act(bo, ours, "default").status_code == 200
    assert keep(bo, "Theirs", team="yes").status_code == 403
    assert keep(bo, "Private").status_code == 302


def test_a_name_is_taken_once_and_replacing_is_asked_for_apart(store, operator):
    keep(operator, "Mine")
    view = SavedView.objects.get()

    again = keep(operator, "Mine", q="status:failed")
    assert again.status_code == 422
    assert "There is one of this name" in Page(again).text
    assert SavedView.objects.get().filter == "status:live since:2h"

    act(operator, view, "replace", q="status:failed", columns="age")
    view.refresh_from_db()
    assert (view.filter, view.columns, view.version) == ("status:failed", "age", 2)


def test_who_saw_another_version_changes_nothing(store, operator):
    keep(operator, "Ours", team="yes")
    view = SavedView.objects.get()
    act(operator, view, "replace", q="status:failed")

    for action in ("replace", "delete"):
        late = operator.post(
            f"/runs/-/views/{view.pk}/{action}", {"version": "1", "q": "tag:x"}, follow=True
        )
        assert "was changed meanwhile" in Page(late).text
    view.refresh_from_db()
    assert view.filter == "status:failed"


def test_what_is_done_to_the_teams_is_in_the_audit_or_not_done(db, operator):
    keep(operator, "Mine")
    act(operator, SavedView.objects.get(), "replace", q="status:failed")
    assert not OperatorAction.objects.exists()  # one's own is nobody else's business
    keep(operator, "Ours", team="yes")
    ours = SavedView.objects.get(name="Ours")
    operator.raise_request_exception = False
    with connection.cursor() as cursor:
        cursor.execute(f"{TABLE} ADD CONSTRAINT no_row CHECK (false) NOT VALID")
        assert act(operator, ours, "replace", q="status:failed").status_code == 500
        assert act(operator, ours, "delete").status_code == 500
        assert keep(operator, "Theirs", team="yes").status_code == 500
        cursor.execute(f"{TABLE} DROP CONSTRAINT no_row")
    assert set(SavedView.objects.values_list("name", "version")) == {("Mine", 2), ("Ours", 1)}

    act(operator, ours, "replace", q="status:failed", columns="age")
    act(operator, ours, "delete")
    first = {"filter": "status:live since:2h", "columns": ""}
    then = {"filter": "status:failed", "columns": "age"}
    told = OperatorAction.objects.order_by("id").values_list("action", "object", "before", "after")
    assert list(told) == [
        ("view.created", "Ours", {}, first),
        ("view.changed", "Ours", first, then),
        ("view.deleted", "Ours", then, {}),
    ]


@pytest.mark.parametrize(
    ("name", "q", "told"),
    [
        ("", "status:live", "A name of 1 to 60"),
        ("x" * 61, "status:live", "A name of 1 to 60"),
        ("a\u202eb", "status:live", "A name of 1 to 60"),
        ("Mine", "colour:red", "not understood"),
    ],
)
def test_what_cannot_be_kept_says_why(store, operator, name, q, told):
    answer = keep(operator, name, q=q)

    assert answer.status_code == 422
    assert told in Page(answer).text
    assert not SavedView.objects.exists()


def test_there_are_as_many_as_a_menu_can_show(store, operator, monkeypatch):
    from dashboard.queries import views

    monkeypatch.setattr(views, "VIEWS_MAX", 1)
    keep(operator, "First")

    assert "Delete one first" in Page(keep(operator, "Second")).text


@pytest.mark.parametrize("name", ["\u3164", "\u2800", "\ufe0f", "\u034f", "\u200b", "a\x07b", ""])
def test_a_name_that_nobody_can_see_is_none(store, viewer, name):
    """S-114 (docs/sweeps.md): such a view could neither be seen in the menu nor be clicked."""
    assert keep(viewer, name).status_code == 422
    assert not SavedView.objects.exists()


@pytest.mark.parametrize(
    "name",
    ["👩\u200d💻 mine", "\u0646\u0645\u06cc\u200c\u0634\u0648\u062f", "\u200f\u05e9\u05dc\u05d9"],
)
def test_a_name_in_any_script_is_one(store, viewer, name):
    """S-114: one with a joiner in it was refused as if it were too long."""
    assert keep(viewer, name).status_code == 302
    assert SavedView.objects.get().name == name


def test_two_names_that_look_the_same_are_one(store, viewer):
    """S-114: é of one character, and of two."""
    assert keep(viewer, "caf\u00e9").status_code == 302
    again = keep(viewer, "cafe\u0301")
    assert again.status_code == 422
    assert "There is one of this name" in Page(again).text
