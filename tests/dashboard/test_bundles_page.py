"""Incident bundles on screen: made as a download, opened read only, whatever is in the file."""

from __future__ import annotations

import gzip
import io
import json

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client

from agentstate.store.chain import seal
from agentstate.store.commands import NewBudget
from agentstate.store.opened import open_bundle, read_lines
from agentstate.store.payloads import BODY_BYTES_MAX, RawJSON, moment
from dashboard.access import ROLES
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, event, rows


@pytest.fixture
def lived(store, still_clock):
    store.create("42", task="audit checkout", budgets=(NewBudget(name="tokens", cap=100),))
    still_clock.advance(seconds=1)
    first = store.hold("42", "w-1")
    store.append("42", [event("tool.called", {"secret": "c-17"})], fence=first.token)
    still_clock.advance(seconds=100)
    store.as_caller(SENIOR).reclaim("run:42", token=first.token, reason="w-1 froze")
    store.hold("42", "w-2")
    return store


def download(client, **query):
    answer = client.get("/runs/42/bundle/file", query)
    assert answer.status_code == 200
    return b"".join(answer.streaming_content)


def everything():
    """How many rows each table of the store has."""
    tables = [t for t in connection.introspection.table_names() if t.startswith("agentstate_")]
    return {table: rows(f"SELECT count(*) FROM {table}") for table in tables}


def opened(client, raw, name="incident.jsonl"):
    file = io.BytesIO(raw)
    file.name = name
    return Page(client.post("/bundles", {"bundle": file}))


def test_a_bundle_is_taken_away_and_opened_again(lived, operator, viewer):
    raw = download(operator)
    written = everything()

    page = opened(viewer, raw)

    assert page.status == 200
    assert "Whole:" in page.text
    assert "none missing, moved or changed" in page.text
    for said in ("w-1 froze", "lease.reclaimed", "tool.called", "c-17", "audit checkout", "ana"):
        assert said in page.text, said
    assert json.loads(raw.splitlines()[-1])["chain"] in page.text
    assert "Timeline of 42" in page.text
    assert "data-live" not in page.html
    assert everything() == written


def test_the_page_that_asks_says_what_is_in_it_and_is_reached_from_the_run(lived, operator):
    run = Page(operator.get("/runs/42", {"from": "2026-03-02T12:00:00Z"}))
    address = run.link("/runs/42/bundle")

    page = Page(operator.get(address))

    assert page.field("from") == "2026-03-02T12:00:00Z"
    assert "No secret of this site" in page.text
    assert "/bundles" in page.links
    assert "/bundles" in Page(operator.get("/audit")).links
    assert operator.get("/runs/none/bundle").status_code == 404
    assert operator.get("/runs/none/bundle/file").status_code == 404


def test_times_that_are_none_are_asked_for_again(lived, viewer, still_clock):
    for wrong in (
        {"from": "soon"},
        {"to": "2026-13-01T00:00:00Z"},
        {"from": "2999-01-01T00:00:00Z"},
    ):
        answer = viewer.get("/runs/42/bundle/file", wrong)
        assert answer.status_code == 400, wrong
        assert 'aria-invalid="true"' in answer.text
    window = {"to": moment(still_clock.now.replace(microsecond=0))}
    assert open_bundle(read_lines(download(viewer, **window))).verdict.whole


def test_who_may_not_see_payloads_gets_digests(lived, viewer, monkeypatch):
    assert b"c-17" in download(viewer)
    assert b"c-17" not in download(viewer, payloads="no")
    monkeypatch.setitem(ROLES, "viewer", frozenset({"read"}))

    raw = download(viewer)

    assert b"c-17" not in raw
    assert b"data_sha256" in raw
    assert "left out" in opened(viewer, raw).text
    assert "Your role does not show payloads" in Page(viewer.get("/runs/42/bundle")).text


def test_nobody_without_a_role_makes_or_opens_one(lived, log_in):
    nobody = log_in("nobody", None)
    for address in ("/runs/42/bundle", "/runs/42/bundle/file", "/bundles"):
        assert nobody.get(address).status_code == 403
        assert Client().get(address).status_code == 302
    assert Group.objects.filter(name="viewer").exists()


def test_a_file_that_is_not_as_it_was_says_where_on_top(lived, operator, viewer):
    raw = download(operator)
    lines = raw.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b"w-1 froze" in line)

    trimmed = opened(viewer, raw[:-300])
    assert "Trimmed at line" in trimmed.text
    missing = opened(viewer, b"".join(lines[:place] + lines[place + 1 :]))
    assert f"Trimmed at line {place + 1}: line {place + 1} is missing" in missing.text
    assert "tool.called" not in missing.text
    changed = opened(viewer, raw.replace(b"w-1 froze", b"w-2 froze"))
    assert f"Changed at line {place + 1}" in changed.text
    assert "w-2 froze" not in changed.text
    lines[place], lines[place + 1] = lines[place + 1], lines[place]
    assert f"Reordered at line {place + 1}" in opened(viewer, b"".join(lines)).text
    first = opened(viewer, raw.replace(b'"run":"42"', b'"run":"43"', 1))
    assert "Changed at line 1" in first.text


HEADER = {
    "agentstate_bundle": 1, "kind": "bundle", "run": "42", "since": None, "until": None,
    "made_at": "2026-03-02T12:00:00Z", "made_by": "x", "release": "1", "payloads": True,
}  # fmt: skip
MARKUP = "<img src=x onerror=alert(1)>\u202e{{ 7*7 }}</script>"
WHEN = {"at": "2026-03-02T11:00:00Z", "actor": MARKUP}


