"""Bulks on screen: tried dry, asked as harm grows, begun once, watched, stopped, taken along."""

import csv
import io
import json
import re

from agentstate.store import bulking, bulks
from agentstate.store.models import BulkAction, Refusal, Run
from tests.dashboard.reading import Page

NEW = "/bulk/new"


def create(store, count, first=0):
    for number in range(first, first + count):
        store.create(f"r-{number}")


def work():
    claim = bulks.claim()
    while claim is not None and bulks.step(claim) is not None:
        pass


def form_of(page):
    """The fields of the form that begins it, as a browser sends them."""
    names = ("form_key", "begin", "kind", "tags", "hold_off", "seen_at", "shown", "is_all", "q",
             "picked")  # fmt: skip
    begins = page.html[page.html.rindex("<form", 0, page.html.index('name="begin"')) :]
    asked = Page(type("Part", (), {"status_code": 200, "content": begins.encode()}))
    return {n: asked.field(n) for n in names if f'name="{n}"' in begins}


def try_dry(client, **asked):
    return Page(client.get(NEW, {"q": "status:live", "kind": "cancel"} | asked))


def begin(client, page, **more):
    return client.post(NEW, form_of(page) | {"reason": "a bad deploy"} | more)


def only():
    return BulkAction.objects.get()


def test_without_any_it_says_how_to_begin_one(viewer):
    page = Page(viewer.get("/bulk"))
    assert "No bulk yet" in page.text
    assert "tick some runs" in page.text
    assert page.link("^/runs$")
    assert "No runs were named" in Page(viewer.get(NEW)).text


def test_it_is_tried_dry_and_nothing_is_done(store, operator):
    create(store, 12)
    store.move("r-3", "cancelled")
    page = try_dry(operator, q="key:r-")
    assert "Nothing is done yet" in page.text
    assert "Can be cancelled 11" in page.text
    assert "12, all that match" in page.text
    assert "1 the run is cancelled" in page.text
    assert "It cannot be taken back" in page.text
    assert not BulkAction.objects.exists()
    assert "Cancel 11 runs" in page.text


def test_it_is_begun_once_however_often_the_form_is_sent(store, operator):
    """Case O-35 (docs/cases.md)."""
    create(store, 3)
    form = form_of(try_dry(operator)) | {"reason": "a bad deploy"}
    sent = [operator.post(NEW, form) for _ in range(3)]
    assert {answer.status_code for answer in sent} == {302}
    assert len({answer["Location"] for answer in sent}) == 1
    bulk = only()
    assert (bulk.kind, bulk.filter, bulk.shown, bulk.created_by) == (
        "cancel", "status:live", 3, "person:ana"
    )  # fmt: skip
    shown = Page(operator.get(sent[0]["Location"]))
    assert "finding runs" in shown.text
    assert 'data-live-every="6"' in shown.html
    work()
    shown = Page(operator.get(sent[0]["Location"]))
    assert "3 of 3" in shown.text
    assert "data-live-every" not in shown.html
    assert shown.rows("item-") == ["1", "2", "3"]
    assert set(Run.objects.values_list("status", flat=True)) == {"cancelled"}
    assert "a bad deploy" in Page(operator.get("/bulk")).text


def test_what_is_missing_is_said_beside_the_field_and_nothing_is_begun(store, operator, senior):
    create(store, 1)
    page = Page(begin(operator, try_dry(operator), reason=" "))
    assert (page.status, "Say why" in page.text) == (422, True)
    for field, value in (("seen_at", "yesterday"), ("seen_at", ""), ("shown", "many")):
        page = Page(begin(operator, try_dry(operator), **{field: value}))
        assert (page.status, "has lost what you saw" in page.text) == (422, True)
    for field, value in (("seen_at", "2019-01-01T00:00:00Z"), ("seen_at", "2031-01-01T00:00:00Z")):
        page = Page(begin(operator, try_dry(operator), **{field: value}))
        assert (page.status, "look again" in page.text) == (422, True)
    assert not BulkAction.objects.exists()


