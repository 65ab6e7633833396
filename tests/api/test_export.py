"""A run as JSON lines over HTTP: what it says, and that it can be taken back."""

import json

import pytest

from agentstate import store
from agentstate.store import export, reads
from agentstate.store.commands import Append, NewEvent
from tests.store.asking import FLEET

RAW = '{"z":1.50, "a":12345678901234567890,"é":"\\u00e9"}'


@pytest.fixture
def lived(api):
    """A run with payloads, charges of two budgets, a lease, and an end."""
    budgets = [{"name": "tokens", "cap": 100}, {"name": "calls", "unit": "calls", "cap": 9}]
    api.create("42", budgets=budgets, tags=["x"])
    token = api.hold("42")
    for n in range(3):
        body = f'{{"events": [{{"type": "a", "data": {RAW}, "id": "e-{n}"}}], "add": {{"n": 1}}}}'
        assert api.post("/runs/42/events", body, Agentstate_Fence=token).status == 201
    api.post("/runs/42/budgets/tokens/spend", {"amount": 5}, Agentstate_Fence=token)
    api.move("completed", result={"ok": True}, Agentstate_Fence=token)
    return api


def test_an_export_has_everything_of_the_run_in_order(lived):
    answer = lived.get("/runs/42/export")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="42.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["kind"] for line in lines] == [
        "run", "budget", "entry", "budget", "entry", "entry", *["event"] * 7, "end",
    ]  # fmt: skip
    assert lines[0]["key"] == "42"
    assert lines[0]["status"] == "completed"
    assert lines[-1] == {"kind": "end", "events": 7, "entries": 3}
    assert answer.text.count(f'"data":{RAW}') == 3


def test_an_export_is_what_the_history_in_memory_is(lived):
    """The pages that are read one after the other, and one whole history, are the same lines."""
    view = reads.run("42")
    whole = export.history(
        view.run,
        events=reads.events(run_key="42", wanted=reads.EventFilter(), limit=500).items,
        budgets=[b.budget for b in view.budgets],
        entries=[
            line.entry
            for b in view.budgets
            for line in reads.ledger(run_key="42", name=b.budget.name, after=0, limit=500).items
        ],
    )
    assert lived.get("/runs/42/export").text == "".join(export.run_lines(whole))


def test_what_is_written_meanwhile_is_not_half_in_it(api, monkeypatch):
    monkeypatch.setattr(export, "PAGE", 2)
    api.create("42", events=[{"type": "a"}] * 5, budgets=[{"name": "tokens", "cap": 100}])
    lines = export.export("42")
    taken = [next(lines)]
    store.execute(Append(run="42", events=(NewEvent(type="late"),)), by=FLEET)
    api.post("/runs/42/budgets/tokens/spend", {"amount": 5})
    taken += lines
    assert json.loads(taken[-1]) == {"kind": "end", "events": 6, "entries": 1}
    assert "late" not in "".join(taken)
    assert len(taken) == 10


def test_an_export_needs_payloads_too(lived, with_scopes):
    assert with_scopes("read").get("/runs/42/export").refused == (403, "not-allowed")
    assert with_scopes("payloads").get("/runs/42/export").refused == (403, "not-allowed")
    assert with_scopes("read", "payloads").get("/runs/42/export").status == 200


def test_an_export_of_what_is_not_there_is_404(api):
    assert api.get("/runs/none/export").refused == (404, "not-found")
    assert api.send("HEAD", "/runs/none/export", content_type="").status == 404
