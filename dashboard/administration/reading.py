"""Tables that are only looked at, with counts that are estimates and never count the table."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db import connection
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

# So far a list is paged through and counted exactly; beyond it one narrows it, or goes to the
# console, whose lists are read by place.
ROWS_MAX = 1_000
# Unfold's own classes; a link in a cell would else look like any text.
LINK = "text-primary-600 dark:text-primary-500"
RELTUPLES = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)"


class About(int):
    """A number that is not exact: `~52310` by the planner's statistics, or `1000+`."""

    told: str

    def __new__(cls, value: int, told: str) -> About:
        number = super().__new__(cls, value)
        number.told = told
        return number

    def __str__(self) -> str:
        return self.told


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages of the first ROWS_MAX rows."""

    @cached_property
    def count(self) -> int:
        """Exact up to ROWS_MAX, else About: `pg_class.reltuples` of all rows, `1000+` of some."""
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        found = len(rows.order_by().values_list("pk")[: ROWS_MAX + 1])
        if found <= ROWS_MAX:
            return found
        if rows.query.where:
            return About(found, f"{ROWS_MAX}+")
        guess = max(found, estimate(rows.model._meta.db_table))
        return About(guess, f"~{guess}")

    @cached_property
    def num_pages(self) -> int:
        return -(-min(self.count, ROWS_MAX) // self.per_page) or 1


def estimate(table: str) -> int:
    """How many rows PostgreSQL thinks a table has; -1 before it ever looked."""
    with connection.cursor() as cursor:
        cursor.execute(RELTUPLES, [table])
        return int(cursor.fetchone()[0])


class ForAdmins(ModelAdmin):  # type: ignore[misc]  # it has no types
    """Whoever may enter may look; what else is open each says itself.

    one, many: what people call a row and the table, in place of the model's names. known_by: the
    column that a row is known by.
    """

    one = "row"
    many = "rows"
    known_by = "name"

    actions = None
    list_fullwidth = True
    compressed_fields = True
    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
    show_facets = None

    def title_of(self, row: Any) -> str:
        return str(getattr(row, self.known_by))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseBase:
        named = {"title": self.many.capitalize()} | (extra_context or {})
        found: HttpResponseBase = super().changelist_view(request, named)
        return found

    def render_change_form(
        self, request: HttpRequest, context: Any, *place: Any, **named: Any
    ) -> HttpResponse:
        row = named.get("obj")
        context["title"] = f"New {self.one}" if row is None else self.one.capitalize()
        context["subtitle"] = row and self.title_of(row)
        # One button: where one goes on from there is the same each time.
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        found: HttpResponse = super().render_change_form(request, context, *place, **named)
        return found

    def has_module_permission(self, request: HttpRequest) -> bool:
        return True

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponseBase:
        """There is one history: the audit."""
        return redirect(reverse("audit"))

    # The audit has what was done; Django's own log of it would say it a second time.
    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        return None

    def log_deletions(self, request: HttpRequest, queryset: Any) -> None:
        return None


class Reader(ForAdmins):
    """A table of the store. page: the console's address of a row's thing, or of all."""

    list_before_template = "administration/only_to_read.html"
    change_form_before_template = "administration/only_to_read.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request)
        names = {field.name for field in self.model._meta.get_fields()}
        # Its key alone: a run may have a megabyte of attrs.
        return found.annotate(run_key=F("run__key")) if "run" in names else found

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields
