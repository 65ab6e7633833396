"""Finding runs: every field, how far a search goes, what is suggested, and the run beside it."""

import pytest

from agentstate.store import search
from agentstate.store.commands import NewBudget
from agentstate.store.errors import Refusal
from agentstate.store.payloads import RawJSON
from dashboard.queries import facets
from tests.dashboard.reading import Page
from tests.store.asking import event


def show(client, **query):
    return Page(client.get("/runs", query))


def refused(ask):
    with pytest.raises(Refusal):
        ask()


@pytest.fixture
def three(store, still_clock):
    """Newest first: fresh (nobody's), hot (held, with conflicts and tags), old (ended)."""
    store.create("old", task="upgrade the mailer", attrs=RawJSON('{"customer": "c-1"}'))
    store.move("old", "cancelled")
    still_clock.advance(minutes=1)
    budget = NewBudget(name="tokens", cap=100)
    attrs = RawJSON('{"customer": "c-17", "n": 1e2}')
    store.create("hot", task="upgrade the parser", tags=("vip",), budgets=(budget,), attrs=attrs)
    lease = store.hold("hot", "w-7~beef")
    store.spend("hot", 90, budget="tokens", fence=lease.token)
    for _ in range(3):
        refused(lambda: store.append("hot", [event()], fence=lease.token, expected_seq=1))
    still_clock.advance(minutes=1)
    store.create("fresh", task="é%_ answer", attrs=RawJSON('{"customer": "c-17"}'))


ASKED = {
    "attr.customer:c-17": ["fresh", "hot"],
    "attr.n:1e2": ["hot"],
    "-attr.customer:c-17": ["old"],
    "attr.customer:c-1,c-17 status:live": ["fresh", "hot"],
    "conflicts:>2": ["hot"],
    "conflicts:>3": [],
    "-status:done": ["fresh", "hot"],
    "-status:live": ["old"],
    "status:pending,done": ["fresh", "old"],
    "-worker:w-7": ["fresh", "old"],
    "-tag:vip -status:done": ["fresh"],
    "budget:>80% attr.customer:c-17": ["hot"],
    "task:UPGRADE -budget:>80%": ["old"],
    "up": ["hot", "old"],
    "pa": ["hot"],
    "pg": [],
    "task:é%": ["fresh"],
    "é%_": ["fresh"],
    "w-7~": ["hot"],
    "HO": ["hot"],
}


def test_each_condition_finds_what_it_says(three, viewer):
    assert {asked: show(viewer, q=asked).rows() for asked in ASKED} == ASKED


def test_a_search_without_an_index_says_how_far_it_came_and_goes_on(
    store, still_clock, viewer, monkeypatch
):
    monkeypatch.setattr(search, "SEARCHED_RUNS", 4)
    for number in range(10):
        store.create(f"r-{number}", attrs=RawJSON(f'{{"n": {number % 5}}}'))
        still_clock.advance(seconds=1)

    first = show(viewer, q="attr.n:0")
    assert "None found so far" in first.text
    second = Page(viewer.get("/runs" + first.link("after=")))
    third = Page(viewer.get("/runs" + second.link("after=")))

    assert second.rows() == ["r-5"]
    assert "Searched back to" in second.text
    assert third.rows() == ["r-0"]
    assert not [link for link in third.links if "after=" in link]


def test_a_search_among_runs_of_a_status_takes_shorter_steps(
    store, still_clock, viewer, monkeypatch
):
    monkeypatch.setattr(search, "SEARCHED_APART", 3)
    for number in range(5):
        store.create(f"r-{number}", attrs=RawJSON(f'{{"n": {number}}}'))
        store.move(f"r-{number}", "cancelled")
        still_clock.advance(seconds=1)

    first = show(viewer, q="status:cancelled attr.n:1")
    second = Page(viewer.get("/runs" + first.link("after=")))

    assert (first.rows(), second.rows()) == ([], ["r-1"])
    assert show(viewer, q="attr.n:1").rows() == ["r-1"]


def test_a_list_of_many_tagged_or_held_runs_is_the_same_as_one_of_few(
    three, store, viewer, monkeypatch
):
    monkeypatch.setattr(search, "TAGGED_MAX", 0)
    monkeypatch.setattr(search, "HOLDERS_MAX", 0)

    assert show(viewer, q="tag:vip").rows() == ["hot"]
    assert show(viewer, q="worker:w-7").rows() == ["hot"]
    assert show(viewer, q="-worker:w-7").rows() == ["fresh", "old"]


def test_who_may_not_see_payloads_cannot_ask_for_attrs(three, viewer, monkeypatch):
    from dashboard import access

    monkeypatch.setitem(access.ROLES, "viewer", frozenset({"read"}))

    assert "does not show payloads" in show(viewer, q="attr.customer:c-17").text
    assert suggested(viewer, "attr.") == []
    lines = viewer.get("/runs/-/export", {"q": "", "format": "jsonl"}).getvalue().decode()
    assert "c-17" not in lines


def suggested(client, text):
    page = Page(client.get("/runs/-/suggestions", {"q": text}))
    return [str(attributes["value"]) for tag, attributes in page.tags if tag == "option"]


