"""The types of every value that a caller sends: the store's own rules, with their JSON Schema.

The rule is applied by the function of `rules/names.py` that the commands use too, so what OpenAPI
says, what the API refuses and what the store takes cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from agentstate.store import filters
from agentstate.store.alerting import BOUND_MAX, RULES, SNOOZE_SECONDS_MAX, SNOOZE_SECONDS_MIN
from agentstate.store.commands import (
    BRAKE_SECONDS_MAX,
    CLAIM_LIMIT,
    PER_SECOND_MAX,
    RETAIN_SECONDS_MAX,
    SIGNALS,
)
from agentstate.store.delivering import ADDRESS_CHARS, KINDS, LEAST
from agentstate.store.effects import BEGUN, ENDED
from agentstate.store.errors import Invalid, every_refusal
from agentstate.store.keys import Unauthenticated
from agentstate.store.made import PREFIX
from agentstate.store.minutes import OK
from agentstate.store.payloads import RawJSON, members
from agentstate.store.rates import BY, FAILED, GROUPS_MAX
from agentstate.store.rules import names
from agentstate.store.rules.expect import CLAUSES_MAX, COMPARISONS, FIELDS, check_clauses
from agentstate.store.states import MOVES, Status

SEQ_MAX = 2**53 - 1
TOKEN_MAX = 2**63 - 1
HOLD_OFF_SECONDS_MAX = 86_400
SLOTS_MAX = 1_000_000
SEARCH_CHARS = 200
CURSOR_CHARS = 1_000
PK_CHARS = 220
RUNS_PER_PAGE, EVENTS_PER_PAGE, ROWS_PER_PAGE = 200, 500, 500
WAIT_SECONDS_MAX = 30

MOMENT_RULE = (
    "an instant as RFC 3339 with a zone, at most microseconds, from 1970 to 9998"
    " (in an address, write a plus sign as %2B)"
)
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?")
_WHOLE = re.compile(r"-?[0-9]{1,19}")
# As JSON Schema has it: no control characters, no space at either end.
_PLAIN, _EDGE = r"[^\u0000-\u001f\u007f-\u009f]", r"[^\u0000-\u001f\u007f-\u009f\s]"
# And no separator of lines: `\s` has them, so that no edge is one.
_IN_LINE = r"[^\u0000-\u001f\u007f-\u009f\u2028\u2029]"
ONE_LINE = f"^{_EDGE}({_IN_LINE}*{_EDGE})?$"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CURSOR = re.compile(r"[!-~]+")
_OPERATION = re.compile(r"[a-z][a-z_-]{0,63}")
_STATUSES = tuple(str(status) for status in MOVES)


def rule(check: Callable[[str, Any], Any]) -> PlainValidator:
    """A validator that refuses what `check(field, value)` refuses, with its code and its rule."""

    def validate(value: Any) -> Any:
        try:
            return check("", value)
        except Invalid as broken:
            inner = broken.field.lstrip(".")
            text = f"{inner}: {broken.rule}" if inner else broken.rule
            raise broken_rule(text, code=broken.code) from None

    return PlainValidator(validate)


def broken_rule(text: str, *, code: str = Invalid.code) -> PydanticCustomError:
    """What a validator raises; `code` is that of the refusal that it becomes."""
    return PydanticCustomError(code, "{rule}", {"rule": text})


def _name(at_most: int) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": at_most, "pattern": f"^{names.NAME}$"}
    )


def _text(at_least: int, at_most: int, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "minLength": at_least, "maxLength": at_most, **more})


def _one_line(at_least: int, at_most: int) -> WithJsonSchema:
    return _text(at_least, at_most, pattern=ONE_LINE if at_least else f"^$|{ONE_LINE}")


def whole(at_least: int, at_most: int) -> WithJsonSchema:
    return WithJsonSchema({"type": "integer", "minimum": at_least, "maximum": at_most})


def _line(at_least: int, at_most: int) -> PlainValidator:
    return rule(lambda f, v: names.check_line(f, v, at_least=at_least, at_most=at_most))


def _between(at_least: int, at_most: int) -> PlainValidator:
    return rule(lambda f, v: names.check_whole(f, v, at_least=at_least, at_most=at_most))


BOUND_SCHEMA: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": max(BOUND_MAX.values())}


def _check_bound(field: str, value: Any) -> float:
    """What a rule may warn from; what its own unit allows, the store says."""
    most = BOUND_SCHEMA["maximum"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise Invalid(field, f"a number from 0 to {most:g}")
    return float(value)


def _read_bound(field: str, value: Any) -> float:
    """As it stands in an address."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    return _check_bound(field, value)


