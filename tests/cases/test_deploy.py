"""A newer release beside this one: what this one does not know stays as it is."""

import pytest
from agentstate_client import Event, IllegalTransition, RawJSON
from django.db import connection

from agentstate.store.models import Run
from tasks import upkeep
from tests.api.asking import Api, new_key
from tests.dashboard.reading import Page
from tests.store.asking import rows

UNKNOWN = '{"thought": {"v": 2, "parts": [1.10, "é"]}, "unknown": null}'


@pytest.mark.damages
def test_what_a_newer_release_wrote_is_shown_and_left_as_it_is(worker, log_in):
    """O-48: a type and a status that this release does not know."""
    client = worker("w-1")
    made = client.create(task="t", key="42")
    (run,) = client.claim(ttl_seconds=60)
    run.append(Event("model.thought.v2", RawJSON(UNKNOWN)))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentstate_run SET status = 'paused_by_policy' WHERE key = '42'")
    before = Run.objects.filter(key="42").values().get()

    record = made.read()
    assert record.status == "paused_by_policy"
    found = next(e for e in made.events() if e.type == "model.thought.v2")
    assert found.raw == UNKNOWN
    listed = Api(new_key("reader", ["read"])).get("/runs?status=paused_by_policy")
    assert listed.status == 422 or [run["key"] for run in listed["items"]] == ["42"]
    operator = log_in("ana", "senior")
    for address in ("/", "/runs", "/runs/42", "/runs/42?tab=state", "/runs/42?event=4", "/leases",
                    "/workers", "/runs/42/timeline", "/runs/42/refresh?after=1", "/contention",
                    "/runs/42/cancel", "/runs?q=status:paused_by_policy"):  # fmt: skip
        assert operator.get(address).status_code == 200, address
    page = Page(operator.get("/runs/42"))
    assert "paused_by_policy" in page.text
    assert "model.thought.v2" in page.text

    for sweep in (upkeep.note_lapsed_leases, upkeep.carry_out_deadlines, upkeep.drop_dead_holds,
                  upkeep.purge):  # fmt: skip
        sweep()
    assert client.claim() == []
    with pytest.raises(IllegalTransition):
        run.complete()
    after = Run.objects.filter(key="42").values().get()
    assert after == before
    assert rows("SELECT data::text FROM agentstate_event WHERE type = 'model.thought.v2'") == [
        (UNKNOWN,)
    ]
