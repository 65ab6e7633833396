"""Signing in by a provider: its groups give the role, and nothing else does."""

import copy
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group, User
from django.test import Client

from agentstate.store.models import OperatorAction
from dashboard import oidc
from tests.dashboard.conftest import person
from tests.dashboard.provider import CLIENT, SECRET, provider
from tests.dashboard.reading import Page


@pytest.fixture(scope="module")
def one():
    with provider() as it:
        yield it


@pytest.fixture
def idp(one, db, settings):
    """The provider, as the settings of the environment would name it."""
    providers = copy.deepcopy(settings.SOCIALACCOUNT_PROVIDERS)
    providers["openid_connect"]["APPS"] = [
        {
            "provider_id": settings.OIDC_PROVIDER,
            "name": "Example SSO",
            "client_id": CLIENT,
            "secret": SECRET,
            "settings": {"server_url": one.issuer},
        }
    ]
    settings.SOCIALACCOUNT_PROVIDERS = providers
    settings.OIDC_ISSUER, settings.OIDC_NAME = one.issuer, "Example SSO"
    settings.OIDC_ROLES = {"sre": "operator", "platform": "admin", "staff": "viewer"}
    one.claims = {"sub": "s-1", "preferred_username": "ana", "groups": ["staff", "sre"]}
    one.wrong = ""
    oidc._known.clear()
    return one


def sign_in(idp, client=None, **more):
    """The answer to who comes back from the provider, and the browser."""
    client = client or Client()
    there = client.get("/login/oidc", more)
    assert there.status_code == 302, there.content.decode()
    back = httpx.get(there["Location"], follow_redirects=False, verify=False)
    parts = urlsplit(back.headers["Location"])
    assert parts.path == "/login/oidc/done"
    return client.get(f"{parts.path}?{parts.query}"), client


def test_the_highest_role_of_the_groups_is_given_and_followed(idp):
    page = Page(Client().get("/login?next=/leases"))
    assert "Sign in with Example SSO" in page.text

    answer, client = sign_in(idp, next="/leases")
    assert answer["Location"] == "/leases"
    assert client.get("/runs").status_code == 200
    ana = User.objects.get()
    assert (ana.username, [g.name for g in ana.groups.all()]) == ("ana", ["operator"])
    assert not ana.has_usable_password()
    assert "Example SSO" in Page(client.get("/account")).text
    assert client.get("/account/password").status_code == 403

    idp.claims |= {"groups": ["platform", "sre"], "preferred_username": "anastasia"}
    sign_in(idp)
    assert [g.name for g in User.objects.get().groups.all()] == ["admin"]
    told = [(a.actor, a.action, a.object, a.before, a.after, a.reason)
            for a in OperatorAction.objects.order_by("id")]  # fmt: skip
    assert told[0] == ("system:sign-in", "person.created", "ana", {}, {"role": ""}, idp.issuer)
    assert told[1:] == [
        ("system:sign-in", "person.role", "ana", {"role": before}, {"role": after}, idp.issuer)
        for before, after in (("", "operator"), ("operator", "admin"))
    ]
    sign_in(idp)
    assert OperatorAction.objects.count() == 3


@pytest.mark.parametrize("groups", [None, [], ["SRE"], ["other"], "other", [["sre"]], {"sre": 1}])
def test_no_group_of_the_map_is_no_role_and_takes_the_one_that_was(idp, groups):
    sign_in(idp)
    idp.claims["groups"] = groups
    answer, client = sign_in(idp)
    assert answer.status_code == 403
    assert "None of your groups there gives a role here" in Page(answer).text
    assert client.get("/runs").status_code == 302
    assert not User.objects.get().groups.exists()

    idp.claims |= {"sub": "s-2", "preferred_username": "bo"}
    assert sign_in(idp)[0].status_code == 403
    assert User.objects.count() == 1


