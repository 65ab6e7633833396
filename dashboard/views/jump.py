"""The search on top of every page: whatever was pasted leads to it, or to what it may mean."""

from __future__ import annotations

from django.http import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from agentstate.store import filters
from agentstate.store.filters import Clause, Filter
from dashboard.pages import ConsoleRequest, page
from dashboard.queries import jump as queries

TEXT_CHARS_MAX = 500


@require_safe
@page
def jump(request: ConsoleRequest) -> HttpResponseBase:
    """`to`: a run, unit, worker, request id or idempotency key, or a filter of runs.

    One thing of that name is opened; of several, or of none, a page shows what it may mean.
    """
    to = request.GET.get("to", "").strip()[:TEXT_CHARS_MAX]
    if not to or not to.isprintable():
        return redirect("runs")
    found = queries.places(to)
    exact = [place for place in found if place.exact]
    if len(exact) == 1 or len(found) == 1:
        return redirect((exact or found)[0].address)
    if not exact and queries.is_filter(to):
        return redirect(reverse("runs", query={"q": filters.parse(to).text}))
    word = Filter((Clause("", (to,)),)).text
    context = {"to": to, "found": found, "exact": exact, "word": word}
    return render(request, "jump/page.html", context)
