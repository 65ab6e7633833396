"""What may be called how."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.commands import AcquireLease, Append, CreateRun, NewEvent
from agentstate.store.errors import Invalid, UnstorableText
from agentstate.store.rules import names


@pytest.mark.parametrize(
    "key",
    ["42", "a", "checkout-42", "2026-03-12T09:40:00Z", "a~b@c.d:e_f", "x" * 196],
)
def test_these_are_run_keys(key):
    assert CreateRun(task="x", key=key).key == key


@pytest.mark.parametrize(
    "key",
    ["", "a/b", "..", "../admin", "%2e%2e", "100%", "a b", "a+b", "x'y", "a?b#c", "a&b=c", "é",
     "e\u0301", "😀", "a\u202eb", "a\u200bb", "a ", " a", ".a", "a-", "x" * 197, 42, True],
)  # fmt: skip
def test_these_are_not_and_the_rule_is_said(key):
    with pytest.raises(Invalid) as refused:
        CreateRun(task="x", key=key)
    assert refused.value.field == "key"
    assert refused.value.rule


@pytest.mark.parametrize("field", ["task", "key"])
def test_nul_and_half_surrogates_are_named(field):
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises(UnstorableText):
            CreateRun(**{"task": "x", "key": "k", field: text})


@pytest.mark.parametrize(
    "ttl",
    [0, -1, 0.4, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 86_400 * 10**9, 1e308, "60", True, None,
     float("nan"), 86_401],
)  # fmt: skip
def test_a_ttl_is_a_whole_number_of_seconds_up_to_a_day(ttl):
    with pytest.raises(Invalid) as refused:
        AcquireLease(unit="u-1", owner="w-1", ttl_seconds=ttl)
    assert refused.value.field == "ttl_seconds"
    assert "1 to 86400" in refused.value.rule


@pytest.mark.parametrize("unit", ["claim", "renew"])
def test_the_words_of_the_address_are_no_units(unit):
    with pytest.raises(Invalid):
        AcquireLease(unit=unit, owner="w-1")


@pytest.mark.parametrize("event_type", ["x\nevent: spoof", "x\r", "1x", "", "a b", "x" * 101])
def test_an_event_type_has_no_control_characters(event_type):
    """Case O-24 (docs/cases.md)."""
    with pytest.raises(Invalid):
        NewEvent(type=event_type)


def test_tags_are_a_set_with_a_limit():
    assert names.check_tags("tags", ["b", "a", "b"]) == ("a", "b")
    with pytest.raises(Invalid):
        names.check_tags("tags", [str(n) for n in range(51)])
    with pytest.raises(Invalid):
        names.check_tags("tags", "abc")


def test_a_batch_has_1_to_500_events_and_each_id_once():
    with pytest.raises(Invalid):
        Append(run="42", events=())
    with pytest.raises(Invalid):
        Append(run="42", events=(NewEvent(type="x"),) * 501)
    with pytest.raises(Invalid):
        Append(run="42", events=(NewEvent(type="x", id="1"), NewEvent(type="y", id="1")))


@given(st.text("\u200b\u200d\u2060\u00ad\ufeff\u202e\u3164\u115f\u2800\u2003", min_size=1))
def test_what_nobody_can_see_is_no_reason(text):
    """S-102 (docs/sweeps.md): a zero-width space was taken for one."""
    with pytest.raises(Invalid):
        names.check_line("reason", text, at_least=1, at_most=500)
    assert names.check_line("reason", f"a{text}b", at_least=1, at_most=5_000) == f"a{text}b"


@pytest.mark.parametrize(
    "text",
    [
        "\ufe0f",
        "\u034f",
        "\u17b5",
        "\u180b",
        "\u2065",
        "\ufff0",
        "\U000e0100",
        "\U000e0080",
        "\u200b\ufe0e",
    ],
)
def test_what_unicode_draws_as_nothing_is_no_reason_whatever_its_category(text):
    """S-104: a variation selector alone is a mark, and was taken for a reason."""
    with pytest.raises(Invalid):
        names.check_line("reason", text, at_least=1, at_most=500)
    assert names.check_line("reason", f"❤{text}", at_least=1, at_most=500) == f"❤{text}"


@pytest.mark.parametrize("text", ["é", "e\u0301", "\u0e31", "😀", "👩\u200d👧", "한", "‏שלום", "—"])
def test_what_leaves_ink_is_one_in_any_script(text):
    assert names.check_line("reason", text, at_least=1, at_most=500) == text


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b"])
def test_one_line_has_no_separator_of_lines_in_it(text):
    """S-115 (docs/sweeps.md): in a message it began a line of its own."""
    with pytest.raises(Invalid, match="one line"):
        names.check_line("task", text, at_least=1, at_most=500)
    with pytest.raises(Invalid, match="one line"):
        CreateRun(task="x", tags=(text,))
    # What was taken before that was refused stays in histories.
    assert names.check_line("task", text, at_least=1, at_most=500, unseen=True) == text
