"""Signing in, where it is ours and not django-allauth's: tries are counted, secrets are sealed, and
nobody signs up. What a role is given by a provider: oidc.py.
"""

from __future__ import annotations

import struct
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.forms import ChangePasswordForm, LoginForm
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.core.internal.cryptokit import normalize_user_code
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.adapter import get_adapter as get_mfa_adapter
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from cryptography.exceptions import UnsupportedAlgorithm
from django import forms
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.crypto import constant_time_compare

from agentstate.store import sealing
from dashboard import tries
from dashboard.tries import OF_A_CODE, OF_A_FACTOR, OF_A_NAME, OF_AN_ADDRESS

PASSED = "passed_with"
KEY_NAME_CHARS = 60
WRONG = "This name and password do not go together. Both are case-sensitive."


class Accounts(DefaultAccountAdapter):  # type: ignore[misc]  # untyped
    """Passwords: each try is counted by name and by address before it costs anything."""

    error_messages = DefaultAccountAdapter.error_messages | {"username_password_mismatch": WRONG}

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Raises TooMany."""
        self._counters = tries.take(
            (OF_AN_ADDRESS, tries.address_of(request)),
            (OF_A_NAME, str(credentials.get("username", ""))),
        )

    def _rollback_login_failed_rl_usage(self) -> None:
        tries.give_back(self._counters)

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def pre_login(self, request: HttpRequest, user: User, **named: Any) -> HttpResponse | None:
        """The first step is passed; what it stands on is kept for the moment after the second."""
        request.session[PASSED] = user.get_session_auth_hash()
        answer: HttpResponse | None = super().pre_login(request, user, **named)
        return answer

    def login(self, request: HttpRequest, user: User) -> None:
        """Raises ImmediateHttpResponse for who passed the first step with a password that is not
        theirs any more, or was switched off since: they begin anew."""
        passed = request.session.pop(PASSED, "")
        if not (constant_time_compare(passed, user.get_session_auth_hash()) and user.is_active):
            request.session.flush()
            raise ImmediateHttpResponse(redirect("login"))
        super().login(request, user)

    def is_safe_url(self, url: str | None) -> bool:
        try:
            return bool(url) and super().is_safe_url(url)
        except ValueError:  # the address is whatever somebody sends
            return False

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponseBase:
        raise PermissionDenied("This account is switched off. Ask an admin.")

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """None is sent: agentstate knows nobody's address, and needs none."""

    def send_notification_mail(self, *_: Any, **__: Any) -> None:
        """Nor of what was changed: it stands in the audit."""


class SignIn(LoginForm):  # type: ignore[misc]  # untyped
    """Name and password, under the names that browsers remember them by."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.fields["password"] = forms.CharField(max_length=1_000, strip=False)

    def add_prefix(self, field_name: str) -> str:
        return "username" if field_name == "login" else field_name


class Factors(DefaultMFAAdapter):  # type: ignore[misc]  # untyped
    """Second factors: their secrets are sealed in the database (store/sealing.py)."""

    def encrypt(self, text: str) -> str:
        return sealing.seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        """Raises ValidationError when it was sealed under another key of the site."""
        try:
            return sealing.unseal(encrypted_text)
        except sealing.Unreadable:
            raise self.validation_error("incorrect_code") from None

    def generate_authenticator_name(self, user: User, type: str) -> str:
        """A first name for a key, which its owner changes or not."""
        known = Authenticator.objects.filter(user=user, type=type).count()
        return f"Key {known + 1}"

    def send_notification_mail(self, *_: Any, **__: Any) -> None:
        """See Accounts."""


class _Counted:
    """A code is counted before it is compared. A right one counts no more, and is right once."""

    user: User

    def clean_code(self) -> str:
        """Raises TooMany."""
        counters = tries.take((OF_A_FACTOR, str(self.user.pk)))
        code: str = super().clean_code()  # type: ignore[misc]
        # As it is compared: with a space or a hyphen in it, it is the same code.
        tries.take((OF_A_CODE, f"{self.user.pk} {normalize_user_code(code)}"))
        tries.give_back(counters)
        return code


class SecondFactor(_Counted, AuthenticateForm):  # type: ignore[misc]  # untyped
    """After the password."""


class SecondFactorAgain(_Counted, ReauthenticateForm):  # type: ignore[misc]  # untyped
    """Before what protects the account is changed."""


# What allauth and its library for keys raise at what is no answer of a key, beside what they mend.
NO_ANSWER = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
    struct.error,
)


class _Read:
    """What a browser says that a key answered may be anything."""

    def full_clean(self) -> None:
        try:
            super().full_clean()  # type: ignore[misc]
        except NO_ANSWER:
            self.cleaned_data: dict[str, Any] = {}
            wrong = get_mfa_adapter().validation_error("incorrect_code")
            self.add_error("credential", wrong)  # type: ignore[attr-defined]


class NewKey(_Read, AddWebAuthnForm):  # type: ignore[misc]  # untyped
    """A key and what it is called."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.fields["name"] = forms.CharField(required=False, max_length=KEY_NAME_CHARS)


class KeyFactor(_Read, AuthenticateWebAuthnForm):  # type: ignore[misc]  # untyped
    """A key after the password."""


class KeyFactorAgain(_Read, ReauthenticateWebAuthnForm):  # type: ignore[misc]  # untyped
    """A key before what protects the account is changed."""


class PasswordChange(ChangePasswordForm):  # type: ignore[misc]  # untyped
    """The old password is a secret that may be guessed, too."""

    def clean_oldpassword(self) -> str:
        """Raises TooMany."""
        counters = tries.take((OF_A_NAME, self.user.get_username()))
        password: str = super().clean_oldpassword()
        tries.give_back(counters)
        return password