def test_what_else_the_provider_says_is_neither_looked_at_nor_kept(idp):
    """Most tell an address that they have verified; a text may be one that no database holds."""
    idp.claims |= {"email": "ana@example.org", "email_verified": True, "name": 5}
    idp.claims |= {"given_name": "x" * 10_000, "locale": "a\0b", "picture": "\ud800"}
    idp.claims["groups"] = ["sre", "\0", 5]
    answer, client = sign_in(idp)
    assert answer["Location"] == "/"
    assert client.get("/runs").status_code == 200
    ana = User.objects.get()
    assert (ana.username, ana.email, ana.first_name) == ("ana", "", "")
    assert not EmailAddress.objects.exists()
    known = {"sub": "s-1", "preferred_username": "ana", "groups": ["sre"]}
    assert SocialAccount.objects.get().extra_data == {"userinfo": known, "id_token": known}
    # Their second step is the provider's; an address of before is no way to show who one is.
    EmailAddress.objects.create(user=ana, email="ana@example.org", verified=True, primary=True)
    for address in ("/account/app", "/account/keys/new", "/login/again"):
        assert client.get(address).status_code == 403, address


@pytest.mark.parametrize("sub", ["", "a\0b", "\ud800", "ä", "x" * 192])
def test_whoever_cannot_be_known_by_their_sub_is_not_let_in(idp, sub):
    idp.claims["sub"] = sub
    assert sign_in(idp)[0].status_code == 502
    assert not User.objects.exists()


def test_groups_that_are_no_roles_stay_and_nothing_is_given_without_a_map(idp, settings):
    settings.OIDC_ROLES = {}
    assert sign_in(idp)[0].status_code == 403
    assert not User.objects.exists()
    settings.OIDC_ROLES = {"sre": "operator"}
    sign_in(idp)
    own = Group.objects.create(name="on call")
    User.objects.get().groups.add(own)
    sign_in(idp)
    assert {g.name for g in User.objects.get().groups.all()} == {"operator", "on call"}
    own.delete()


@pytest.mark.parametrize("name", ["ana", "ANA"])
def test_a_name_that_somebody_has_is_not_taken_over(idp, name):
    person("ana", "admin")
    idp.claims["preferred_username"] = name
    answer, client = sign_in(idp)
    assert answer.status_code == 403
    assert f"has the name {name} already" in Page(answer).text
    assert client.get("/runs").status_code == 302


@pytest.mark.parametrize("name", [None, "", "a b", "a\0b", "<b>", "..", "\u3164"])
def test_a_name_that_can_be_none_is_refused(idp, name):
    """S-109 (docs/sweeps.md), among them."""
    idp.claims["preferred_username"] = name
    assert sign_in(idp)[0].status_code == 403
    assert not User.objects.exists()


@pytest.mark.parametrize("wrong", ["signature", "audience", "expired", "person"])
def test_a_token_that_is_not_the_providers_word_lets_nobody_in(idp, wrong):
    idp.wrong = wrong
    answer, client = sign_in(idp)
    assert answer.status_code == 502
    assert client.get("/runs").status_code == 302
    assert not User.objects.exists()


def test_a_provider_that_is_down_or_another_is_said(idp):
    for idp.wrong in ("down", "issuer"):
        answer = Client().get("/login/oidc")
        assert answer.status_code == 502
        assert "did not answer as it should" in Page(answer).text


def test_who_comes_back_by_a_way_of_their_own_is_not_let_in(idp):
    there = Client().get("/login/oidc")
    back = httpx.get(there["Location"], follow_redirects=False, verify=False).headers["Location"]
    answer = Client().get(back.removeprefix("http://testserver"))  # another browser's state
    assert answer.status_code == 502
    assert Client().get("/login/oidc/done?error=access_denied").status_code in (403, 502)
    assert Client().get("/login/oidc/done").status_code == 502
    asked = parse_qs(urlsplit(there["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert Client().get("/login/oidc?process=connect").status_code == 302


def test_nothing_is_joined_to_who_is_signed_in(idp):
    client = Client()
    client.force_login(person("bo", "viewer"))
    answer, client = sign_in(idp, client, process="connect")
    assert answer.status_code == 403
    assert User.objects.count() == 1


def test_the_configuration_is_asked_for_once_in_a_while(idp):
    del idp.asked[:]
    for _ in range(3):
        sign_in(idp)
    assert sum("well-known" in path for path in idp.asked) == 1
    assert len(idp.asked) == 1 + 3 * 4


def test_who_asks_for_the_provider_too_often_waits(idp):
    for _ in range(60):
        Client().get("/login/oidc")
    assert Client().get("/login/oidc").status_code == 429
