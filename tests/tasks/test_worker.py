"""One simulated worker against the real API, in this process: what it leaves in the store."""

import threading
import time

import pytest
from agentstate_client import Client
from django.db import connection

from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AcquireLease, Charge, NewBudget, NewEvent, ReclaimLease
from agentstate.store.execute import execute
from agentstate.store.keys import create_key
from agentstate.store.models import Budget, Event, Refusal, Run
from agentstate.store.models import Worker as WorkerRow
from agentstate.store.payloads import RawJSON
from tasks.drafts import RunDraft, Step
from tasks.simulate.plan import Fault
from tasks.simulate.processes import Stop
from tasks.simulate.runs import Order, create, open_shared_budgets
from tasks.simulate.worker import OLD_VERSION, STAMPEDE_WRITERS, Playing, Shift, Worker

pytestmark = pytest.mark.django_db(transaction=True)

DEADLINE_SECONDS = 20


def step(n, tokens=500):
    return Step(
        events=(
            NewEvent(type="model.responded", id=f"m-{n}", data=RawJSON('{"n": 1.0}')),
            NewEvent(type="tool.returned", id=f"t-{n}"),
        ),
        add={"tokens_spent": tokens},
        spend=Charge(budget="tokens", amount=tokens),
    )


DRAFT = RunDraft(
    key="mend",
    task="Mend it",
    budgets=(NewBudget(name="tokens", cap=2_000),),
    opening=(NewEvent(type="task.given"),),
    steps=(step(1), step(2), step(3)),
    result=RawJSON('{"ok": true}'),
)


class Fleet:
    """A key, a server, and the reports of whatever works."""

    def __init__(self, url):
        key = create_key(name="fleet", scopes=("write", "read", "payloads"), by=SYSTEM)
        self.shift = Shift(url=url, key=key.text, speed=50, ttl_seconds=5)
        self.reports = []
        self.stop = Stop()

    def client(self, name="other"):
        return Client(self.shift.url, self.shift.key, worker=name)

    def tell(self, what, **facts):
        self.reports.append((what, facts))

    def told(self, what):
        return [facts for name, facts in self.reports if name == what]

    def worker(self, **more):
        return Worker(
            shift=self.shift,
            name="sim",
            drafts={"mend": DRAFT},
            tell=self.tell,
            stop=self.stop,
            **more,
        )

    def create(self, key="r-1", *, tight=False, draft=DRAFT):
        with self.client() as client:
            create(client, Order(number=1, draft=draft, tight=tight), key=key, tag=self.shift.tag)

    def work_until_idle(self, worker):
        thread = threading.Thread(target=worker.work)
        thread.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.told("idle") and time.monotonic() < deadline:
            self.stop.wait(0.02)
        self.stop.set()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def fleet(live_server):
    yield Fleet(live_server.url)
    connection.close()


def types(key="r-1"):
    return list(
        Event.objects.filter(run__key=key, origin="worker")
        .order_by("seq")
        .values_list("type", flat=True)
    )


def test_a_worker_plays_a_run_from_its_beginning_to_its_end(fleet):
    fleet.create()
    fleet.work_until_idle(fleet.worker())

    run = Run.objects.get(key="r-1")
    assert (run.status, run.result) == ("completed", '{"ok": true}')
    assert types() == ["task.given", *["model.responded", "tool.returned"] * 3]
    assert run.counters == {"steps_done": 3, "tokens_spent": 1_500}
    assert Budget.objects.get(run=run).spent == 1_500
    assert Event.objects.filter(run=run, type="model.responded")[0].data == '{"n": 1.0}'
    assert [facts["status"] for facts in fleet.told("ended")] == ["completed"]


def test_a_worker_goes_on_where_the_one_before_it_came_to(fleet):
    fleet.create()
    with fleet.client() as client:
        (run,) = client.claim(tag="fleet")
        Playing(fleet.worker(), run, token=run.lease.token, client=client)._write(DRAFT.steps[0])
        run.release()
    fleet.work_until_idle(fleet.worker())

    assert types() == ["task.given", *["model.responded", "tool.returned"] * 3]
    assert Run.objects.get(key="r-1").counters["steps_done"] == 3


def test_a_charge_beyond_the_cap_ends_the_run_and_nothing_of_the_step_is_written(fleet):
    fleet.create(tight=True)
    fleet.work_until_idle(fleet.worker())

    run = Run.objects.get(key="r-1")
    assert run.status == "failed"
    assert types() == ["task.given", "model.responded", "tool.returned", "agent.stopped"]
    assert RawJSON(run.result).value() == {
        "reason": "budget-exhausted",
        "budget": "tokens",
        "cap": 900,
        "spent": 500,
        "asked": 500,
    }
    assert Refusal.objects.get().code == "budget-exhausted"