def _one_of(*words: str) -> PlainValidator:
    def validate(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise broken_rule(f"one of {', '.join(words)}")
        return value

    return PlainValidator(validate)


def _rule_of_alerts() -> PlainValidator:
    """One of our rules, or a name that somebody may have given one of their own."""

    def validate(value: Any) -> str:
        known = isinstance(value, str) and value in RULES
        own = isinstance(value, str) and re.fullmatch(f"{PREFIX}[A-Za-z0-9._:@~-]{{1,60}}", value)
        if not known and not own:
            raise broken_rule(f"one of {', '.join(RULES)}, or {PREFIX} and a name")
        return str(value)

    return PlainValidator(validate)


def words(*words: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": list(words)})


# --- names and texts -----------------------------------------------------------------------------

RunKey = Annotated[str, rule(names.check_run_key), _name(names.RUN_KEY_CHARS)]
Unit = Annotated[
    str,
    rule(names.check_unit),
    WithJsonSchema(
        _name(names.UNIT_CHARS).json_schema | {"not": {"enum": sorted(names.RESERVED_UNITS)}}
    ),
]
Worker = Annotated[str, rule(names.check_worker), _name(names.WORKER_CHARS)]
BudgetName = Annotated[str, rule(names.check_budget_name), _name(names.BUDGET_CHARS)]
EventType = Annotated[
    str,
    rule(names.check_event_type),
    _text(1, names.TYPE_CHARS, pattern=f"^{names.EVENT_TYPE}$"),
]
Id = Annotated[
    str, rule(names.check_id), _text(1, names.ID_CHARS, pattern=r"^[!-~]([ -~]*[!-~])?$")
]
Task = Annotated[str, _line(1, names.TASK_CHARS), _one_line(1, names.TASK_CHARS)]
Tag = Annotated[str, _line(1, names.TAG_CHARS), _one_line(1, names.TAG_CHARS)]
Note = Annotated[str, _line(0, names.REASON_CHARS), _one_line(0, names.REASON_CHARS)]
Reason = Annotated[str, _line(1, names.REASON_CHARS), _one_line(1, names.REASON_CHARS)]
Tags = Annotated[
    tuple[str, ...],
    rule(names.check_tags),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": names.TAGS_PER_RUN,
            "items": _one_line(1, names.TAG_CHARS).json_schema,
        }
    ),
]

# It stands in addresses, so it is a name like those of units.
ReservationId = Annotated[
    str,
    rule(lambda f, v: names.check_name(f, v, names.ID_CHARS)),
    _name(names.ID_CHARS),
]
Notes = Annotated[
    str,
    rule(lambda f, v: names.check_text(f, v, at_most=names.NOTES_CHARS)),
    _text(0, names.NOTES_CHARS),
]
ShortLine = Annotated[str, _line(1, names.UNIT_CHARS), _one_line(1, names.UNIT_CHARS)]
Line = Annotated[str, _line(1, names.TASK_CHARS), _one_line(1, names.TASK_CHARS)]

