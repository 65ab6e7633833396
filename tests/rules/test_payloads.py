"""A payload comes back as it was sent, or is refused with the place named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store import payloads
from agentstate.store.errors import Invalid, Refusal, TooLarge, UnstorableText
from agentstate.store.payloads import Malformed, RawJSON

storable = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | storable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(value=values, indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_any_json_is_kept_to_the_letter(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    body = f'{{"events": [{{"type": "x", "data": {text}}}]}}'

    assert payloads.check(text) == RawJSON(text)
    assert payloads.parse(body, raw=frozenset({"data"}))["events"][0]["data"].text == text
    assert payloads.parse(text) == value or value != value


@given(value=values)
def test_the_canonical_text_is_the_same_for_every_way_of_writing_a_value(value):
    one = payloads.canonical(json.dumps(value, indent=2, sort_keys=True))
    two = payloads.canonical(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    assert one == two


@given(value=values)
def test_what_is_written_is_json_again(value):
    assert json.loads(payloads.write(value)) == value
    assert payloads.write({"a": RawJSON("1.0"), "b": [RawJSON('{"x":1}')]}) == (
        '{"a":1.0,"b":[{"x":1}]}'
    )


@given(text=st.text(max_size=60))
def test_any_text_is_answered_with_a_payload_or_a_refusal(text):
    for read in (payloads.check, payloads.parse, lambda t: payloads.parse(t, raw={"a"})):
        try:
            read(text)
        except Refusal as refused:
            assert refused.detail


DEEP = "[" * 20_000


@pytest.mark.parametrize(
    ("text", "refusal", "where"),
    [
        ('{"out":"a\\u0000b"}', UnstorableText, "data.out"),
        ('{"out":["x","\\ud83d"]}', UnstorableText, "data.out[1]"),
        ('{"\\u0000":1}', UnstorableText, "a name"),
        ('"\\udc00 alone"', UnstorableText, "data"),
        ("[NaN]", Invalid, "NaN is not JSON"),
        ('{"a":-Infinity}', Invalid, "-Infinity is not JSON"),
        ("1e999", Invalid, "too large"),
        ("9" * 1_001, Invalid, "more than 1000 digits"),
        ('{"a":1,"b":{"x":1,"x":2}}', Invalid, "twice"),
        ("[" * 65 + "]" * 65, Invalid, "nested deeper than 64"),
        (DEEP, Invalid, "nested deeper than 64"),
        ("", Malformed, ""),
        ("{'a':1}", Malformed, ""),
        ("1 2", Malformed, "after"),
        ('"tab\there"', Malformed, ""),
        ('"' + "x" * (1024 * 1024) + '"', TooLarge, "1048578 bytes"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_place(text, refusal, where):
    with pytest.raises(refusal) as refused:
        payloads.check(text)
    assert where in refused.value.detail


@pytest.mark.parametrize(
    "text",
    ["-0", "1e400".replace("400", "300"), '"\\ud83d\\ude00"', '"\\u2028"', "[" * 64 + "]" * 64,
     "9" * 1_000, '{"a":{"a":{"a":1}}}'],
)  # fmt: skip
def test_what_is_within_the_limits_is_kept(text):
    assert payloads.check(text).text == text
