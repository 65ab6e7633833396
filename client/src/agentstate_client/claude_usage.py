"""What Claude Code says of tokens and cost, so that each is counted once.

* An answer comes in parts that repeat one id and one usage, which may not be whole yet.
* A result tells running totals, per model: of the process, or of the session when it was resumed.

So the first part of an answer is counted when it comes, and a result says what is missing.
Plain values: nothing here sends, and nothing here needs the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentstate_client.usage import Price, Usage, cost_of, dollars_of, written_cost


@dataclass(frozen=True)
class Reported:
    """Running totals as a result tells them. cost: US dollars; None: it did not say."""

    models: Mapping[str, Usage] = field(default_factory=dict)
    cost: Decimal | None = None

    @property
    def usage(self) -> Usage:
        return sum(self.models.values(), Usage())

    def since(self, before: Reported) -> Reported:
        """What came after `before`. Totals that are smaller than before began anew."""
        if self._began_anew(before):
            return self
        models = {
            name: usage.beyond(before.models.get(name, Usage()))
            for name, usage in self.models.items()
        }
        cost = None if self.cost is None else self.cost - (before.cost or 0)
        return Reported(models, cost)

    def _began_anew(self, before: Reported) -> bool:
        if self.cost is not None and before.cost is not None and self.cost < before.cost:
            return True
        return any(
            self.models.get(name, Usage()).total_tokens < usage.total_tokens
            for name, usage in before.models.items()
        )

    def document(self) -> dict[str, Any]:
        cost = {} if self.cost is None else {"cost_usd": written_cost(self.cost)}
        return {"models": {name: u.document() for name, u in self.models.items()}, **cost}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Reported:
        """What `document` made."""
        models = {
            name: Usage(
                told.get("input_tokens", 0),
                told.get("output_tokens", 0),
                told.get("cache_read.input_tokens", 0),
                told.get("cache_creation.input_tokens", 0),
            )
            for name, told in document.get("models", {}).items()
        }
        cost = document.get("cost_usd")
        return cls(models, None if cost is None else dollars_of(cost))


class Totals:
    """What was counted in this prompt, and what each session had reported before it."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._told: dict[str, Usage] = {}
        self._counted, self._costs = Usage(), Decimal()
        self._reported: dict[str, Reported] = {}

    def knows(self, session_id: str) -> bool:
        return session_id in self._reported

    def learn(self, session_id: str, reported: Reported) -> None:
        self._reported[session_id] = reported

    def take_answer(
        self, id: str, model: str, told: Mapping[str, Any] | None
    ) -> tuple[bool, Usage, Decimal | None]:
        """Whether this is the first part of its answer; then what it took, and what that cost."""
        usage, before = usage_of(told or {}), self._told.get(id)
        self._told[id] = usage if before is None else before + usage.beyond(before)
        if before is not None:
            return False, Usage(), None
        cost = cost_of(usage, self._prices, [model])
        self._counted, self._costs = self._counted + usage, self._costs + (cost or 0)
        return True, usage, cost

    def take_result(
        self, session_id: str, now: Reported, *, is_whole: bool
    ) -> tuple[Usage, Decimal | None]:
        """What this prompt took and cost beyond what its answers were counted for.

        is_whole: what the session had reported before this prompt is known. When it is not, the
        tokens are those that the answers told, and the cost is not known.
        """
        turn = now.since(self._reported.get(session_id, Reported()))
        told = sum(self._told.values(), Usage())
        usage = turn.usage if is_whole and turn.models else told
        rest, cost = usage.beyond(self._counted), None
        if is_whole:
            cost = self._cost_of(turn) if self._prices else turn.cost
        if cost is not None:
            cost = max(Decimal(), cost - self._costs)
        self._reported[session_id] = now
        self._told, self._counted, self._costs = {}, Usage(), Decimal()
        return rest, cost

    def _cost_of(self, turn: Reported) -> Decimal | None:
        """By the caller's prices; None when one is missing."""
        costs = [cost_of(usage, self._prices, [name]) for name, usage in turn.models.items()]
        if any(cost is None for cost in costs):
            return None
        return sum((cost for cost in costs if cost is not None), Decimal())


def usage_of(told: Mapping[str, Any]) -> Usage:
    """Of an answer. The API counts what came from a cache apart from the rest of the input."""
    plain, read, created, output = (
        int(told.get(name) or 0)
        for name in (
            "input_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens",
        )
    )
    return Usage(plain + read + created, output, read, created)


def reported_of(model_usage: Mapping[str, Any] | None, total_cost_usd: float | None) -> Reported:
    """Of a result."""
    models = {}
    for name, told in (model_usage or {}).items():
        plain, read, created, output = (
            int(told.get(member) or 0)
            for member in (
                "inputTokens",
                "cacheReadInputTokens",
                "cacheCreationInputTokens",
                "outputTokens",
            )
        )
        models[name] = Usage(plain + read + created, output, read, created)
    return Reported(models, None if total_cost_usd is None else dollars_of(total_cost_usd))
