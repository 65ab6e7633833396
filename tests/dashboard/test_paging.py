"""Pages of the console: places that are old, of another list, or damaged (docs/sweeps.md)."""

import re
from datetime import timedelta
from urllib.parse import quote

import pytest

from agentstate.store.commands import Charge, CreateBudget, NewBudget, SetCheckpoint, Spend
from agentstate.store.errors import BudgetExhausted, StaleFence
from agentstate.store.models import OperatorAction
from dashboard.queries import (
    actions,
    budgets,
    leases,
    ledgers,
    refused,
    runs,
    story,
    system,
    workers,
)
from tests.dashboard.reading import Page
from tests.store.asking import ANA, SENIOR, Asking


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(
        runs.read_page, "__kwdefaults__", {**runs.read_page.__kwdefaults__, "rows": 2}
    )
    for module in (actions, leases, ledgers):
        monkeypatch.setattr(module, "PAGE_ROWS", 2)
    monkeypatch.setattr(leases, "URGENT_SHOWN", 2)


def place_in(page: Page, name: str) -> str:
    """The place that a page's link says, as an address has it."""
    found = re.search(f"[?&]{name}=([^&]+)", page.link(f"[?&]{name}="))
    assert found
    return found[1]


def test_a_page_of_runs_whose_rows_have_left_the_list_says_that_it_ends_there(
    store, still_clock, viewer, small_pages
):
    """S-701: it said that no run was in this window, or that none matches."""
    for number in range(4):
        store.create(f"r-{number}")
    second = Page(viewer.get("/runs", {"q": "since:1h"})).link("after=")
    still_clock.advance(seconds=3_601)
    store.create("new")

    page = Page(viewer.get("/runs" + second))

    assert "The list ends here" in page.text
    assert "No run" not in page.text
    assert Page(viewer.get("/runs" + page.link("^.q=since%3A1h$"))).rows() == ["new"]


def test_the_way_back_ends_with_the_whole_first_page(store, still_clock, viewer, small_pages):
    """S-701: it ended with the rows that had come meanwhile alone, or with an empty page."""
    for number in range(4):
        store.create(f"r-{number}")
        still_clock.advance(seconds=1)
    second = Page(viewer.get("/runs" + Page(viewer.get("/runs", {"q": ""})).link("after=")))
    store.create("new")
    first = Page(viewer.get("/runs" + second.link("before=")))

    page = Page(viewer.get("/runs" + first.link("before=")))

    assert (second.rows(), first.rows()) == (["r-1", "r-0"], ["r-3", "r-2"])
    assert page.rows() == ["new", "r-3"]
    assert not [link for link in page.links if "before=" in link]
    assert Page(viewer.get("/runs" + page.link("after="))).rows() == ["r-2", "r-1"]


def test_with_nothing_newer_under_the_filter_the_list_is_at_its_start(
    store, still_clock, viewer, small_pages
):
    """S-701: it was an empty page."""
    for number in range(3):
        store.create(f"r-{number}")
        still_clock.advance(seconds=1)
    second = Page(viewer.get("/runs" + Page(viewer.get("/runs", {"q": ""})).link("after=")))
    for key in ("r-1", "r-2"):
        store.as_caller(ANA).move(key, "cancelled", reason="not needed")

    page = Page(viewer.get("/runs" + second.link("before=").replace("q=", "q=status%3Apending")))

    assert page.rows() == ["r-0"]


def test_the_audit_behind_its_last_page_says_so_and_before_its_first_shows_that(
    store, still_clock, viewer, small_pages
):
    """S-701: it said that no operator had stepped in."""
    for number in range(3):
        still_clock.advance(seconds=1)
        store.create(f"r-{number}")
        store.as_caller(ANA).move(f"r-{number}", "cancelled", reason=f"because {number}")
    oldest, *_, newest = OperatorAction.objects.order_by("at")
    first, last = (
        actions.cursors.write(one.at, f"0.{one.id}", salt=actions.SALT) for one in (newest, oldest)
    )

    behind = Page(viewer.get("/audit", {"after": last}))
    before = Page(viewer.get("/audit", {"before": first}))
    of_run = Page(viewer.get("/runs/r-0", {"tab": "audit", "audit_after": last}))

    for page in (behind, of_run):
        assert "The list ends here" in page.text
        assert "No operator" not in page.text
        assert any(link.startswith("?") and "after" not in link for link in page.links)
    assert "because 2" in before.text
    assert "because 1" in before.text


def test_late_and_silent_leases_have_pages_and_what_is_left_out_is_said(
    store, still_clock, viewer, small_pages
):
    """S-702: beyond the first fifty they were counted and on no page."""
    for number in range(5):
        still_clock.advance(seconds=1)
        store.acquire(f"late-{number}", f"w-{number}", ttl_seconds=60)
    still_clock.advance(seconds=40)
    store.acquire("live", "v", ttl_seconds=60)

    board = Page(viewer.get("/leases"))
    found, address = [], "?only=late"
    while address:
        page = Page(viewer.get("/leases" + address))
        found += page.rows("u-")
        address = next((link for link in page.links if "after=" in link), "")

    assert board.rows("u-") == ["late-0", "late-1", "live"]
    assert "3 more that are late or silent" in board.text
    assert found == [f"late-{number}" for number in range(5)]


def spend(store: Asking, name: str) -> None:
    store.ask(Spend(run=None, charge=Charge(budget=name, amount=1, id=None)))


@pytest.fixture
def two_ledgers(store, still_clock):
    """Budgets a, with three charges that came last, and b, with four and then three."""
    for name in ("a", "b"):
        store.ask(CreateBudget(run=None, budget=NewBudget(name=name, cap=500)))
    for name in "bbbb" + "ab" * 3:
        still_clock.advance(seconds=10)
        spend(store, name)


