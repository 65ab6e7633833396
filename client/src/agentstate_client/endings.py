"""How a call that is a run came to an end before."""

from __future__ import annotations

from typing import Any

from agentstate_client.errors import AgentStateError


class CallEnded(AgentStateError):
    """The call has come to an end before, and not well: failed or cancelled.

    status, result: the run's. Another key begins it anew.
    """

    def __init__(self, key: str, status: str, result: Any) -> None:
        super().__init__(key, status, result)
        self.key, self.status, self.result = key, status, result

    def __str__(self) -> str:
        return f"the run {self.key} is {self.status}: {self.result!r}"
