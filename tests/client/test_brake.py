"""A client on a braked run waits as it is told, and gets through."""

import pytest
from agentstate_client import Event, RetryPolicy
from agentstate_client.errors import RunHot

from agentstate import store
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import BrakeRun
from agentstate.store.hot import HOT


@pytest.fixture(autouse=True)
def _nothing_remembered(transactional_db):
    HOT.forget()
    yield
    HOT.forget()


def test_writes_to_a_braked_run_come_through_in_order(worker):
    client = worker("auditor")
    client.create(task="audit checkout", key="42")
    (run,) = client.claim(ttl_seconds=60)
    brake = BrakeRun(run="42", per_second=1, seconds=60, reason="it floods us")
    store.execute(brake, by=SYSTEM)

    numbers = [run.append(Event("step.done", {"n": n})).last_seq for n in range(3)]
    assert numbers == sorted(numbers)
    run.complete({"ok": True})


def test_who_may_not_wait_is_told_that_the_run_is_hot(live_server, api_key, make_client):
    with make_client(live_server.url, api_key, worker="w", retry=RetryPolicy(attempts=1)) as client:
        client.create(task="audit checkout", key="42")
        store.execute(BrakeRun(run="42", per_second=1, seconds=60, reason="x"), by=SYSTEM)
        client.run("42").append(Event("step.done"))
        with pytest.raises(RunHot) as hot:
            client.run("42").append(Event("step.done"))
    assert (hot.value.status, hot.value.current["per_second"]) == (429, 1)
    assert hot.value.retry_after_seconds == 1
