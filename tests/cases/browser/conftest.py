"""The cases that need a real browser."""

import pytest

from tests.browser.conftest import browser, open_window, site, store, window

__all__ = ["browser", "open_window", "site", "store", "window"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "browser" and item.path.parent.parent.name == "cases":
            for mark in (pytest.mark.browser, pytest.mark.long, pytest.mark.many):
                item.add_marker(mark)
