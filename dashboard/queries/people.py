"""What is told of a person: how they sign in, and where they are signed in."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User

from dashboard.models import Session
from dashboard.pages import ConsoleRequest
from dashboard.queries.clock import database_now

KEYS_SHOWN = 20
SESSIONS_SHOWN = 50


def read_account(request: ConsoleRequest) -> dict[str, Any]:
    """Of who asks. Secrets are not among it."""
    user = request.user
    assert isinstance(user, User)
    found = list(Authenticator.objects.filter(user=user).order_by("id")[: KEYS_SHOWN + 2])
    kinds = {one.type: one for one in found}
    codes = kinds.get(Authenticator.Type.RECOVERY_CODES)
    sessions = Session.objects.filter(user=user).order_by("-seen_at")[:SESSIONS_SHOWN]
    return {
        "now": database_now(),
        "has_password": user.has_usable_password(),
        "elsewhere": SocialAccount.objects.filter(user=user).exists(),
        "app": kinds.get(Authenticator.Type.TOTP),
        "keys": [one for one in found if one.type == Authenticator.Type.WEBAUTHN],
        "codes": codes,
        "codes_left": len(codes.wrap().get_unused_codes()) if codes else 0,
        "sessions": [
            {"row": one, "is_this": one.session_key == request.session.session_key}
            for one in sessions
        ],
    }


def second_steps(person: User) -> dict[int, str]:
    """Their second steps and recovery codes by number, the oldest first, each with its kind."""
    return dict(Authenticator.objects.filter(user=person).order_by("id").values_list("id", "type"))


def is_somebody(name: str) -> bool:
    return User.objects.filter(username=name).exists()


def count_sessions(name: str) -> int:
    """How many of theirs go on."""
    return Session.objects.going_on().filter(user__username=name).count()
