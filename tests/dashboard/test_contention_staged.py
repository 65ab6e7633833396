"""What is going on, in exact words, in situations that are staged with the store's own commands;
and the page's figures are those that refusals and events give when they are counted again."""

from __future__ import annotations

import html
import re
from collections import Counter

import pytest

from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import BrakeRun, Charge, CreateBudget, NewBudget, Patch, Spend
from agentstate.store.errors import CONFLICTS, FENCED, Refusal
from agentstate.store.hot import HOT
from agentstate.store.minutes import TALLY
from agentstate.store.payloads import RawJSON
from tests.dashboard.reading import Page
from tests.store.asking import ANA, Asking, rows


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db):
    TALLY.forget()
    HOT.forget()
    yield
    HOT.forget()


def worker(name):
    """One that writes without a lease, under an API key of its own."""
    return Asking(Caller(kind="key", name=name, scopes=frozenset(SCOPES)))


def tried(ask, *args, **more):
    """Whether it was accepted."""
    try:
        ask(*args, **more)
    except Refusal:
        return False
    return True


def show(client, **query):
    TALLY.write()
    page = Page(client.get("/contention", query))
    assert page.status == 200
    return page


def judged(page):
    """What is going on, what has most of it first; and the cure for that."""
    told = page.html.partition('<p class="verdict-text">')[2].partition("</div>")[0]
    first, *rest = [html.unescape(part) for part in re.split(r"</p>(?:<p[^>]*>)?", told) if part]
    cure = [part.removeprefix("<b>Cure:</b> ") for part in rest if part.startswith("<b>")]
    also = [part for part in rest if not part.startswith("<b>")]
    return " ".join([first, *also]), "".join(cure)


def refused(*codes):
    """From the rows of refusals: how many have one of these codes."""
    return rows("SELECT count(*) FROM agentstate_refusal WHERE code = ANY(%s)", [*codes])[0][0]


def written():
    """From the log: each of the staged writes is one event."""
    return rows("SELECT count(*) FROM agentstate_event")[0][0]


def met():
    """From the rows of refusals: who lost to whom, and how often."""
    found = rows(
        "SELECT coalesce(worker, actor), coalesce(met, 'nobody known') FROM agentstate_refusal"
        " WHERE code <> 'budget-exhausted' AND about IS NOT NULL"
    )
    return dict(Counter(found))


def matrix(page):
    """From the page's table: who lost to whom, and how often."""
    table = page.html.partition("Who lost to whom, the most frequent first")[2].partition(
        "</table>"
    )[0]
    found = {}
    for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", table):
        cells = [
            html.unescape(re.sub("<[^>]+>", "", c)) for c in re.findall(r"<t[hd].*?</t[hd]>", row)
        ]
        found[cells[0], cells[1]] = sum(int(cell) for cell in cells[2:5])
    return found


def agree(page):
    """Tiles and matrix say what the rows say."""
    assert f"{refused(*CONFLICTS)} of {refused(*codes()) + written()} writes" in page.text
    assert re.search(rf"Fenced {refused(*FENCED)} calls of overtaken workers", page.text)
    assert matrix(page) == met()


def codes():
    return [code for (code,) in rows("SELECT DISTINCT code FROM agentstate_refusal")]


# --- the situations ------------------------------------------------------------------------------


def test_nothing_is_going_on(store, still_clock, viewer):
    store.create("42")
    for _ in range(11):
        store.append("42")
    page = show(viewer)
    assert judged(page) == ("No conflict in 60 min (12 writes).", "")
    assert "Nobody was turned away" not in page.text
    assert "12 no data" in page.text


def test_two_workers_compare_and_set_one_counter(store, still_clock, viewer):
    store.create("42")
    one, two = worker("w-3"), worker("w-7")
    for number in range(9):
        still_clock.advance(seconds=2)
        value = number or None
        ask = Patch(run="42", add={"steps_done": 1}, expect={"counters.steps_done": value})
        first, second = (one, two) if number % 3 else (two, one)
        assert [tried(first.ask, ask), tried(second.ask, ask)] == [True, False]

    page = show(viewer)

    assert judged(page) == (
        "9 writes of 19 met another writer first in 60 min (47.4 %). 100 % of these are key:w-3"
        " against key:w-7 on counters.steps_done of 42.",
        "Make counters.steps_done a plain add, without an expected value: adds never conflict.",
    )
    assert matrix(page) == {("key:w-7", "key:w-3"): 6, ("key:w-3", "key:w-7"): 3}
    agree(page)
    assert "key:w-7 lost to key:w-3 6 times: 6 conflicts" in page.text


