"""Signing in by an OpenID Connect provider: its groups give the role, at each sign-in anew.

Whoever is in no group of the map is not let in, and loses a role that they had. A name that
somebody has here already is never taken over. The token is verified with the provider's published
keys, although it came from the provider itself.
"""

from __future__ import annotations

import time
from typing import Any

from allauth.account.adapter import get_adapter as get_account_adapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.internal import jwtkit
from allauth.socialaccount.providers.base import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render

from agentstate import store
from agentstate.store.callers import Caller
from agentstate.store.people import SetRole
from dashboard import tries
from dashboard.access import ROLES
from dashboard.pages import circumstances
from dashboard.tries import OF_A_PROVIDER
from dashboard.usernames import shaped

# How long what the provider says of itself (its addresses) is taken as said.
CONFIGURATION_SECONDS = 300.0
UID_CHARS = 191  # of allauth's column
SIGN_IN = Caller(kind="system", name="sign-in", scopes=frozenset({"admin"}))
NO_GROUP = "None of your groups there gives a role here. Ask an admin which group does."
NAME_TAKEN = (
    "Somebody here has the name {name} already, and signs in with a password. Ask an admin to free"
    " it; nothing is joined by itself."
)
NO_NAME = "The provider tells no name that can be one here (preferred_username)."
NOT_REACHED = "The provider did not answer as it should. Try again in a moment."
CANCELLED = "You did not sign in there."

_known: dict[str, tuple[float, dict[str, Any]]] = {}


class Provider(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # untyped
    """The provider as it is asked: its own addresses are kept for a while, its tokens verified."""

    @property
    def openid_config(self) -> dict[str, Any]:
        kept_at, kept = _known.get(settings.OIDC_ISSUER, (0.0, {}))
        if not kept or time.monotonic() - kept_at > CONFIGURATION_SECONDS:
            kept = super().openid_config
            if kept.get("issuer", "").rstrip("/") != settings.OIDC_ISSUER:
                raise OAuth2Error("it says that it is another issuer")
            _known[settings.OIDC_ISSUER] = (time.monotonic(), kept)
        return kept

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **named: Any) -> Any:
        """Raises OAuth2Error for what is not the provider's word about one and the same person."""
        try:
            login = super().complete_login(request, app, token, **named)
        except (KeyError, TypeError, ValueError):
            raise OAuth2Error("its answer is not understood") from None
        data = login.account.extra_data
        told, about = data.get("id_token") or {}, data.get("userinfo") or {}
        if not told.get("sub") or about.get("sub", told["sub"]) != told["sub"]:
            raise OAuth2Error("it tells of two people")
        return login

    def _fetch_user_info(self, access_token: str) -> dict[str, Any]:
        return what_counts(super()._fetch_user_info(access_token))

    def _decode_id_token(self, app: Any, id_token: str) -> dict[str, Any]:
        found = jwtkit.verify_and_decode(
            credential=id_token,
            keys_url=self.openid_config["jwks_uri"],
            issuer=self.openid_config["issuer"],
            audience=app.client_id,
            lookup_kid=jwtkit.lookup_kid_jwk,
        )
        return what_counts(found)


