"""The evaluation of alerts, by the clock. How often: tasks/schedule.py."""

from __future__ import annotations

from agentstate.store import alerts
from agentstate.store.upkeep import beat
from tasks.app import app


@app.task(name="agentstate.evaluate_alerts", ignore_result=True, time_limit=60)
def evaluate_alerts(**_newer: object) -> None:
    """Judge every alert by its figure. Every 15 s. Twice at once is safe (one evaluates, the other
    goes), late only tells people later, and when it does not come the page says so itself.
    """
    with beat(alerts.JOB) as this:
        this.did = len(alerts.evaluate_all() or ())
