"""What every decision has before it: the draft, who asks, and the request it came with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agentstate.store.callers import Caller
from agentstate.store.commands import SignalTold
from agentstate.store.rows import (
    ActionRow,
    RunRow,
)
from agentstate.store.rules.draft import Draft


class Deciding:
    """A command on its way: the draft, who asks, and the request it came with."""

    __slots__ = ("by", "draft", "request_id", "units")

    def __init__(
        self, draft: Draft, by: Caller, request_id: str | None, units: tuple[str, ...]
    ) -> None:
        self.draft, self.by, self.request_id, self.units = draft, by, request_id, units

    def with_draft(self, draft: Draft) -> Deciding:
        """The same caller and request over another draft."""
        return Deciding(draft, self.by, self.request_id, self.units)

    def log(
        self,
        run: RunRow,
        event_type: str,
        data: Mapping[str, Any],
        *,
        token: int | None = None,
        event_id: str | None = None,
        add: str | None = None,
    ) -> RunRow:
        return self.draft.log(
            run,
            event_type,
            data,
            actor=self.by.principal,
            request_id=self.request_id,
            token=token,
            event_id=event_id,
            add=add,
        )

    def act(self, action: str, thing: str, run: RunRow | None = None, **more: Any) -> None:
        """Keep an operator's action, in the transaction of its effect."""
        self.draft.writes.actions.append(
            ActionRow(
                actor=self.by.principal,
                action=action,
                object=thing,
                run_id=run.id if run else None,
                request_id=self.request_id,
                at=self.draft.now,
                **more,
            )
        )


def told(signals: str | None) -> tuple[SignalTold, ...]:
    """The signals on a lease, as they are told to its holder."""
    return tuple(
        SignalTold(**(one | {"at": datetime.fromisoformat(one["at"])}))
        for one in json.loads(signals or "[]")
    )
