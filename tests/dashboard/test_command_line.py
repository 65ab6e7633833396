"""What `./run` does to people stands in the audit, or is not done."""

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.db import IntegrityError, connection

from agentstate.cli import arguments
from agentstate.cli.output import CommandFailure, shown
from agentstate.cli.people import save_user
from agentstate.store.models import OperatorAction
from dashboard import first_run
from dashboard.models import Session, SetupCode
from tests.dashboard.conftest import person

BY = "system:command line"


@pytest.fixture
def no_row(db):
    """An audit that takes no row."""
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE agentstate_operatoraction ADD CONSTRAINT no_row CHECK (false) NOT VALID"
        )


def told():
    rows = OperatorAction.objects.order_by("id")
    assert {row.actor for row in rows} == {BY}
    return [(row.action, row.object, row.before, row.after) for row in rows]


def test_who_is_made_and_what_is_changed_is_told_without_a_secret(db):
    assert save_user(name="ana", role="operator", password="first-secret")
    ana = User.objects.get(username="ana")
    for kind in ("totp", "recovery_codes"):
        Authenticator.objects.create(user=ana, type=kind, data={"secret": "sealed"})
    User.objects.filter(pk=ana.pk).update(is_active=False)
    Session.objects.create(session_key="left", user=ana, expire_date="2100-01-01T00:00Z")

    new = {"role": "admin", "password": "second-secret"}
    assert not save_user(name="ana", **new, drop_second_step=True)

    operator, admin = {"role": "operator", "active": True}, {"role": "admin", "active": True}
    assert told() == [
        ("person.created", "ana", {}, operator),
        ("person.changed", "ana", operator | {"active": False}, admin),
        ("person.second-step-removed", "ana", {}, {"kind": "totp"}),
        ("person.second-step-removed", "ana", {}, {"kind": "recovery_codes"}),
    ]
    assert not Authenticator.objects.exists()
    assert not Session.objects.exists()
    kept = str(list(OperatorAction.objects.values()))
    assert "new password" in kept
    assert not any(word in kept for word in ("secret", ana.password))


def test_without_its_row_nobody_is_made_or_changed_and_no_code_counts(no_row):
    ana = person("ana", "viewer")
    Authenticator.objects.create(user=ana, type="totp", data={})
    for name in ("new", "ana"):
        with pytest.raises(IntegrityError):
            save_user(name=name, role="admin", password="another", drop_second_step=True)
    with pytest.raises(IntegrityError):
        first_run.make_code()

    assert list(User.objects.values_list("username", "groups__name")) == [("ana", "viewer")]
    assert User.objects.get().check_password("pass-ana")
    assert Authenticator.objects.exists()
    assert not SetupCode.objects.exists()


@pytest.mark.parametrize(
    "name", [".", "..", "\u3164", "\uffa0", "ANA", "a b", "a\0b", "\udcff", "w" * 151, ""]
)
def test_a_name_that_no_page_could_show_or_reach_is_refused_in_a_line(db, name):
    """S-109 (docs/sweeps.md): "." and ".." were made, and no page of theirs could be opened; some
    ended in a traceback."""
    person("ana", "viewer")
    with pytest.raises(CommandFailure, match="the name"):
        save_user(name=name, role="viewer", password="first-secret")
    assert list(User.objects.values_list("username", flat=True)) == ["ana"]


def test_a_name_is_kept_in_the_form_in_which_everybody_types_it(db):
    """S-109: in full-width letters it looked like another person's."""
    assert save_user(name="\uff42\uff4f", role="viewer", password="first-secret")
    assert not save_user(name="bo", role="viewer", password="second-secret")
    assert not save_user(name="\uff42\uff4f", role="viewer", password="third-secret")
    assert list(User.objects.values_list("username", flat=True)) == ["bo"]


@pytest.mark.parametrize(
    "asked",
    [
        ["user", "--role", "viewer", "--name", "\udcff"],
        ["key", "--scope", "read", "--name", "\udcff"],
        ["keys", "--revoke", "\udcff"],
        ["keys", "--reason", "\udcff"],
        ["restore", "--already", "--reason", "\udcff"],
        ["bundle", "\udcff"],
    ],
)
def test_octets_that_are_no_text_are_refused_with_the_arguments_name(asked, capsys):
    """S-110 (docs/sweeps.md): a traceback."""
    with pytest.raises(SystemExit) as ended:
        arguments.parser().parse_args(asked)
    assert ended.value.code == 2
    named = asked[-2] if asked[-2].startswith("--") else "RUN"
    assert f"argument {named}: these octets are no UTF-8" in capsys.readouterr().err


def test_what_was_typed_comes_back_without_what_a_terminal_obeys(capsys):
    """S-110: a name with an escape sequence in it went to the terminal as it was."""
    hostile = "a\x1b[31m\x07\x9b31m\u202eb"
    with pytest.raises(SystemExit):
        arguments.parser().parse_args(["doctor", "--no-such", hostile])
    told = capsys.readouterr().err
    assert "a\\u001b[31m\\u0007\\u009b31m\\u202eb" in told
    assert not set(told) & set("\x1b\x07\x9b\u202e")
    assert shown("two\nlines, and a\ttab: é 漢 😀") == "two\nlines, and a\ttab: é 漢 😀"
