"""The same promises on each broker: whatever is given out again has one effect, and is done.

Real brokers, real workers, SIGKILL. A task here begins, writes under an idempotency key, and ends
when the test lets it.
"""

import os
import signal

import pytest
from django.db import connection

from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AcquireLease, CreateRun
from agentstate.store.execute import execute
from agentstate.store.keys import create_key
from agentstate.store.models import Event, Lease, Run
from tests.bootstrap.layout import patiently
from tests.brokers.app import VISIBILITY_SECONDS
from tests.brokers.conftest import PATIENCE_SECONDS, eventually, kill_group
from tests.tasks.test_fleet import children

pytestmark = [pytest.mark.brokers, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def no_connection_is_kept():
    yield
    connection.close()


def begun(celery):
    return sorted(path.name for path in celery.folder.glob("began-*"))


def ended(celery):
    return sorted(path.name for path in celery.folder.glob("ended-*"))


def send_slow_task(celery):
    execute(CreateRun(key="r-1", task="Fix it"), by=SYSTEM)
    celery.send("test.append_slowly", run="r-1", folder=str(celery.folder))


def let_it_end(celery, *, starts):
    (celery.folder / "go").touch()
    eventually(lambda: len(ended(celery)) >= starts)


def written():
    return Event.objects.filter(run__key="r-1", origin="worker").count()


def test_a_task_of_a_killed_worker_is_given_to_the_next_one_and_has_one_effect(celery):
    first = celery.worker()
    send_slow_task(celery)
    eventually(lambda: len(begun(celery)) == 1)
    kill_group(first)
    celery.worker()

    eventually(lambda: len(begun(celery)) >= 2)
    let_it_end(celery, starts=1)
    assert written() == 1


def test_a_task_of_a_killed_process_of_the_pool_is_done_by_another(celery):
    """Case O-46 (docs/cases.md)."""
    worker = celery.worker()
    send_slow_task(celery)
    (start,) = eventually(lambda: begun(celery))
    os.kill(int(start.split("-")[1]), signal.SIGKILL)

    eventually(lambda: len(begun(celery)) >= 2)
    let_it_end(celery, starts=1)
    assert worker.poll() is None
    assert written() == 1


@pytest.fixture
def impatient(broker):
    broker.wait_for_acknowledgements(VISIBILITY_SECONDS)
    yield
    broker.wait_for_acknowledgements(1_800)


def test_a_task_longer_than_the_broker_waits_runs_twice_and_has_one_effect(impatient, celery):
    """RabbitMQ closes the channel then, and Celery's worker ends; another one goes on (O-09)."""
    celery.worker()
    celery.worker()
    send_slow_task(celery)

    eventually(lambda: len(begun(celery)) >= 2)
    let_it_end(celery, starts=2)
    assert written() == 1


def test_a_warm_stop_lets_a_task_end_and_it_is_not_given_out_again(celery):
    first = celery.worker()
    send_slow_task(celery)
    eventually(lambda: begun(celery))
    first.send_signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in celery.log())
    let_it_end(celery, starts=1)
    assert first.wait(PATIENCE_SECONDS) == 0

    celery.worker()
    celery.send("test.append_slowly", run="r-1", folder=str(celery.folder))
    eventually(lambda: len(begun(celery)) == 2)
    assert written() == 1


def test_sweeps_that_come_twenty_times_to_two_workers_have_the_effect_of_one(celery, clock):
    celery.worker()
    celery.worker()
    execute(CreateRun(key="r-1", task="Fix it"), by=SYSTEM)
    execute(AcquireLease(unit="run:r-1", owner="w-1~0001", ttl_seconds=5), by=SYSTEM)
    clock.advance(seconds=6)
    for _ in range(20):
        celery.send("agentstate.note_lapsed_leases")

    eventually(lambda: celery.log().count("note_lapsed_leases") >= 40)
    assert Event.objects.filter(type="lease.lapsed").count() == 1


@pytest.fixture
def shift(celery, live_server):
    """A worker with a shift of the fleet in its hands, and a run in the shift's."""
    key = create_key(name="fleet", scopes=("write", "read", "payloads"), by=SYSTEM).text
    celery.more["AGENTSTATE_KEY"] = key
    worker = celery.worker(queue="fleet")

    def send(seconds):
        celery.send("agentstate.work_shift", queue="fleet", url=live_server.url, seconds=seconds,
                    speed=8, crash_rate=0, freeze_rate=0)  # fmt: skip
        eventually(lambda: Run.objects.filter(status="running", owner__isnull=False).exists())
        return worker

    return send


def test_a_warm_stop_lets_a_shift_end_and_leaves_its_runs_free(celery, shift):
    worker = shift(8)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(PATIENCE_SECONDS) == 0, celery.log()
    assert not Lease.objects.filter(token__isnull=False).exists()
    assert not Run.objects.filter(owner__isnull=False).exists()


def test_a_shift_of_a_killed_worker_ends_with_it_and_the_next_one_takes_its_runs_over(
    celery, shift
):
    worker = shift(25)
    (before,) = set(Run.objects.filter(owner__isnull=False).values_list("key", flat=True))
    family = [pid for child in children(worker.pid) for pid in (child, *children(child))]
    kill_group(worker)
    eventually(lambda: not [pid for pid in family if os.path.exists(f"/proc/{pid}")])
    celery.worker(queue="fleet")

    def gone_on():
        return Event.objects.filter(run__key=before, type="lease.acquired").count() >= 2

    eventually(gone_on)


def test_a_worker_that_is_told_to_end_does_not_wait_for_a_long_task(celery):
    """What it cut off is given out again, and has one effect."""
    first = celery.worker()
    send_slow_task(celery)
    eventually(lambda: begun(celery))
    first.send_signal(signal.SIGTERM)
    patiently(lambda: first.poll() is not None, within_seconds=15, or_say=celery.log)
    assert ended(celery) == []

    celery.worker()
    eventually(lambda: len(begun(celery)) >= 2)
    let_it_end(celery, starts=1)
    assert written() == 1
