"""What every decision has before it: the draft, who asks, and the request it came with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from agentstate.store.callers import Caller
from agentstate.store.commands import SignalTold
from agentstate.store.rows import (
    ActionRow,
    RunRow,
)
from agentstate.store.rules import pacing
from agentstate.store.rules.draft import Draft


class Deciding:
    """A command on its way: the draft, who asks, and the request it came with."""

    __slots__ = ("by", "draft", "paced", "request_id", "units")

    def __init__(
        self, draft: Draft, by: Caller, request_id: str | None, units: tuple[str, ...]
    ) -> None:
        self.draft, self.by, self.request_id, self.units = draft, by, request_id, units
        self.paced: set[UUID] = set()

    def with_draft(self, draft: Draft) -> Deciding:
        """The same caller and request over another draft."""
        same = Deciding(draft, self.by, self.request_id, self.units)
        same.paced = self.paced
        return same

    def ended(self, run: RunRow, token: int | None) -> bool:
        """Whether the caller is who ended the run: under the token that was given to it, or on a
        run that was never leased."""
        if token is None:
            return run.terminal and not run.ever_leased and self.by.may("write")
        term = self.draft.term(token)
        given = term is not None and term.holder == self.by.principal
        return given and run.terminal and token == run.ended_token

    def pace(self, run: RunRow) -> RunRow:
        """Count one write to the run, once a request; raises RunHot."""
        if run.id in self.paced or not pacing.is_counted(self.by):
            return run
        facts = self.draft.facts
        paced = pacing.pace(run, now=facts.now, per_second=facts.writes_per_second)
        self.paced.add(run.id)
        return paced if paced is run else self.draft.put_run(paced)

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
