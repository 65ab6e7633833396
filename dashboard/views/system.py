"""System: whether agentstate itself does its work, what it keeps, and the rules it goes by."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.http import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from agentstate.caching import CACHES_OF
from agentstate.store import reads, retention
from agentstate.store.policy import POLICY
from agentstate.store.reference import MEANINGS
from agentstate.store.states import MOVES, OPERATOR_MOVES, Status
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import system as queries
from dashboard.queries.broker import read_broker
from dashboard.queries.clock import database_now
from dashboard.queries.panels import read_panels
from dashboard.timings import TIMINGS

PANELS = {
    "jobs": reads.heartbeats,
    "feed": queries.read_feed,
    "retention": retention.progress,
    "weeks": retention.weeks,
    "partitions": queries.read_partitions,
    "database": queries.read_database,
    "broker": read_broker,
}
PROCESS = f"{settings.AGENTSTATE_PROCESS} {os.getpid()}"


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """`show`: health, or the rules that the store goes by."""
    if request.GET.get("show") == "rules":
        return render(request, "system/rules.html", {"tab": "rules"} | rules())
    panels = read_panels(PANELS)
    context = {
        "tab": "health",
        "now": database_now(),
        "panels": panels,
        "silent": [job for job in panels["jobs"].found or () if job.silent],
        "due_max": retention.DUE_MAX,
        "timings": TIMINGS.read(),
        "timings_since": TIMINGS.since,
        "process": PROCESS,
        "keeping_max": retention.KEEPING_MAX,
    }
    template = "system/health.html" if is_partial(request, "health") else "system/page.html"
    return render(request, template, context)


def rules() -> dict[str, Any]:
    """The tables that the code itself uses, as rows."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, line in POLICY.items():
        table, column = name.split(".")
        tables.setdefault(table, []).append({"column": column, "line": line})
    moves = [{"status": status, "cells": [_move(status, to) for to in Status]} for status in MOVES]
    return {
        "policies": tables,
        "meanings": MEANINGS,
        "moves": moves,
        "statuses": list(Status),
        "caches": CACHES_OF,
    }


def _move(status: str, to: str) -> str:
    """`operator`: open to one without the token; `holder`; or nothing: no such move."""
    if to not in MOVES[status]:
        return ""
    return "operator" if (status, to) in OPERATOR_MOVES else "holder"
