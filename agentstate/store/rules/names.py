"""What may be called how: the shape of every name, number and text that a caller chooses.

One home for these rules (api.md, "Names and values"): the commands apply them, the API's schemas
and docs are made from the same constants.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentstate.store.errors import Invalid, UnstorableText

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._:@~-]*[A-Za-z0-9])?"
NAME_RULE = "letters, digits and . _ : @ ~ -, first and last a letter or digit"
EVENT_TYPE = r"[A-Za-z][A-Za-z0-9._-]*"
VISIBLE = r"[\x20-\x7e]+"

RUN_KEY_CHARS, UNIT_CHARS, WORKER_CHARS, BUDGET_CHARS = 196, 200, 200, 64
TYPE_CHARS, TASK_CHARS, TAG_CHARS, ID_CHARS = 100, 500, 64, 200
NOTES_CHARS, REASON_CHARS = 10_000, 500
TAGS_PER_RUN = 50
ATTEMPTS_MAX = 1_000_000  # a conversation is one run, which is taken for each of its turns
AMOUNT_MAX = 2**53 - 1
COUNTERS_MAX = 100
TTL_SECONDS_MIN, TTL_SECONDS_MAX, TTL_SECONDS_DEFAULT = 1, 86_400, 60
# Stands before the id of a change of fields, which shares the events' unique index; no caller can
# write it into an id.
SIGN_CHANGE = "Δ"
RESERVED_UNITS = frozenset({"claim", "renew"})
COUNTERS_PER_RUN = 100
SLOTS_MAX = 64

_NAME, _EVENT_TYPE, _VISIBLE = re.compile(NAME), re.compile(EVENT_TYPE), re.compile(VISIBLE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Browsers, mail and Python's own splitlines begin a new line, or a paragraph, at these.
_SEPARATOR = re.compile(r"[\u2028\u2029]")
# Characters of these categories leave no ink by themselves, nor do those that a font is told to
# draw as nothing, whatever their category (Unicode's Default_Ignorable_Code_Point: variation
# selectors, joiners, fillers, tags, also those not given out yet), and the empty Braille cell.
_UNSEEN = frozenset({"Cf", "Cc", "Zs", "Zl", "Zp"})
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def check_name(field: str, value: Any, at_most: int) -> str:
    """A run key, unit, worker or budget name of 1 to `at_most` characters. Raises Invalid."""
    text = _text(field, value, 1, at_most)
    if not _NAME.fullmatch(text):
        raise Invalid(field, NAME_RULE)
    return text


def check_run_key(field: str, value: Any) -> str:
    return check_name(field, value, RUN_KEY_CHARS)


def check_unit(field: str, value: Any) -> str:
    unit = check_name(field, value, UNIT_CHARS)
    if unit in RESERVED_UNITS:
        raise Invalid(field, "'claim' and 'renew' are not units")
    return unit


def check_worker(field: str, value: Any) -> str:
    return check_name(field, value, WORKER_CHARS)


def check_budget_name(field: str, value: Any) -> str:
    return check_name(field, value, BUDGET_CHARS)


def check_event_type(field: str, value: Any) -> str:
    text = _text(field, value, 1, TYPE_CHARS)
    if not _EVENT_TYPE.fullmatch(text):
        raise Invalid(field, "letters, digits and . _ -, first a letter")
    return text


def check_id(field: str, value: Any) -> str:
    """An idempotency key, event id or change id: 1 to 200 printable ASCII characters."""
    text = _text(field, value, 1, ID_CHARS)
    if not _VISIBLE.fullmatch(text) or text != text.strip():
        raise Invalid(field, "printable ASCII characters, no space at either end")
    return text


def check_line(field: str, value: Any, *, at_least: int, at_most: int, unseen: bool = False) -> str:
    """One line of text without control characters (task, tag, reason).

    unseen: also one that nobody can see, or that has a separator of lines, as histories may have it
    that were written before that was refused.
    """
    text = _text(field, value, at_least, at_most)
    if _CONTROL.search(text):
        raise Invalid(field, "no control characters")
    if text != text.strip():
        raise Invalid(field, "no space at either end")
    if unseen or text.isascii():
        return text
    if _SEPARATOR.search(text):
        raise Invalid(field, "one line: no separator of lines or paragraphs in it")
    if not has_ink(text):
        raise Invalid(field, "a text that can be seen")
    return text


def has_ink(text: str) -> bool:
    """Whether anything of it can be seen: a reason of zero-width spaces is none."""
    return any(
        unicodedata.category(letter) not in _UNSEEN and not _IGNORABLE.match(letter)
        for letter in text
    )


def check_text(field: str, value: Any, *, at_most: int) -> str:
    """A text of several lines (notes)."""
    return _text(field, value, 0, at_most)


def check_tags(field: str, values: Any, *, unseen: bool = False) -> tuple[str, ...]:
    """At most 50 tags, sorted, each once."""
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise Invalid(field, "a list of texts")
    tags = sorted({_tag(field, v, unseen=unseen) for v in values})
    if len(tags) > TAGS_PER_RUN:
        raise Invalid(field, f"at most {TAGS_PER_RUN} tags")
    return tuple(tags)


def _tag(field: str, value: Any, *, unseen: bool) -> str:
    return check_line(f"{field}[]", value, at_least=1, at_most=TAG_CHARS, unseen=unseen)


def check_whole(field: str, value: Any, *, at_least: int, at_most: int) -> int:
    """A whole number in a range; `true` is not 1 and 60.0 is not 60."""
    if type(value) is not int or not at_least <= value <= at_most:
        raise Invalid(field, f"a whole number from {at_least} to {at_most}")
    return value


def check_ttl_seconds(field: str, value: Any) -> int:
    return check_whole(field, value, at_least=TTL_SECONDS_MIN, at_most=TTL_SECONDS_MAX)


def check_amount(field: str, value: Any, *, at_least: int = 0) -> int:
    return check_whole(field, value, at_least=at_least, at_most=AMOUNT_MAX)


def check_attrs_path(field: str, value: Any) -> str:
    """Where in attrs: names of 1 to 64 characters with dots between them, at most ten."""
    text = _text(field, value, 1, 10 * (BUDGET_CHARS + 1))
    parts = text.split(".")
    if len(parts) > 10 or not all(0 < len(part) <= BUDGET_CHARS for part in parts):
        raise Invalid(f"{field}.attrs.{text}", "names of 1 to 64 characters with dots between")
    return text


def check_counters(field: str, value: Any) -> dict[str, int]:
    """What to add to counters: names to whole numbers, negative ones too (a correction)."""
    if not isinstance(value, dict):
        raise Invalid(field, "an object of counter names and whole numbers")
    if len(value) > COUNTERS_PER_RUN:
        raise Invalid(field, f"at most {COUNTERS_PER_RUN} counters")
    for name, amount in value.items():
        check_name(f"{field} (a counter's name)", name, BUDGET_CHARS)
        check_whole(f"{field}.{name}", amount, at_least=-AMOUNT_MAX, at_most=AMOUNT_MAX)
    return dict(value)


def _text(field: str, value: Any, at_least: int, at_most: int) -> str:
    if not isinstance(value, str):
        raise Invalid(field, "a text")
    if _UNSTORABLE.search(value):
        raise UnstorableText(field, "no U+0000 and no lone surrogate")
    if not at_least <= len(value) <= at_most:
        raise Invalid(field, f"{at_least} to {at_most} characters")
    return value


def legal(check: Callable[[str, Any], str], name: Any) -> str | None:
    """A name out of an address; None for one that cannot be: the caller may not know that yet."""
    with suppress(Invalid):
        return check("name", name)
    return None