def test_up_to_fifty_an_operator_and_beyond_that_a_senior_who_types_the_number(
    store, operator, senior
):
    create(store, 51)
    page = try_dry(operator)
    assert "it needs the role senior" in page.text
    assert 'name="begin"' not in page.html
    forged = form_of(try_dry(senior)) | {"reason": "all of them", "typed": "51"}
    assert operator.post(NEW, forged).status_code == 403
    assert Refusal.objects.filter(code="not-allowed", operation="create-bulk").count() == 1

    page = try_dry(senior)
    assert "Type 51" in page.text
    for wrong in ("", "50", "all"):
        again = Page(begin(senior, page, typed=wrong))
        assert (again.status, "Type 51 to do it" in again.text) == (422, True)
    assert not BulkAction.objects.exists()
    assert begin(senior, again, typed=" 5 1").status_code == 302
    work()
    assert only().done == 51


def test_an_operator_cannot_pass_off_many_as_few(store, operator):
    create(store, 60)
    few = form_of(try_dry(operator, q="key:r-59"))
    many = [[f"r-{n}", "pending", None, None] for n in range(60)]
    picked = {n: v for n, v in few.items() if n != "q"} | {"picked": json.dumps(many)}
    assert operator.post(NEW, picked | {"reason": "x", "typed": "60"}).status_code == 403
    assert operator.post(NEW, few | {"reason": "x", "q": "status:live"}).status_code == 302
    work()
    assert Run.objects.filter(status="cancelled").count() == 1


def test_a_viewer_sees_what_it_would_do_and_is_refused(store, viewer, operator):
    """S-406 (docs/sweeps.md): "needs the scope operate", to somebody who has roles, no scopes."""
    create(store, 2)
    page = try_dry(viewer)
    assert "Can be cancelled 2" in page.text
    assert "You cannot begin it: it needs the role operator" in page.text
    form = form_of(try_dry(operator)) | {"reason": "x"}
    refused = viewer.post(NEW, form)
    assert refused.status_code == 403
    assert "This needs the role operator. Nothing was changed." in Page(refused).text
    begin(operator, try_dry(operator))
    address = f"/bulk/{only().id.hex}"
    assert "Stopping it needs the role operator" in Page(viewer.get(address)).text
    assert "You cannot stop it" in Page(viewer.get(f"{address}/stop")).text
    assert viewer.post(f"{address}/stop", {"reason": "x"}).status_code == 403


def test_those_that_were_ticked_are_done_as_they_were_seen(store, operator):
    create(store, 4)
    keys = {"keys": "r-0\nr-1\nr-1\nr-9", "key": ["r-2"]}
    page = Page(operator.post(NEW, keys))
    assert "4 runs that you picked" in page.text
    page = Page(operator.post(NEW, keys | {"kind": "cancel"}))
    assert "3, all that you picked; 1 more is gone" in page.text
    assert not BulkAction.objects.exists()
    store.hold("r-1")
    answer = begin(operator, page)
    work()
    shown = Page(operator.get(answer["Location"]))
    assert "Cancel 3 picked" in shown.text
    assert "it was pending, and is running now" in shown.text
    assert (only().done, only().skipped, only().filter) == (2, 1, None)
    assert Page(operator.get("/runs")).html.count('formaction="/bulk/new"') == 1


def test_tags_and_seconds_that_cannot_be_meant_are_said(store, operator):
    create(store, 1)
    for asked, told in (
        ({"kind": "tag"}, "Name at least one tag"),
        ({"kind": "tag", "tags": " , "}, "Name at least one tag"),
        ({"kind": "tag", "tags": "x" * 65}, "1 to 64"),
        ({"kind": "reclaim", "hold_off": "soon"}, "Whole seconds"),
        ({"kind": "reclaim", "hold_off": "86401"}, "Whole seconds"),
    ):
        page = try_dry(operator, **asked)
        assert (page.status, 'name="begin"' in page.html) == (422, False)
        assert told in page.text, page.text
    assert begin(operator, try_dry(operator, kind="tag", tags="b, a,b")).status_code == 302
    work()
    assert Run.objects.get().tags == ["a", "b"]
    assert "1 it has the tags already" in try_dry(operator, kind="tag", tags="a,b").text
    assert "There is none to which" in try_dry(operator, kind="tag", tags="a,b").text


