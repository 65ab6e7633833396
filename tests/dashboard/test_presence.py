"""Who else looks at a page: shown on it, and nothing is decided by it."""

import ast
import json
import re
from pathlib import Path

import pytest
from django.conf import settings

from agentstate import presence
from agentstate.presence import Sign, board
from agentstate.store.models import Run
from agentstate.store.policy import POLICY, Policy
from dashboard.management.commands.write_cache_docs import cache_docs
from tests.clock import START
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.dashboard.test_hints_stream import Stream, cookie, site  # noqa: F401
from tests.store.asking import Asking

HOSTILE = "<img src=x onerror=alert(1)>\u202e&amp;"
NUMBER = "a" * 32


def at(clock, seconds=0):
    return int((clock.now.timestamp() + seconds) * 1_000_000)


def looks(clock, name, page="run:42", *, number="a1", seconds=0, since=0):
    sign = Sign(at=at(clock, seconds), gone=False, page=page, since=at(clock, since))
    board.merge({(name, number): sign}, now=at(clock, seconds))


def told(page):
    found = re.search(r'id="onlookers" data-patch>([\s\S]*?)</div>', page.html)
    assert found is not None
    return " ".join(re.sub(r"<[^>]*>", "", found[1]).split())


def test_a_page_says_who_was_there_when_it_was_loaded(store, still_clock, operator):
    store.create("42")
    assert told(Page(operator.get("/runs/42"))) == ""

    looks(still_clock, "bo")
    assert told(Page(operator.get("/runs/42"))) == f"bo is here too, since {START:%H:%M}."
    looks(still_clock, "cy", since=-120)
    assert told(Page(operator.get("/runs/42"))) == "cy and bo have this page open, since 11:58."
    looks(still_clock, "dee")
    assert (
        told(Page(operator.get("/runs/42"))) == "cy and 2 others have this page open, since 11:58."
    )


def test_nobody_is_told_of_themselves_or_of_another_page(store, still_clock, operator):
    store.create("42")
    looks(still_clock, "ana", number="a2")
    looks(still_clock, "bo", "reclaim:run:42")

    assert told(Page(operator.get("/runs/42"))) == ""


def test_who_gives_no_sign_is_not_shown_any_more(store, still_clock, operator):
    store.create("42")
    looks(still_clock, "bo")

    still_clock.advance(seconds=44)
    assert "bo" in told(Page(operator.get("/runs/42")))
    still_clock.advance(seconds=1)
    assert told(Page(operator.get("/runs/42"))) == ""


def test_two_who_may_act_are_told_more(store, still_clock, operator):
    store.create("42")
    store.hold("42", "w-1", ttl_seconds=10)
    still_clock.advance(seconds=11)
    looks(still_clock, "bo", "reclaim:run:42")

    page = Page(operator.get("/leases/run:42/reclaim"))
    assert "bo is here too" in told(page)
    assert "whoever is second is refused" in told(page)
    part = operator.get(
        "/leases/run:42/reclaim", headers={"HX-Request": "true", "HX-Target": "facts"}
    )
    assert "bo is here too" in told(Page(part))


def test_what_refreshes_an_open_page_says_it_too(store, still_clock, operator):
    store.create("42")
    looks(still_clock, "bo")

    assert "bo is here too" in told(Page(operator.get("/runs/42/refresh")))


def test_a_name_is_plain_text(store, still_clock, operator):
    store.create("42")
    looks(still_clock, HOSTILE)

    page = Page(operator.get("/runs/42"))

    assert "<img" not in page.html
    assert "<bdi" in page.html
    assert HOSTILE in page.text


def test_each_page_that_is_loaded_is_a_sign_of_its_own(store, operator):
    store.create("a.b:c")

    def address():
        (found,) = [a["data-presence"] for _, a in Page(operator.get("/runs/a.b:c")).tags
                    if "data-presence" in a]  # fmt: skip
        return found

    first, second = address(), address()
    assert first != second
    assert re.fullmatch(r"page=run%3Aa\.b%3Ac&seen=[0-9a-f]{32}", first)


def test_looking_writes_nothing(store, still_clock, operator):
    store.create("42")
    before = Run.objects.values().get(key="42")

    looks(still_clock, "bo")
    operator.get("/runs/42")

    assert Run.objects.values().get(key="42") == before


def test_a_stream_is_a_sign_and_tells_of_the_others(site):  # noqa: F811
    Asking().create("42")
    first = Stream(site, f"/live/console?run=42&page=run:42&seen={NUMBER}", cookie("ana"))
    assert first.block() == ["retry: 2000"]
    person(HOSTILE, "operator")

    second = Stream(site, f"/live/console?run=42&page=run:42&seen={'b' * 32}", cookie("bo"))
    said = until(first, "bo is here too")
    assert "\n" not in said
    until(second, "ana is here too")
    second.answer.close()
    second.close()
    until(first, "data-patch></div>")
    first.close()


def until(stream, text):
    """The part of the page that a stream brings, once it has this text."""
    while True:
        said = stream.block()
        if said[0] == "event: presence":
            html = json.loads(said[1].removeprefix("data: "))["html"].strip()
            if text in re.sub(r"</?bdi[^>]*>", "", html):
                return html


# --- nothing of it decides -----------------------------------------------------------------------

MERGERS = ("agentstate/presence.py", "agentstate/live/company.py", "agentstate/caching.py",
           "dashboard/templatetags/presence.py")  # fmt: skip
# What could write a column: the store's commands, its models, its connection.
WRITERS = {"execute", "execute_all", "models", "commands", "rowsql", "rules", "connection",
           "transaction", "upkeep", "retention", "repair"}  # fmt: skip


@pytest.mark.parametrize("name", MERGERS)
def test_what_merges_can_write_no_column(name):
    tree = ast.parse((Path(settings.BASE_DIR) / name).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= set((node.module or "").split(".")) | {one.name for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {part for one in node.names for part in one.name.split(".")}

    assert names & WRITERS == set()


def test_no_guarded_column_is_merged():
    """Presence is in no table, and no policy of a column lets two values be merged but by adding
    or joining them; a status, a lease, a budget, a number that is given out are never among those.
    """
    decided = {Policy.GUARDED, Policy.HOLDER, Policy.CAPPED, Policy.ALLOCATED}
    guarded = {column for column, line in POLICY.items() if line.policy in decided}

    assert {"run.status", "lease.owner", "lease.token", "budget.spent"} <= guarded
    assert not any("presence" in column for column in POLICY)
    fields = set(presence.Sign.__slots__)
    assert fields == {"at", "gone", "page", "since"}


def test_the_docs_are_the_table():
    written = (settings.BASE_DIR / "docs" / "caches.md").read_text()
    assert written == cache_docs(), "run ./run manage write_cache_docs"
