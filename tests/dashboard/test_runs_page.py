import pytest

from dashboard.queries import runs as queries
from tests.dashboard.reading import Page
from tests.store.asking import event


def show(client, **query):
    return Page(client.get("/runs", query))


def test_rows_say_status_holder_time_left_budget_and_refusals(store, still_clock, viewer):
    store.create("42", budgets=())
    lease = store.hold("42", "w-1~a")
    still_clock.advance(seconds=20)

    page = show(viewer)

    assert page.rows() == ["42"]
    assert "running" in page.text
    assert f"w-1~a #{lease.token}" in page.text
    assert "40s" in page.text


def test_a_lease_that_ran_out_is_marked_as_lapsed(store, still_clock, viewer):
    store.create("42")
    store.hold("42", ttl_seconds=60)
    still_clock.advance(seconds=100)

    page = show(viewer)

    assert 'class="mark mark-lapsed"' in page.html
    assert show(viewer, q="lease:lapsed").rows() == ["42"]
    assert show(viewer, q="lease:live").rows() == []


def test_there_are_three_texts_for_three_kinds_of_nothing(store, viewer):
    assert "No run yet" in show(viewer).text

    store.create("42")

    assert "No run matches" in show(viewer, q="task:other").text
    assert "is not understood" in show(viewer, q="colour:red").text


def test_none_in_this_window_is_told_apart_from_none_that_match(store, still_clock, viewer):
    store.create("42")
    still_clock.advance(hours=2)

    assert "No run in this window" in show(viewer, q="since:1h").text


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("status:running", ["held"]),
        ("-status:running", ["tagged", "other"]),
        ("status:live", ["tagged", "other", "held"]),
        ("worker:w-7", ["held"]),
        ("tag:nightly", ["tagged"]),
        ("task:invoice", ["other"]),
        ("key:tag", ["tagged"]),
        ("lease:live", ["held"]),
        ("lease:free", ["tagged", "other"]),
        ("status:running,pending tag:nightly", ["tagged"]),
        ('"reconcile invoice"', ["other"]),
        ("HELD", ["held"]),
    ],
)
def test_each_field_finds_what_it_says(store, still_clock, viewer, asked, found):
    store.create("held")
    store.hold("held", "w-7~beef")
    still_clock.advance(seconds=1)
    store.create("other", task="reconcile invoices")
    still_clock.advance(seconds=1)
    store.create("tagged", tags=("nightly",))

    assert show(viewer, q=asked).rows() == found


def test_a_share_of_the_budget_can_be_asked_for(store, viewer):
    from agentstate.store.commands import NewBudget

    store.create("dear", budgets=(NewBudget(name="tokens", cap=100),))
    store.create("cheap", budgets=(NewBudget(name="tokens", cap=100),))
    lease = store.hold("dear")
    store.spend("dear", 90, budget="tokens", fence=lease.token)

    assert show(viewer, q="budget:>80%").rows() == ["dear"]


def test_pages_go_both_ways_and_skip_or_repeat_no_run_of_one_instant(
    store, still_clock, viewer, monkeypatch
):
    """Case O-26 (docs/cases.md)."""
    monkeypatch.setattr(queries, "PAGE_ROWS", 7)
    monkeypatch.setattr(
        queries.read_page, "__kwdefaults__", {**queries.read_page.__kwdefaults__, "rows": 7}
    )
    keys = [f"r-{number}" for number in range(30)]
    for key in keys:
        store.create(key)

    forward, addresses = [], ["/runs"]
    while True:
        page = Page(viewer.get(addresses[-1]))
        forward.append(page.rows())
        older = [link for link in page.links if "after=" in link]
        if not older:
            break
        addresses.append("/runs" + older[0])
    assert sorted(key for rows in forward for key in rows) == sorted(keys)
    assert [len(rows) for rows in forward] == [7, 7, 7, 7, 2]

    for before in reversed(forward[:-1]):
        newer = page.link("before=")
        page = Page(viewer.get("/runs" + newer))
        assert page.rows() == before
    assert not [link for link in page.links if "before=" in link]


def test_a_run_that_comes_meanwhile_pushes_none_over_the_edge(
    store, still_clock, viewer, monkeypatch
):
    monkeypatch.setattr(
        queries.read_page, "__kwdefaults__", {**queries.read_page.__kwdefaults__, "rows": 2}
    )
    for number in range(4):
        still_clock.advance(seconds=1)
        store.create(f"r-{number}")
    first = show(viewer)
    still_clock.advance(seconds=1)
    store.create("late")

    second = Page(viewer.get("/runs" + first.link("after=")))

    assert first.rows() + second.rows() == ["r-3", "r-2", "r-1", "r-0"]


def test_a_damaged_place_starts_at_the_newest_and_says_so(store, viewer):
    store.create("42")

    page = show(viewer, after="nonsense")

    assert page.status == 200
    assert page.rows() == ["42"]
    assert "damaged" in page.text


