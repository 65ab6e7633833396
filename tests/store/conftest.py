import pytest

from tests.store.asking import Asking


@pytest.fixture
def store(transactional_db: None) -> Asking:
    """The store as one caller with every scope sees it."""
    return Asking()
