"""What a model call took: tokens, and money where its price is known.

Names of tokens are OpenTelemetry's for generative AI, without `gen_ai.usage.` before them.
Money is US dollars, as a Decimal: said by the framework, or by a table of the caller's prices.
Nothing is estimated: what nobody said stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from decimal import ROUND_CEILING, Decimal
from typing import Any

from agentstate_client.errors import AgentStateError
from agentstate_client.payloads import RawJSON

TOKENS_UNIT = "tokens"
# How many of it are a dollar, by a budget's unit.
MONEY_UNITS = {"usd": 1, "usd_cents": 100, "usd_micros": 1_000_000}
PRICED_TOKENS = 1_000_000


class PriceUnknown(AgentStateError):
    """A budget of the run is in money, and nobody says what a model costs that was called.

    What it took in tokens is written. model: its name; None: nobody said it.
    """

    def __init__(self, model: str | None) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"a budget is in money and nobody says what {self.model or 'the model'} costs"


@dataclass(frozen=True)
class Usage:
    """Tokens of one model call, each at least 0.

    input_tokens: all of the input, what came from a cache or was written to one included.
    output_tokens: all of the output, what the model thought included. The others are parts of them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    reasoning_output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def beyond(self, other: Usage) -> Usage:
        """What is here and not there; never below 0."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Usage(*(max(0, mine - theirs) for mine, theirs in pairs))

    def document(self) -> dict[str, int]:
        """As it is written in an event; of the parts those that are not 0."""
        parts = {
            "cache_read.input_tokens": self.cache_read_input_tokens,
            "cache_creation.input_tokens": self.cache_creation_input_tokens,
            "reasoning.output_tokens": self.reasoning_output_tokens,
        }
        whole = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return whole | {name: count for name, count in parts.items() if count}


@dataclass(frozen=True)
class Price:
    """What a model costs: US dollars for a million tokens, as int, text or Decimal (`"0.15"`).

    cache_read, cache_creation: for the parts of the input that came from a cache, or were written
    to one; None: as the rest of the input.
    """

    input: Decimal | str | int
    output: Decimal | str | int
    cache_read: Decimal | str | int | None = None
    cache_creation: Decimal | str | int | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cache_read", "cache_creation"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _dollars(name, value))

    def cost(self, usage: Usage) -> Decimal:
        """What a call of so many tokens costs, exactly."""
        read = usage.cache_read_input_tokens
        created = usage.cache_creation_input_tokens
        plain = max(0, usage.input_tokens - read - created)
        parts = (
            (plain, self.input),
            (read, self.input if self.cache_read is None else self.cache_read),
            (created, self.input if self.cache_creation is None else self.cache_creation),
            (usage.output_tokens, self.output),
        )
        return sum((count * Decimal(price) for count, price in parts), Decimal()) / PRICED_TOKENS


def _dollars(name: str, value: object) -> Decimal:
    # A float would say 0.1 and mean 0.1000000000000000055.
    if isinstance(value, bool) or not isinstance(value, (int, str, Decimal)):
        raise TypeError(f"{name}: dollars as int, text or Decimal, not {type(value).__name__}")
    try:
        dollars = Decimal(value)
    except ArithmeticError:
        raise ValueError(f"{name}: {value!r} is no number") from None
    if not dollars.is_finite() or dollars < 0:
        raise ValueError(f"{name}: {value!r} is no price")
    return dollars


def cost_of(
    usage: Usage, prices: Mapping[str, Price], models: Iterable[str | None]
) -> Decimal | None:
    """By the price of the first of these names that has one; None: nobody said what it costs."""
    for model in models:
        if model is not None and model in prices:
            return prices[model].cost(usage)
    return None


def dollars_of(told: Decimal | float) -> Decimal:
    """What somebody said, digit by digit; a float as it is written."""
    return told if isinstance(told, Decimal) else Decimal(str(told))


def written_cost(dollars: Decimal) -> RawJSON:
    """As a JSON number with exactly its digits."""
    text = f"{dollars:f}"
    return RawJSON(text.rstrip("0").rstrip(".") if "." in text else text)


@dataclass
class Meter:
    """A budget that is charged as the agent goes: in tokens, or in a unit of money.

    per_dollar: None for tokens. Money is charged by what all calls of this recorder cost together,
    rounded up to whole units: many cheap calls are not rounded up one by one.
    """

    budget: str
    per_dollar: int | None
    _owed: Decimal = field(default_factory=Decimal)
    _charged: int = 0

    @property
    def is_money(self) -> bool:
        return self.per_dollar is not None

    def take(self, usage: Usage, cost: Decimal | None) -> int:
        """What this call adds, in whole units of the budget."""
        if self.per_dollar is None:
            return usage.total_tokens
        self._owed += (cost or Decimal()) * self.per_dollar
        whole = int(self._owed.to_integral_value(ROUND_CEILING))
        amount, self._charged = whole - self._charged, whole
        return amount


def meters_of(budgets: Iterable[Mapping[str, Any]]) -> list[Meter]:
    """One for each budget whose unit is known here; others are not charged."""
    found = []
    for budget in budgets:
        unit = str(budget.get("unit"))
        if unit == TOKENS_UNIT or unit in MONEY_UNITS:
            found.append(Meter(str(budget["budget"]), MONEY_UNITS.get(unit)))
    return found


def dollars_left(budgets: Iterable[Mapping[str, Any]]) -> Decimal | None:
    """The least that is left of those in money; None when there is none of them."""
    found = [
        Decimal(max(0, budget["cap"] - budget["spent"] - budget["reserved"]))
        / MONEY_UNITS[budget["unit"]]
        for budget in budgets
        if budget.get("unit") in MONEY_UNITS
    ]
    return min(found, default=None)
