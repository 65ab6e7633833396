"""What stands about a run in one sentence."""

from datetime import UTC, datetime, timedelta

import pytest

from agentstate.store.models import Run
from dashboard.sentences import waiting_for

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def test_a_run_that_nobody_leases_waits_for_no_worker():
    run = Run(
        status="running",
        created_at=NOW - timedelta(minutes=9),
        updated_at=NOW - timedelta(seconds=7),
    )
    assert waiting_for(run, None, NOW) == (
        "It runs without a lease: no worker is given it. Last written to 7s ago."
    )


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ('{"reason": "budget-exhausted", "budget": "tokens"}', ": budget-exhausted"),
        ('{"code": "attempts-exhausted"}', ": attempts-exhausted"),
        ('{"reason": {"deep": 1}}', "."),
        ('["reason"]', "."),
        (None, "."),
    ],
)
def test_a_failed_run_says_why_when_its_result_does(result, told):
    run = Run(
        status="failed",
        last_seq=22,
        result=result,
        created_at=NOW - timedelta(seconds=41),
        ended_at=NOW,
        updated_at=NOW,
    )
    assert waiting_for(run, None, NOW) == f"It failed after 41s, with 22 events{told}"
