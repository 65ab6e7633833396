"""Audit: who did and was refused what, found again, read in pages, taken away as a file."""

import csv
import io
import json

import pytest
from django.db import connection

from agentstate import store as door
from agentstate.store.errors import NotAllowed
from dashboard.queries import actions as queries
from dashboard.queries.clock import TooSlow
from tests.dashboard.reading import Page
from tests.store.asking import ANA, VIEWER


@pytest.fixture
def some(store):
    """Two actions by ana, and two tries that were refused: four rows."""
    for key in ("a", "b"):
        store.create(key)
        store.as_caller(ANA).move(key, "cancelled", reason=f"because {key}")
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).move("a", "paused", reason="please")
    door.record_refused_action(
        by=ANA, action="budget.cap-changed", thing="b/tokens", run="b", expected={"version": 3}
    )


def body(response) -> str:
    return b"".join(response.streaming_content).decode()


def test_what_was_done_and_what_was_refused_stand_in_one_list(some, viewer):
    page = Page(viewer.get("/audit"))
    assert page.status == 200
    for part in ("ana", "because a", "run.cancelled done", "run.paused forbidden", "please"):
        assert part in page.text
    assert "not-allowed" in page.text
    assert "expected version 3" in page.text
    assert "status pending → cancelled" in page.text


def test_an_empty_audit_says_so(viewer):
    assert "No operator has stepped in" in Page(viewer.get("/audit")).text
    assert "Nothing matches Contains “x”" in Page(viewer.get("/audit", {"text": "x"})).text


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"text": "because b"}, {"b"}),
        ({"actor": "ANA", "result": "done"}, {"a", "b"}),
        ({"actor": "vi"}, {"a"}),
        ({"action": "cap-changed"}, {"b/tokens"}),
        ({"object": "b", "action": "run."}, {"b"}),
        ({"result": "forbidden"}, {"a", "b/tokens"}),
        ({"result": "refused"}, set()),
        ({"kind": "key"}, set()),
        ({"kind": "person"}, {"a", "b", "b/tokens"}),
        ({"from": "2001-01-01"}, {"a", "b", "b/tokens"}),
        ({"to": "2001-01-01"}, set()),
        ({"text": "%"}, set()),
        ({"object": "_"}, set()),
    ],
)
def test_every_field_narrows_the_list_and_the_file(some, viewer, asked, shown):
    lines = body(viewer.get("/audit/-/export", asked | {"format": "jsonl"})).splitlines()
    *rows, end = map(json.loads, lines)
    assert {row["object"] for row in rows} == shown
    assert end == {"kind": "end", "actions": len(rows)}
    page = Page(viewer.get("/audit", asked))
    assert page.html.count('<td class="mono whole audit-object">') == len(rows)
    assert page.html.count('class="chip"') == len(asked)


@pytest.mark.parametrize(
    "asked",
    [{"from": "yesterday"}, {"result": "perhaps"}, {"kind": "cat"}, {"from": "2026", "to": "2025"},
     {"from": "2026-03-02", "to": "2026-03-01"}],
)  # fmt: skip
def test_what_is_not_understood_is_said_and_nothing_is_shown(some, viewer, asked):
    page = Page(viewer.get("/audit", asked))
    assert "That is not understood" in page.text
    assert "run.cancelled" not in page.text
    assert viewer.get("/audit/-/export", asked).status_code == 400


@pytest.mark.parametrize("text", ["\0", "'; DROP TABLE x --", "<script>", "😀" * 90, "%s{}\\"])
def test_whatever_is_typed_is_a_text(some, viewer, text):
    for name in ("actor", "action", "object", "text", "result", "kind", "from", "after", "before"):
        for address in ("/audit", "/audit/-/new", "/audit/-/export"):
            assert viewer.get(address, {name: text}).status_code in (200, 204, 400)


def test_actions_are_read_in_pages_both_ways(store, viewer, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_ROWS", 2)
    for number in range(5):
        if number % 2:
            store.create(f"r-{number}")
            store.as_caller(ANA).move(f"r-{number}", "cancelled", reason=f"reason {number}")
        else:
            door.record_refused_action(
                by=VIEWER, action="x", thing=f"{number}", reason=f"reason {number}"
            )

    pages = [Page(viewer.get("/audit"))]
    for _ in range(2):
        pages.append(Page(viewer.get("/audit" + pages[-1].link("after="))))
    shown = [[n for n in range(5) if f"reason {n}" in page.text] for page in pages]
    assert shown == [[3, 4], [1, 2], [0]]

    back = Page(viewer.get("/audit" + pages[-1].link("before=")))
    assert [n for n in range(5) if f"reason {n}" in back.text] == [1, 2]
    assert "The place in this address is damaged" in Page(viewer.get("/audit?after=7")).text

    monkeypatch.setattr(queries, "EXPORT_ROWS", 2)
    *rows, end = map(json.loads, body(viewer.get("/audit/-/export?format=jsonl")).splitlines())
    assert [row["reason"] for row in rows] == [f"reason {n}" for n in (4, 3, 2, 1, 0)]
    assert end["actions"] == 5


def test_rows_of_one_instant_are_each_shown_once(store, still_clock, viewer, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_ROWS", 1)
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="why-1")
    door.record_refused_action(by=VIEWER, action="x", thing="1", reason="why-2")
    door.record_refused_action(by=VIEWER, action="x", thing="2", reason="why-3")
    page, shown = Page(viewer.get("/audit")), []
    for _ in range(3):
        shown += [word for word in ("why-1", "why-2", "why-3") if word in page.text]
        older = [link for link in page.links if "after=" in link]
        page = Page(viewer.get("/audit" + older[0])) if older else page
    assert shown == ["why-3", "why-2", "why-1"]


def test_what_is_new_is_counted_and_not_put_in(some, viewer):
    page = Page(viewer.get("/audit", {"object": "b"}))
    address = next(a["data-live"] for _, a in page.tags if a.get("data-live"))
    assert "new:" not in Page(viewer.get(address)).text
    door.record_refused_action(by=ANA, action="x", thing="other")
    door.record_refused_action(by=ANA, action="x", thing="b2")
    told = Page(viewer.get(address, headers={"HX-Request": "true"}))
    assert "1 new: show it" in told.text
    assert told.links == ["/audit?object=b"]


def test_a_sheet_has_a_cell_for_each_column_and_runs_no_formula(store, viewer):
    door.record_refused_action(
        by=VIEWER, action="=1+1", thing="@x", reason="-2", expected={"version": 3}
    )
    text = body(viewer.get("/audit/-/export", {"format": "csv"})).removeprefix("\ufeff")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["actor"], row["result"], row["code"]) == ("person:vi", "forbidden", "not-allowed")
    assert (row["action"], row["object"], row["reason"]) == ("'=1+1", "'@x", "'-2")
    assert (row["expected"], row["before"], row["run"]) == ('{"version":3}', "", "")


