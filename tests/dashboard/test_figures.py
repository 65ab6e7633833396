"""The figures on the pages are those that one adds up by hand from events, ledger and refusals."""

import re
from collections import Counter, defaultdict

import pytest

from agentstate.store.errors import CONFLICTS, FENCED
from agentstate.store.minutes import TALLY
from dashboard.payloads import visible
from dashboard.templatetags.console import number
from tests.browser.scene import Scene
from tests.dashboard.reading import Page
from tests.store.asking import rows

STATUSES = ("pending", "running", "paused", "completed", "failed", "cancelled")
ENDED = STATUSES[3:]


class Log:
    """What is told again from the log alone, and from no run, budget, lease or minute."""

    def __init__(self) -> None:
        keys = dict(rows("SELECT id, key FROM agentstate_run"))
        self.events = defaultdict(list)
        for run, seq, type_, data, at in rows(
            "SELECT run_id, seq, type, data, at FROM agentstate_event ORDER BY run_id, seq"
        ):
            self.events[keys[run]].append((seq, type_, data, at))
        self.refusals = [
            (keys.get(run), code, worker, operation)
            for run, code, worker, operation in rows(
                "SELECT run_id, code, worker, operation FROM agentstate_refusal"
            )
        ]
        names = {
            budget: (keys.get(run), name)
            for budget, run, name in rows("SELECT id, run_id, name FROM agentstate_budget")
        }
        self.ledgers = defaultdict(list)
        for budget, *entry in rows(
            "SELECT budget_id, kind, amount, spent, reserved, cap FROM agentstate_budgetentry"
            " ORDER BY budget_id, n"
        ):
            self.ledgers[names[budget]].append(entry)

    def status(self, run: str) -> str:
        said = [type_[4:] for _, type_, _, _ in self.events[run] if type_[4:] in STATUSES]
        return said[-1] if said else "pending"

    def holder(self, run: str) -> tuple[str, int] | None:
        """Who has the run by its events, lapsed or not."""
        held = None
        for _, type_, data, _ in self.events[run]:
            if type_ == "lease.acquired":
                held = (data["owner"], data["token"])
            elif type_ in ("lease.released", "lease.reclaimed") or type_[4:] in ENDED:
                held = None
        return held

    def budget(self, run: str | None, name: str) -> tuple[int, int, int]:
        """Spent, reserved and cap: sums of the ledger's lines."""
        lines = self.ledgers[run, name]
        cap = [line[4] for line in lines if line[4] is not None][-1]
        return sum(line[2] for line in lines), sum(line[3] for line in lines), cap

    def refused(self, **wanted: object) -> Counter:
        return Counter(code for run, code, *_ in self.refusals if wanted.get("run", run) == run)


@pytest.fixture
def log(store, still_clock):
    TALLY.forget()
    scene = Scene(store, still_clock)
    scene.company()
    scene.play(others=9)
    TALLY.write()
    return Log()


def test_what_every_page_says_is_what_its_log_adds_up_to(log, senior):
    def show(address: str, **query: str) -> Page:
        page = Page(senior.get(address, query))
        assert page.status == 200, address
        return page

    # The list of runs: how many of each status, and of each run its events and refusals.
    statuses = Counter(log.status(run) for run in log.events)
    listed = show("/runs", cols="key,status,events,holder,refused,conflicts", per="100")
    for status, count in statuses.items():
        assert f"{status} {count} " in listed.text, status
    assert set(listed.rows()) == set(log.events)

    # Each run's own page.
    for run, events in log.events.items():
        page = show(f"/runs/{run}")
        assert log.status(run) in page.text, run
        assert f"· {len(events)}" in page.text, run
        holder = log.holder(run)
        if holder:
            assert f"#{holder[1]}" in page.text, run
        refused = log.refused(run=run).total()
        assert (f"Refused {refused}" in page.text) == bool(refused), run

    # Budgets: of every one the page of its own.
    for run, name in log.ledgers:
        spent, reserved, cap = log.budget(run, name)
        page = show(f"/runs/{run}/budgets/{name}" if run else f"/budgets/{name}")
        for said in (
            f"Left {number(cap - spent - reserved)}",
            f"Cap {number(cap)} Spent {number(spent)} Reserved {number(reserved)} ",
        ):
            assert " ".join(said.split()) in page.text, (run, name, said)

    # Contention: how often each code, run, operation and worker was refused.
    page = show("/contention")
    _, codes, workers, operations = (Counter(one) for one in zip(*log.refusals, strict=True))
    runs = Counter(run for run, *_ in log.refusals)
    for count in (codes, operations, runs, {visible(w): n for w, n in workers.items() if w}):
        for name, times in count.items():
            if name:
                last = [
                    cells[-1] for cells in page.lines if cells[0] == name and cells[-1].isdigit()
                ]
                assert str(times) in last, (name, times, last)
    conflicts, fenced = (sum(codes[code] for code in some) for some in (CONFLICTS, FENCED))
    assert re.search(rf"Conflicts [\d.]+ % {conflicts} of \d+ writes", page.text)
    assert f"Fenced {fenced} calls of overtaken workers" in page.text

    # Now: the same hour in figures.
    page = show("/")
    assert f"{conflicts} met another writer first" in page.text
    said = re.search(r"Fenced [\d.]+/min .*? (\d+) in the last hour", page.text)
    assert said, page.text
    assert said[1] == str(fenced)
    assert re.search(rf"Admitted, refused \d+ / {codes.total()} ", page.text)

    # Workers: of each what was refused to it; Leases: who holds something, in time or not.
    page = show("/workers")
    for worker, times in workers.items():
        if worker:
            told = [
                cells for cells in page.lines if cells[1:] and cells[1].startswith(visible(worker))
            ]
            assert any(cell.endswith(f"· {times}") for cell in told[0]), (worker, times, told)
    page = show("/leases")
    held = [run for run in log.events if log.holder(run)]
    lapsed = int(re.search(r"Lapsed (\d+)", page.text)[1])
    live = int(re.search(r"Held now (\d+)", page.text)[1])
    assert lapsed + live == len(held) + 1  # a mailbox is no run
