"""An opened bundle as its page shows it: what the file says and nothing of this store's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.safestring import SafeString

from agentstate.store.chain import Chain
from agentstate.store.opened import Opened
from agentstate.store.states import TERMINAL
from dashboard import payloads, timeline
from dashboard.templatetags.console import number, stamp
from dashboard.timeline import Dot, Drawing, Renewal, Span

ROWS_SHOWN = 500
DOTS_MAX = 2_000
TERMS_DRAWN = 200
# So much of payloads is laid out in all; of what comes after, the beginnings.
LAID_OUT_CHARS = 400_000
LAID_OUT_EACH_CHARS = 32_000
HEAD_CHARS = 400
TITLES = {
    Chain.WHOLE: "Whole",
    Chain.TRIMMED: "Trimmed at line {line}",
    Chain.MOVED: "Reordered at line {line}",
    Chain.CHANGED: "Changed at line {line}",
}


def verdict_title(found: Opened) -> str:
    verdict = found.verdict
    return TITLES[verdict.state].format(line=number(verdict.line))


def run_of(found: Opened) -> dict[str, Any]:
    """The run's head. Its key and status also stand where no template makes them visible."""
    run = found.one("run")
    return run | {name: payloads.visible(run[name]) for name in ("key", "status") if name in run}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The first rows of a kind, and how many there are."""

    rows: Sequence[Any]
    count: int

    @property
    def cut(self) -> bool:
        return self.count > len(self.rows)


def rows_of(found: Opened, kind: str) -> Rows:
    every = found.all(kind)
    return Rows(rows=every[:ROWS_SHOWN], count=len(every))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event as a row. pretty: its payload laid out; digest: what stands in its place."""

    told: Mapping[str, Any]
    preview: SafeString | str
    pretty: SafeString | None = None
    digest: str = ""


def events_of(found: Opened) -> Rows:
    every = found.all("event")
    return Rows(rows=list(_event_rows(every[:ROWS_SHOWN])), count=len(every))


def _event_rows(events: Sequence[Mapping[str, Any]]) -> Iterator[EventRow]:
    left = LAID_OUT_CHARS
    for event in events:
        data = event.get("data")
        if data is None:
            size, digest = event.get("data_bytes"), str(event.get("data_sha256", ""))
            said = f"left out, {number(size)} bytes" if size is not None else ""
            yield EventRow(told=event, preview=said, digest=digest)
        elif len(data) <= min(left, LAID_OUT_EACH_CHARS):
            left -= len(data)
            yield EventRow(told=event, preview=payloads.preview(data), pretty=payloads.pretty(data))
        else:
            head = payloads.visible(data[:HEAD_CHARS])
            yield EventRow(told=event, preview=f"{head}… ({number(len(data))} characters)")


def changes_of(action: Mapping[str, Any]) -> list[dict[str, str]]:
    """What an action changed, name by name, as the file says it."""
    before, after = action.get("before"), action.get("after")
    was = before if isinstance(before, dict) else {}
    is_now = after if isinstance(after, dict) else {}
    names = [n for n in dict.fromkeys([*was, *is_now]) if was.get(n) != is_now.get(n)]
    return [{"name": n, "before": _said(was.get(n)), "after": _said(is_now.get(n))} for n in names]


def _said(value: Any) -> str:
    if value is None or value in ("", []):
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:HEAD_CHARS]


def settings_of(found: Opened) -> list[tuple[str, str]]:
    told = found.one("settings")
    return [(name, _said(value)) for name, value in told.items() if name != "rules"]


def rules_of(found: Opened) -> list[dict[str, str]]:
    rules = found.one("settings").get("rules")
    listed = rules if isinstance(rules, list) else []
    return [
        {name: _said(rule.get(name)) for name in ("rule", "warn", "alert")}
        for rule in listed[:ROWS_SHOWN]
        if isinstance(rule, dict)
    ]


# --- timeline ------------------------------------------------------------------------------------


