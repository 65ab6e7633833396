"""An agent's steps on its run: counted once, charged in full, fenced, and ended as they ended."""

import contextlib

import pytest
from agentstate_client import BudgetExhausted, CancelRequested, LeaseLost, NewBudget, StaleFence
from agentstate_client.recording import AsyncRecorder, Price, PriceUnknown, Recorder, Usage

PRICES = {"small": Price("0.15", "0.60")}


@pytest.fixture(params=["sync"])
def flavour(request):
    return request.param


@pytest.fixture
def make_client(flavour, loop):
    from blocking import clients

    return clients(flavour, loop)


@pytest.fixture
def held(worker):
    """held(cap=…): the run 42 with budgets in tokens and money, claimed."""

    def hold(*, cap=10_000, micros=10_000, url=""):
        client = worker("w-1", url=url)
        client.create(key="42", task="audit", budgets=[
            NewBudget("tokens", cap=cap), NewBudget("money", cap=micros, unit="usd_micros"),
            NewBudget("pages", cap=5, unit="pages")])  # fmt: skip
        (run,) = client.claim(ttl_seconds=60)
        return run

    return hold


def record(run, *work, **options):
    """A block in which each of these is done with the recorder."""
    with Recorder(run, **{"prices": PRICES} | options) as recorder:
        for one in work:
            one(recorder)


def one_step(recorder, usage=None):
    call = recorder.model_called(agent="clerk", model="small", messages=1)
    call.responded(usage=usage or Usage(100, 20), text="look", response_id="r-1")
    tool = recorder.tool_called("search", agent="clerk", arguments='{"q": "tea"}', call_id="c-1")
    tool.returned({"hits": 3})


def written(run):
    return list(run.events(origin="worker"))


def spent(run):
    return {
        budget["budget"]: (budget["spent"], budget["reserved"]) for budget in run.read().budgets
    }


def test_a_step_is_there_with_its_tokens_and_its_cost(held):
    run = held()
    with Recorder(run, prices=PRICES) as recorder:
        one_step(recorder)
        recorder.result = {"answer": 42}

    said = [(event.type, event.data) for event in written(run)]
    for _, data in said:
        data.pop("seconds", None)
    assert said == [
        ("model.called", {"step": 1, "agent": "clerk", "model": "small", "messages": 1}),
        ("model.responded", {
            "step": 1, "agent": "clerk", "model": "small", "response_id": "r-1", "text": "look",
            "usage": {"input_tokens": 100, "output_tokens": 20}, "cost_usd": 0.000027}),
        ("tool.called", {"step": 1, "agent": "clerk", "tool": "search", "tool_call_id": "c-1",
                         "arguments": {"q": "tea"}}),
        ("tool.returned", {"step": 1, "agent": "clerk", "tool": "search", "tool_call_id": "c-1",
                           "output": {"hits": 3}}),
    ]  # fmt: skip
    seen = run.read()
    assert (seen.status, seen.result) == ("completed", {"answer": 42})
    assert seen.counters == {"steps_done": 1, "tokens_spent": 120, "cost_usd_micros": 27}
    assert spent(run) == {"tokens": (120, 0), "money": (27, 0), "pages": (0, 0)}


def test_what_passed_the_cap_is_charged_in_full_and_no_call_begins_after_it(held):
    run = held(cap=150)
    with pytest.raises(BudgetExhausted) as refused:
        record(run, *[one_step] * 5)
    assert refused.value.budget == "tokens"
    seen = run.read()
    assert (seen.status, seen.result["error"]) == ("failed", "BudgetExhausted")
    assert spent(run)["tokens"] == (240, 0)
    assert seen.counters["steps_done"] == 2


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("address", ["/batch", "/events"])
def test_a_lost_answer_doubles_nothing(held, proxy, address):
    run = held(url=proxy.url)
    record(run, lambda _: proxy.cut_answers(address, times=2), one_step)
    assert proxy.cuts == 2
    types = [event.type for event in written(run)]
    assert types == ["model.called", "model.responded", "tool.called", "tool.returned"]
    assert spent(run) == {"tokens": (120, 0), "money": (27, 0), "pages": (0, 0)}
    assert run.read().counters["tokens_spent"] == 120


def test_who_was_overtaken_writes_nothing_more_and_is_told(held, worker):
    run, operator = held(), worker("operator")

    def overtaken(recorder):
        call = recorder.model_called(model="small")
        reclaim(operator, run)
        with pytest.raises((StaleFence, LeaseLost)):
            call.responded(usage=Usage(1, 1))
        with pytest.raises((StaleFence, LeaseLost)):  # and from then on, whoever hides the first
            recorder.tool_called("search")

    with pytest.raises((StaleFence, LeaseLost)):
        record(run, overtaken)
    assert [event.type for event in written(run)] == ["model.called"]
    assert run.read().status == "running"
    (other,) = operator.claim(ttl_seconds=60)
    assert spent(other)["tokens"][0] == 0


def test_an_agent_that_fails_says_in_what(held):
    run = held()

    def failing(recorder):
        recorder.model_called(model="small")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        record(run, failing)
    last = written(run)[-1]
    assert (last.type, last.data["error"]) == ("model.failed", "OSError")
    seen = run.read()
    assert (seen.status, seen.result) == ("failed", {"error": "OSError", "detail": "gone"})
    assert spent(run)["tokens"] == (0, 0)


def test_a_cancelled_run_stops_before_its_next_step(held, worker):
    run = held()
    with pytest.raises(CancelRequested):
        record(run, one_step, lambda _: run.lease.cancel_requested.set(), one_step)
    assert run.read().status == "cancelled"
    assert len(written(run)) == 4


def test_a_cap_in_money_needs_to_know_what_a_model_costs(held):
    run = held()
    with pytest.raises(ValueError, match="money is in money"):
        record(run, one_step, prices=None)

    def huge(recorder):
        recorder.model_called(model="huge").responded(usage=Usage(5, 5))

    with pytest.raises(PriceUnknown, match="what huge costs"):
        record(run, huge)
    seen = run.read()
    assert (seen.status, seen.counters["tokens_spent"]) == ("failed", 10)


def test_without_content_nothing_that_was_said_is_written(held):
    run = held()
    record(run, one_step, content=False, ends_run=False)
    told = written(run)
    assert "tea" not in repr([event.data for event in told])
    assert told[2].data["arguments_bytes"] == 12
    assert run.read().status == "running"


@pytest.mark.long
@pytest.mark.many
def test_a_refusal_that_was_hidden_is_raised_at_the_end(held):
    def hiding(recorder):
        for _ in range(3):
            with contextlib.suppress(BudgetExhausted):
                one_step(recorder)

    run = held(cap=130)
    with pytest.raises(BudgetExhausted):
        record(run, hiding)
    seen = run.read()
    assert (seen.status, seen.counters["steps_done"]) == ("failed", 2)


def test_a_run_that_nobody_holds_is_not_recorded_on(worker):
    run = worker("w-1").create(key="42", task="audit")
    with pytest.raises(ValueError, match="one that is held"):
        Recorder(run)
    with pytest.raises(ValueError, match="one that is held"):
        AsyncRecorder(run)


def reclaim(client, run):
    from agentstate_client._sync.transport import Call
    from agentstate_client.payloads import encode

    asked = {"expected_token": run.lease.token, "expected_owner": run.lease.owner,
             "reason": "stuck", "force": True}  # fmt: skip
    client._transport.send(Call("POST", f"/leases/run:{run.key}/reclaim", encode(asked)))