class Providers(DefaultSocialAccountAdapter):  # type: ignore[misc]  # untyped
    """What becomes of who the provider says that somebody is."""

    def list_apps(
        self, request: HttpRequest, provider: str | None = None, client_id: str | None = None
    ) -> list[Any]:
        """Those of the settings alone: a row in the database makes no provider."""
        from allauth.socialaccount.adapter import _build_apps_from_settings

        found = _build_apps_from_settings(provider=provider, client_id=client_id)
        return [app for apps in found.values() for app in apps]

    def get_provider(
        self, request: HttpRequest, provider: str, client_id: str | None = None
    ) -> Any:
        found = super().get_provider(request, provider, client_id)
        found.oauth2_adapter_class = Provider
        return found

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Give them the role of their groups, or send them away. Raises ImmediateHttpResponse."""
        if sociallogin.state.get("process") != AuthProcess.LOGIN:
            raise ImmediateHttpResponse(refused(request, CANCELLED))
        role = role_of(sociallogin.account.extra_data)
        known: User | None = sociallogin.user if sociallogin.is_existing else None
        if known is None and role:
            check_name(request, sociallogin)
            try:
                with transaction.atomic():
                    self.save_user(request, sociallogin)
                    store.record_action(
                        by=SIGN_IN,
                        action="person.created",
                        thing=sociallogin.user.get_username(),
                        reason=settings.OIDC_ISSUER,
                        after={"role": ""},
                        under=circumstances(request),  # type: ignore[arg-type]
                    )
            except IntegrityError:  # somebody was quicker
                raise ImmediateHttpResponse(refused(request, NOT_REACHED)) from None
            known = sociallogin.user
        if known is not None:
            store.execute(
                SetRole(person=known.get_username(), role=role, told_by=settings.OIDC_ISSUER),
                by=SIGN_IN,
                under=circumstances(request),  # type: ignore[arg-type]
            )
        if not role:
            raise ImmediateHttpResponse(refused(request, NO_GROUP))

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, **_: Any
    ) -> None:
        cancelled = getattr(error, "value", error) == "cancelled"
        text = CANCELLED if cancelled else NOT_REACHED
        raise ImmediateHttpResponse(refused(request, text, status=403 if cancelled else 502))

    def send_notification_mail(self, *_: Any, **__: Any) -> None:
        """None is sent (sign_in.py)."""


def what_counts(claims: Any) -> dict[str, Any]:
    """Of what the provider says of somebody, what is looked at: who, how called, in which groups of
    the map. Nothing else is kept: addresses and names are nobody's business here, and a text that
    the database cannot hold would keep its owner out. Raises OAuth2Error for nobody.
    """
    if not isinstance(claims, dict) or not is_subject(claims.get("sub")):
        raise OAuth2Error("it tells of nobody")
    told: dict[str, Any] = {"sub": claims["sub"]}
    if isinstance(name := claims.get("preferred_username"), str):
        told["preferred_username"] = name
    if (groups := claims.get(settings.OIDC_GROUPS_CLAIM)) is not None:
        groups = groups if isinstance(groups, list) else [groups]
        known = (group for group in groups if isinstance(group, str))
        told[settings.OIDC_GROUPS_CLAIM] = [
            group for group in known if group in settings.OIDC_ROLES
        ]
    return told


def is_subject(sub: Any) -> bool:
    """The standard has ASCII; longer than the column is refused, never cut."""
    return (
        isinstance(sub, str) and sub.isascii() and sub.isprintable() and 0 < len(sub) <= UID_CHARS
    )


def role_of(told: dict[str, Any]) -> str | None:
    """The highest role that one of the groups gives; None for none."""
    for source in ("userinfo", "id_token"):
        groups = (told.get(source) or {}).get(settings.OIDC_GROUPS_CLAIM)
        if groups is not None:
            break
    groups = groups if isinstance(groups, list) else [groups]
    given = {settings.OIDC_ROLES.get(group) for group in groups if isinstance(group, str)}
    return next((role for role in reversed(ROLES) if role in given), None)


def check_name(request: HttpRequest, sociallogin: Any) -> None:
    """Raises ImmediateHttpResponse for a name that nobody new can have."""
    name = sociallogin.user.get_username()
    try:
        get_account_adapter(request).clean_username(name, shallow=True)
        name = sociallogin.user.username = shaped(name)
    except ValidationError:
        raise ImmediateHttpResponse(refused(request, NO_NAME)) from None
    if User.objects.filter(username__iexact=name).exists():
        raise ImmediateHttpResponse(refused(request, NAME_TAKEN.format(name=name)))


def refused(request: HttpRequest, text: str, *, status: int = 403) -> HttpResponse:
    context = {"code": status, "title": "You are not signed in", "text": text, "to_login": True}
    return render(request, "components/wrong.html", context, status=status)


def begin(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Send somebody to the provider, and let it send them back."""
    return _ask(request, OAuth2LoginView)


def end(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    """Who comes back from the provider."""
    return _ask(request, OAuth2CallbackView)


def _ask(request: HttpRequest, view: Any) -> HttpResponseBase:
    if not settings.OIDC_ISSUER:
        raise Http404
    try:
        tries.take((OF_A_PROVIDER, tries.address_of(request)))
        answer: HttpResponseBase = view.adapter_view(Provider(request, settings.OIDC_PROVIDER))(
            request
        )
    except tries.TooMany as refusal:
        return refused(request, str(refusal.message), status=429)
    except (OAuth2Error, OSError, ValueError):  # before there is anybody to tell of
        return refused(request, NOT_REACHED, status=502)
    return answer