def test_paging_keeps_the_filter(store, still_clock, viewer, monkeypatch):
    """Case O-29 (docs/cases.md)."""
    monkeypatch.setattr(
        queries.read_page, "__kwdefaults__", {**queries.read_page.__kwdefaults__, "rows": 1}
    )
    store.create("a", tags=("x", "y"))
    store.create("b", tags=("x",))

    page = show(viewer, q="tag:x,y status:pending")

    assert "q=tag%3Ax%2Cy+status%3Apending" in page.link("after=")


def test_counts_are_exact_for_live_runs_and_capped_for_ended_ones(store, viewer, monkeypatch):
    """Case O-27 (docs/cases.md)."""
    monkeypatch.setattr(queries, "COUNT_MAX", 2)
    for number in range(4):
        store.create(f"p-{number}")
        store.create(f"c-{number}")
        store.move(f"c-{number}", "cancelled")

    text = show(viewer).text

    assert "pending 4 " in text
    assert "cancelled 2 +" in text


def test_a_count_that_takes_too_long_blanks_nothing_else(store, viewer, monkeypatch):
    """Case O-27 (docs/cases.md)."""
    from django.db import connection

    monkeypatch.setattr(queries, "COUNTS_MS", 1)
    store.create("42")
    real = queries.matching

    def slow(wanted, **more):
        found = real(wanted, **more)
        if "status" in {c.field for c in wanted.clauses}:
            return found
        return found.extra(where=["pg_sleep(0.05) IS NOT NULL"])

    monkeypatch.setattr(queries, "matching", slow)
    counts = queries.count_statuses(queries.filters.parse(""), now=store.run("42").created_at)

    assert counts[0].count is None
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_an_open_list_gets_its_rows_counts_and_how_many_are_new(store, still_clock, viewer):
    store.create("42")
    first = show(viewer)
    still_clock.advance(seconds=1)
    store.create("43")
    lease = store.hold("42")
    store.append("42", [event()], fence=lease.token)

    refreshed = Page(
        viewer.get("/runs/-/refresh", {"key": "42", "first": first_place(first), "q": ""})
    )

    assert refreshed.rows() == ["42"]
    assert 'data-seq="4"' in refreshed.html
    assert "1 new run: show it" in refreshed.text


def first_place(page):
    from urllib.parse import parse_qs, urlsplit

    live = next(str(a["data-live"]) for _, a in page.tags if a.get("data-live"))
    return parse_qs(urlsplit(live).query)["first"][0]


def test_a_page_needs_as_many_queries_for_fifty_rows_as_for_one(
    store, viewer, django_assert_max_num_queries
):
    for number in range(50):
        store.create(f"r-{number}")
        store.hold(f"r-{number}", f"w-{number}")

    with django_assert_max_num_queries(45):
        page = show(viewer)

    assert len(page.rows()) == 50


def test_what_is_pasted_is_gone_to(store, viewer):
    store.create("42")
    store.hold("42", "w-7~beef")
    store.acquire("gpu:1", "w-8")

    assert viewer.get("/jump", {"to": " 42 "}).url == "/runs/42"
    assert viewer.get("/jump", {"to": "run:42"}).url == "/runs/42"
    assert viewer.get("/jump", {"to": "gpu:1"}).url == "/leases/gpu:1"
    assert Page(viewer.get("/jump", {"to": "w-7~beef"}, follow=True)).rows() == ["42"]
    assert Page(viewer.get("/jump", {"to": "status:running"}, follow=True)).rows() == ["42"]
    assert viewer.get("/jump", {"to": ""}).url == "/runs"
    assert viewer.get("/jump?to=%00").url == "/runs"


def test_a_part_of_the_page_is_the_same_as_in_the_whole(store, still_clock, viewer):
    store.create("42")
    part = viewer.get("/runs", headers={"HX-Request": "true", "HX-Target": "results"})

    # The clock stands still, so that both are of one instant.
    assert part.content.decode().strip() in viewer.get("/runs").content.decode()
    assert "<html" not in part.content.decode()
    assert "HX-Request" in part["Vary"]


def test_overdue_runs_are_a_filter_and_a_card_with_their_number(store, still_clock, viewer):
    from datetime import timedelta

    due = still_clock.now + timedelta(minutes=1)
    for key in ("late", "late-and-ended", "in-time"):
        store.create(key, deadline_at=due if key != "in-time" else due + timedelta(days=1))
    store.create("without")
    store.move("late-and-ended", "cancelled")
    still_clock.advance(minutes=2)

    page = Page(viewer.get("/runs"))

    assert "overdue 1" in page.text
    assert "All 4" in page.text
    assert Page(viewer.get(page.link("overdue").replace("?", "/runs?", 1))).rows() == ["late"]
    found = Page(viewer.get("/runs", {"q": "overdue:no"})).rows()
    assert sorted(found) == ["in-time", "late-and-ended", "without"]
    assert "one of yes, no" in Page(viewer.get("/runs", {"q": "overdue:perhaps"})).text
    assert "All 1" in Page(viewer.get("/runs", {"q": "overdue:yes"})).text


def test_a_long_key_keeps_its_end_which_tells_it_from_others(store, viewer):
    key = "checkout-service-nightly-audit-000042"
    store.create(key)

    page = Page(viewer.get("/runs"))

    assert f'title="{key}"' in page.html
    assert f"<span>{key[-9:]}</span>" in page.html
