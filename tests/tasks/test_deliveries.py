"""Deliveries by the clock, end to end: an alert fires, a real receiver is told, whoever dies."""

import os
import signal
import subprocess
import sys
from ipaddress import ip_network

import pytest
from django.conf import settings as site
from django.db import connection

from agentstate.outside import webhooks
from agentstate.store import deliveries, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import TryTarget
from agentstate.store.delivering import CLAIM_SECONDS
from agentstate.store.execute import execute
from agentstate.store.models import Heartbeat
from agentstate.store.upkeep import JOBS
from tasks import alerts
from tasks.schedule import SCHEDULE
from tests.outside import receiver as ways
from tests.outside.receiver import receiving, status
from tests.store.asking import at_once
from tests.store.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def loopback(settings):
    settings.DELIVERY_NETWORKS = (ip_network("127.0.0.0/8"),)


def make(receiver, name="ops", kind="webhook", address=None):
    return targets.create_target(
        name=name, kind=kind, address=address or receiver.url, hint="http://127.0.0.1/…", by=SYSTEM
    )


def ask_for_test(name="ops"):
    return execute(TryTarget(name=name), by=SYSTEM).delivery


def test_what_is_due_goes_out_signed_and_leaves_a_heartbeat(clock):
    with receiving() as receiver:
        made = make(receiver)
        told = ask_for_test()
        alerts.deliver_alerts(of_a_newer_release=True)
        alerts.deliver_alerts()
    (got,) = receiver.got
    assert got.headers["webhook-id"] == told
    assert got.headers["webhook-timestamp"] == str(int(clock.now.timestamp()))
    at = got.headers["webhook-timestamp"]
    signed = f"{told}.{at}.{got.body.decode()}"
    assert got.headers["webhook-signature"] == f"v1,{webhooks.signature(made.secret, signed)}"
    assert made.secret.encode() not in got.body
    beat = Heartbeat.objects.get(name=deliveries.JOB)
    assert (beat.passes, beat.behind, beat.failed) == (2, 0, None)


def test_some_that_fail_and_some_that_are_slow_hold_up_nobody_else(clock, monkeypatch):
    monkeypatch.setattr(webhooks, "SECONDS", 0.5)
    with receiving() as good, receiving(status(500)) as bad, receiving(ways.drip) as slow:
        for name, receiver in (("good", good), ("bad", bad), ("slow", slow)):
            make(receiver, name)
            ask_for_test(name)
        alerts.deliver_alerts()
    found = {d.target: (d.state, d.status, d.answer) for d in deliveries.read()}
    assert found == {
        "good": ("delivered", 200, "fine"),
        "bad": ("failed", 500, ""),
        "slow": ("failed", None, "no whole answer within 0 s"),
    }


def test_workers_at_once_deliver_each_once(clock):
    with receiving() as receiver:
        for number in range(9):
            make(receiver, f"t-{number}")
            ask_for_test(f"t-{number}")
        at_once(4, lambda n: alerts.deliver_alerts())
        alerts.deliver_alerts()
    ids = [got.headers["webhook-id"] for got in receiver.got]
    assert len(ids) == len(set(ids)) == 9
    assert {d.state for d in deliveries.read()} == {"delivered"}


WORKER = """
import django, os, sys
django.setup()
from django.conf import settings
from ipaddress import ip_network
settings.DATABASES["default"]["NAME"] = sys.argv[1]
settings.DELIVERY_NETWORKS = (ip_network("127.0.0.0/8"),)
from tasks import alerts
alerts.deliver_alerts()
"""


def test_killed_in_the_middle_of_a_try_it_goes_out_again_with_the_same_id(clock):
    """SIGKILL while the receiver has the request: it hears twice, and knows that it is the same."""
    with receiving(ways.never) as receiver:
        make(receiver)
        with connection.cursor() as cursor:
            told = ask_for_test()
            cursor.execute("UPDATE agentstate_delivery SET attempts_max = 8, what = 'firing'")
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, connection.settings_dict["NAME"]],
            cwd=site.BASE_DIR,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        try:
            wait_for(lambda: receiver.got, deadline_seconds=60)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        receiver.answer = ways.OK
        alerts.deliver_alerts()
        assert len(receiver.got) == 1
        clock.advance(seconds=CLAIM_SECONDS)
        alerts.deliver_alerts()
    assert [got.headers["webhook-id"] for got in receiver.got] == [told, told]
    assert receiver.got[0].body == receiver.got[1].body
    (line,) = deliveries.read()
    assert (line.state, line.attempts) == ("delivered", 2)


def test_a_service_is_told_through_apprise(clock):
    with receiving() as receiver:
        make(receiver, kind="apprise", address=f"json://127.0.0.1:{receiver.port}/")
        ask_for_test()
        alerts.deliver_alerts()
    assert b"agentstate: a test" in receiver.got[0].body
    assert [d.state for d in deliveries.read()] == ["delivered"]


def test_a_target_that_cannot_be_read_is_a_failed_try(clock, settings):
    with receiving() as receiver:
        make(receiver)
        ask_for_test()
        settings.SECRET_KEY = "another " * 8
        alerts.deliver_alerts()
        assert receiver.connections == 0
    assert "AGENTSTATE_SECRET_KEY" in deliveries.read()[0].answer


def test_a_fault_of_our_own_is_a_failed_try_and_stops_no_other(clock, monkeypatch):
    async def broken(claim):
        raise RuntimeError("of ours")

    monkeypatch.setattr(alerts, "send", broken)
    with receiving() as receiver:
        make(receiver)
        ask_for_test()
        alerts.deliver_alerts()
    assert "a fault of ours" in deliveries.read()[0].answer


def test_it_comes_as_often_as_the_jobs_say():
    assert SCHEDULE["deliver-alerts"]["schedule"] == JOBS[deliveries.JOB]
