"""Frozen dataclasses that are made on every write, made ten times as fast."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING
from typing import Any


def lean[T](cls: type[T]) -> type[T]:
    """For a frozen dataclass without slots: what is given is kept as one dictionary, and a field
    that is not given is its class's. A field that has no default must be given: nobody checks.

    [A row of 31 fields: 0.9 µs in place of 9.] Defaults that are made anew for each (a factory)
    would be shared, so there are none.
    """
    found: Any = cls
    for field in dataclasses.fields(found):
        if field.default_factory is not MISSING:
            raise TypeError(f"{cls.__name__}.{field.name} is made by a factory")

    def init(self: Any, **given: Any) -> None:
        self.__dict__.update(given)

    found.__init__ = init
    return cls