TargetKind = Annotated[str, _one_of(*KINDS), words(*KINDS)]
Least = Annotated[str, _one_of(*LEAST), words(*LEAST)]
AlertRule = Annotated[
    str,
    _rule_of_alerts(),
    WithJsonSchema(
        {
            "type": "string",
            "anyOf": [{"enum": list(RULES)}, {"pattern": f"^{PREFIX}[A-Za-z0-9._:@~-]{{1,60}}$"}],
        }
    ),
]
TargetAddress = Annotated[str, _line(1, ADDRESS_CHARS), _text(1, ADDRESS_CHARS, pattern="^[!-~]+$")]
BoundsVersion = Annotated[int, _between(0, TOKEN_MAX), whole(0, TOKEN_MAX)]
Bound = Annotated[float, rule(_check_bound), WithJsonSchema(BOUND_SCHEMA)]
BoundWanted = Annotated[float, rule(_read_bound), WithJsonSchema(BOUND_SCHEMA)]
SnoozeSeconds = Annotated[
    int,
    _between(SNOOZE_SECONDS_MIN, SNOOZE_SECONDS_MAX),
    whole(SNOOZE_SECONDS_MIN, SNOOZE_SECONDS_MAX),
]
EffectState = Annotated[str, _one_of(BEGUN, ENDED), words(BEGUN, ENDED)]
Signal = Annotated[str, _one_of(*SIGNALS), words(*SIGNALS)]
HoldState = Annotated[
    str,
    _one_of("held", "committed", "released", "dropped", "late"),
    words("held", "committed", "released", "dropped", "late"),
]
StatusWord = Annotated[str, _one_of(*_STATUSES), words(*_STATUSES)]
FirstStatus = Annotated[
    str, _one_of(Status.PENDING, Status.RUNNING), words(Status.PENDING, Status.RUNNING)
]
DeadlinePolicy = Annotated[
    str, _one_of("report", "fail", "cancel"), words("report", "fail", "cancel")
]

# --- numbers -------------------------------------------------------------------------------------

Amount = Annotated[
    int,
    rule(lambda f, v: names.check_amount(f, v, at_least=1)),
    whole(1, names.AMOUNT_MAX),
]
Cap = Annotated[int, rule(names.check_amount), whole(0, names.AMOUNT_MAX)]
Used = Annotated[int, rule(names.check_amount), whole(0, names.AMOUNT_MAX)]
BudgetSlots = Annotated[int, _between(1, names.SLOTS_MAX), whole(1, names.SLOTS_MAX)]
Slots = Annotated[int, _between(0, SLOTS_MAX), whole(0, SLOTS_MAX)]
RunVersion = Annotated[int, _between(1, TOKEN_MAX), whole(1, TOKEN_MAX)]
RetainSeconds = Annotated[int, _between(0, RETAIN_SECONDS_MAX), whole(0, RETAIN_SECONDS_MAX)]
TtlSeconds = Annotated[
    int,
    rule(names.check_ttl_seconds),
    whole(names.TTL_SECONDS_MIN, names.TTL_SECONDS_MAX),
]
Seq = Annotated[int, _between(0, SEQ_MAX), whole(0, SEQ_MAX)]
Token = Annotated[int, _between(1, TOKEN_MAX), whole(1, TOKEN_MAX)]
ClaimLimit = Annotated[int, _between(1, CLAIM_LIMIT), whole(1, CLAIM_LIMIT)]
PerSecond = Annotated[int, _between(1, PER_SECOND_MAX), whole(1, PER_SECOND_MAX)]
BrakeSeconds = Annotated[int, _between(1, BRAKE_SECONDS_MAX), whole(1, BRAKE_SECONDS_MAX)]
HoldOffSeconds = Annotated[int, _between(0, HOLD_OFF_SECONDS_MAX), whole(0, HOLD_OFF_SECONDS_MAX)]
MaxAttempts = Annotated[int, _between(1, names.ATTEMPTS_MAX), whole(1, names.ATTEMPTS_MAX)]


def _check_counters(field: str, value: Any) -> dict[str, int]:
    # A counter may be called `data`, which the parser keeps as text.
    if isinstance(value, dict):
        value = {n: v.value() if isinstance(v, RawJSON) else v for n, v in value.items()}
    return names.check_counters(field, value)


