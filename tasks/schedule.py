"""What beat starts, and how often; and the modules in which the tasks are."""

from typing import Any

MODULES: tuple[str, ...] = ()
SCHEDULE: dict[str, dict[str, Any]] = {}
