import asyncio
import gzip
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser
from django.contrib.staticfiles.finders import find
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import include, path


def show(request: HttpRequest) -> HttpResponse:
    seen = [name for name in ("session", "user", "htmx", "_messages") if hasattr(request, name)]
    return HttpResponse(f"{request.request_id} {','.join(seen)}")


def show_much(request: HttpRequest) -> HttpResponse:
    kind = request.GET.get("type", "text/html; charset=utf-8")
    return HttpResponse("row\n" * 5_000, content_type=kind, status=request.GET.get("status", 200))


async def show_later(request: HttpRequest) -> HttpResponse:
    user = await request.auser() if hasattr(request, "auser") else None
    return HttpResponse(f"{isinstance(user, AnonymousUser)}")


urlpatterns = [
    path("api/v1/x", show),
    path("health/live", show),
    path("page", show),
    path("much", show_much),
    path("live/pages", show_later),
    path("live/v1/feed", show_later),
    path("", include("agentstate.urls")),  # the error pages of the console link to its others
]

pytestmark = pytest.mark.urls(__name__)


def test_a_page_gets_everything_that_the_console_needs():
    answer = Client().get("/page")
    assert answer.text.endswith(" session,user,htmx,_messages")
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("where", ["/api/v1/x", "/health/live"])
def test_a_program_gets_only_the_plain_headers_of_safety(where):
    answer = Client().get(where)
    assert answer.text.split(" ")[1] == ""
    assert answer["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in answer
    assert answer["Content-Length"] == str(len(answer.content))


def test_a_form_without_its_token_is_refused_and_a_program_needs_none():
    client = Client(enforce_csrf_checks=True)
    assert client.post("/page").status_code == 403
    assert client.post("/api/v1/x").status_code == 200


def test_a_request_keeps_the_id_that_it_came_with():
    answer = Client().get("/api/v1/x", headers={"X-Request-Id": "job-7/a"})
    assert answer["X-Request-Id"] == "job-7/a"
    assert answer.text.startswith("job-7/a ")


@pytest.mark.parametrize("given", ["", "two words", "ä", "x" * 201, "a\tb"])
def test_an_id_that_cannot_be_kept_is_replaced(given):
    answer = Client().get("/api/v1/x", headers={"X-Request-Id": given})
    assert answer["X-Request-Id"] != given
    assert len(answer["X-Request-Id"]) == 32


def test_streams_pass_the_same_two_stacks():
    async def ask() -> tuple[HttpResponse, HttpResponse]:
        client = AsyncClient()
        return await client.get("/live/pages"), await client.get("/live/v1/feed")

    page, program = asyncio.run(ask())
    assert page.text == "True"
    assert "script-src" in page["Content-Security-Policy"]
    assert program.text == "False"
    assert "script-src" not in program["Content-Security-Policy"]
    assert page["X-Request-Id"] != program["X-Request-Id"]


def test_an_unknown_address_is_404_in_both_stacks():
    assert Client().get("/nothing").status_code == 404
    assert Client().get("/api/nothing").status_code == 404


GZIP = {"Accept-Encoding": "gzip, br"}


def test_a_page_is_compressed_for_whoever_accepts_it():
    answer = Client(headers=GZIP).get("/much")
    assert answer["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in answer["Vary"]
    assert len(answer.content) < 1_000
    assert gzip.decompress(answer.content) == b"row\n" * 5_000
    plain = Client().get("/much")
    assert "Content-Encoding" not in plain
    assert "Accept-Encoding" in plain["Vary"]


def test_a_file_of_a_page_is_compressed_and_known_again_without_a_body():
    browser = Client(headers=GZIP)
    answer = browser.get("/static/dashboard/live.js")
    assert answer["Content-Encoding"] == "gzip"
    text = gzip.decompress(answer.getvalue())
    assert text == Path(find("dashboard/live.js")).read_bytes()
    again = browser.get(
        "/static/dashboard/live.js", headers={"If-Modified-Since": answer["Last-Modified"]}
    )
    assert again.status_code == 304
    assert "Content-Encoding" not in again
    assert again.getvalue() == b""


@pytest.mark.parametrize("query", ["?type=text/event-stream", "?type=text/csv", "?status=206"])
def test_streams_downloads_and_parts_are_not_compressed(query):
    assert "Content-Encoding" not in Client(headers=GZIP).get("/much" + query)
