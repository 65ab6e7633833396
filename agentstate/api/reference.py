"""The page at /api/v1/docs, made from OpenAPI: what can be called, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

type Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a body or answer, or a parameter. depth: how far inside another one it stands."""

    name: str
    kind: str
    needed: bool
    note: str = ""
    depth: int = 0
    where: str = "body"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Codes that a call may be refused with, under one status."""

    status: int
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Running text, or a piece of code in it."""

    text: str
    is_code: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call. paragraphs: what it does."""

    id: str
    method: str
    path: str
    summary: str
    paragraphs: tuple[tuple[Span, ...], ...]
    scopes: tuple[str, ...]
    parameters: tuple[Member, ...]
    body: tuple[Member, ...]
    status: int
    answer: tuple[Member, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Calls about one noun."""

    name: str
    operations: tuple[Operation, ...]


def sections(openapi: Schema) -> tuple[Section, ...]:
    """The calls of an OpenAPI document by tag, each in the document's order."""
    found: dict[str, list[Operation]] = {}
    for path, methods in openapi["paths"].items():
        for method, call in methods.items():
            reader = _Reader(openapi["components"]["schemas"])
            operation = reader.operation(method.upper(), path, call)
            found.setdefault(call["tags"][0], []).append(operation)
    return tuple(Section(name=n, operations=tuple(calls)) for n, calls in found.items())


class _Reader:
    """Puts what a schema says into words."""

    def __init__(self, schemas: Schema) -> None:
        self.schemas = schemas

    def operation(self, method: str, path: str, call: Schema) -> Operation:
        status, answer = next((s, a) for s, a in call["responses"].items() if int(s) < 300)
        return Operation(
            id=call["operationId"],
            method=method,
            path=path,
            summary=call["summary"],
            paragraphs=tuple(spans(p) for p in call["description"].split("\n\n")),
            scopes=tuple(call["x-scopes"]),
            # What every call has stands at the top of the page.
            parameters=tuple(self._parameter(p) for p in call["parameters"] if "$ref" not in p),
            body=tuple(self._members(_content(call.get("requestBody")))),
            status=int(status),
            answer=tuple(self._members(_content(answer))),
            problems=tuple(
                Problem(status=int(s), codes=tuple(a["description"].split(": ")[1].split(", ")))
                for s, a in call["responses"].items()
                if int(s) >= 300
            ),
        )

    def _parameter(self, parameter: Schema) -> Member:
        schema = parameter["schema"]
        return Member(
            name=parameter["name"],
            kind=self._kind(schema),
            needed=parameter.get("required", False),
            note=parameter.get("description", "") or _default(schema),
            where=parameter["in"],
        )

    def _members(self, schema: Schema, depth: int = 0) -> Iterator[Member]:
        schema = self._resolved(schema)
        yield from self._choices(schema.get("discriminator", {}), depth)
        for name, inner in schema.get("properties", {}).items():
            yield Member(
                name=name,
                kind=self._kind(inner),
                needed=name in schema.get("required", ()),
                note=inner.get("description", "") or _default(inner),
                depth=depth,
            )
            yield from self._members(self._inside(inner), depth + 1)

    def _choices(self, discriminator: Schema, depth: int) -> Iterator[Member]:
        """Each kind of object that may stand here: told by one of its members."""
        told_by = discriminator.get("propertyName", "")
        for value, ref in discriminator.get("mapping", {}).items():
            note = f"with {told_by}: {value}"
            yield Member(name=value, kind="object", needed=False, note=note, depth=depth)
            for member in self._members({"$ref": ref}, depth + 1):
                if member.name != told_by:
                    yield member

    def _inside(self, schema: Schema) -> Schema:
        """The object in a list, in an object, or in something that may be null."""
        schema = self._resolved(schema)
        for choice in schema.get("anyOf", ()):
            if choice.get("type") != "null":
                return self._inside(choice)
        return self._inside(schema["items"]) if "items" in schema else schema

    def _resolved(self, schema: Schema) -> Schema:
        if "$ref" not in schema:
            return schema
        found: Schema = self.schemas[schema["$ref"].rsplit("/", 1)[1]]
        return found

    def _kind(self, schema: Schema) -> str:
        schema = self._resolved(schema)
        if "anyOf" in schema:
            # That what may be left out may also be null needs no words.
            given = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
            return " or ".join(self._kind(choice) for choice in given)
        if "oneOf" in schema:
            return "object"
        if "enum" in schema:
            return "one of " + ", ".join(schema["enum"])
        kind = schema.get("type", "any JSON value")
        if kind == "array":
            kind = self._kind(schema.get("items", {}))
            return f"list of {'objects' if kind == 'object' else kind}{_count(schema)}"
        return _KINDS[kind](schema) if kind in _KINDS else str(kind)


def _content(part: Schema | None) -> Schema:
    """The JSON schema in a requestBody or a response; nothing when there is none."""
    contents = (part or {}).get("content", {})
    found: Schema = contents.get("application/json", {}).get("schema", {})
    return found


def spans(paragraph: str) -> tuple[Span, ...]:
    """Running text: `code` in back quotes, and what is between."""
    parts = " ".join(paragraph.split()).split("`")
    return tuple(Span(text, number % 2 == 1) for number, text in enumerate(parts) if text)


def _text(schema: Schema) -> str:
    if schema.get("format") == "date-time":
        return "instant"
    if "maxLength" not in schema:
        return "text"
    return f"text, {schema.get('minLength', 0)} to {schema['maxLength']} characters"


def _whole(schema: Schema) -> str:
    if "minimum" not in schema:
        return "whole number"
    if "maximum" not in schema:
        return f"whole number from {schema['minimum']}"
    return f"whole number, {schema['minimum']} to {_number(schema['maximum'])}"


def _number(value: int) -> str:
    """Powers of two as such: nobody can read 9007199254740991."""
    power = (value + 1).bit_length() - 1
    return f"2^{power} - 1" if power > 30 and value == 2**power - 1 else str(value)


def _count(schema: Schema) -> str:
    return f", at most {schema['maxItems']}" if "maxItems" in schema else ""


_KINDS: dict[str, Callable[[Schema], str]] = {
    "string": _text,
    "integer": _whole,
    "boolean": lambda _: "true or false",
}


def _default(schema: Schema) -> str:
    default = schema.get("default")
    return "" if default in (None, [], {}, "") else f"default {default}"
