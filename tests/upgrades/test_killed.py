"""A migration of many rows is killed in the middle, and run again."""

import os
import signal
import subprocess
import sys
import time

import pytest
from django.conf import settings
from django.db import ProgrammingError, connection

from agentstate import postgres
from tests.bootstrap.conftest import ROOT, eventually
from tests.upgrades.test_changes import ask, counted, counting, run

__all__ = ["counted"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long, pytest.mark.many]

SLOWLY = "UPDATE counted SET times = times + 1 WHERE {range} AND pg_sleep(0.05) IS NOT NULL"
RUNS = f"""
import django
django.setup()
from tests.upgrades.test_changes import counting, run
run(counting({SLOWLY!r}))
"""
REACHED = "SELECT coalesce(max(after::int), 0) FROM agentstate_migration_progress"


def reached():
    """How far it has come by its own word; 0 before it has begun."""
    try:
        return ask(REACHED)
    except ProgrammingError:  # no such table yet
        return 0


def test_what_was_killed_in_the_middle_goes_on_and_changes_no_row_twice(counted):
    parts = settings.SESSION_PARTS | {"dbname": connection.settings_dict["NAME"]}
    told = os.environ | {
        "DATABASE_URL": postgres.conninfo(parts),
        "DJANGO_SETTINGS_MODULE": "agentstate.settings",
        "PYTHONPATH": f"{ROOT}:{ROOT}/client/src",
    }
    child = subprocess.Popen([sys.executable, "-c", RUNS], cwd=ROOT, env=told)
    eventually(lambda: 20 <= reached() <= 80 or child.poll() is not None)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    # The server may be in the middle of the batch that it was killed in, which it takes back.
    eventually(
        lambda: (
            not ask(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND query LIKE '%%counted%%'"
            )
        )
    )
    assert counted() == [0, 1]
    began = time.monotonic()
    run(counting())
    assert counted() == [1]
    assert time.monotonic() - began < 30
