"""Which of the store's tables are shown, with which columns. Each list goes by an index.

No payloads (attrs, results, progress), and nothing of a key or target that lets anybody in.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import DateTimeField, F, Func, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from agentstate.store import models
from dashboard import zones
from dashboard.administration.reading import LINK, Reader
from dashboard.administration.site import site
from dashboard.templatetags.console import NOTHING

UNTIL = "nullif(upper(%(expressions)s), 'infinity')"


def _link(name: str, *args: str | None) -> str:
    """To the console; the bare text of what no page is called."""
    text = "/".join(arg for arg in args if arg) or NOTHING
    try:
        address = reverse(name, args=args)
        return format_html('<a class="{}" href="{}">{}</a>', LINK, address, text)
    except NoReverseMatch:
        return text


@admin.display(description="run")
def run_link(row: Any) -> str:
    return _link("run", row.run_key) if row.run_key else NOTHING


@admin.display(description="at the console")
def of_run(row: models.Run) -> str:
    return _link("run", row.key)


@admin.display(description="at the console")
def of_unit(row: models.Lease | models.LeaseTerm) -> str:
    return _link("lease", row.unit)


@admin.display(description="at the console")
def of_budget(row: Any) -> str:
    if row.slot_of_id:
        return "a slot"
    if row.run_key:
        return _link("run-budget", row.run_key, row.name)
    return _link("budget", row.name) if row.run_id is None else row.name


@admin.register(models.Run, site=site)
class Runs(Reader):
    one, many = "run", "runs"
    known_by = "key"
    ordering = ("-created_at", "-id")
    list_display = ("key", "task", "status", "version", "owner", "created_at", of_run)
    list_filter = ("status",)
    search_fields = ("^key",)
    search_help_text = "Beginning of the key"
    fields = (
        of_run, "id", "key", "task", "status", "version", "last_seq", "counters", "tags", "notes",
        "owner", "token", "last_token", "attempt", "max_attempts", "deadline_at",
        "deadline_policy", "retain_seconds", "hold", "created_by", "created_at", "updated_at",
        "ended_at", "expires_at",
    )  # fmt: skip


@admin.register(models.Lease, site=site)
class Leases(Reader):
    one, many = "lease", "leases"
    known_by = "unit"
    ordering = ("unit",)
    list_display = ("unit", "owner", "token", "expires_at", "renewals", of_unit)
    search_fields = ("unit__exact",)
    search_help_text = "The whole unit, such as run:42"
    fields = (
        of_unit, "unit", run_link, "owner", "holder", "token", "ttl_seconds", "acquired_at",
        "renewed_at", "expires_at", "renewals", "term_ended_at", "hold_off_owner",
        "hold_off_until",
    )  # fmt: skip


@admin.register(models.LeaseTerm, site=site)
class Terms(Reader):
    one, many = "term of ownership", "terms of ownership"
    known_by = "token"
    ordering = ("-token",)
    list_display = ("token", "unit", "owner", "began", "until", "ended", "ended_by", of_unit)
    search_fields = ("unit__exact",)
    search_help_text = "The whole unit, such as run:42"
    fields = (
        of_unit, "token", "unit", run_link, "owner", "holder", "began", "until", "renewals",
        "ttl_seconds", "ended", "ended_by", "reason",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.LeaseTerm]:
        """A term that goes on ends in infinity, which no Python date can say."""
        found = super().get_queryset(request).defer("held")
        began = Func(F("held"), function="lower", output_field=DateTimeField())
        until = Func(F("held"), template=UNTIL, output_field=DateTimeField())
        told: QuerySet[models.LeaseTerm] = found.annotate(began_at=began, until_at=until)
        return told

    @admin.display(description="began")
    def began(self, term: Any) -> str:
        return zones.full(term.began_at)

    @admin.display(description="until")
    def until(self, term: Any) -> str:
        return zones.full(term.until_at) if term.until_at else "goes on"


@admin.register(models.Budget, site=site)
class Budgets(Reader):
    one, many = "budget", "budgets"
    ordering = ("-id",)
    list_display = ("name", run_link, "unit", "cap", "spent", "reserved", "version", of_budget)
    fields = (
        of_budget, "id", run_link, "name", "unit", "cap", "spent", "reserved", "overdrawn",
        "version", "entries", "depth", "slots", "slot",
    )  # fmt: skip


@admin.register(models.Refusal, site=site)
class Refusals(Reader):
    one, many = "refusal", "refusals"
    known_by = "code"
    ordering = ("-at", "-id")
    list_display = ("at", "code", "operation", run_link, "unit", "actor", "worker", "attempt")
    search_fields = ("request_id__exact",)
    search_help_text = "The whole request id"
    fields = (
        "id", "at", "code", "operation", run_link, "unit", "budget", "actor", "worker",
        "token_sent", "token_current", "wanted", "found", "request_id", "attempt", "met", "about",
    )  # fmt: skip


@admin.register(models.Worker, site=site)
class Workers(Reader):
    one, many = "worker", "workers"
    ordering = ("name",)
    list_display = ("name", "version", "host", "slots", "seen_at")
    search_fields = ("name__exact",)
    search_help_text = "The whole name"
    fields = ("name", "version", "host", "slots", "skew_ms", "seen_at")


@admin.register(models.OperatorAction, site=site)
class Done(Reader):
    one, many = "act", "what was done"
    known_by = "action"
    ordering = ("-at", "-id")
    list_display = ("at", "actor", "action", "object", "reason")
    fields = (
        "id", "at", "actor", "action", "object", run_link, "reason", "before", "after",
        "expected", "request_id",
    )  # fmt: skip


@admin.register(models.RefusedAction, site=site)
class Refused(Reader):
    one, many = "try", "what was refused"
    known_by = "action"
    ordering = ("-at", "-id")
    list_display = ("at", "actor", "action", "object", "outcome", "code")
    fields = (
        "id", "at", "actor", "action", "object", run_link, "outcome", "code", "reason",
        "expected", "found", "request_id",
    )  # fmt: skip


@admin.register(models.ApiKey, site=site)
class Keys(Reader):
    one, many = "key", "keys as stored"
    ordering = ("name",)
    list_display = ("name", "scopes", "hint", "created_by", "expires_at", "revoked_at")
    fields = (
        "id", "name", "scopes", "hint", "created_by", "created_at", "expires_at", "revoked_at",
        "last_used_at",
    )  # fmt: skip


@admin.register(models.AlertTarget, site=site)
class Targets(Reader):
    one, many = "target", "targets as stored"
    ordering = ("name",)
    list_display = ("name", "kind", "hint", "least", "enabled", "failures", "delivered_at")
    fields = (
        "id", "name", "kind", "hint", "least", "rules", "enabled", "off_at", "off_why",
        "failures", "failing_since", "delivered_at", "version", "created_by", "created_at",
    )  # fmt: skip