def test_of_two_that_want_one_number_one_gets_it_and_the_other_the_next(fleet):
    fleet.create()
    worker = fleet.worker()
    worker.deeds.add(Fault.RACE)
    fleet.work_until_idle(worker)

    assert Run.objects.get(key="r-1").status == "completed"
    assert types().count("note.written") == 1
    assert types().count("model.responded") == 3
    assert Refusal.objects.filter(code="seq-conflict").count() == len(fleet.told("conflict")) == 1


def test_a_dozen_that_want_one_number_all_get_one(fleet):
    fleet.create()
    worker = fleet.worker()
    worker.deeds.add(Fault.STAMPEDE)
    fleet.work_until_idle(worker)

    assert Run.objects.get(key="r-1").status == "completed"
    assert types().count("note.written") == STAMPEDE_WRITERS
    assert len(fleet.told("conflict")) >= STAMPEDE_WRITERS - 1
    assert fleet.told("trouble") == []


def test_a_spree_ends_where_the_cap_is(fleet):
    fleet.create()
    worker = fleet.worker()
    worker.deeds.add(Fault.SPREE)
    fleet.work_until_idle(worker)

    run, budget = Run.objects.get(key="r-1"), Budget.objects.get()
    assert run.status == "failed"
    assert RawJSON(run.result).value()["reason"] == "budget-exhausted"
    assert (budget.spent, budget.cap, budget.overdrawn) == (2_000, 2_000, False)


def test_a_spree_in_a_family_meets_the_budget_that_they_share(fleet):
    with fleet.client() as client:
        wanted = Order(number=1, draft=DRAFT, children=(DRAFT,))
        open_shared_budgets(fleet.shift, (DRAFT, DRAFT), key="r-1")
        open_shared_budgets(fleet.shift, (DRAFT, DRAFT), key="r-1")
        create(client, wanted, key="r-1", tag=fleet.shift.tag)
    worker = fleet.worker()
    worker.deeds.add(Fault.SPREE)
    fleet.work_until_idle(worker)

    shared = Budget.objects.get(run=None)
    assert (shared.name, shared.cap) == ("r-1.tokens", 3_600)
    assert shared.spent == sum(b.spent for b in Budget.objects.exclude(run=None)) <= shared.cap
    assert Run.objects.get(key="r-1.1").parent.key == "r-1"
    assert "failed" in set(Run.objects.values_list("status", flat=True))


def test_a_worker_of_an_old_release_writes_what_nobody_knows_and_it_is_kept_as_it_was_sent(fleet):
    fleet.create()
    fleet.work_until_idle(fleet.worker(host="m-1", is_old=True))

    unknown = Event.objects.filter(type="x-progress.v0")
    assert [event.data for event in unknown] == ['"1 more"'] * 3
    assert Run.objects.get(key="r-1").status == "completed"
    seen = WorkerRow.objects.get()
    assert (seen.host, seen.version, seen.slots) == ("m-1", OLD_VERSION, 1)


def test_a_worker_whose_run_was_taken_back_writes_too_late_and_is_fenced(fleet):
    fleet.create()
    worker = fleet.worker()
    with fleet.client() as client:
        (run,) = client.claim(tag="fleet")
        playing = Playing(worker, run, token=run.lease.token, client=client)
        playing.unwritten = DRAFT.steps[0]
        execute(
            ReclaimLease(
                unit="run:r-1",
                expected_token=run.lease.token,
                expected_owner=run.lease.owner,
                reason="stuck",
                force=True,
            ),
            by=SYSTEM,
        )
        execute(AcquireLease(unit="run:r-1", owner="w-2~0001"), by=SYSTEM)
        playing.write_too_late()

    assert [facts["code"] for facts in fleet.told("late")] == ["stale-fence"]
    assert types() == ["task.given"]
    assert Refusal.objects.get(code="stale-fence").token_sent == playing.token


def test_a_run_that_no_worker_knows_the_draft_of_is_failed_and_not_claimed_for_ever(fleet):
    fleet.create(draft=RunDraft(key="unknown", task="Do what?"))
    fleet.work_until_idle(fleet.worker())

    assert Run.objects.get(key="r-1").status == "failed"


def test_a_worker_that_is_told_to_stop_gives_its_run_back(fleet):
    fleet.create()
    fleet.shift = Shift(url=fleet.shift.url, key=fleet.shift.key, speed=0.01)
    thread = threading.Thread(target=fleet.worker().work)
    thread.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not fleet.told("step") and time.monotonic() < deadline:
        fleet.stop.wait(0.02)
    fleet.stop.set()
    thread.join(DEADLINE_SECONDS)

    run = Run.objects.get(key="r-1")
    assert not thread.is_alive()
    assert (run.status, run.owner) == ("running", None)
    assert "trouble" not in dict(fleet.reports)
