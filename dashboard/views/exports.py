"""Runs as a file: those under the list's filter, or those that were ticked."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpResponseBadRequest, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_http_methods

from dashboard import sheets
from dashboard.pages import ConsoleRequest, page, while_allowed
from dashboard.queries import export as queries
from dashboard.queries.clock import database_now
from dashboard.queries.runs import Line
from dashboard.views.runs import listing_of

TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl; charset=utf-8"}
KEYS_MAX = 1_000


@require_http_methods(["GET", "HEAD", "POST"])
@page
def export(request: ConsoleRequest) -> HttpResponseBase:
    """`q` the filter, `format` csv or jsonl. POST: `key` each, or `keys` with one a line.

    JSON lines have attrs and result as well, for those who may see payloads. A file that was cut
    off says so: JSON lines by their last line, CSV by a download that fails.
    """
    told = request.POST if request.method == "POST" else request.GET
    kind = told.get("format", "csv")
    shown = listing_of(request)
    if kind not in TYPES or shown.wanted.problems:
        return HttpResponseBadRequest("A format (csv, jsonl) and a filter that is understood.")
    payloads = kind == "jsonl" and request.access.may_see_payloads
    now = database_now()
    if request.method == "POST":
        keys = chosen(request)
        lines = queries.export_keys(keys, now=now, payloads=payloads)
    else:
        lines = queries.export(shown.wanted, now=now, payloads=payloads)
    parts = written(lines, kind, payloads=payloads)
    name = f"runs-{now:%Y%m%d-%H%M%S}.{kind}"
    return StreamingHttpResponse(
        while_allowed(request, parts),
        content_type=TYPES[kind],
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def chosen(request: ConsoleRequest) -> list[str]:
    """The keys that a form sends, each once, as many as can be chosen."""
    keys = [*request.POST.get("keys", "").split("\n"), *request.POST.getlist("key")]
    told = dict.fromkeys(key.strip() for key in keys if "\0" not in key)
    return [key for key in told if key][:KEYS_MAX]


def written(lines: Iterator[Line], kind: str, *, payloads: bool) -> Iterator[str]:
    rows = (queries.facts(line, payloads=payloads) for line in lines)
    if kind == "csv":
        return sheets.csv_lines(queries.COLUMNS, rows)
    return sheets.json_lines(rows, kind="run")