def test_many_appenders_want_every_number_of_one_run(store, still_clock, operator):
    store.create("hot-1")
    writers = [worker(f"w-{n}") for n in range(8)]
    for turn in range(5):
        still_clock.advance(seconds=3)
        seq = store.run("hot-1").last_seq
        order = writers[turn:] + writers[:turn]
        won = [tried(one.append, "hot-1", expected_seq=seq) for one in order]
        assert won == [True] + [False] * 7

    page = show(operator)

    assert judged(page) == (
        "35 writes of 41 met another writer first in 60 min (85.4 %). 100 % of these are about"
        " expected_seq of hot-1, where 8 writers meet; key:w-5 lost most often (5 times).",
        "Append without an expected number where the order does not matter, put several events in"
        " one append, or let fewer than these 8 write. Until then a brake on hot-1 slows them"
        " down.",
    )
    agree(page)
    assert "35 of 41 writes" in page.text
    assert page.link("/runs/hot-1/brake") == "/runs/hot-1/brake?per_second=1"


def test_one_overtaken_worker_writes_on(store, still_clock, viewer):
    """Case O-15 (docs/cases.md)."""
    store.create("42")
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=90)
    second = store.hold("42", "w-9")
    store.append("42", fence=second.token)
    for _ in range(5):
        still_clock.advance(seconds=2)
        assert not tried(store.append, "42", fence=first.token)

    page = show(viewer)

    assert judged(page) == (
        "5 calls of overtaken workers were fenced off, all from w-3 on 42, which w-9 has now."
        " No conflict in 60 min (10 writes).",
        "See why w-3 was silent for longer than its lease; give it a longer ttl, or renewals in a"
        " thread of their own; drain it if it writes on.",
    )
    agree(page)


def test_workers_that_write_without_a_token(store, still_clock, viewer):
    store.create("42")
    store.hold("42", "w-9")
    for _ in range(3):
        assert not tried(worker("cron").append, "42")
    page = show(viewer)
    assert judged(page) == (
        "3 writes without a fencing token were refused, all from key:cron on 42, which w-9 has now."
        " No conflict in 60 min (6 writes).",
        "Acquire the lease of a run that others hold by turns, and send its token.",
    )
    agree(page)


def test_a_stampede_for_one_run(store, still_clock, viewer):
    store.create("42")
    store.hold("42", "w-1", ttl_seconds=600)
    for _ in range(4):
        still_clock.advance(seconds=5)
        for number in range(2, 8):
            assert not tried(store.acquire, "run:42", f"w-{number}")

    page = show(viewer)

    assert judged(page) == (
        "24 times a worker asked for what another one holds: 6 workers for 42, which w-1 holds."
        " No conflict in 60 min (27 writes).",
        "Let workers claim whatever waits instead of naming what they want, and wait as long as"
        " Retry-After says.",
    )
    agree(page)


def test_a_stampede_for_a_unit_that_is_no_run(store, still_clock, viewer):
    store.acquire("mailbox:support", "w-1")
    assert not tried(store.acquire, "mailbox:support", "w-2")
    said, _ = judged(show(viewer))
    assert said == (
        "Once a worker asked for what another one holds: 1 worker for mailbox:support, which w-1"
        " holds. No conflict in 60 min (2 writes)."
    )


