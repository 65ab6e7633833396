"""The evaluation of alerts by the clock."""

import pytest

from agentstate.store.alerting import EVERY_SECONDS, RULES
from agentstate.store.models import Alert, Heartbeat
from agentstate.store.upkeep import JOBS
from tasks import alerts
from tasks.schedule import SCHEDULE

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_pass_judges_every_rule_and_leaves_a_heartbeat(clock):
    alerts.evaluate_alerts()
    alerts.evaluate_alerts(of_a_newer_release=True)

    assert Alert.objects.count() == len(RULES)
    assert Heartbeat.objects.get(name="evaluate alerts").passes == 2


def test_it_comes_as_often_as_the_page_expects():
    assert JOBS["evaluate alerts"] == EVERY_SECONDS
    assert SCHEDULE["evaluate-alerts"]["schedule"] == EVERY_SECONDS