def test_names_and_values_are_suggested_for_what_is_typed_at_the_end(three, viewer):
    assert suggested(viewer, "status:live ta") == ["status:live task:", "status:live tag:"]
    assert suggested(viewer, "-status:pa") == ["-status:paused"]
    assert suggested(viewer, "status:failed,ca") == ["status:failed,cancelled"]
    assert suggested(viewer, "worker:w") == ["worker:w-7"]
    assert suggested(viewer, "tag:v") == ["tag:vip"]
    assert suggested(viewer, "task:upgrade") == [
        'task:"upgrade the parser"',
        'task:"upgrade the mailer"',
    ]
    assert suggested(viewer, "key:h") == ["key:hot"]
    assert suggested(viewer, "attr.cu") == ["attr.customer:"]
    assert suggested(viewer, "attr.customer:c") == ["attr.customer:c-17", "attr.customer:c-1"]
    assert suggested(viewer, "") != []
    assert suggested(viewer, "colour:r") == []
    assert suggested(viewer, "\0") == []


def test_every_field_is_a_control_with_what_is_there(three, viewer):
    page = Page(viewer.get("/runs/-/filter", {"q": "status:live"}))

    assert "Numbers are of the 2 runs that match now" in page.text
    assert "upgrade the parser 1" in page.text
    assert "w-7 1" in page.text
    assert "vip 1" in page.text
    assert ">80% 1" in page.text
    chosen = page.link("tag%3Avip")
    assert Page(viewer.get(chosen)).rows() == ["hot"]


def test_controls_write_the_text_and_leave_what_is_turned_round(three, viewer):
    asked = {"q": "-tag:vip task:old", "set.task": "upgrade the mailer", "set.status": "done,live"}

    answer = viewer.get("/runs/-/filter", asked)

    assert Page(viewer.get(answer.url)).rows() == ["old"]
    assert "tag%3Avip" in answer.url
    assert "task%3Aold" not in answer.url
    wrong = viewer.get("/runs/-/filter", {"q": "", "set.since": "yesterday"}, follow=True)
    assert "a span such as" in Page(wrong).text


def test_facets_of_many_runs_are_of_the_newest_and_say_so(three, viewer, monkeypatch):
    monkeypatch.setattr(facets, "SAMPLE_RUNS", 1)

    assert "of the newest 1 runs" in Page(viewer.get("/runs/-/filter", {"q": ""})).text


def test_columns_are_chosen_and_stay_in_every_link(three, viewer):
    form = viewer.get("/runs?q=&columns=-&columns=tags&columns=conflicts")
    page = Page(viewer.get(form.url))

    assert form.url == "/runs?q=&columns=tags%2Cconflicts"
    assert "Conflicts" in page.text
    assert 'class="c-budget' not in page.html
    assert "columns=tags%2Cconflicts" in page.link("overdue")
    refreshed = Page(viewer.get("/runs/-/refresh", {"columns": "tags", "q": "", "key": "hot"}))
    assert "vip" in refreshed.text
    assert "c-owner" not in refreshed.html


def test_a_run_leads_to_its_neighbours_in_the_list_it_was_opened_from(three, viewer):
    page = show(viewer, q="task:upgrade")
    hot = Page(viewer.get(page.link("/runs/hot")))

    assert hot.link(r"/runs/old\?list=task%3Aupgrade$")
    assert not [link for link in hot.links if link.startswith("/runs/fresh")]
    assert hot.link(r"/runs\?q=task%3Aupgrade$")
    alone = Page(viewer.get("/runs/hot"))
    assert alone.link("^/runs/fresh$")
    assert Page(viewer.get("/runs/hot?list=colour:red")).status == 200


def test_counts_that_need_longer_come_after_the_rows(three, viewer, monkeypatch):
    from dashboard.queries import runs as queries
    from dashboard.queries.clock import TooSlow

    real = queries._count_all

    def slow(rows, *, milliseconds=None):
        if milliseconds and milliseconds < 1_000:
            raise TooSlow
        return real(rows, milliseconds=milliseconds)

    monkeypatch.setattr(queries, "_count_all", slow)
    page = show(viewer, q="task:upgrade")

    assert page.rows() == ["hot", "old"]
    later = next(str(a["hx-get"]) for _, a in page.tags if "/-/counts" in str(a.get("hx-get")))
    assert "All 2" in Page(viewer.get(later)).text
    refreshed = Page(viewer.get("/runs/-/refresh", {"q": "task:upgrade"}))
    assert "statuses" not in refreshed.ids


NOTHING = (
    "worker:nobody", "worker:nobody status:live", "-worker:nobody tag:zz", "lease:lapsed tag:zz",
    "tag:zz", "parent:zz", "key:zz", "task:zzz", "overdue:yes", "attr.zz:1", "conflicts:>900",
    "zzz", "budget:>99%", "since:1s status:done",
)  # fmt: skip


@pytest.mark.parametrize("asked", NOTHING)
def test_what_matches_nothing_is_a_page_that_says_so(three, viewer, asked):
    page = show(viewer, q=asked)
    assert page.status == 200
    assert not page.rows()
    for part in ("refresh", "filter", "counts"):
        assert viewer.get(f"/runs/-/{part}", {"q": asked}).status_code in (200, 204)