def numbers(page: Page) -> list[str]:
    """Of the lines of a ledger."""
    ledger = page.html.partition("The ledger of ")[2].partition("</table>")[0]
    return re.findall(r'<tr><td class="end wide-only faint nowrap">(\d+)</td>', ledger)


def test_a_place_in_a_ledger_is_of_that_ledger_alone(two_ledgers, viewer, small_pages):
    """S-703: in another one it hid the lines between, since numbers count within a ledger."""
    place = place_in(Page(viewer.get("/budgets/a")), "after")

    own = Page(viewer.get(f"/budgets/a?after={place}"))
    other = Page(viewer.get(f"/budgets/b?after={place}"))

    assert "of another list" not in own.text
    assert "of another list, so this one starts at its newest line" in other.text
    assert numbers(other) == numbers(Page(viewer.get("/budgets/b")))


def test_a_ledger_of_then_shows_no_later_line_whatever_place_is_asked_for(
    two_ledgers, still_clock, viewer, small_pages
):
    """S-703: a place of later showed what was written after the moment."""
    place = place_in(Page(viewer.get("/budgets/b")), "after")
    then = still_clock.now - timedelta(seconds=65)

    plain = Page(viewer.get(f"/budgets/b?asof={quote(then.isoformat())}"))
    placed = Page(viewer.get(f"/budgets/b?asof={quote(then.isoformat())}&after={place}"))

    assert numbers(plain)
    assert numbers(placed) == numbers(plain)


def test_each_list_says_that_the_place_in_its_address_is_damaged(two_ledgers, store, viewer):
    """S-704: leases, ledgers, the audit of a run, deliveries and bulks said nothing."""
    store.create("r-0")
    store.as_caller(ANA).move("r-0", "cancelled", reason="not needed")

    for address in (
        "/runs?q=&after=",
        "/runs?q=&before=",
        "/audit?after=",
        "/runs/r-0?tab=audit&audit_after=",
        "/leases?after=",
        "/budgets/a?after=",
        "/alerts/-/targets?before=",
        "/alerts/-/targets?before=msg_ffffffffffffffff",
        "/bulk?before=",
    ):
        page = Page(viewer.get(f"{address}{'f' * 16}"))
        assert page.status == 200, address
        assert "The place in this address is damaged" in page.text, address


@pytest.mark.parametrize(
    ("address", "module", "said"),
    [
        ("/runs/42?tab=ownership", story, "the API has all"),
        ("/runs/42?tab=refused", story, "The newest 2 are shown."),
        ("/runs/42?tab=budget", story, "the page of each budget has all of its own"),
        ("/leases/run:42", leases, "the API has all"),
        ("/leases/run:42", leases, "the audit has all"),
    ],
)
def test_a_table_without_pages_says_when_it_shows_the_newest_alone(
    store, viewer, monkeypatch, address, module, said
):
    """S-711: a hundred refusals or lines, or fifty terms, looked like all of them."""
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    for owner in ("w-1", "w-2"):
        lease = store.acquire("run:42", owner)
        store.spend("42", 1, budget="tokens", fence=lease.token)
        with pytest.raises(StaleFence):
            store.append("42", fence=lease.token - 1 or 99)
        store.as_caller(SENIOR).reclaim("run:42", token=lease.token, owner=owner, force=True)
    assert said not in Page(viewer.get(address)).text

    for name in ("TERMS_SHOWN", "ROWS_SHOWN", "UNIT_REFUSALS_SHOWN"):
        monkeypatch.setattr(module, name, 2, raising=False)
    monkeypatch.setattr(story.read_refusals, "__kwdefaults__", {"limit": 2, "until": None})

    page = Page(viewer.get(address))
    assert said in page.text
    assert "The newest 2 are shown" in page.text


def test_a_table_of_a_board_says_when_it_shows_some_alone(store, viewer, monkeypatch):
    """S-711: fifty budgets that are nearly used up, or fifty refused charges, looked like all."""
    for key in ("a", "b"):
        store.create(key, budgets=(NewBudget(name="tokens", cap=10),))
        store.spend(key, 9, budget="tokens")
        with pytest.raises(BudgetExhausted):
            store.spend(key, 5, budget="tokens")
        lease = store.hold(key, f"w-{key}")
        store.as_caller(SENIOR).reclaim(
            f"run:{key}", token=lease.token, owner=f"w-{key}", force=True
        )
        with pytest.raises(StaleFence):
            store.append(key, fence=lease.token)
        store.ask(SetCheckpoint(consumer=f"c-{key}", position=0))
    said = {
        "/budgets": ["The fullest 2 are shown", "The newest 2 are shown"],
        "/runs/a/budgets/tokens": ["The newest 1 are shown"],
        "/workers": ["The newest 2 are shown"],
        "/system": ["The first 2 are shown"],
    }
    assert not any(
        words in Page(viewer.get(address)).text for address, all_ in said.items() for words in all_
    )
    for module, name in (
        (budgets, "NEAR_SHOWN"),
        (refused, "SHOWN"),
        (workers, "OVERTAKEN_SHOWN"),
        (system, "CONSUMERS_SHOWN"),
    ):
        monkeypatch.setattr(module, name, 2)
    for address, all_ in said.items():
        if address.startswith("/runs"):
            monkeypatch.setattr(refused, "SHOWN", 1)
        page = Page(viewer.get(address))
        assert [words for words in all_ if words not in page.text] == [], address
        monkeypatch.setattr(refused, "SHOWN", 2)
