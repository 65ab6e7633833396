"""Now: what needs somebody, the most harmful first, each with its one next step; never a green tick
for what could not be looked at."""

from datetime import timedelta

import pytest
from django.db import DatabaseError

from agentstate.store import alerts, upkeep
from agentstate.store.commands import AnnounceWorker, NewBudget
from agentstate.store.errors import BudgetExhausted, SeqConflict, StaleFence
from agentstate.store.minutes import TALLY, Tally
from dashboard import cards
from dashboard.models import Look
from dashboard.queries import now as queries
from tests.dashboard.reading import Page
from tests.store.asking import ANA


@pytest.fixture(autouse=True)
def _nothing_counted_yet(db, monkeypatch):
    """What is counted is written when a test says so."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


def run_jobs():
    for name in upkeep.JOBS:
        with upkeep.beat(name):
            pass


@pytest.fixture
def watched(still_clock):
    """Every job of our own has run, and the alerts were judged."""
    run_jobs()
    alerts.evaluate_all()
    return still_clock


def later(clock, **span):
    """Time goes by, and the jobs run."""
    clock.advance(**span)
    run_jobs()


def show(client, **more):
    return Page(client.get("/", **more))


def steps(page):
    """What the buttons of the cards are called, in their order."""
    return [(a["data-hot"], a["href"]) for tag, a in page.tags if a.get("data-hot", "").isdigit()]


def test_all_clear_says_when_and_lists_what_was_checked(watched, viewer):
    page = show(viewer)
    assert f"All clear, checked 12:00:00, {len(cards.CHECKS)} checks" in page.text
    for check in cards.CHECKS.values():
        assert check.title in page.text
    assert not steps(page)


def test_a_check_that_cannot_be_run_is_a_card_and_never_a_tick(watched, viewer, monkeypatch):
    def away(**_):
        raise DatabaseError("gone")

    monkeypatch.setattr(queries, "read_lapsed", away)
    page = show(viewer)
    assert "All clear" not in page.text
    assert "Not known: “No unit is left lapsed” could not be checked" in page.text
    assert steps(page) == [("1", "/leases")]
    assert f"In order: {len(cards.CHECKS) - 1} of the other checks" in page.text


def test_a_unit_that_nobody_took_is_named_with_its_holder_and_the_way_to_take_it_back(
    store, watched, viewer
):
    store.create("42")
    store.hold("42", "w-7", ttl_seconds=10)
    later(watched, seconds=10 + 14)
    assert "All clear" in show(viewer).text
    later(watched, seconds=1)
    page = show(viewer)
    assert "42 stands still: w-7 let its lease run out 15s ago, and nobody took over" in page.text
    assert "w-7 has not renewed for 25s, of a lease of 10s" in page.text
    assert steps(page) == [("1", "/leases/run:42/reclaim")]
    assert page.link(r"^/runs/42$")


def test_of_many_alike_three_are_shown_and_the_others_counted(store, watched, viewer):
    for n in range(5):
        store.create(f"r-{n}")
        store.hold(f"r-{n}", "w-7", ttl_seconds=10)
    later(watched, seconds=30)
    page = show(viewer)
    assert len(steps(page)) == 3
    assert "and 2 more like it" in page.text


def test_a_worker_that_was_overtaken_is_named_with_what_it_wrote_to_and_who_has_it(
    store, watched, viewer
):
    store.create("42")
    old = store.hold("42", "w-3", ttl_seconds=10)
    watched.advance(seconds=11)
    store.hold("42", "w-9")
    for _ in range(2):
        with pytest.raises(StaleFence):
            store.append("42", fence=old.token)
    watched.advance(seconds=5)
    page = show(viewer)
    assert "still writes to 42 after it was overtaken" in page.text
    assert (
        f"2 writes came too late, the last one 5s ago, under token {old.token}. Nothing of it was"
        " stored. w-9 has it now." in page.text
    )
    watched.advance(minutes=11)
    assert "after it was overtaken" not in show(viewer).text


def test_a_hot_run_is_named_with_the_column_the_workers_and_the_cure(store, watched, viewer):
    store.create("42")
    for _ in range(15):
        store.append("42")
    for _ in range(10):
        with pytest.raises(SeqConflict):
            store.append("42", expected_seq=1)
    TALLY.write()
    page = show(viewer)
    assert "42 is hot: 38 % of 26 writes met another writer first in 5 min" in page.text
    assert "100 % of the conflicts are about expected_seq." in page.text
    assert ("1", "/runs/42/brake") in steps(page)


def test_a_budget_that_refuses_is_one_card_not_two(store, watched, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=1_000),), status="running")
    store.spend("42", 890, budget="tokens")
    text = show(viewer).text
    assert "tokens of 42 is used to 89 %" in text
    assert "890 of it in the last 0s. When it is dry is not known: too young to tell: 0 s" in text
    later(watched, minutes=5)
    alerts.evaluate_all()
    for _ in range(2):
        store.spend("42", 5, budget="tokens")
    page = show(viewer)
    assert "is used to 90 %, dry at 12:05 at the rate of the last 5 minutes" in page.text
    assert "900 spent and 0 reserved of 1 000 tokens; 900 of it in the last 5m." in page.text
    with pytest.raises(BudgetExhausted):
        store.spend("42", 300, budget="tokens")
    page = show(viewer)
    assert "A charge was refused: tokens of 42 has no room" in page.text
    assert "The smallest needs room for 300." in page.text
    budgets = [address for _, address in steps(page) if "/budgets/" in address]
    assert budgets == ["/runs/42/budgets/tokens/cap"]


def test_silent_jobs_come_first_of_all(store, watched, viewer):
    store.create("42")
    store.hold("42", "w-7", ttl_seconds=10)
    watched.advance(hours=2)
    page = show(viewer)
    places = [address for _, address in steps(page)]
    assert places[0] == "/system"
    assert places.index("/system") < places.index("/leases/run:42/reclaim")
    assert "silent, for 2h" in page.text
    assert "Nobody has judged the alerts for 2h" in page.text


def test_an_alert_that_somebody_is_at_needs_nobody_else(store, watched, operator):
    store.create("late", deadline_at=watched.now + timedelta(seconds=10))
    watched.advance(seconds=20)
    alerts.evaluate_all()
    assert "Past their deadline and not ended" in show(operator).text.replace("past", "Past")
    asked = Page(operator.get("/alerts/overdue-runs/acknowledge"))
    form = {name: asked.field(name) for name in ("form_key", "seen_version")}
    operator.post("/alerts/overdue-runs/acknowledge", form | {"reason": "asking"})
    assert "All clear" in show(operator).text


def test_figures_of_the_last_hour_are_those_of_the_minute_table(store, watched, viewer):
    store.create("42")
    for _ in range(4):
        store.append("42")
    with pytest.raises(SeqConflict):
        store.append("42", expected_seq=1)
    TALLY.write()
    text = show(viewer).text
    assert "6 in the last hour" in text
    assert "16.7 % 1 met another writer first" in text
    assert "5 / 1" in text


def test_what_operators_did_and_new_versions_are_marked_on_the_figures(store, watched, viewer):
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="a mistake")
    watched.advance(minutes=5)
    for version in ("1.4", "1.5"):
        store.ask(AnnounceWorker(worker="w-1", version=version))
    TALLY.write()

    page = show(viewer)
    table = Page(viewer.get("/", {"table": "1"}))

    sparks = [a for tag, a in page.tags if tag == "svg" and "spark-line" in (a.get("class") or "")]
    assert len(sparks) == 6
    assert all("marked: 1 operator action, 2 new versions" in a["aria-label"] for a in sparks)
    assert "ana: run.cancelled 42 “a mistake”" in page.text
    assert "The last hour by minute" not in page.text
    assert "2 new versions: workers 1.4; workers 1.5" in page.text
    assert "2026-03-02 12:05:00 UTC workers 1.4 2026-03-02 12:05:00 UTC workers 1.5" in table.text
    assert "12:00 2 0.0 % 0.00 0" in table.text
    assert page.link(r"^\?table=1#hour$")


def test_since_you_last_looked_is_each_persons_own(store, watched, log_in):
    ana, bo = log_in("ana", "operator"), log_in("bo", "operator")
    assert "Since you last looked" not in show(ana).text
    watched.advance(minutes=20)
    store.create("42")
    store.move("42", "running")
    store.move("42", "failed")
    page = show(ana)
    assert "Since you last looked, 20m ago: 1 run failed" in page.text
    assert "Since you last looked" not in show(bo).text
    watched.advance(minutes=5)
    assert "Since you last looked, 25m ago: 1 run failed" in show(ana).text  # the same look
    watched.advance(minutes=20)
    assert "Since you last looked, 20m ago: nothing that needs you." in show(ana).text
    assert Look.objects.count() == 2


def test_a_refresh_is_no_look(watched, log_in):
    ana = log_in("ana", "operator")
    show(ana, headers={"HX-Request": "true", "HX-Target": "board"})
    assert not Look.objects.exists()
