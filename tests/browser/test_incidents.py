"""Each incident of the drill, read from Now and one click further: run, worker, cause and cure.

What the pages say is held against what the store has kept of it.
"""

from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from agentstate.store import alerts, upkeep
from agentstate.store.commands import NewBudget
from agentstate.store.errors import BudgetExhausted, SeqConflict, StaleFence
from agentstate.store.minutes import TALLY, Tally
from agentstate.store.models import BudgetEntry, Event, Lease, Refusal
from tests.store.asking import FLEET, OTHER_FLEET

RUN = "checkout-42"


@dataclass
class Told:
    """What Now says first; where its step leads, and what is to be read there."""

    said: str
    cause: str
    cure: str
    about: list[str]
    step: str
    address: str
    there: list[str]


def run_jobs() -> None:
    for name in upkeep.JOBS:
        with upkeep.beat(name):
            pass


def dead_holder(store, clock) -> Told:
    lease = store.hold(RUN, "w-7", ttl_seconds=10)
    clock.advance(seconds=31)
    run_jobs()
    kept = Lease.objects.get(unit=f"run:{RUN}")
    silent = int((clock.now - kept.acquired_at).total_seconds())
    lapsed = int((clock.now - kept.expires_at).total_seconds())
    assert (kept.owner, kept.token, silent, lapsed) == ("w-7", lease.token, 31, 21)
    return Told(
        said=f"{RUN} stands still: w-7 let its lease run out {lapsed}s ago, and nobody took over",
        cause=f"w-7 has not renewed for {silent}s, of a lease of 10s: it died, froze or was cut"
        " off.",
        cure="Take it back, so that the next worker starts clean; if no worker claims, start one.",
        about=[RUN, "w-7"],
        step="Reclaim…",
        address=f"/leases/run:{RUN}/reclaim",
        there=[
            f"Holder\nw-7 #{lease.token}",
            f"Lease\nlapsed {lapsed}s ago",
            f"Last renewal\n{silent}s ago",
            f"so w-7 with token {lease.token} can write nothing more",
        ],
    )


def frozen_holder(store, clock) -> Told:
    old = store.hold(RUN, "w-3", ttl_seconds=10)
    clock.advance(seconds=11)
    store.hold(RUN, "w-9", ttl_seconds=3600)
    for _ in range(2):
        with pytest.raises(StaleFence):
            store.append(RUN, fence=old.token)
    clock.advance(seconds=5)
    run_jobs()
    late = Refusal.objects.filter(code="stale-fence", run__key=RUN)
    assert {(one.token_sent, one.token_current) for one in late} == {(old.token, old.token + 1)}
    assert late.count() == 2
    return Told(
        said=f"w-3 still writes to {RUN} after it was overtaken",
        cause=f"2 writes came too late, the last one 5s ago, under token {old.token}. Nothing of"
        " it was stored. w-9 has it now.",
        cure="See why it was silent for longer than its lease; drain it if it goes on.",
        about=[RUN, "w-3"],
        step="Drain it…",
        address="/workers/w-3/drain",
        there=["Drain w-3?", "Holds\n0 units", "Draining\nno"],
    )


def hot_run(store, clock) -> Told:
    for _ in range(15):
        store.append(RUN)
    for by, times in ((FLEET, 6), (OTHER_FLEET, 4)):
        for _ in range(times):
            with pytest.raises(SeqConflict):
                store.as_caller(by).append(RUN, expected_seq=1)
    TALLY.write()
    run_jobs()
    written = Event.objects.filter(run__key=RUN).count()
    met = Refusal.objects.filter(code="seq-conflict", run__key=RUN).count()
    assert (written, met) == (16, 10)
    return Told(
        said=f"{RUN} is hot: {round(100 * met / (written + met))} % of {written + met} writes met"
        " another writer first in 5 min",
        cause="100 % of the conflicts are about expected_seq. key:fleet and key:other-fleet meet"
        " most often.",
        cure="Append without an expected number where the order does not matter, put several events"
        " in one append, or let one worker write.",
        about=[RUN, "its refusals"],
        step="Put a brake on it…",
        address=f"/runs/{RUN}/brake",
        there=[f"Version · events\nv16 · {written}", "Lease\nfree"],
    )


def dry_budget(store, clock) -> Told:
    store.spend(RUN, 900, budget="tokens")
    with pytest.raises(BudgetExhausted):
        store.spend(RUN, 300, budget="tokens")
    clock.advance(seconds=7)
    run_jobs()
    spent = sum(BudgetEntry.objects.filter(kind="spend").values_list("amount", flat=True))
    assert spent == 900
    return Told(
        said=f"A charge was refused: tokens of {RUN} has no room",
        cause="The last one came from key:fleet 7s ago. The smallest needs room for 300.",
        cure="Raise the cap, or let the run end: its worker cannot go on as it is.",
        about=[RUN],
        step="Change the cap…",
        address=f"/runs/{RUN}/budgets/tokens/cap",
        there=["Cap now\n1 000 tokens", f"Spent\n{spent}", "Reserved\n0", "Left\n100"],
    )


def silent_sweeper(store, clock) -> Told:
    clock.advance(hours=2)
    return Told(
        said="Nobody has judged the alerts for 2h: nobody outside is told anything",
        cause="Celery's worker or beat does not run.",
        cure="Start them again.",
        about=[],
        step="See System",
        address="/system",
        there=[f"{len(upkeep.JOBS) - 1} of {len(upkeep.JOBS)} silent", "note lapsed leases\t2h"],
    )


STAGED = (
    dead_holder,
    frozen_holder,
    dry_budget,
    *(pytest.param(stage, marks=pytest.mark.deep) for stage in (hot_run, silent_sweeper)),
)


@pytest.mark.parametrize("stage", STAGED, ids=lambda stage: stage.__name__)
def test_who_reads_only_now_and_one_click_further_knows_what_it_is(
    store, clock, site, open_window, stage, monkeypatch
):
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()
    store.create(RUN, budgets=(NewBudget(name="tokens", cap=1_000),), status="running")
    run_jobs()
    alerts.evaluate_all()
    told = stage(store, clock)
    if stage is not silent_sweeper:
        alerts.evaluate_all()

    page = open_window("bo", "senior").page
    page.goto("/")
    card = page.locator(".card").first
    paragraphs = [text.strip() for text in card.locator("p").all_inner_texts()]
    assert paragraphs[:3] == [told.said, told.cause, told.cure]
    assert card.locator(".card-about a").all_inner_texts() == told.about
    expect(card.locator(".card-step")).to_have_text(told.step)

    page.keyboard.press("1")
    expect(page).to_have_url(f"{site}{told.address}")
    there = page.locator("main").inner_text()
    for part in told.there:
        assert part in there.replace("\u202f", " "), (part, there)
