"""Faults of whole processes, on a site of its own; and of connections, on the test database."""

import pytest

from tests.bootstrap.conftest import open_folder
from tests.store.asking import Asking

__all__ = ["open_folder"]


@pytest.fixture
def store(transactional_db: None) -> Asking:
    return Asking()
