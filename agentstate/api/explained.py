"""A code's page as Markdown and as members of JSON; templates/problems/page.html has it as HTML."""

from __future__ import annotations

import json
from typing import Any

from agentstate.api import examples
from agentstate.api.examples import Example
from agentstate.api.problems import Kind
from agentstate.phrases import phrase_of


def meaning(kind: Kind) -> list[str]:
    """Paragraphs: what the class of the refusal says, then how it comes to it."""
    told = [" ".join(part.split()) for part in kind.meaning.split("\n\n")]
    return [*told, kind.advice.why]


def request_text(example: Example) -> str:
    """The example's request, as it goes over the wire."""
    lines = [f"{example.method} {example.path}"]
    lines += [
        f"{name}: {value}" for name, value in example.parameters.items() if name[:1].isupper()
    ]
    if example.sent is None:
        return "\n".join(lines)
    sent = example.sent if isinstance(example.sent, str) else _json(example.sent)
    return "\n".join([*lines, "Content-Type: application/json", "", sent])


def answer_text(example: Example) -> str:
    lines = [f"{example.status} {phrase_of(example.status)}"]
    lines += [f"{name}: {value}" for name, value in example.headers.items()]
    return "\n".join([*lines, "", _json(example.answer)])


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def members(kind: Kind) -> dict[str, Any]:
    """The page as JSON."""
    example = examples.refused(kind.code)
    return {
        "type": f"/problems/{kind.code}",
        "code": kind.code,
        "title": kind.title,
        "status": kind.status,
        "retry": str(kind.retry),
        "repeat": kind.repeat,
        "meaning": meaning(kind),
        "do": list(kind.advice.do),
        "facts": dict(kind.advice.facts),
        "near": list(kind.advice.near),
        "example": example and {"request": request_text(example), "answer": example.answer},
    }


def markdown(kind: Kind, *, level: int = 1) -> str:
    """The page as Markdown. level: of its heading."""
    hashes = "#" * level
    parts = [
        f"{hashes} {kind.code}",
        f"**{kind.title}** · {kind.status} · retry: {kind.retry}",
        *meaning(kind),
        f"{hashes}# What to do",
        "\n".join(f"{n}. {step}" for n, step in enumerate((kind.repeat, *kind.advice.do), 1)),
    ]
    if kind.advice.facts:
        parts += ["| in the answer | what it says |\n|---|---|\n" + _rows(kind)]
    if example := examples.refused(kind.code):
        shown = f"{request_text(example)}\n\n{answer_text(example)}"
        parts += [f"{example.summary}:", f"```http\n{shown}\n```"]
    if kind.advice.near:
        to = "/problems/" if level == 1 else "#"
        parts += ["Near: " + ", ".join(f"[{code}]({to}{code})" for code in kind.advice.near)]
    return "\n\n".join(parts) + "\n"


def _rows(kind: Kind) -> str:
    return "\n".join(f"| `{name}` | {what} |" for name, what in kind.advice.facts.items())
