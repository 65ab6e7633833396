from __future__ import annotations

import json
from typing import Any

import pytest

from agentstate_client import RawJSON, Unsendable
from agentstate_client.payloads import encode
from agentstate_client.records import read_events

ODD = '{"b": 1.0, "a":1e400,  "id":1970670598291982290,"é":"\\u00e9\\/"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_say_is_refused_with_its_place(value: float) -> None:
    """Case O-20 (docs/cases.md)."""
    with pytest.raises(Unsendable, match=r"events\[1\]\.data\.score: (nan|inf|-inf) is not JSON"):
        encode({"events": [{"data": 1}, {"data": {"score": value}}]})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1: "a"}, "the name 1 is not a text"),
        ({"a": {None: 1}}, "a: the name None is not a text"),
        ({"a": {1, 2}}, "set is not a JSON value"),
        ({"a": b"bytes"}, "bytes is not a JSON value"),
        ({"a": ["\ud800"]}, r"a\[0\]: half a surrogate pair"),
        ({"a\udfff": 1}, "half a surrogate pair"),
    ],
)
def test_nothing_is_quietly_turned_into_something_else(value: Any, why: str) -> None:
    with pytest.raises(Unsendable, match=why):
        encode(value)


def test_a_ring_and_a_very_deep_value_are_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(Unsendable, match="nested too deeply"):
            encode(value)


def test_integers_go_out_digit_by_digit() -> None:
    numbers = [1970670598291982290, 9223372036854775807, -9007199254740993, 10**900, 0.1, 1e21]
    assert json.loads(encode(numbers)) == numbers


def test_raw_json_is_sent_as_it_stands_at_any_depth() -> None:
    body = encode({"events": [{"type": "a", "data": RawJSON(ODD)}], "x": [[RawJSON("1.0")]]})
    assert body.decode() == '{"events":[{"type":"a","data":' + ODD + '}],"x":[[1.0]]}'


@pytest.mark.parametrize("text", ["", "1 2", '1}, "x": {', "NaN", "[-Infinity]", "{'a': 1}", "nul"])
def test_raw_json_is_exactly_one_value_and_cannot_break_out(text: str) -> None:
    with pytest.raises(Unsendable):
        RawJSON(text)


def test_a_page_of_events_keeps_the_text_of_every_payload() -> None:
    page = (
        '{"items" : [{"seq": 2,"data": ' + ODD + ', "type":"a","origin":"worker",'
        '"at":"2026-01-02T03:04:05.678901Z","id":null,"token":7,"newer":{"data":1}},\n'
        '{"seq":3,"type":"b","origin":"store","at":"2026-01-02T03:04:05Z"}], "last_seq": 3}'
    )
    first, second = read_events(page)
    assert first.raw == ODD
    assert first.data["id"] == 1970670598291982290
    assert first.at.isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert (second.seq, second.raw, second.data) == (3, None, None)


def test_changing_what_was_read_reaches_nobody_else() -> None:
    page = (
        '{"items":[{"seq":1,"type":"a","origin":"worker","at":"2026-01-02T03:04:05Z",'
        '"data":{"a":[1]}}]}'
    )
    (event,) = read_events(page)
    event.data["a"].append(2)
    assert event.data == {"a": [1]}
