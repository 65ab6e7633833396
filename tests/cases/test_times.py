"""One instant is one instant wherever it is shown, and says in which zone."""

import csv
import io
import re
from datetime import UTC, datetime

import pytest

from tests.api.asking import Api, new_key
from tests.dashboard.reading import Page

ZONE = "America/Los_Angeles"
# Both are half past one there, an hour apart; and one in the night when the clocks are set ahead.
BEFORE, AFTER = datetime(2026, 11, 1, 8, 30, tzinfo=UTC), datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
SPRING = datetime(2026, 3, 8, 10, 30, tzinfo=UTC)


@pytest.fixture
def told(clock, store):
    """A run over the hour that comes twice, and one that began in spring."""
    clock.set(SPRING)
    store.create("spring")
    clock.set(BEFORE)
    store.create("42")
    clock.set(AFTER)
    store.append("42")
    clock.advance(minutes=10)


def shown(client, address, **query):
    return Page(client.get(address, {"zone": ZONE} | query))


def test_the_hour_that_comes_twice_is_told_apart_everywhere(told, viewer):
    """O-28: in the log, its titles, the timeline, the list and its filter, export and API."""
    run = shown(viewer, "/runs/42", event="2")
    assert [line[1] for line in run.lines if line[:1] in (["1"], ["2"])] == [
        "01:30:00 PDT",
        "01:30:00 PST",
    ]
    titles = set(re.findall(r"2026-11-01 01:30:00 P[SD]T", run.html))
    assert titles == {"2026-11-01 01:30:00 PDT", "2026-11-01 01:30:00 PST"}
    assert "created at 2026-11-01 08:30:00 UTC · 2026-11-01 01:30:00 PDT" in run.text
    assert "done at 2026-11-01 09:30:00 UTC · 2026-11-01 01:30:00 PST" in run.text
    assert "It has waited 1h 10m for its first worker" in run.text
    spring = shown(viewer, "/runs/spring")
    assert "2026-03-08 03:30:00" in spring.html

    rows = {cells[2].split()[0]: cells for cells in shown(viewer, "/runs").lines if len(cells) > 8}
    assert rows["42"][-2:] == ["10m", "1h 10m"]
    assert set(shown(viewer, "/runs", q="since:1h").rows()) == set()
    assert set(shown(viewer, "/runs", q="since:2h").rows()) == {"42"}
    sheet = viewer.get("/runs/-/export", {"format": "csv", "zone": ZONE}).getvalue().decode()
    created = {row["key"]: row["created_at"] for row in csv.DictReader(io.StringIO(sheet[1:]))}
    read = Api(new_key("reader", ["read"])).get("/runs/42")
    assert datetime.fromisoformat(created["42"]) == BEFORE
    assert datetime.fromisoformat(read["created_at"]) == BEFORE
    assert read["created_at"].endswith("Z")
