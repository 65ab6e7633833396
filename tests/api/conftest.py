import pytest

from tests.api.asking import Api, new_key


@pytest.fixture
def api(transactional_db: None) -> Api:
    """The API with a key that has every scope."""
    return Api(new_key("fleet"))


@pytest.fixture
def with_scopes(transactional_db: None):
    """with_scopes("read", "write"): the API with a key of these scopes."""

    def make(*scopes: str, name: str = "") -> Api:
        return Api(new_key(name or "-".join(scopes) or "none", scopes))

    return make


@pytest.fixture
def anonymous(transactional_db: None) -> Api:
    """The API without a key."""
    return Api(None)
