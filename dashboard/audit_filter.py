"""What the audit's address asks for: who, what, of what, with which result, and when.

Pure: an address in, clauses with named values out. A text is looked for anywhere in its column, in
any case; several fields must all hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from dashboard.closeups import instant

TEXT_CHARS = 200
OUTCOMES = {"done": "Done", "refused": "Refused", "forbidden": "Forbidden"}
KINDS = {"person": "People", "key": "API keys", "system": "agentstate itself"}
TEXTS = {"actor": "Who", "action": "Did", "object": "To"}
WRONG = "“{text}” is no time. Write it as 2026-03-01 14:30."
BACKWARDS = "The first time has to be before the second one."


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """texts: of TEXTS, and `text` which is looked for in all of them and in the reason.

    kind: the actor's. problem: what in the address is not understood; then nothing else counts.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    outcome: str = ""
    kind: str = ""
    since: datetime | None = None
    until: datetime | None = None
    typed: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def asks(self) -> bool:
        """Whether anything is left out."""
        return bool(self.typed)

    @property
    def query(self) -> str:
        """The address again, without a place in the list."""
        return urlencode(self.typed)

    @property
    def chips(self) -> list[dict[str, str]]:
        """Each part in words, with the address without it."""
        return [
            {
                "label": LABELS[name],
                "value": NAMED.get(name, {}).get(value, value),
                "without": urlencode({n: v for n, v in self.typed.items() if n != name}),
            }
            for name, value in self.typed.items()
        ]

    def clauses(self, *, outcomes: str) -> list[str]:
        """SQL; outcomes: the expression for the row's own outcome."""
        found = [f"{name} ILIKE %({name})s" for name in TEXTS if name in self.texts]
        if "text" in self.texts:
            any_of = " OR ".join(f"{name} ILIKE %(text)s" for name in (*TEXTS, "reason"))
            found.append(f"({any_of})")
        if self.kind:
            found.append("starts_with(actor, %(kind)s)")
        if self.outcome:
            found.append(f"{outcomes} = %(outcome)s")
        if self.since:
            found.append("at >= %(since)s")
        if self.until:
            found.append("at < %(until)s")
        return found

    def values(self) -> dict[str, Any]:
        """What the clauses name."""
        patterns = {name: f"%{_literal(text)}%" for name, text in self.texts.items()}
        return patterns | {
            "kind": f"{self.kind}:",
            "outcome": self.outcome,
            "since": self.since,
            "until": self.until,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRun:
    """All that was done to one run, or refused. until: no later than that."""

    run: UUID
    until: datetime | None = None

    def clauses(self, *, outcomes: str) -> list[str]:
        return ["run_id = %(run)s", *(["at <= %(as_of)s"] if self.until else [])]

    def values(self) -> dict[str, Any]:
        return {"run": self.run, "as_of": self.until}


LABELS = TEXTS | {
    "text": "Contains", "result": "Result", "kind": "By", "from": "From", "to": "To before",
}  # fmt: skip
NAMED = {"result": OUTCOMES, "kind": KINDS}


def read(query: Mapping[str, str]) -> AuditFilter:
    """The filter of an address."""
    typed = {}
    for name in LABELS:
        text = " ".join(query.get(name, "").replace("\0", "").split())[:TEXT_CHARS]
        if text:
            typed[name] = text
    since, until = instant(typed.get("from")), instant(typed.get("to"))
    problem = _problem(typed, since, until)
    return AuditFilter(
        texts={name: typed[name] for name in (*TEXTS, "text") if name in typed},
        outcome=typed.get("result", ""),
        kind=typed.get("kind", ""),
        since=since,
        until=until,
        typed=typed,
        problem=problem,
    )


def _problem(typed: Mapping[str, str], since: datetime | None, until: datetime | None) -> str:
    for name, at in (("from", since), ("to", until)):
        if name in typed and at is None:
            return WRONG.format(text=typed[name][:40])
    for name, known in NAMED.items():
        if name in typed and typed[name] not in known:
            return f"“{typed[name][:40]}” is none of {', '.join(known)}."
    return BACKWARDS if since and until and since >= until else ""


def _literal(text: str) -> str:
    """A text in which no character stands for others."""
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return text
