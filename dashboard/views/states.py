"""A run's state after any of its events, and the difference of two."""

from __future__ import annotations

from typing import Any

from dashboard import payloads
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest
from dashboard.queries import states as queries
from dashboard.queries.panels import Panel, read_panel
from dashboard.queries.states import Fact, State
from dashboard.queries.story import Head

TOO_MANY = "This run changed too often to be told on a page. Export it, or look at its events."
STRANGE = "An event of this run, which was imported, says what cannot be told. Look at its events."


def read_tab(request: ConsoleRequest, head: Head) -> dict[str, Any]:
    """`seq`: as of this event, else the last; `with`: the event to compare it with."""
    last = head.run.last_seq
    seq = _numbered(request.GET.get("seq"), last)
    other = _numbered(request.GET["with"], last) if request.GET.get("with") else None
    now, before = read_one(head, seq), read_one(head, other) if other is not None else None
    panel = now if now.failed or before is None else before
    shown: dict[str, Any] = {"seq": seq, "other": other, "panel": panel, "last": last}
    if panel.failed or now.found is None:
        return shown
    may = request.access.may("payloads")
    compared = before.found if before is not None else None
    facts = (
        queries.differences(compared, now.found, payloads=may)
        if compared is not None
        else queries.facts(now.found, payloads=may)
    )
    return shown | {
        "state": now.found,
        "compared": compared,
        "facts": [_shown(fact) for fact in facts],
        "changed": sum(fact.changed for fact in facts),
        "payloads_hidden": not may,
    }


def _numbered(text: str | None, last: int) -> int:
    number = whole(text)
    return last if number is None else min(max(number, 1), last)


def read_one(head: Head, seq: int) -> Panel[State | None]:
    try:
        return read_panel(lambda: queries.read_state(head.run, seq), milliseconds=queries.STATE_MS)
    except queries.TooMany:
        return Panel(failed=TOO_MANY)
    except queries.Strange:
        return Panel(failed=STRANGE)


def _shown(fact: Fact) -> dict[str, Any]:
    """A line as the template shows it. Long texts are compared line by line."""
    is_json = fact.name in ("attrs", "result")
    shown: dict[str, Any] = {"fact": fact, "is_json": is_json and fact.now != ""}
    if fact.changed and fact.long:
        shown["difference"] = payloads.difference(
            _lines(fact.before or "", is_json), _lines(fact.now, is_json)
        )
    elif is_json and fact.now:
        shown["pretty"] = payloads.pretty(fact.now)
    return shown


def _lines(text: str, is_json: bool) -> str:
    """JSON with a member a line, so that two of them can be compared; every token as it was."""
    if not is_json:
        return text
    return payloads.in_lines(text)
