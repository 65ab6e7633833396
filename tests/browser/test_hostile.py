"""Hostile text in a real browser: it is shown, it sends nothing, and it breaks no layout."""

import pytest

from agentstate.store.commands import NewBudget, NewEvent
from agentstate.store.errors import BudgetExhausted
from agentstate.store.payloads import dump
from tests.dashboard.conftest import person
from tests.store.asking import ANA

pytestmark = [pytest.mark.long, pytest.mark.many]

MARKUP = "<img src=/evil-image onerror=fetch('/evil')>"
HTMX = '"><b hx-get="/evil-htmx" hx-trigger="load">x</b>'
ADDRESSES = [
    "/runs",
    f"/runs?q={MARKUP}",
    "/runs/42",
    "/runs/42?event=4",
    "/runs/42?event=4&view=json",
    "/runs/42?event=5",
    "/runs/42?tab=ownership",
    "/runs/42?tab=audit",
    "/leases",
    "/leases/run:42",
    "/audit",
    f"/runs/{MARKUP}",
]


def test_the_browser_sends_nothing_because_of_a_text(store, clock, window):
    """Case O-22 (docs/cases.md)."""
    store.create("42", task=f"{MARKUP} {HTMX} \u202egnp.exe", tags=(HTMX[:60], "w" * 64))
    lease = store.hold("42", "w-1")
    payload = {MARKUP: HTMX, "text": f"{MARKUP}\n</script><script>fetch('/evil-script')</script>"}
    store.append("42", [NewEvent(type="x", data=dump(payload))], fence=lease.token)
    store.append("42", [NewEvent(type="y", data=dump("w" * 100_000))], fence=lease.token)
    clock.advance(seconds=100)
    store.as_caller(ANA).reclaim("run:42", token=lease.token, reason=f"{MARKUP} {HTMX}")

    for address in ADDRESSES:
        window.page.goto(address)
        window.page.wait_for_timeout(150)
        wide = window.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 1440, address

    evil = [url for url in window.requests if "evil" in url.split("?")[0].split("/runs/")[0]]
    assert evil == []
    assert [fault for fault in window.faults if "404" not in fault] == []


def test_what_comes_live_is_text_as_well(store, clock, window):
    """Case O-22 (docs/cases.md)."""
    store.create("42")
    window.page.goto("/runs/42")

    store.append("42", [NewEvent(type="z", data=dump({"out": MARKUP + HTMX}))])

    row = window.page.locator("#e-2")
    row.wait_for(timeout=10_000)
    assert "<img src=/evil-image" in row.inner_text()
    assert not [url for url in window.requests if "evil" in url]


LONGEST = {"run": "k" * 196, "worker": "w" * 200, "budget": "b" * 64, "counter": "c" * 64}
# By how much the page is too wide, which counters leave their place, and which numbers are broken.
CUT = """() => {
  const over = Math.max(0, document.documentElement.scrollWidth - window.innerWidth);
  const hidden = [...document.querySelectorAll(".counter")].filter(one => {
    const box = one.getBoundingClientRect(), cell = one.parentElement.getBoundingClientRect();
    return box.width > 0 && (box.right > cell.right + 1 || box.left < cell.left - 1);
  });
  const split = [...document.querySelectorAll("td.end")].filter(one => {
    const lines = new Range(); lines.selectNodeContents(one);
    return new Set([...lines.getClientRects()].map(rect => Math.round(rect.top / 6))).size > 2;
  });
  return {over, hidden: hidden.length, split: split.length};
}"""


@pytest.mark.parametrize("width", [1440, 390])
def test_the_longest_names_are_cut_off_nowhere_and_lie_on_nothing(store, open_window, width):
    """S-119 (docs/sweeps.md): counters lay on tags, amounts were broken into pieces, and on a phone
    the page scrolled sideways."""
    run, budget, most = LONGEST["run"], LONGEST["budget"], 2**53 - 1
    caps = (NewBudget(name=budget, cap=most),)
    store.create(run, task="t" * 500, tags=tuple(f"{n}{'t' * 60}" for n in range(9)), budgets=caps)
    lease = store.hold(run, LONGEST["worker"], ttl_seconds=3_600)
    store.append(run, [NewEvent(type="x")], fence=lease.token, add={LONGEST["counter"]: most})
    store.spend(run, most - 9, budget=budget, fence=lease.token)
    with pytest.raises(BudgetExhausted):
        store.spend(run, most - 9, budget=budget, fence=lease.token)
    person("p" * 150, "viewer")
    window = open_window("root", "admin")
    window.page.set_viewport_size({"width": width, "height": 900})

    pages = [f"/runs/{run}{more}" for more in ("", "?tab=budget", "/edit", f"/budgets/{budget}")]
    pages += [f"/leases/run:{run}/reclaim", f"/workers/{LONGEST['worker']}/drain", "/budgets"]
    pages += [f"/people/{'p' * 150}/sign-out", f"/people/{'p' * 150}/link", "/now", "/leases"]
    for address in pages:
        window.page.goto(address)
        found = window.page.evaluate(CUT)
        assert found == {"over": 0, "hidden": 0, "split": 0}, address
    assert window.faults == []