Counters = Annotated[
    dict[str, int],
    rule(_check_counters),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": names.COUNTERS_PER_RUN,
            "propertyNames": _name(names.BUDGET_CHARS).json_schema,
            "additionalProperties": {
                "type": "integer",
                "minimum": -names.AMOUNT_MAX,
                "maximum": names.AMOUNT_MAX,
            },
        }
    ),
]

# --- instants, payloads --------------------------------------------------------------------------


def _moment(value: Any) -> datetime:
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise broken_rule(MOMENT_RULE)
    try:
        at = datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise broken_rule(MOMENT_RULE) from None
    if not 1970 <= at.year <= 9998:
        raise broken_rule(MOMENT_RULE)
    return at


Moment = Annotated[
    datetime,
    PlainValidator(_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def _payload(value: Any) -> RawJSON:
    if not isinstance(value, RawJSON):
        raise broken_rule("a JSON value")
    return value


def _object(value: Any) -> RawJSON:
    if not _payload(value).text.startswith("{"):
        raise broken_rule("a JSON object")
    return _payload(value)


# Kept as their text (bodies.PAYLOADS): what comes back is what was sent.
Payload = Annotated[
    RawJSON,
    PlainValidator(_payload),
    WithJsonSchema({"description": "any JSON value, at most 1 MiB, kept as it was sent"}),
]
PayloadObject = Annotated[
    RawJSON | None,  # left out; a null that is sent is no object
    PlainValidator(_object),
    WithJsonSchema({"type": "object", "description": "at most 1 MiB, kept as it was sent"}),
]

# --- changes, and what they expect ---------------------------------------------------------------


# names.check_attrs_path, as a pattern.
_ATTRS = rf"^attrs(\.[^.]{{1,{names.BUDGET_CHARS}}}){{1,10}}$"


def _check_changes(field: str, value: Any) -> dict[str, RawJSON]:
    """`notes`, and paths like `attrs.step.n`, each with its value as it was sent."""
    changes = {name: RawJSON(text) for name, text in members(_object(value).text).items()}
    for name in changes:
        head, _, path = name.partition(".")
        if head == "attrs" and path:
            names.check_attrs_path(field, path)
        elif name != "notes":
            raise Invalid(f"{field}.{name}", "notes, or attrs.<path> (all attrs at once: replace)")
    if "notes" in changes:
        names.check_text(f"{field}.notes", changes["notes"].value(), at_most=names.NOTES_CHARS)
    return changes


Changes = Annotated[
    dict[str, RawJSON],
    rule(_check_changes),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"notes": {"type": "string", "maxLength": names.NOTES_CHARS}},
            "patternProperties": {_ATTRS: {}},
            "additionalProperties": False,
            "description": "notes, and members of attrs by their paths, as attrs.step.n",
        }
    ),
]


def _check_expect(field: str, value: Any) -> dict[str, Any]:
    return check_clauses(_decoded(value))


def _decoded(value: Any) -> Any:
    # A field that is compared may be called `data`, which the parser keeps as text.
    if isinstance(value, RawJSON):
        return value.value()
    if isinstance(value, dict):
        return {name: _decoded(inner) for name, inner in value.items()}
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


_EXPECTED = rf"^({'|'.join(FIELDS)}|(counters|attrs)(\.[^.]+)+)$"
_COMPARISONS: dict[str, Any] = {name: {} for name in COMPARISONS} | {
    "in": {"type": "array"},
    "exists": {"type": "boolean"},
}

Expect = Annotated[
    dict[str, Any],
    rule(_check_expect),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": CLAUSES_MAX,
            "propertyNames": {"pattern": _EXPECTED},
            "additionalProperties": {
                "if": {"type": "object"},
                "then": {
                    "properties": _COMPARISONS,
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            },
            "description": "fields and what each has to be: a value, or comparisons (eq, ne, lt,"
            " le, gt, ge, in, contains, exists); a field that is not there equals null. Fields:"
            f" {', '.join(FIELDS)}, counters.<name>, attrs.<path>",
        }
    ),
]

