"""Open pages keep up with the store: by hints when they come, by polling when they do not."""

import json

import psycopg
import pytest
from playwright.sync_api import expect

from agentstate import postgres
from tests.store.asking import event


def test_an_event_appears_while_one_looks(store, window):
    store.create("42")
    window.page.goto("/runs/42")
    expect(window.page.locator("#live")).to_have_attribute("data-state", "live")
    expect(window.page.locator("#events tr")).to_have_count(1)

    store.append("42", [event("tool.called", {"tool": "bash"})])

    row = window.page.locator("#e-2")
    expect(row).to_contain_text("tool.called", timeout=3_000)
    expect(window.page.locator("#head")).to_contain_text("v2")
    assert window.faults == []


def test_a_row_of_the_list_changes_in_place_and_new_runs_are_announced(store, window):
    store.create("42")
    window.page.goto("/runs")
    expect(window.page.locator("#run-42")).to_contain_text("pending")

    store.hold("42", "w-7")
    store.create("43")

    expect(window.page.locator("#run-42")).to_contain_text("running", timeout=5_000)
    expect(window.page.locator("#run-42")).to_contain_text("w-7")
    expect(window.page.locator("#newer")).to_contain_text("1 new run", timeout=8_000)
    expect(window.page.locator("#run-43")).to_have_count(0)
    window.page.get_by_role("link", name="1 new run: show it").click()
    expect(window.page.locator("#run-43")).to_be_visible()


def test_a_stream_that_is_cut_again_and_again_loses_and_doubles_nothing(store, window):
    """Case O-30 (docs/cases.md)."""
    store.create("42")
    window.page.goto("/runs/42")
    expect(window.page.locator("#live")).to_have_attribute("data-state", "live")

    for _ in range(10):
        store.append("42", [event() for _ in range(30)])
        cut_listeners()

    expect(window.page.locator("#e-301")).to_be_attached(timeout=40_000)
    numbers = window.page.locator("#events tr").evaluate_all(
        "rows => rows.map(row => Number(row.dataset.seq))"
    )
    assert numbers == list(range(1, 302))


def cut_listeners() -> None:
    """End the sessions that listen, as a restart of PostgreSQL would."""
    from django.db import connection

    conninfo = postgres.conninfo(_parts(), dbname=connection.settings_dict["NAME"])
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'agentstate live' AND datname = current_database()"
        )


def _parts():
    from django.conf import settings

    return settings.DATABASE_PARTS


def test_scrolling_up_stops_following_and_a_button_goes_on(store, window):
    store.create("42")
    store.append("42", [event() for _ in range(60)])
    window.page.goto("/runs/42")
    follow = window.page.locator("#follow")
    expect(follow).to_have_text("Following")
    log = window.page.locator("#log")
    window.page.wait_for_timeout(200)

    log.hover()
    window.page.mouse.wheel(0, -1_000)
    expect(follow).to_have_text("Follow")
    store.append("42", [event("while.reading")])
    expect(follow).to_have_text("1 new", timeout=5_000)
    top = log.evaluate("log => log.scrollTop")
    follow.click()

    expect(follow).to_have_text("Following")
    assert log.evaluate("log => log.scrollTop") > top


def test_the_page_goes_to_the_login_when_the_session_is_over(store, window):
    """Case O-38 (docs/cases.md)."""
    from dashboard.models import Session

    store.create("42")
    window.page.goto("/runs/42")
    Session.objects.all().delete()

    store.append("42", [event()])

    window.page.wait_for_url("**/login?next=*", timeout=15_000)
    expect(window.page.locator("table")).to_have_count(0)
    assert "next=%2Fruns%2F42" in window.page.url


@pytest.mark.long
def test_a_server_that_is_away_is_said_and_what_was_seen_stays(store, window):
    store.create("42")
    window.page.goto("/runs/42")
    window.context.set_offline(True)

    expect(window.page.locator("#live")).to_have_attribute("data-state", "off", timeout=40_000)
    expect(window.page.locator("#e-1")).to_be_attached()
    store.append("42", [event("when.back")])
    window.context.set_offline(False)

    expect(window.page.locator("#e-2")).to_contain_text("when.back", timeout=20_000)
    expect(window.page.locator("#live")).to_have_attribute("data-state", "live", timeout=10_000)


def test_text_that_is_being_selected_is_not_taken_away(store, window):
    store.create("42")
    window.page.goto("/runs")
    row = window.page.locator("#run-42")
    # In one step: the first refresh may draw the row anew between finding it and selecting in it.
    window.page.evaluate("getSelection().selectAllChildren(document.querySelector('#run-42 th'))")

    store.hold("42", "w-7")
    # The rest of the page keeps up, and the page says what does not.
    expect(window.page.locator("#statuses a.status-running")).to_contain_text("1", timeout=10_000)
    expect(window.page.locator("#live")).to_have_attribute("data-state", "frozen")
    expect(row).to_contain_text("pending")

    window.page.evaluate("getSelection().removeAllRanges()")
    expect(row).to_contain_text("running", timeout=12_000)
    expect(window.page.locator("#live")).to_have_attribute("data-state", "live")


def test_only_one_stream_is_open_and_it_follows_the_page(store, window):
    """Case O-32 (docs/cases.md)."""
    store.create("42")
    window.page.goto("/runs/42")
    window.page.wait_for_timeout(500)
    for tab in ("Ownership", "Refused", "Events"):
        window.page.locator("#tabs").get_by_role("link", name=tab).click()
        window.page.wait_for_url("**" + ("tab=" + tab.lower() if tab != "Events" else "/runs/42"))
    streams = [url for url in window.requests if "/live/console" in url]

    assert 1 <= len(set(streams)) <= 2
    assert json.dumps(sorted(set(streams))).count("run=42") == 1
