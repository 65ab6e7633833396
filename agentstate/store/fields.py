"""Columns that Django has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    TextField = models.TextField[Any, Any]
else:
    TextField = models.TextField


class JSONTextField(TextField):
    """Column type `json`, read and written as its text: every digit and space stays.

    Django's own JSONField is `jsonb`: it reorders names and normalises numbers.
    """

    def db_type(self, connection: Any) -> str:
        return "json"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"({sql})::text", params

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s::json", (value,)
