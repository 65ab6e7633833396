"""Contention in a real browser: every part of it drawn, in both themes and on a phone, by keys."""

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import NewBudget, Patch
from agentstate.store.errors import Refusal
from agentstate.store.minutes import TALLY
from tests.store.asking import Asking

LONG = "checkout-regression-of-the-spring-2026-000042"


@pytest.fixture
def storm(store, clock):
    """An hour with a bit of every cause: a counter that two want, a run that many append to, an
    overtaken worker, a stampede, a budget on its cap; and the same hour of yesterday, calmer."""
    TALLY.forget()
    store.create("counts", budgets=(NewBudget(name="tokens", cap=10),))
    for number in range(12):
        store.append("counts")
        if number % 6 == 0:
            refused(store.append, "counts", expected_seq=0)
    clock.advance(days=1)
    store.create(LONG)
    store.create("42")
    first = store.hold("42", "w-3~07fe", ttl_seconds=60)
    clock.advance(minutes=3)
    store.hold("42", "w-9~c41a", ttl_seconds=7_200)
    workers = [worker(f"fleet-{n}") for n in range(10)]
    for turn in range(24):
        clock.advance(minutes=2)
        value = None if turn == 0 else turn
        ask = Patch(run="counts", add={"steps_done": 1}, expect={"counters.steps_done": value})
        workers[turn % 2].ask(ask)
        refused(workers[1 - turn % 2].ask, ask)
        seq = store.run(LONG).last_seq
        workers[turn % 10].append(LONG, expected_seq=seq)
        for other in workers[: turn % 10]:
            refused(other.append, LONG, expected_seq=seq)
        if turn % 5 == 0:
            refused(store.append, "42", fence=first.token)
            refused(store.acquire, "run:42", "w-2~aaa")
            refused(store.spend, "counts", 50, budget="tokens")
    TALLY.write()


def worker(name):
    return Asking(Caller(kind="key", name=name, scopes=frozenset(SCOPES)))


def refused(ask, *args, **more):
    with pytest.raises(Refusal):
        ask(*args, **more)


@pytest.mark.long
@pytest.mark.many
def test_it_is_read_in_both_themes_on_a_phone_and_by_keys(storm, open_window, tmp_path):
    folder = Path(os.environ.get("AGENTSTATE_LOOK") or tmp_path)
    for theme in ("light", "dark"):
        window = open_window(f"ana-{theme}", "operator", color_scheme=theme)
        page = window.page
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto("/contention")
            page.wait_for_load_state("load")
            page.screenshot(path=folder / f"{theme}-{width}.png", full_page=True)
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found] == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert window.faults == []

    page.keyboard.press("m")
    matrix = page.get_by_role("region", name="Matrix, scrolls sideways")
    assert matrix.evaluate("element => element === document.activeElement")
    page.keyboard.press("y")
    beside = page.get_by_role("region", name="Beside yesterday, scrolls sideways")
    assert beside.evaluate("element => element === document.activeElement")
    assert beside.get_by_role("row", name="Writes", exact=False).first.is_visible()

    page.get_by_role("link", name=f"Brake {LONG}").click()
    page.wait_for_url(f"**/runs/{LONG}/brake?per_second=1")
    assert page.get_by_label("Writes a second").input_value() == "1"
    page.screenshot(path=folder / "brake.png", full_page=True)
    page.get_by_label("Why").fill("ten of them want every number")
    page.get_by_role("button", name="Put the brake on").click()
    page.wait_for_url(f"**/runs/{LONG}")
    page.goto("/contention")
    assert page.get_by_text("is on: 1 a second until").is_visible()