def draw(found: Opened) -> Drawing | None:
    """The run's timeline, of what the file has; None without a run and a moment."""
    run, header = found.one("run"), found.header
    if not run or not header:
        return None
    made_at: datetime = header["made_at"]
    now = min(header.get("until") or made_at, made_at)
    start = max(header.get("since") or run["created_at"], run["created_at"])
    ended_at = run.get("ended_at") if run["status"] in TERMINAL else None
    return timeline.draw(
        start=min(start, now),
        now=now,
        ended_at=ended_at if ended_at is not None and ended_at <= now else None,
        spans=[_span(term, found, now) for term in found.all("term")[-TERMS_DRAWN:]],
        dots=[
            *_sampled(found.all("event")),
            *(_refused(one) for one in found.all("refusal")[-DOTS_MAX:]),
            *(_action(one) for one in found.all("action")[-ROWS_SHOWN:]),
        ],
    )


def _sampled(events: Sequence[Mapping[str, Any]]) -> Iterator[Dot]:
    """Of very many each n-th stands for those after it."""
    step = -(-len(events) // DOTS_MAX) or 1
    for at in range(0, len(events), step):
        event = events[at]
        alone = f"{event['seq']} {event['type']} at {stamp(event['at'])}"
        count = min(step, len(events) - at)
        yield Dot(
            at=event["at"],
            token=event.get("token"),
            kind="store" if event["origin"] == "store" else "worker",
            title=payloads.visible(alone if count == 1 else f"{count} events from {alone}"),
            seq=event["seq"],
            count=count,
        )


def _refused(refusal: Mapping[str, Any]) -> Dot:
    who = refusal.get("worker") or refusal["actor"]
    title = f"{refusal['code']}: {who} {refusal['operation']} at {stamp(refusal['at'])}"
    kind = "budget" if refusal["code"] == "budget-exhausted" else "refused"
    token = refusal.get("token_sent")
    return Dot(at=refusal["at"], token=token, kind=kind, title=payloads.visible(title))


def _action(action: Mapping[str, Any]) -> Dot:
    title = f"{action['actor']}: {action['action']} {action.get('reason', '')}"
    return Dot(at=action["at"], token=None, kind="action", title=payloads.visible(title))


def _span(term: Mapping[str, Any], found: Opened, now: datetime) -> Span:
    lease = found.one("lease")
    ended = str(term.get("ended") or "")
    held = lease if lease.get("token") == term["token"] else {}
    until = held.get("expires_at")
    ends_at = term.get("to") if ended else None
    lapsed_at = until if until and until <= now and not ended else None
    reclaimed_at = _reclaimed(term, found) if ended == "reclaimed" else None
    if reclaimed_at and ends_at and ends_at < reclaimed_at:  # it had run out before
        lapsed_at, ends_at = ends_at, reclaimed_at
    told = ended or ("lapsed" if until and until <= now else "holds it")
    title = f"{term['owner']}, token {term['token']}: {told}, renewed {term['renewals']} times"
    return Span(
        token=term["token"],
        owner=payloads.visible(term["owner"]),
        starts_at=term["from"],
        ends_at=ends_at,
        lapsed_at=lapsed_at,
        ended=ended,
        title=payloads.visible(title),
        renewals=_renewals(term),
    )


def _reclaimed(term: Mapping[str, Any], found: Opened) -> datetime | None:
    """When somebody took it, by what operators did."""
    for action in found.all("action"):
        before = action.get("before")
        if isinstance(before, dict) and before.get("token") == term["token"]:
            at: datetime = action["at"]
            return at
    return None


# Of a term that goes on for years; a file may say anything.
RENEWED_MS_MAX = 10 * 366 * 86_400_000


def _renewals(term: Mapping[str, Any]) -> list[Renewal]:
    kept = [ms for ms in term.get("renewed_ms", []) if ms <= RENEWED_MS_MAX]
    return [Renewal(at=term["from"] + timedelta(milliseconds=ms), late=False) for ms in kept]
