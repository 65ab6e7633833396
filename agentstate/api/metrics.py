"""`/metrics`: what Prometheus asks for, with a key that may read."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from agentstate import metrics
from agentstate.api.access import READ

READ_METRICS = READ.of("read_metrics")


@require_GET
def show(request: HttpRequest) -> HttpResponse:
    """The metrics of this process and of the store. Needs `read`."""
    READ_METRICS(request)
    text, content_type = metrics.text(request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)
