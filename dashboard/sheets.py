"""Rows as files: CSV that a spreadsheet opens without running any of it, and JSON lines."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from agentstate.store.payloads import moment, write

# What spreadsheets take for the beginning of a formula, the wide forms in some languages.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
TEXT = "'"
# In many languages a spreadsheet parts columns at semicolons, some people choose tabs or bars:
# there a cell of theirs begins in the middle of one of ours. Quotes do not help, since for such a
# sheet they stand in the middle of a text.
INNER_CELL = re.compile(r"([;|\t\r\n][\s\"]*)(?=[" + re.escape("".join(FORMULA)) + "])")
LINES_AT_ONCE = 100


def csv_lines(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A sheet with a head line. What begins like a formula gets a ' in front (`cell`)."""
    names = list(columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    # A byte order mark: without one, a spreadsheet takes UTF-8 for something else.
    text.write("\ufeff")
    writer.writerow(names)
    for number, row in enumerate(rows, start=1):
        writer.writerow([cell(row[name]) for name in names])
        if number % LINES_AT_ONCE == 0:
            yield _taken(text)
    yield _taken(text)


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same row with each object in it as its JSON text; an empty one is nothing."""
    return {
        name: (write(value) if value else None) if isinstance(value, dict) else value
        for name, value in row.items()
    }


def cell(value: Any) -> str:
    """A value as the text of a cell; a ' stands before what would begin a formula, here or where a
    spreadsheet that parts columns at semicolons, tabs or bars begins a cell of its own."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, list):
        value = ", ".join(str(one) for one in value)
    if not isinstance(value, str):
        return str(value)
    text = INNER_CELL.sub(lambda found: found[1] + TEXT, value)
    begins = value.startswith(("\t", "\r", "\n")) or value.lstrip().startswith(FORMULA)
    return TEXT + text if begins else text


def json_lines(rows: Iterable[Mapping[str, Any]], *, kind: str) -> Iterator[str]:
    """An object a line; the last one counts them, so that a file that was cut off is noticed."""
    number = 0
    for row in rows:
        number += 1
        # A payload keeps its own white space; a line break in it cannot be inside a text.
        line = write({"kind": kind, **row}).replace("\r", " ").replace("\n", " ")
        yield line + "\n"
    yield write({"kind": "end", f"{kind}s": number}) + "\n"


def _taken(text: io.StringIO) -> str:
    taken = text.getvalue()
    text.seek(0)
    text.truncate()
    return taken
