"""Rules of deliveries: who is told what, when it is tried again, and when a target is given up.
Pure. Why: docs/decisions/0019-deliveries.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agentstate.store.alerting import RANK, Notice, Rule, State, What

WEBHOOK, APPRISE = "webhook", "apprise"
KINDS = (WEBHOOK, APPRISE)
LEAST = (str(State.WARN), str(State.ALERT))
WAITING, DELIVERED, FAILED, DROPPED = "waiting", "delivered", "failed", "dropped"

# After the first failed try, the second, and so on; the last one stands for all that follow.
PAUSES_SECONDS = (10, 30, 120, 600, 1_800, 3_600, 7_200)
ATTEMPTS = len(PAUSES_SECONDS) + 1
# What a receiver may ask for with Retry-After.
ASKED_SECONDS_MAX = 3_600
# So many tries failed, and none went well for so long: nobody reads what is sent there.
GIVE_UP_FAILURES, GIVE_UP_SECONDS = 8, 3_600
# Told of as failing after this long.
FAILING_SECONDS = 600
WAITING_MAX, TARGETS_MAX = 100, 50
ADDRESS_CHARS = 2_000
ANSWER_CHARS = 500
# Longer than any try: then whoever was at it is dead, and another one may try.
CLAIM_SECONDS = 45
GIVEN_UP = "switched off: it failed too often"
GONE = "switched off: the receiver answered that it is gone (410)"
NO_WORD = "whoever tried it last ended without a word: it may have arrived"
TARGET_OFF = "the target was switched off or deleted"
TOO_MANY = f"{WAITING_MAX} messages were waiting for this target already"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """A target as commands see it. testing: the test that waits to be sent, if one does."""

    id: UUID
    name: str
    kind: str
    hint: str
    least: str
    rules: tuple[str, ...]
    enabled: bool
    version: int
    testing: UUID | None = None
    person: str = ""

    def facts(self) -> dict[str, Any]:
        """What a refusal and the audit say of it."""
        return {
            "name": self.name,
            "enabled": self.enabled,
            "least": self.least,
            "rules": list(self.rules),
            "person": self.person,
            "version": self.version,
        }


# How long the secret before signs as well, so that a receiver can change over in its own time.
ROTATION_SECONDS = 86_400


def rotated(new: str, before: str, now: datetime) -> str:
    """What is kept of a target's secrets: the new one, and the one before with its end."""
    old = before.split(" ")[0]
    return f"{new} {old}@{int(now.timestamp()) + ROTATION_SECONDS}"


def signing(kept: str, now: datetime) -> list[str]:
    """The secrets that sign at this moment, the newest first."""
    parts = [part.partition("@") for part in kept.split(" ")]
    return [secret for secret, _, until in parts if not until or now.timestamp() < int(until)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a try ended. status: of HTTP, where there is one. text: what was answered, in short, or
    why nothing was. again_seconds: what the receiver asked for.
    """

    arrived: bool
    text: str
    status: int | None = None
    again_seconds: float | None = None
    took_ms: int = 0

    @property
    def gone(self) -> bool:
        """The receiver wants nothing more, ever."""
        return self.status == 410


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A delivery, as far as an answer changes it."""

    what: str
    state: str
    attempts: int
    attempts_max: int
    next_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A target, as far as an answer changes it. off_why: set when it is given up now."""

    enabled: bool
    failures: int
    failing_since: datetime | None
    off_why: str | None = None


def id_told(delivery_id: UUID) -> str:
    """The id under which a receiver knows the message again: `msg_…`."""
    return f"msg_{delivery_id.hex}"


def is_told(notice: Notice, *, least: str, rules: Sequence[str]) -> bool:
    """Whether a target that wants these rules (none: all), from this severity on, is told."""
    wanted = not rules or notice.standing.rule in rules
    return wanted and RANK[notice.severity] >= RANK[State(least)]


def after(
    sent: Sent, target: Health, answer: Answer, now: datetime, *, draw: float
) -> tuple[Sent, Health]:
    """What becomes of a delivery and its target. draw: 0 to 1, at random.

    A test tells something of the address and nothing of how it has been: only its success counts.
    """
    if answer.arrived:
        done = replace(sent, state=DELIVERED)
        return done, replace(target, failures=0, failing_since=None)
    last = sent.attempts >= sent.attempts_max
    pause = timedelta(seconds=pause_seconds(sent.attempts, draw=draw, asked=answer.again_seconds))
    tried = replace(sent, state=FAILED if last else WAITING, next_at=now + pause)
    return tried, target if sent.what == What.TEST else _failed(target, answer, now)


def _failed(target: Health, answer: Answer, now: datetime) -> Health:
    since = target.failing_since or now
    counted = replace(target, failures=target.failures + 1, failing_since=since)
    if not target.enabled:
        return counted
    if answer.gone:
        return replace(counted, enabled=False, off_why=GONE)
    long = now - since >= timedelta(seconds=GIVE_UP_SECONDS)
    if long and counted.failures >= GIVE_UP_FAILURES:
        return replace(counted, enabled=False, off_why=GIVEN_UP)
    return counted


def pause_seconds(attempt: int, *, draw: float, asked: float | None = None) -> float:
    """How long to wait after the try of this number failed: half of its pause, and up to as much
    again at random, so that what failed together is not tried together. asked: no sooner.
    """
    pause = PAUSES_SECONDS[min(attempt, len(PAUSES_SECONDS)) - 1]
    return max(pause * (0.5 + 0.5 * draw), min(asked or 0.0, ASKED_SECONDS_MAX))


def message_of(notice: Notice, rule: Rule, now: datetime, *, console: str = "") -> dict[str, Any]:
    """What a target is told: type, timestamp and data, as Standard Webhooks has them.

    console: the address of the site's console, if it is known.
    """
    standing = notice.standing
    return {
        "type": f"alert.{notice.what}",
        "timestamp": now,
        "data": {
            "rule": rule.name,
            "title": rule.title,
            "state": str(standing.state),
            "severity": str(notice.severity),
            "value": standing.value,
            "unit": rule.unit,
            "message": standing.message,
            "advice": rule.advice,
            "facts": dict(standing.facts),
            "since": standing.since,
            "version": standing.version,
            "url": f"{console}/alerts" if console else None,
        },
    }


def trial_message(target: str, now: datetime, *, by: str, console: str = "") -> dict[str, Any]:
    """What a target is told to see whether it can be reached."""
    return {
        "type": f"alert.{What.TEST}",
        "timestamp": now,
        "data": {
            "target": target,
            "message": f"a test that {by} asked for: nothing is wrong",
            "url": f"{console}/alerts" if console else None,
        },
    }


_MARKS = {
    What.FIRING: {State.WARN: "Warning", State.ALERT: "Alert"},
    What.AGAIN: {State.WARN: "Still a warning", State.ALERT: "Still an alert"},
}


def in_words(message: Mapping[str, Any]) -> tuple[str, str]:
    """The message as a title and a text, for people."""
    what, data = message["type"].removeprefix("alert."), message["data"]
    link = [data["url"]] if data.get("url") else []
    if what == What.TEST:
        return "agentstate: a test", "\n".join([f"{_said(data)}.", *link])
    mark = {"eased": "Eased to a warning", "over": "Over"}.get(what) or _MARKS[What(what)][
        State(data["state"])
    ]
    advice = [] if what == What.OVER else [data["advice"]]
    return f"{mark}: {data['title']}", "\n".join([f"{_said(data)}.", *advice, *link])


def _said(data: Mapping[str, Any]) -> str:
    text = str(data["message"])
    return text[:1].upper() + text[1:]