def test_a_filter_that_is_not_understood_or_asks_for_what_is_hidden_is_said(store, operator):
    assert "no such field" in try_dry(operator, q="colour:red").text
    assert "no runs" in Page(operator.get(NEW)).text.lower()
    for strange in ("explode", "\0", "cancel'"):
        assert 'name="begin"' not in try_dry(operator, kind=strange).html
    assert Page(operator.get(NEW, {"q": "\0"})).status == 200


def test_counts_that_were_cut_say_so_and_ask_a_senior(store, operator, senior, monkeypatch):
    monkeypatch.setattr(bulking, "LOOKED_MAX", 5)
    create(store, 8)
    page = try_dry(senior)
    assert "Can be cancelled 5+" in page.text
    assert "the newest 5; there are more" in page.text
    assert "Type 5+" in page.text
    assert 'name="begin"' not in try_dry(operator).html
    begin(senior, page, typed="5+")
    work()
    assert (only().is_all, only().done) == (False, 8)


def test_what_takes_too_long_is_said(store, operator, monkeypatch):
    from dashboard.queries import bulks as queries
    from dashboard.queries.clock import TooSlow

    def slow(*_asked, **_named):
        raise TooSlow

    monkeypatch.setattr(queries, "read_stretch", slow)
    page = try_dry(operator)
    assert (page.status, "took too long" in page.text) == (200, True)
    assert 'name="begin"' not in page.html


def test_another_that_is_at_work_is_told(store, operator, senior):
    create(store, 2)
    begin(operator, try_dry(operator))
    assert "Cancel by ana is at work" in try_dry(senior).text


def test_it_is_stopped_with_a_reason_once(store, operator, senior):
    create(store, 30)
    begin(operator, try_dry(operator))
    claim = bulks.claim()
    bulks.step(claim)
    bulks.step(claim)
    address = f"/bulk/{only().id.hex}"
    assert "Stop…" in Page(operator.get(address)).text
    asked = Page(senior.get(f"{address}/stop"))
    assert "20 so far" in asked.text
    form = {"form_key": asked.field("form_key"), "reason": ""}
    assert Page(senior.post(f"{address}/stop", form)).status == 422
    for _ in range(2):
        assert senior.post(f"{address}/stop", form | {"reason": "wrong ones"}).status_code == 302
    page = Page(operator.get(address))
    assert "Stopped by bo" in page.text
    assert "10 had no turn" in page.text
    assert "Stop…" not in page.text
    assert "It has ended" in Page(senior.get(f"{address}/stop")).text
    late = operator.post(f"{address}/stop", {"reason": "me too"}, follow=True)
    assert "had ended before" in Page(late).text


def test_rows_are_read_page_by_page_by_outcome_and_as_a_sheet(store, operator, monkeypatch):
    from dashboard.queries import bulks as queries

    monkeypatch.setattr(queries, "PAGE_ROWS", 10)
    monkeypatch.setattr(queries, "EXPORT_ROWS", 7)
    create(store, 25)
    store.move("r-7", "cancelled")
    begin(operator, try_dry(operator, q="key:r-"))
    work()
    address = f"/bulk/{only().id.hex}"
    page = Page(operator.get(address))
    seen = page.rows("item-")
    while 'rel="next"' in page.html:
        page = Page(operator.get(address + page.link(r"after=\d+")))
        seen += page.rows("item-")
    assert seen == [str(n) for n in range(1, 26)]
    skipped = Page(operator.get(f"{address}?outcome=skipped"))
    assert len(skipped.rows("item-")) == 1
    assert "skipped: the run is cancelled" in skipped.text
    for strange in ("outcome=x", "after=x", "after=99999999999999999999", "outcome=%00"):
        assert operator.get(f"{address}?{strange}").status_code == 200

    sheet = operator.get(f"{address}/outcomes.csv")
    assert f'filename="{bulking.name_of(only().id)}.csv"' in sheet["Content-Disposition"]
    text = b"".join(sheet.streaming_content).decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["n"] for row in rows] == [str(n) for n in range(1, 26)]
    (left_out,) = [row for row in rows if row["outcome"] != "done"]
    assert (left_out["run"], left_out["why"], left_out["status_seen"]) == (
        "r-7", "the run is cancelled", "cancelled"
    )  # fmt: skip
    some = operator.get(f"{address}/outcomes.csv?outcome=skipped")
    assert b"".join(some.streaming_content).count(b"\n") == 2


