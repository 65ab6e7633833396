"""What `./run` does to people stands in the audit, or is not done."""

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import User
from django.db import IntegrityError, connection

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