def test_nothing_but_reading_is_open_and_only_to_who_has_a_role(viewer, log_in):
    nobody = log_in("nobody", None)
    for address in ("/audit", "/audit/-/new", "/audit/-/export"):
        assert nobody.get(address).status_code == 403
        for method in ("post", "put", "patch", "delete"):
            assert getattr(viewer, method)(address).status_code == 405
    for method in ("get", "post", "put", "patch", "delete"):
        for address in ("/api/v1/audit", "/api/v1/actions", "/api/v1/audit/1"):
            assert getattr(viewer, method)(address).status_code in (404, 405)


def test_a_search_that_takes_too_long_says_what_to_do(some, viewer, monkeypatch):
    monkeypatch.setattr(queries, "ROWS", "SELECT pg_sleep(9) -- {done} {refused} {way}")
    monkeypatch.setattr(queries, "PAGE_MS", 20)
    assert "This took too long" in Page(viewer.get("/audit?text=x")).text


def test_a_page_of_many_costs_what_a_page_costs(store, viewer):
    """Each table by its index on the newest: no row beyond the page is read."""
    with connection.cursor() as cursor:
        for table, more, values in (
            ("operatoraction", "before, after", "'{}', '{}'"),
            ("refusedaction", "outcome, code, found", "'refused', 'x', '{}'"),
        ):
            cursor.execute(
                f"INSERT INTO agentstate_{table} (at, actor, action, object, reason, expected,"
                f" {more}) SELECT agentstate_now() - make_interval(secs => n), 'person:p', 'a',"
                f" 'o', '', '{{}}', {values} FROM generate_series(1, 4000) n"
            )
            cursor.execute(f"ANALYZE agentstate_{table}")
        wanted = queries.AuditFilter()
        page = queries.read_page(wanted)
        statement = queries.ROWS.format(
            done=queries._where(wanted, 0, "older"),
            refused=queries._where(wanted, 1, "older"),
            way="DESC",
        )
        values = {"limit": 51} | wanted.values() | queries._place(page.older)
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, values)
        (plan,) = cursor.fetchone()

    def scans(node):
        yield from ([node] if "Relation Name" in node else [])
        for below in node.get("Plans", ()):
            yield from scans(below)

    read = {
        node["Relation Name"]: node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        for node in scans(plan[0]["Plan"])
        if node["Relation Name"].endswith("action")
    }
    assert set(read) == {"agentstate_operatoraction", "agentstate_refusedaction"}
    assert max(read.values()) <= 60


def test_a_run_lists_what_was_refused_of_it_too_page_by_page(
    still_clock, some, store, viewer, monkeypatch
):
    page = Page(viewer.get("/runs/a", {"tab": "audit"}))
    for part in ("run.cancelled done", "run.paused forbidden", "not-allowed", "Audit 2"):
        assert part in page.text
    assert page.link("actor=person%3Avi") == "/audit?actor=person%3Avi"
    assert page.link("action=run.paused") == "/audit?action=run.paused"
    assert "budget.cap-changed" not in page.text

    monkeypatch.setattr(queries, "PAGE_ROWS", 2)
    for n in range(4):
        still_clock.advance(seconds=60)
        with pytest.raises(NotAllowed):
            store.as_caller(VIEWER).move("a", "paused", reason=f"please {n}")
    pages = [Page(viewer.get("/runs/a?tab=audit&gaps=yes&audit_after=broken"))]
    for _ in range(2):
        older = pages[-1].link("audit_after=")
        assert "gaps=yes" in older
        pages.append(Page(viewer.get("/runs/a" + older)))
    shown = [[n for n in range(4) if f"please {n}" in page.text] for page in pages]
    assert shown == [[2, 3], [0, 1], []]
    assert "because a" in pages[2].text
    back = Page(viewer.get("/runs/a" + pages[2].link("audit_before=")))
    assert [n for n in range(4) if f"please {n}" in back.text] == [0, 1]

    then = Page(viewer.get("/runs/a?tab=audit&asof=e1"))
    assert "because a" in then.text
    assert "please 0" not in then.text


def test_of_a_run_too_much_is_told_as_such(some, viewer, monkeypatch):
    monkeypatch.setattr(queries, "_read", too_slow)
    assert "This took too long" in Page(viewer.get("/runs/a", {"tab": "audit"})).text


def too_slow(*_given, **_named):
    raise TooSlow