# --- what stands in an address -------------------------------------------------------------------


def _number_in_query(at_least: int, at_most: int) -> PlainValidator:
    def check(field: str, value: Any) -> int:
        number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        return names.check_whole(field, number, at_least=at_least, at_most=at_most)

    return rule(check)


def _search(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= SEARCH_CHARS or _CONTROL.search(text):
        raise broken_rule(f"1 to {SEARCH_CHARS} characters, no control characters")
    return text


def _filter(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= filters.LENGTH_MAX or _CONTROL.search(text):
        raise broken_rule(f"1 to {filters.LENGTH_MAX} characters, no control characters")
    return text


def _cursor(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= CURSOR_CHARS
        or not _CURSOR.fullmatch(value)
    ):
        raise broken_rule("a cursor that this API has given out")
    return value


Search = Annotated[
    str,
    PlainValidator(_search),
    _text(1, SEARCH_CHARS, pattern=f"^{_PLAIN}*{_EDGE}{_PLAIN}*$"),
]
FilterText = Annotated[
    str,
    PlainValidator(_filter),
    _text(1, filters.LENGTH_MAX, pattern=f"^{_PLAIN}*{_EDGE}{_PLAIN}*$"),
]
CursorText = Annotated[str, PlainValidator(_cursor), _text(1, CURSOR_CHARS, pattern="^[!-~]+$")]
SeqInQuery = Annotated[int, _number_in_query(0, SEQ_MAX), whole(0, SEQ_MAX)]
TokenInQuery = Annotated[int, _number_in_query(1, TOKEN_MAX), whole(1, TOKEN_MAX)]
RunsLimit = Annotated[int, _number_in_query(1, RUNS_PER_PAGE), whole(1, RUNS_PER_PAGE)]
EventsLimit = Annotated[int, _number_in_query(1, EVENTS_PER_PAGE), whole(1, EVENTS_PER_PAGE)]
WaitSeconds = Annotated[int, _number_in_query(0, WAIT_SECONDS_MAX), whole(0, WAIT_SECONDS_MAX)]
RowsLimit = Annotated[int, _number_in_query(1, ROWS_PER_PAGE), whole(1, ROWS_PER_PAGE)]
Order = Annotated[str, _one_of("newest", "oldest"), words("newest", "oldest")]
Origin = Annotated[str, _one_of("store", "worker"), words("store", "worker")]
LeaseState = Annotated[str, _one_of("live", "lapsed", "free"), words("live", "lapsed", "free")]


def _flag(value: Any) -> bool:
    if value not in ("true", "false"):
        raise broken_rule("true or false")
    return bool(value == "true")


Flag = Annotated[bool, PlainValidator(_flag), WithJsonSchema({"type": "boolean"})]
PartitionKey = Annotated[
    str,
    _line(1, PK_CHARS),
    _text(1, PK_CHARS, pattern=f"^(run#|unit#|budget#){names.NAME}$"),
]
SortKey = Annotated[str, _line(1, PK_CHARS), _one_line(1, PK_CHARS)]

# --- rates ---------------------------------------------------------------------------------------


def _check_operation(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _OPERATION.fullmatch(value):
        raise Invalid(field, "an operation, as append or patch")
    return value


def _check_outcome(field: str, value: Any) -> str:
    if value not in (OK, FAILED) and value not in every_refusal():
        raise Invalid(field, f"{OK}, {FAILED} or a code that /problems/ explains")
    return str(value)


Grouping = Annotated[str, _one_of(*BY), words(*BY)]
Operation = Annotated[str, rule(_check_operation), _text(1, 64, pattern=f"^{_OPERATION.pattern}$")]
# The one of keys.py is among them only once that is imported: OpenAPI must not depend on who was.
_CODES = sorted({*every_refusal(), Unauthenticated.code})
OutcomeCode = Annotated[str, rule(_check_outcome), words(OK, FAILED, *_CODES)]
GroupsLimit = Annotated[int, _number_in_query(1, GROUPS_MAX), whole(1, GROUPS_MAX)]
