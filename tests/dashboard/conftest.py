from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.clock import Clock
from tests.store.asking import Asking


@pytest.fixture
def store(db: None) -> Asking:
    """The store as one caller with every scope sees it; what it writes is rolled back."""
    return Asking()


@pytest.fixture
def still_clock(db: None) -> Clock:
    """The database's clock, standing still, inside the test's own transaction."""
    return Clock()


def person(name: str, role: str | None) -> User:
    """Somebody who may log in with the password `pass-<name>`."""
    user = User.objects.create_user(name, password=f"pass-{name}")
    if role:
        user.groups.add(Group.objects.get(name=role))
    return user


@pytest.fixture
def log_in(db: None) -> Callable[..., Client]:
    """log_in("ana", "operator"): a browser without scripts in which she is logged in."""

    def make(name: str = "ana", role: str | None = "operator") -> Client:
        client = Client()
        client.force_login(person(name, role))
        return client

    return make


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement may wait longer for a busy processor than a page does for its numbers."""
    monkeypatch.setattr("dashboard.views.runs.COUNTS_AT_ONCE_MS", 900)


@pytest.fixture
def viewer(log_in: Callable[..., Client]) -> Client:
    return log_in("vi", "viewer")


@pytest.fixture
def operator(log_in: Callable[..., Client]) -> Client:
    return log_in("ana", "operator")


@pytest.fixture
def senior(log_in: Callable[..., Client]) -> Client:
    return log_in("bo", "senior")
