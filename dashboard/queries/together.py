"""Several reads in one statement: the database answers with one row of JSON, a list for each.

What a live page reads again and again is put together like this, and goes along with the question
who asks (dashboard/sessions.py): so a refresh costs one statement, whether something has changed or
not, and all of it is of one instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import Model, QuerySet

# A value stands in SQL of ours under its name; the ORM's go by place, and only one way may be used.
NAMED = re.compile(r"%\((\w+)\)s")

type Sql = tuple[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Read[R]:
    """One of the reads. take: makes of its rows, each a list of so many columns, what is wanted.

    As JSON a moment is a text and a number is one; `moment` and the fields of models know that.
    """

    sql: str
    values: list[Any]
    columns: int
    take: Callable[[list[list[Any]]], R]


def models_of[M: Model](rows: QuerySet[M]) -> Read[list[M]]:
    """Rows of a table, without what `defer` left out."""
    return then(models_with(rows), lambda found: [one for one, _ in found])


def models_with[M: Model](
    rows: QuerySet[M], also: Sequence[str] = ()
) -> Read[list[tuple[M, list[Any]]]]:
    """The same, each with columns of other tables or annotations as JSON has them."""
    model = rows.model
    deferred, _ = rows.query.deferred_loading
    fields = [field for field in model._meta.concrete_fields if field.name not in deferred]
    names = [field.attname for field in fields]

    def take(found: list[list[Any]]) -> list[tuple[M, list[Any]]]:
        return [(one(row[: len(names)]), row[len(names) :]) for row in found]

    def one(row: list[Any]) -> M:
        values = [field.to_python(value) for field, value in zip(fields, row, strict=True)]
        return model.from_db(connection.alias, names, values)

    columns = (*names, *also)
    return _compiled(rows.defer(None).values_list(*columns), len(columns), take)


def values_of(rows: QuerySet[Any, Any], columns: int = 1) -> Read[list[list[Any]]]:
    """What a `values_list` of so many columns has."""
    return _compiled(rows, columns, list)


def sql_of(sql: str, values: Mapping[str, Any], columns: int = 1) -> Read[list[list[Any]]]:
    """What SQL with named values finds."""
    given: list[Any] = []

    def place(name: re.Match[str]) -> str:
        given.append(values[name[1]])
        return "%s"

    return Read(NAMED.sub(place, sql), given, columns, list)


def then[R, S](read: Read[R], make: Callable[[R], S]) -> Read[S]:
    """The same read, and something else made of what it finds."""
    return Read(read.sql, read.values, read.columns, lambda rows: make(read.take(rows)))


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _compiled[R](
    rows: QuerySet[Any, Any], columns: int, take: Callable[[list[list[Any]]], R]
) -> Read[R]:
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:  # the ORM sees by itself that nothing can match
        return Read("", [], columns, take)
    return Read(sql, list(values), columns, take)


# json_build_array takes a hundred values, more than any table here has columns.
_LIST = "(SELECT coalesce(json_agg(json_build_array({names})), '[]') FROM ({sql}) AS r({names}))"


def compose(reads: Mapping[str, Read[Any]]) -> Sql:
    """An expression of SQL that is the JSON text of all of them, and `now`."""
    parts, given = ["'now', agentstate_now()"], []
    for name, read in reads.items():
        names = ", ".join(f"c{n}" for n in range(read.columns))
        rows = _LIST.format(names=names, sql=read.sql) if read.sql else "'[]'::json"
        parts.append(f"'{name}', {rows}")
        given += read.values
    return f"json_build_object({', '.join(parts)})::text", given


def taken(told: str, reads: Mapping[str, Read[Any]]) -> dict[str, Any]:
    """What was found, by name, of the text that the expression was; `now` is the clock's."""
    found = json.loads(told)
    now = {"now": datetime.fromisoformat(found["now"])}
    return now | {name: read.take(found[name]) for name, read in reads.items()}


def read(reads: Mapping[str, Read[Any]], told: str | None = None) -> dict[str, Any]:
    """All of them in one statement. told: the text, where it has been asked for already."""
    if told is None:
        sql, values = compose(reads)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {sql}", values)
            told = cursor.fetchone()[0]
    return taken(told, reads)


def first[T](rows: Sequence[T]) -> T | None:
    return rows[0] if rows else None
