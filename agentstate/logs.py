"""What the log says, as lines for people or as JSON for programs, and what it never says.

Whoever logs uses `logging` as everywhere in Python. Here each entry gets the ids by which it is
found again (request, run, unit, worker, key, trace, task), and loses what must not be in a log: API
keys, passwords, cookies, the configured secrets. What callers chose (names, headers, texts of
errors) cannot make a second line, colour a terminal, or fill a disk.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import structlog
from django.conf import settings
from django.http import HttpRequest

TEXT_CHARS = 4_000
TRACE_CHARS = 20_000
HIDDEN = "[hidden]"
LEAST_SECRET_CHARS = 6

# In each entry of a request these stand for what was asked, and by whom.
REQUEST: ContextVar[HttpRequest | None] = ContextVar("request", default=None)
# Of a task: its name and id.
TASK: ContextVar[Mapping[str, str] | None] = ContextVar("task of the log", default=None)

# What an entry may have of its own (`extra=`).
EXTRAS = ("method", "status", "ms", "code")

log = logging.getLogger(__name__)

type Entry = MutableMapping[str, Any]

# 00, the trace, the caller's span, flags: https://www.w3.org/TR/trace-context/
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_WORKER = re.compile(r"[A-Za-z0-9._:@~-]{1,200}")
_NAMED_SO = re.compile(
    r"authorization|cookie|passw|secret|api.?key|session.?key|credential|private.?key",
    re.IGNORECASE,
)
_SECRET_LIKE = re.compile(
    r"""
    as_[0-9a-f]{16,}(?:_[\w-]+)?                                 # one of our API keys
    | (?<=://)[^\s'"<>@/:?\#]*:[^\s'"<>]+(?=@)                   # user:password@ of an address,
    | (?<=://)[^/@\s'"]+(?=@)                                    # also unquoted as it must not be
    | (?<=cookie:\s)[^\n]+                                       # the whole header
    | (?:(?<=bearer\s)|(?<=basic\s)|(?<=token\s))[\w.~+/=-]{8,}  # of an Authorization header
    | (?<=password=)(?:'(?:[^'\\]|\\.)*'|[^\s&;,'"]+)            # of a conninfo or an address
    | (?<=passwd=)[^\s&;,'"]+ | (?<=secret=)[^\s&;,'"]+ | (?<=api_key=)[^\s&;,'"]+
    | (?<=access_token=)[^\s&;,'"]+ | (?<=client_secret=)[^\s&;,'"]+ | (?<=code=)[^\s&;,'"]{16,}
    | (?<=agentstate_session=)[^\s;,'"]+ | (?<=agentstate_csrf=)[^\s;,'"]+
    | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*                        # a signed token (JWT)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A member that is named for a secret, as JSON, Python, a form or a header write it.
_MEMBER = re.compile(
    r"""
    (?P<name>(?:passw(?:or)?d|passphrase|secret|api[_-]?key|(?:access|refresh|id|csrf
        |session)[_-]?token|csrfmiddlewaretoken|private[_-]?key|session[_-]?key)[\w-]{0,20}["']?
        \s{0,3}[:=]\s{0,3}\[?)
    (?P<value>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | [^\s&;,'"{}()\[\]<>]{4,})
    """,
    re.IGNORECASE | re.VERBOSE,
)
# What moves a terminal's cursor, or the text on a screen: control characters and the like.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_IN_LINE = re.compile(r"[\n\t]")


def formatter(*, style: str) -> logging.Formatter:
    """For `LOGGING`; style: `line` or `json`."""
    end: Callable[..., Any] = as_line if style == "line" else structlog.processors.JSONRenderer()
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(allow=EXTRAS),
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            add_ids,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            clean,
            in_order,
            end,
        ],
    )


def note_answer(*, method: str | None, status: int, seconds: float) -> None:
    """An entry for each answer, where AGENTSTATE_LOG_REQUESTS wants them."""
    if settings.LOG_REQUESTS:
        log.info(
            "answered", extra={"method": method, "status": status, "ms": round(seconds * 1000, 1)}
        )


# --- ids ----------------------------------------------------------------------------------------


def add_ids(_logger: Any, _method: str, entry: Entry) -> Entry:
    """The ids of what this thread or task is at; nothing of it is looked up before it is needed."""
    if (task := TASK.get()) is not None:
        entry.update(task)
    if (request := REQUEST.get()) is not None:
        entry.update(ids_of(request))
    return entry