def test_one_that_nobody_works_on_says_so(store, operator, still_clock):
    create(store, 1)
    begin(operator, try_dry(operator))
    address = f"/bulk/{only().id.hex}"
    assert "Nobody has worked" not in Page(operator.get(address)).text
    still_clock.advance(seconds=30)
    assert "Nobody has worked on it for 30s" in Page(operator.get(address)).text
    assert "waits" in Page(operator.get("/bulk")).text


def test_what_there_is_not_is_not_found_and_a_session_that_ended_begins_nothing(
    store, operator, client
):
    for name in ("x", "0" * 32, "Z" * 32, "0" * 31 + "%00"):
        for part in ("", "/stop", "/outcomes.csv"):
            assert operator.get(f"/bulk/{name}{part}").status_code == 404
    create(store, 1)
    form = form_of(try_dry(operator)) | {"reason": "x"}
    lost = client.post(NEW, form)
    assert re.match(r"/login\?next=/bulk/new$", lost["Location"])
    assert not BulkAction.objects.exists()
    assert "No runs were named" in Page(operator.get("/bulk/new")).text


def test_a_panel_that_fails_leaves_the_others(store, operator, monkeypatch):
    from dashboard.queries import bulks as queries
    from dashboard.queries.clock import TooSlow

    def slow(*_asked, **_named):
        raise TooSlow

    create(store, 1)
    begin(operator, try_dry(operator))
    work()
    monkeypatch.setattr(queries, "read_items", slow)
    page = Page(operator.get(f"/bulk/{only().id.hex}"))
    assert "took too long and was left out" in page.text
    assert "1 of 1" in page.text
    monkeypatch.setattr(queries, "read_list", slow)
    assert "took too long and was left out" in Page(operator.get("/bulk")).text


def test_the_history_of_a_run_and_the_receipt_name_the_bulk(store, operator):
    create(store, 1)
    begin(operator, try_dry(operator))
    work()
    name = bulking.name_of(only().id)
    page = Page(operator.get(f"/bulk/{only().id.hex}"))
    receipt = Page(operator.get(page.link("/receipts")))
    assert "r-0" in receipt.text
    assert "run.cancelled" in receipt.text
    audit = Page(operator.get("/audit"))
    assert audit.link("^/bulk/") == f"/bulk/{only().id.hex}"
    assert audit.text.count("run.cancelled") == 1
    now = Page(operator.get("/"))
    assert (name in now.text, "run.cancelled" in now.text) == (True, False)
    assert "a bad deploy" in Page(operator.get("/runs/r-0?tab=audit")).text


def test_lapsed_leases_lead_to_one(store, operator, still_clock):
    create(store, 3)
    for number in range(3):
        store.hold(f"r-{number}", ttl_seconds=5)
    still_clock.advance(seconds=10)
    leases = Page(operator.get("/leases"))
    page = Page(operator.get(leases.link("/bulk/new")))
    assert "Can be reclaimed 3" in page.text
    begin(operator, page)
    work()
    assert only().done == 3
    assert set(Run.objects.values_list("token", flat=True)) == {None}