def hostile(*more):
    run = {
        "kind": "run", "key": MARKUP, "task": MARKUP, "status": MARKUP, "version": 2**63 - 1,
        "last_seq": 2**63 - 1, "created_at": "1970-01-01T00:00:00Z", "notes": MARKUP,
        "tags": [MARKUP], "counters": {MARKUP: -(2**63 - 1)}, "token": 2**62, "owner": MARKUP,
    }  # fmt: skip
    lines = [
        HEADER | {"run": MARKUP, "console": "javascript:alert(1)", "release": MARKUP},
        {"kind": "settings", MARKUP: MARKUP, "rules": [{"rule": MARKUP}, 7, None]},
        run,
        {"kind": "budget", "name": MARKUP, "unit": MARKUP, "cap": 0, "spent": 9, "reserved": 0},
        {"kind": "entry", "budget": MARKUP, "entry": MARKUP, "n": 1, "amount": -5, "note": MARKUP}
        | WHEN,
        {"kind": "term", "token": 2**62, "owner": MARKUP, "from": "2200-12-31T00:00:00Z",
         "to": "1970-01-01T00:00:00Z", "renewals": 0, "renewed_ms": [2**63 - 1], "ended": MARKUP,
         "reason": MARKUP},
        {"kind": "term", "token": 2**62, "owner": MARKUP, "from": "1970-01-01T00:00:00Z",
         "renewals": 3, "renewed_ms": [0, 10**13]},
        {"kind": "refusal", "code": MARKUP, "operation": MARKUP, "worker": MARKUP} | WHEN,
        {"kind": "action", "action": MARKUP, "object": MARKUP, "reason": MARKUP,
         "before": {MARKUP: [MARKUP]}, "after": MARKUP} | WHEN,
        {"kind": "change", "rule": MARKUP, "before": "", "after": MARKUP, "message": MARKUP}
        | WHEN,
        {"kind": "alert", "rule": MARKUP, "title": MARKUP, "state": MARKUP,
         "since": "2026-03-02T11:00:00Z"},
        {"kind": "worker", "name": MARKUP, "skew_ms": -(2**63 - 1)},
        {"kind": "telemetry", "host": MARKUP, "skew_ms": 2**63 - 1},
        {"kind": "event", "seq": 1, "version": 1, "type": MARKUP, "origin": MARKUP,
         "data": RawJSON(json.dumps({MARKUP: [MARKUP, 1e300, -0.0]})),
         "effect": {"key": MARKUP, "state": "begun"}} | WHEN,
        {"kind": "event", "seq": 1, "version": 1, "type": "t", "origin": "store",
         "data_sha256": MARKUP, "data_bytes": 2**63 - 1} | WHEN,
        *more,
    ]  # fmt: skip
    return "".join(seal(lines)).encode()


def test_what_is_in_a_file_is_text_whatever_it_says(viewer):
    page = opened(viewer, hostile(), name="<b>.jsonl")

    assert page.status == 200
    assert "Whole" in page.text
    assert [tag for tag, _ in page.tags if tag == "img"] == []
    assert "\u202e" not in page.html
    assert "{{ 7*7 }}" in page.text
    assert not [link for link in page.links if "javascript" in link]
    assert "<img src=x" in page.text


def test_many_rows_are_cut_and_large_payloads_only_begun(viewer):
    data = RawJSON(json.dumps({"text": "x" * 60_000}))
    events = [
        {"kind": "event", "seq": n, "version": n, "type": "t", "origin": "worker", "actor": "x",
         "at": "2026-03-02T11:00:00Z", "data": data if n < 10 else RawJSON("[1]")}
        for n in range(1, 700)
    ]  # fmt: skip

    page = opened(viewer, hostile(*events))

    assert "the first 500 here" in page.text
    assert len(page.html) < 1_500_000
    assert "characters)" in page.text


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty"),
        (gzip.compress(b"\0" * 50_000_000), "it is compressed"),
        (b"\x89PNG\r\n", "does not begin as a bundle does"),
        ("".join(seal([HEADER | {"run": 7}])).encode(), "line 1: run: a text"),
        ("".join(seal([HEADER, {"kind": "run"}])).encode(), "line 2: key: is missing"),
        (b'{"line":1,' + b"[" * 1_000_000, "Trimmed at line 1"),
    ],
)
def test_what_is_no_bundle_is_refused_clearly(viewer, raw, said):
    page = opened(viewer, raw)

    assert page.status in (200, 422)
    assert said in page.text


def test_an_upload_without_a_file_or_too_large_a_one_is_refused(viewer):
    assert "Choose a file first" in Page(viewer.post("/bundles")).text
    large = opened(viewer, b'{"line":1,' + b"x" * BODY_BYTES_MAX)
    assert large.status == 413
    assert "./run bundle --check FILE" in large.text


def test_a_body_that_was_not_read_says_so_and_not_that_the_form_was_old(log_in):
    """The server reads nothing of a body that is larger than any: then there is no token in it."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(log_in("x", "viewer").get("/runs").wsgi_request.user)

    answer = client.generic(
        "POST", "/bundles", b"", content_type="multipart/form-data; boundary=x",
        CONTENT_LENGTH=str(BODY_BYTES_MAX + 1),
    )  # fmt: skip

    assert answer.status_code == 413
    assert "Too large" in answer.text
    assert client.post("/bundles", {}).status_code == 403
