"""What recording is made of: values that can be stored, prices, meters, what Claude Code says."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from decimal import Decimal
from typing import Any

import pytest

from agentstate_client._sync.workers import told_of
from agentstate_client.claude_usage import Reported, Totals, reported_of, usage_of
from agentstate_client.contents import VALUE_BYTES_MAX, read_json, storable, told_contents
from agentstate_client.payloads import encode
from agentstate_client.thread_records import run_tag
from agentstate_client.usage import Meter, Price, Usage, cost_of, dollars_left, written_cost


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Place:
    name: str
    at: datetime.date


class Hostile:
    def model_dump(self, mode: str) -> Any:
        raise RuntimeError(mode)

    def __repr__(self) -> str:
        raise RuntimeError("no")


def endless() -> list[Any]:
    ring: list[Any] = []
    ring += [ring, ring]
    return ring


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Place("Rome", datetime.date(2026, 3, 2)),
         {"name": "Rome", "at": "datetime.date(2026, 3, 2)"}),
        ({1: Colour.RED, "n": float("nan"), "b": b"\x00\x01"},
         {"1": "red", "n": "nan", "b": {"bytes": 2}}),
        ("a\x00b\ud800c\U0001f600", "a\ufffdb\ufffdc\U0001f600"),
        (Hostile(), "<Hostile>"),
        ((True, None, 3, 2.5, {7}), [True, None, 3, 2.5, [7]]),
        (int, "<class 'int'>"),
    ],
)  # fmt: skip
def test_whatever_a_framework_hands_over_is_stored(value: Any, stored: Any) -> None:
    assert storable(value) == stored


@pytest.mark.parametrize(
    "value",
    [endless(), 10**5_000, Hostile(), {"\ud800": Hostile}],
    ids=["endless", "long", "hostile", "half"],
)
def test_nothing_is_too_strange_to_be_sent(value: Any) -> None:
    encode(storable(value))


def test_without_content_only_sizes_are_told_and_large_ones_by_their_hash() -> None:
    told = told_contents({"text": "tea", "arguments": None}, with_content=False)
    assert told == {"text_bytes": 5}
    large = told_contents({"output": "x" * VALUE_BYTES_MAX, "n": 1}, with_content=True)
    assert (large.pop("output_bytes"), len(large.pop("output_sha256"))) == (200_002, 64)
    assert large == {"n": 1}


@pytest.mark.parametrize(
    ("given", "read"), [('{"q": [1]}', {"q": [1]}), ("{no", "{no"), ("7", "7"), (None, None)]
)
def test_a_text_that_is_an_object_is_read_as_one(given: Any, read: Any) -> None:
    assert read_json(given) == read


def test_a_price_counts_what_came_from_a_cache_apart() -> None:
    usage = Usage(1_000_000, 10, cache_read_input_tokens=400_000, cache_creation_input_tokens=100)
    assert Price("3", 15).cost(usage) == Decimal("3.00015")
    price = Price("3", "15", cache_read="0.3", cache_creation="3.75")
    assert price.cost(usage) == Decimal("1.9202250")
    assert cost_of(usage, {"m": price}, [None, "m-2026", "m"]) == price.cost(usage)
    assert cost_of(usage, {"m": price}, ["n"]) is None
    assert written_cost(Decimal("1.9202250")).text == "1.920225"
    assert written_cost(Decimal("0E-9")).text == "0"


@pytest.mark.parametrize("wrong", [0.15, True, "cheap", "-1", "NaN"])
def test_a_price_is_exact(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Price("1", wrong)


def test_many_cheap_calls_are_rounded_up_together() -> None:
    cents = Meter("cents", 100)
    third = Decimal("0.0035")
    assert [cents.take(Usage(), third) for _ in range(6)] == [1, 0, 1, 0, 0, 1]
    assert [cents.take(Usage(), None), cents.take(Usage(), Decimal())] == [0, 0]
    tokens = Meter("tokens", None)
    assert [tokens.take(Usage(7, 2), None), tokens.take(Usage(), third)] == [9, 0]


def test_the_least_of_the_budgets_in_money_counts() -> None:
    budgets = [
        {"unit": "usd_cents", "cap": 100, "spent": 40, "reserved": 10},
        {"unit": "usd", "cap": 3, "spent": 1, "reserved": 0},
        {"unit": "tokens", "cap": 1, "spent": 1, "reserved": 0},
    ]
    assert dollars_left(budgets) == Decimal("0.5")
    assert dollars_left(budgets[2:]) is None


def model_usage(inputs: int, outputs: int) -> dict[str, Any]:
    return {"claude": {"inputTokens": inputs, "outputTokens": outputs, "cacheReadInputTokens": 0,
                       "cacheCreationInputTokens": 0, "costUSD": 0.1}}  # fmt: skip


def answer(inputs: int, outputs: int, cached: int = 0) -> dict[str, Any]:
    return {"input_tokens": inputs, "output_tokens": outputs, "cache_read_input_tokens": cached}


def test_an_answer_in_parts_counts_once_and_the_result_says_what_is_missing() -> None:
    totals = Totals({})
    assert totals.take_answer("m-1", "claude", answer(10, 1)) == (True, Usage(10, 1), None)
    assert totals.take_answer("m-1", "claude", answer(10, 1)) == (False, Usage(), None)
    now = reported_of(model_usage(10, 25), 0.25)
    assert totals.take_result("s", now, is_whole=True) == (Usage(0, 24), Decimal("0.25"))

    totals.take_answer("m-2", "claude", answer(30, 2))
    later = reported_of(model_usage(40, 30), 0.75)
    assert totals.take_result("s", later, is_whole=True) == (Usage(0, 3), Decimal("0.50"))


def test_totals_that_begin_anew_are_not_taken_for_a_difference() -> None:
    totals = Totals({})
    written = json.loads(encode(reported_of(model_usage(400, 100), 2.5).document()))
    totals.learn("s", Reported.read(written))
    fresh = reported_of(model_usage(10, 5), 0.125)
    assert totals.take_result("s", fresh, is_whole=True) == (Usage(10, 5), Decimal("0.125"))


def test_what_a_session_cost_before_is_not_made_up() -> None:
    totals = Totals({})
    totals.take_answer("m-1", "claude", answer(10, 1))
    totals.take_answer("m-1", "claude", answer(10, 8))
    now = reported_of(model_usage(4_000, 100), 2.5)
    assert totals.take_result("s", now, is_whole=False) == (Usage(0, 7), None)


def test_prices_of_the_caller_go_before_what_claude_code_says() -> None:
    totals = Totals({"claude": Price("1", "10")})
    _, _, cost = totals.take_answer("m-1", "claude", answer(1_000, 0))
    assert cost == Decimal("0.001")
    now = reported_of(model_usage(1_000, 100), 9.0)
    assert totals.take_result("s", now, is_whole=True) == (Usage(0, 100), Decimal("0.001"))


def test_the_input_is_all_of_the_input() -> None:
    assert usage_of(answer(10, 2, cached=90)) == Usage(100, 2, 90)
    assert json.loads(encode(usage_of(answer(10, 2, cached=90)).document())) == {
        "input_tokens": 100, "output_tokens": 2, "cache_read.input_tokens": 90}  # fmt: skip


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (Untold(), "its text cannot be told: RuntimeError"),
        (ValueError("a\0b\ud83d"), "a\ufffdb\ufffd"),
        (ValueError("x" * 3_000_000), "x" * 2_000),
    ],
)
def test_of_an_error_is_told_what_can_be_whatever_its_own_text_does(
    error: Exception, detail: str
) -> None:
    """S-117 (docs/sweeps.md): a run stayed open when the text of its error raised."""
    assert told_of(error) == {"error": type(error).__name__, "detail": detail}
    named = type("N" * 5_000, (Exception,), {})
    assert told_of(named()) == {"error": "N" * 200, "detail": ""}


@pytest.mark.parametrize("run_id", ["a ", " a", "\u3164 ", "a\nb", "x" * 80])
def test_a_tag_is_made_of_any_id_of_a_run(run_id: str) -> None:
    """S-117: one that ended with a space made a tag that no run may have."""
    tag = run_tag(run_id)
    assert tag == tag.strip()
    assert len(tag) <= 64
    assert tag != run_tag(run_id.strip() + ".")
