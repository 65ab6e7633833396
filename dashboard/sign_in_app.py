"""allauth's accounts as a Django app of this site."""

from allauth.account.apps import AccountConfig


class SignIn(AccountConfig):  # type: ignore[misc]  # untyped
    """It looks for its middleware in settings.MIDDLEWARE. Ours has two stacks, and it is in the
    console's (agentstate/middleware.py)."""

    def ready(self) -> None:
        from allauth.account import checks  # noqa: F401  they register themselves
