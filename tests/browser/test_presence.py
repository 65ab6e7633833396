"""Two people on one page see each other, also when their pages come from different processes."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.db import connection
from playwright.sync_api import expect

from agentstate import postgres
from tests.browser.conftest import Watched, log_in
from tests.dashboard.conftest import person
from tests.store.waiting import wait_for

HOSTILE = "<img src=x onerror=alert(1)>"
SOON_MS = 10_000  # promised are 3 s; a machine that is busy with other tests needs more


def lapse(store, clock, run="42", owner="w-3"):
    """A run whose holder fell silent."""
    store.create(run, task="audit checkout")
    store.hold(run, owner, ttl_seconds=30)
    clock.advance(seconds=90)
    store.sweep()


def onlookers(page):
    return page.locator("#onlookers")


def test_two_operators_at_one_reclaim_see_each_other(store, clock, open_window):
    lapse(store, clock)
    first, second = open_window("ana"), open_window("cy")
    first.page.goto("/leases/run:42/reclaim")
    expect(onlookers(first.page)).to_have_text("")

    second.page.goto("/leases/run:42/reclaim")
    expect(onlookers(first.page)).to_contain_text("cy is here too", timeout=SOON_MS)
    expect(onlookers(second.page)).to_contain_text("ana is here too", timeout=SOON_MS)
    expect(first.page.get_by_role("status").filter(has_text="cy is here too")).to_be_visible()

    second.page.goto("/leases")
    expect(onlookers(first.page)).to_have_text("", timeout=SOON_MS)
    assert first.faults == []
    assert second.faults == []


def test_whoever_comes_later_reads_it_without_scripts(store, open_window):
    store.create("42")
    first = open_window(HOSTILE).page
    first.goto("/runs/42")
    second = open_window("cy").page
    second.goto("/runs/42")
    expect(onlookers(first)).to_contain_text("cy is here too", timeout=SOON_MS)

    plain = open_window("dee", java_script_enabled=False).page
    plain.goto("/runs/42")

    expect(onlookers(plain)).to_contain_text(f"{HOSTILE} and cy have this page open")
    expect(onlookers(plain).locator("img")).to_have_count(0)


@contextmanager
def process():
    """The product's web process, as `./run` starts it, on the test database."""
    parts = postgres.conninfo(settings.DATABASE_PARTS, dbname=connection.settings_dict["NAME"])
    environment = os.environ | {
        "DATABASE_URL": parts,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "AGENTSTATE_TEST_HOME": str(settings.AGENTSTATE_HOME),
    }
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    running = subprocess.Popen(
        [sys.executable, "-m", "agentstate.web", str(listener.fileno())],
        env=environment, cwd=settings.BASE_DIR, pass_fds=[listener.fileno()],
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.terminate()
        running.wait(30)
        listener.close()


@pytest.fixture
def open_at(browser, transactional_db):
    """open_at(address, "ana"): a window in which she is logged in at this process."""
    contexts = []

    def make(address, name):
        person(name, "operator")
        context = browser.new_context(base_url=address)
        context.set_default_timeout(60_000)
        contexts.append(context)
        window = Watched(context)
        log_in(window.page, name)
        return window.page

    yield make
    for context in contexts:
        context.close()


def listeners():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'agentstate live' AND datname = current_database()"
        )
        return cursor.fetchone()[0]


@pytest.mark.long
def test_two_processes_tell_each_other(store, open_at):
    store.create("42")
    store.hold("42", "w-1", ttl_seconds=600)
    with process() as here, process() as there:
        ana, cy = open_at(here, "ana"), open_at(there, "cy")
        wait_for(lambda: listeners() == 2)
        ana.goto("/leases/run:42/reclaim")
        cy.goto("/leases/run:42/reclaim")

        expect(onlookers(ana)).to_contain_text("cy is here too", timeout=SOON_MS)
        expect(onlookers(cy)).to_contain_text("ana is here too", timeout=SOON_MS)

        cy.goto("/runs")
        expect(onlookers(ana)).to_have_text("", timeout=SOON_MS)
        # One LISTEN connection per process, whoever looks at what.
        assert listeners() == 2
