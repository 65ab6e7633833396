"""Runs as files: all that match, or those that were ticked; safe to open in a spreadsheet."""

import csv
import io
import json

import pytest

from agentstate.store.payloads import RawJSON
from dashboard import sheets
from dashboard.queries import export


def download(client, **query):
    answer = client.get("/runs/-/export", query)
    assert answer["Content-Disposition"].startswith("attachment;")
    return answer.getvalue().decode()


def sheet(text):
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))


def test_all_that_match_are_exported_page_by_page_newest_first(
    store, still_clock, viewer, monkeypatch
):
    monkeypatch.setattr(export, "PAGE_ROWS", 2)
    monkeypatch.setattr(export, "PAYLOAD_ROWS", 2)
    for number in range(5):
        still_clock.advance(seconds=number % 2)  # some in the same instant
        store.create(
            f"r-{number}", task="say hello", attrs=RawJSON('{"n":\n 12345678901234567890.10}')
        )
    store.create("other", task="else")
    lease = store.hold("r-3", "w-1")

    rows = sheet(download(viewer, q="task:hello", format="csv"))
    lines = download(viewer, q="task:hello", format="jsonl").splitlines()

    assert {row["key"] for row in rows} == {f"r-{number}" for number in range(5)}
    assert len(rows) == 5
    held = next(row for row in rows if row["key"] == "r-3")
    assert (held["holder"], held["token"], held["lease"]) == ("w-1", str(lease.token), "live")
    assert [json.loads(line)["kind"] for line in lines] == ["run"] * 5 + ["end"]
    assert json.loads(lines[-1]) == {"kind": "end", "runs": 5}
    assert "12345678901234567890.10" in lines[0]
    assert [json.loads(line)["key"] for line in lines[:5]] == [row["key"] for row in rows]


def test_what_is_ticked_is_exported_and_nothing_else(store, viewer):
    for key in ("a", "b", "c"):
        store.create(key)

    answer = viewer.post("/runs/-/export", {"format": "csv", "key": ["b"], "keys": "a\nb\nnone\n"})

    assert [row["key"] for row in sheet(answer.getvalue().decode())] == ["a", "b"]


def test_no_cell_is_a_formula(store, viewer):
    store.create("r", task='=HYPERLINK("http://x.test","y")', tags=("+1", "@a"))

    (row,) = sheet(download(viewer, q="", format="csv"))

    assert row["task"] == '\'=HYPERLINK("http://x.test","y")'
    assert row["tags"].startswith("'+1")


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", " =1", "\t1", "\uff1d1", "\n1"])
def test_a_text_that_begins_like_a_formula_is_text(text):
    assert sheets.cell(text) == "'" + text


@pytest.mark.parametrize("mark", [";", "|", "\t", "\n", "; ", ';"', ";;"])
def test_no_formula_begins_where_another_spreadsheet_parts_columns(mark):
    """S-103: many of them part columns at semicolons, whatever is quoted."""
    for begins in sheets.FORMULA:
        assert sheets.cell(f"a{mark}{begins}1+1") == f"a{mark}'{begins}1+1"
    assert sheets.cell(f"a{mark}b=1 -2") == f"a{mark}b=1 -2"
    assert sheets.cell("\t=1") == "'\t'=1"


def test_what_is_no_format_or_no_filter_is_said(store, viewer):
    assert viewer.get("/runs/-/export", {"format": "xls"}).status_code == 400
    assert viewer.get("/runs/-/export", {"q": "colour:red"}).status_code == 400


def test_a_search_without_an_index_is_exported_to_its_end(store, still_clock, viewer, monkeypatch):
    from agentstate.store import search

    monkeypatch.setattr(search, "SEARCHED_RUNS", 3)
    for number in range(10):
        still_clock.advance(seconds=1)
        store.create(f"r-{number}", attrs=RawJSON(f'{{"n": {number % 4}}}'))

    rows = sheet(download(viewer, q="attr.n:0", format="csv"))

    assert [row["key"] for row in rows] == ["r-8", "r-4", "r-0"]


def test_a_slow_reader_holds_no_more_than_a_page(store, viewer, monkeypatch):
    monkeypatch.setattr(export, "PAGE_ROWS", 2)
    monkeypatch.setattr(sheets, "LINES_AT_ONCE", 1)
    for number in range(7):
        store.create(f"r-{number}")
    asked = []
    real = export.describe
    monkeypatch.setattr(
        export, "describe", lambda runs, **more: asked.append(1) or real(runs, **more)
    )

    parts = iter(viewer.get("/runs/-/export", {"format": "csv"}).streaming_content)
    next(parts)

    assert len(asked) == 1
    assert len(list(parts)) == 7
