"""Faults of whole processes, on a site of its own."""

from tests.bootstrap.conftest import open_folder

__all__ = ["open_folder"]
