"""Two stacks of middleware in one process.

A worker's request needs no session, CSRF token, messages or htmx, and pays for each of them in
microseconds. So the addresses in SHORT pass only RequestMark, and all others pass
settings.CONSOLE_MIDDLEWARE as well. Works the same in WSGI and, for the streams, in ASGI.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import perf_counter
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.utils.module_loading import import_string

from agentstate import logs, metrics, tracing
from agentstate.request_ids import request_id_of
from agentstate.store import spent
from agentstate.store.spent import Spent

SHORT = ("/api/", "/health/", "/problems/", "/live/v1/", "/metrics")
SHORT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

type Response = HttpResponseBase | Awaitable[HttpResponseBase]
type Handler = Callable[[HttpRequest], Any]


def is_short(request: HttpRequest) -> bool:
    """True for what a program asks for, false for the pages of the console."""
    return request.path_info.startswith(SHORT)


class RequestMark:
    """Give each request an id (`request.request_id`, its own X-Request-Id if that is printable),
    send it back with where the time went (`Server-Timing`), and set the plain headers of safety on
    answers of the short stack."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)
            self.answer: Handler = self.answer_async
        else:
            self.answer = self.answer_sync

    def __call__(self, request: HttpRequest) -> Response:
        request.request_id = request_id_of(request.META.get("HTTP_X_REQUEST_ID", ""))  # type: ignore[attr-defined]
        answer: Response = self.answer(request)
        return answer

    def answer_sync(self, request: HttpRequest) -> HttpResponseBase:
        began = perf_counter()
        record = spent.begin(queue_seconds=request.META.get("agentstate.queue_seconds", 0.0))
        before = logs.REQUEST.set(request)
        try:
            with tracing.spanned(request, record) as span:
                response = self.mark(request, self.get_response(request), record, began)
                tracing.note(span, response)
                return response
        finally:
            logs.REQUEST.reset(before)  # the thread lasts, and would keep its last request

    async def answer_async(self, request: HttpRequest) -> HttpResponseBase:
        began, record = perf_counter(), spent.begin()
        logs.REQUEST.set(request)  # goes with the task, which may be a stream
        with tracing.spanned(request, record) as span:
            response = self.mark(request, await self.get_response(request), record, began)
            tracing.note(span, response)
            return response

    def mark(
        self, request: HttpRequest, response: HttpResponseBase, record: Spent, began: float
    ) -> HttpResponseBase:
        response.headers["X-Request-Id"] = request.request_id  # type: ignore[attr-defined]
        total = perf_counter() - began + request.META.get("agentstate.queue_seconds", 0.0)
        response.headers["Server-Timing"] = record.told(total)
        metrics.note_request(
            method=request.method or "",
            route=request.resolver_match.route if request.resolver_match else metrics.NOWHERE,
            status=response.status_code,
            spent=record,
            total_seconds=total,
        )
        logs.note_answer(method=request.method, status=response.status_code, seconds=total)
        if is_short(request):
            for name, value in SHORT_HEADERS.items():
                response.headers.setdefault(name, value)
            if isinstance(response, HttpResponse):  # not a stream; else it would go in chunks
                response.headers.setdefault("Content-Length", str(len(response.content)))
        return response


class ConsoleStack:
    """settings.CONSOLE_MIDDLEWARE around the view, for the addresses that are not short."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        self.layers: list[Any] = []
        self.console = self.wrap(get_response)

    def wrap(self, handler: Handler) -> Handler:
        """Build the stack from the inside out, as Django does with MIDDLEWARE."""
        for name in reversed(settings.CONSOLE_MIDDLEWARE):
            layer_class = import_string(name)
            # WhiteNoise cannot run async; only streams do, and no static file is among them.
            if self.is_async and not getattr(layer_class, "async_capable", False):
                continue
            layer = layer_class(handler)
            self.layers.insert(0, layer)
            handler = convert_exception_to_response(layer)
        return handler

    def __call__(self, request: HttpRequest) -> Response:
        handler = self.get_response if is_short(request) else self.console
        answer: Response = handler(request)
        return answer

    def process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        """Ask the layers that look at the view (CSRF). Django adapts this one for ASGI."""
        if is_short(request):
            return None
        for layer in self.layers:
            if look := getattr(layer, "process_view", None):
                response: HttpResponseBase | None = look(request, view, args, kwargs)
                if response is not None:
                    return response
        return None

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Ask the layers whether one of them answers for what a view raised (signing in)."""
        if is_short(request):
            return None
        for layer in reversed(self.layers):
            if answer := getattr(layer, "process_exception", None):
                response: HttpResponseBase | None = answer(request, exception)
                if response is not None:
                    return response
        return None


class Compression(GZipMiddleware):
    """Pages and their files are compressed for whoever accepts it, a list to an eighth.

    Nothing else is: a hint must not wait in a compressor for the next one, and what is downloaded
    is streamed as it is. Each compressed page is longer by some random octets, so that its length
    does not tell what of the request stands in it (Django's answer to BREACH).
    """

    TYPES = ("text/html", "text/css", "text/javascript", "application/javascript", "image/svg+xml")

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        is_whole = request.method == "GET" and response.status_code == HTTPStatus.OK
        if not is_whole or not response.get("Content-Type", "").startswith(self.TYPES):
            return response
        return super().process_response(request, response)
