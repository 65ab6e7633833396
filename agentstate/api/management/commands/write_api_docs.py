"""`./run manage write_api_docs`: docs/api.md, every call of the API, from its own OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from agentstate.api import reference
from agentstate.api.pages import openapi_text
from agentstate.api.urls import api
from agentstate.store.callers import SCOPES

PATH = settings.BASE_DIR / "docs" / "api.md"

HEAD = """\
# API

JSON over HTTP, under `/api/v1`. A running server has the same at `/api/v1/docs`, and as OpenAPI
at `/api/v1/openapi.json`. This page is made from the code: `./run manage write_api_docs`.

## In each call

- `Authorization: Bearer as_…`: a key with the scope that stands beside the call. Scopes: {scopes};
  none implies another. [Who may what](access.md#the-table).
- `Idempotency-Key`: the first answer to it stays the answer for 24 hours, marked
  `Idempotent-Replayed: true`. So a request whose answer was lost can be sent again.
- `Agentstate-Fence`: the token of the lease. A run that was ever leased takes a worker's writes
  only under its current token.
- `If-Match: "v7"`: write only if the run still has the version that was read.
- Times are RFC 3339 in UTC, from the database's clock. Amounts are whole numbers. What is sent as
  `data`, `attrs`, `result` or `progress` comes back to the letter.
- A field or parameter that a call does not know is refused, never ignored.
- A refusal is `application/problem+json`; each code under *Refused as* leads to what it means and
  what to do.
"""


class Command(BaseCommand):
    help = "Write docs/api.md from OpenAPI."

    def handle(self, *args: Any, **options: Any) -> None:
        PATH.write_text(document(), encoding="utf-8")
        self.stdout.write(f"wrote {PATH}")


def document() -> str:
    """The page as it should be."""
    found = reference.sections(json.loads(openapi_text(api)))
    scopes = ", ".join(f"`{scope}`" for scope in SCOPES)
    lines = [HEAD.format(scopes=scopes), *_overview(found)]
    for section in found:
        lines += ["", f"## {section.name[0].upper()}{section.name[1:]}"]
        for call in section.operations:
            lines += ["", *_call(call)]
    return "\n".join(lines) + "\n"


def _overview(found: tuple[reference.Section, ...]) -> Iterator[str]:
    yield "| call | what it does | scope |"
    yield "|---|---|---|"
    for section in found:
        for call in section.operations:
            link = f"[`{call.method} {call.path}`](#{call.id})"
            yield f"| {link} | {call.summary} | {_scopes(call)} |"


def _scopes(call: reference.Operation) -> str:
    return " or ".join(f"`{scope}`" for scope in call.scopes) or "no key"


def _call(call: reference.Operation) -> Iterator[str]:
    yield f"### {call.id}"
    yield ""
    yield f"**{call.summary}** · `{call.method} {call.path}` · {_scopes(call)}"
    for paragraph in call.paragraphs:
        yield ""
        yield _prose(paragraph)
    yield from _members("parameter", call.parameters)
    yield from _members("body", call.body)
    yield from _members(f"answer {call.status}", call.answer)
    codes = [code for problem in call.problems for code in problem.codes]
    yield ""
    yield "Refused as " + ", ".join(f"[{code}](problems.md#{code})" for code in codes) + "."


def _prose(spans: tuple[reference.Span, ...]) -> str:
    """Angle brackets would be markup, and a star the beginning of something."""
    return "".join(
        f"`{span.text}`"
        if span.is_code
        else span.text.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")
        for span in spans
    )


def _members(title: str, members: tuple[reference.Member, ...]) -> Iterator[str]:
    if not members:
        return
    yield ""
    yield f"| {title} | is | |"
    yield "|---|---|---|"
    for member in members:
        name = f"{'· ' * member.depth}`{member.name}`{' (required)' if member.needed else ''}"
        where = f" ({member.where})" if member.where not in ("body", "path", "query") else ""
        yield f"| {name}{where} | {_cell(member.kind)} | {_cell(member.note)} |"


def _cell(text: str) -> str:
    return _prose(reference.spans(text)).replace("|", "\\|")