def ids_of(request: HttpRequest) -> dict[str, str]:
    """Who asks for what. Names out of the address and headers are as the caller sent them."""
    found: dict[str, str] = {}
    if request_id := getattr(request, "request_id", ""):
        found["request_id"] = request_id
    if request.resolver_match is not None:
        found["route"] = request.resolver_match.route
        parts = request.resolver_match.kwargs
        in_runs = "runs/" in request.resolver_match.route
        for name, part in (("run", "key"), ("unit", "unit")):
            if part in parts and (part != "key" or in_runs):
                found[name] = str(parts[part])
    if (caller := getattr(request, "caller", None)) is not None:
        found["caller"] = caller.principal
    if token := request.META.get("HTTP_AGENTSTATE_FENCE"):
        found["fence"] = token
    worker = request.META.get("HTTP_AGENTSTATE_WORKER", "")
    if _WORKER.fullmatch(worker):
        found["worker"] = worker
    if trace := trace_of(request):
        found["trace_id"] = trace
    return found


def trace_of(request: HttpRequest) -> str:
    """The trace that the caller is at, of its `traceparent`; nothing without one."""
    sent = _TRACEPARENT.fullmatch(request.META.get("HTTP_TRACEPARENT", ""))
    return sent[1] if sent and set(sent[1]) != {"0"} else ""


@contextmanager
def of_task(name: str, task_id: str) -> Iterator[None]:
    """Entries within the block belong to this task."""
    before = TASK.set({"task": name, "task_id": task_id})
    try:
        yield
    finally:
        TASK.reset(before)


# --- what must not be in it ---------------------------------------------------------------------


def clean(_logger: Any, _method: str, entry: Entry) -> Entry:
    """Take secrets and what cannot be shown out of every value, and cut what is too long."""
    for name, value in list(entry.items()):
        if _NAMED_SO.search(name):
            entry[name] = HIDDEN
        else:
            at_most = TRACE_CHARS if name in ("exception", "stack") else TEXT_CHARS
            entry[name] = _clean_value(value, at_most)
    return entry


def _clean_value(value: Any, at_most: int, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth < 3:
        return {
            clean_text(str(k), 200): HIDDEN
            if _NAMED_SO.search(str(k))
            else _clean_value(v, at_most, depth + 1)
            for k, v in list(value.items())[:50]
        }
    if isinstance(value, list | tuple) and depth < 3:
        return [_clean_value(one, at_most, depth + 1) for one in value[:50]]
    return clean_text(str(value), at_most)


def clean_text(text: str, at_most: int = TEXT_CHARS) -> str:
    """The text without secrets, unprintable characters escaped, cut to its bound."""
    # The bound comes last: half of a secret is one, too.
    text = _SECRET_LIKE.sub(HIDDEN, text[: at_most * 4])
    text = _MEMBER.sub(lambda found: found["name"] + HIDDEN, text)
    if (configured := _configured()) is not None:
        text = configured.sub(HIDDEN, text)
    text = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    # A lone surrogate is no text that could be written.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= at_most else f"{text[:at_most]}… ({len(text)} characters)"


@cache
def _configured() -> re.Pattern[str] | None:
    """The secrets of this site's settings, in every form in which they can be met."""
    found = {settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS}
    found |= {parts.get("password", "") for parts in (settings.DATABASE_PARTS,
                                                      settings.SESSION_PARTS)}  # fmt: skip
    addresses = [settings.CELERY_BROKER_URL, settings.CACHES["default"].get("LOCATION", "")]
    found |= {urlsplit(str(address)).password or "" for address in addresses}
    found.add(settings.OIDC_CLIENT_SECRET)
    found |= {form(one) for one in list(found) for form in (quote, unquote)}
    # Shorter ones are words that stand in any text; passwords of that kind protect nothing.
    wanted = sorted((one for one in found if len(one) >= LEAST_SECRET_CHARS), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, wanted))) if wanted else None


# --- how it is written --------------------------------------------------------------------------

FIRST = ("at", "level", "logger", "event")


def in_order(_logger: Any, _method: str, entry: Entry) -> Entry:
    """What everybody reads first is first."""
    first = {name: entry[name] for name in FIRST if name in entry}
    return first | {name: value for name, value in entry.items() if name not in first}


def as_line(_logger: Any, _method: str, entry: Entry) -> str:
    """One line; a stack stands below it, indented, so that no text of it looks like an entry."""
    stack = str(entry.pop("exception", "") or entry.pop("stack", "") or "")
    at, level, name, event = (str(entry.pop(part, "")) for part in FIRST)
    ids = "".join(f" {key}={_one_line(value)}" for key, value in entry.items())
    line = f"{at} {level.upper()} {name}: {_one_line(event)}{ids}"
    return line + "".join(f"\n    {part}" for part in stack.splitlines())


def _one_line(value: Any) -> str:
    return _IN_LINE.sub(lambda found: "\\n" if found[0] == "\n" else " ", str(value))
