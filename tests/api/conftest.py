import pytest

from tests.api.asking import Api, new_key


@pytest.fixture
def api(db: None) -> Api:
    """The API with a key that has every scope.

    The test is rolled back, which is much quicker than emptying all tables. Tests with threads or
    with a clock of their own ask for `transactional_db` or `clock` before it.
    """
    return Api(new_key("fleet"))


@pytest.fixture
def with_scopes(db: None):
    """with_scopes("read", "write"): the API with a key of these scopes."""

    def make(*scopes: str, name: str = "") -> Api:
        return Api(new_key(name or "-".join(scopes) or "none", scopes))

    return make


@pytest.fixture
def anonymous(db: None) -> Api:
    """The API without a key."""
    return Api(None)