def test_a_budget_on_its_cap(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    store.create("43", budgets=(NewBudget(name="tokens", cap=100),))
    store.spend("42", 95, budget="tokens")
    for _ in range(6):
        assert not tried(store.spend, "42", 10, budget="tokens")
    assert not tried(store.spend, "43", 101, budget="tokens")

    page = show(viewer)

    assert judged(page) == (
        "7 charges were refused for a cap, 85 % by tokens of 42."
        " No conflict in 60 min (10 writes).",
        "Raise the cap of tokens, free what dead workers hold of it, or let the run end.",
    )
    assert f"Over budget {refused('budget-exhausted')}" in page.text


def test_a_shared_budget_on_its_cap_is_of_no_run(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=5)))
    for key in ("42", "43"):
        store.create(key, budgets=(NewBudget(name="tokens", cap=100, parent="team"),))
        assert not tried(store.spend, key, 10, budget="tokens")
    said, cure = judged(show(viewer))
    assert said.startswith("2 charges were refused for a cap, all by team. ")
    assert cure.startswith("Raise the cap of team, ")


def test_a_brake_that_is_on(store, still_clock, operator):
    store.create("42")
    store.as_caller(ANA).ask(BrakeRun(run="42", per_second=1, seconds=600, reason="it floods"))
    done = []
    for _ in range(5):
        HOT.forget()
        done.append(tried(store.append, "42"))
    assert done == [True] + [False] * 4
    assert judged(show(operator)) == (
        "4 writes were held up by a brake or a run's limit. No conflict in 60 min (7 writes).",
        "That is what they are for: let workers wait as long as they are told, and put several"
        " events in one append.",
    )


def test_whole_versions_where_one_field_is_meant(store, still_clock, viewer):
    store.create("42")
    one, two = worker("w-3"), worker("w-7")
    for _ in range(4):
        version = store.run("42").version
        for asking in (one, two):
            ask = Patch(run="42", attrs={"plan.n": RawJSON("1")}, if_match=version)
            tried(asking.ask, ask)
    page = show(viewer)
    assert judged(page) == (
        "4 writes of 9 met another writer first in 60 min (44.4 %). 100 % of these are key:w-3"
        " against key:w-7 on attrs.plan.n of 42.",
        "Expect attrs.plan.n alone instead of the whole version, or let one worker write.",
    )
    agree(page)


def test_one_worker_that_stands_in_its_own_way(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=600)
    for _ in range(3):
        seq = store.run("42").last_seq
        store.append("42", expected_seq=seq, fence=lease.token)
        assert not tried(store.append, "42", expected_seq=seq, fence=lease.token)
    page = show(viewer)
    said, _ = judged(page)
    assert "100 % of these are w-3 against itself on expected_seq of 42." in said
    agree(page)


def test_when_nothing_stands_out_it_says_that(store, still_clock, viewer):
    for number in range(4):
        store.create(f"r-{number}")
        one, two = worker(f"a-{number}"), worker(f"b-{number}")
        one.append(f"r-{number}", expected_seq=1)
        if number % 2:
            assert not tried(two.append, f"r-{number}", expected_seq=1)
        else:
            assert not tried(two.move, f"r-{number}", "running", if_match=1)
    page = show(viewer)
    said, cure = judged(page)
    assert said == (
        "4 writes of 12 met another writer first in 60 min (33.3 %). Of these, 50 % are about"
        " expected_seq."
    )
    assert cure.startswith("Append without an expected number")
    agree(page)


def test_several_causes_are_told_the_greatest_first_and_gives_the_cure(store, still_clock, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=5),))
    first = store.hold("42", "w-3")
    still_clock.advance(seconds=90)
    second = store.hold("42", "w-9", ttl_seconds=600)
    for _ in range(3):
        assert not tried(store.ask, _charge(second.token))
    assert not tried(store.append, "42", fence=first.token)
    assert not tried(store.append, "42", expected_seq=0, fence=second.token)
    store.move("42", "completed", fence=second.token)
    assert not tried(store.append, "42", fence=second.token)
    said, cure = judged(show(viewer))
    assert said == (
        "3 charges were refused for a cap, all by tokens of 42. 2 calls of overtaken workers were"
        " fenced off, 50 % from w-3 on 42, which w-9 has now. 1 write of 11 met another writer"
        " first in 60 min (9.1 %). 100 % of these are w-9 against itself on expected_seq of 42."
    )
    assert cure.startswith("Raise the cap of tokens")


def _charge(token):
    return Spend(run="42", charge=Charge(budget="tokens", amount=9), fence=token)
