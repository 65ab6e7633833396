"""A graph in a process of its own is killed, paused and overtaken. Its thread stays one history."""

from __future__ import annotations

import signal
import time

import httpx
import pytest
from conftest import LONG_TTL
from graph_process import NODES, build
from langgraph.checkpoint.base import empty_checkpoint

from agentstate_client import LeaseHeld, LeaseLost, StaleFence
from agentstate_client.langgraph import AgentStateSaver, ThreadMoved

WHOLE = ["how many?", "plan after 1", "search after 2", "answer after 3"]
CONFIG = {"configurable": {"thread_id": "42"}}


def began(program):
    return [line.removeprefix("begins ") for line in program.text.splitlines()
            if line.removeprefix("begins ") in NODES]  # fmt: skip


def test_a_graph_that_was_killed_goes_on_at_the_node_where_it_stopped(
    agentstate_server, starting, tmp_path
):
    first = starting("graph_process.py", agentstate_server.url, agentstate_server.key,
                     "42", 3, "search", tmp_path)  # fmt: skip
    first.says("begins search")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(30)

    second = starting("graph_process.py", agentstate_server.url, agentstate_server.key,
                      "42", 60, "nowhere", tmp_path, "hold")  # fmt: skip
    second.until(lambda: second.process.poll() is not None)

    assert f"done {WHOLE}" in second.text.splitlines(), second.text
    assert "goes on at ['search']" in second.text.splitlines()
    assert began(second) == ["search", "answer"]
    saver = AgentStateSaver(agentstate_server.client("looks"))
    assert saver.get(CONFIG)["channel_values"]["messages"] == WHOLE


def test_who_was_paused_while_another_went_on_writes_nothing_any_more(
    agentstate_server, starting, tmp_path
):
    paused = starting("graph_process.py", agentstate_server.url, agentstate_server.key,
                      "42", 2, "search", tmp_path)  # fmt: skip
    paused.says("begins search")
    paused.process.send_signal(signal.SIGSTOP)
    client = agentstate_server.client("second")
    with AgentStateSaver(client, ttl_seconds=LONG_TTL) as saver:
        with saver.hold("42", wait_seconds=120):
            graph = build().compile(checkpointer=saver)
            assert graph.invoke(None, CONFIG)["messages"] == WHOLE
        written = [event.seq for event in client.run("42").events(origin="worker")]

        (tmp_path / "go").touch()
        paused.process.send_signal(signal.SIGCONT)
        paused.until(lambda: paused.process.poll() is not None)

        # Its own clock said so, or the store did: never that all is well.
        assert paused.process.returncode == 3, paused.text
        refused = [line for line in paused.text.splitlines() if line.startswith("refused ")]
        assert refused in (["refused LeaseLost"], ["refused StaleFence"])
        assert [e.seq for e in client.run("42").events(origin="worker")] == written
        assert graph.get_state(CONFIG).values["messages"] == WHOLE


def test_a_put_behind_a_reclaim_is_refused_by_the_store(agentstate_server):
    saver = AgentStateSaver(agentstate_server.client("first"), ttl_seconds=LONG_TTL)
    other = agentstate_server.client("second")
    build().compile(checkpointer=saver).invoke({"messages": ["how many?"]}, CONFIG)
    newest = saver.get_tuple(CONFIG).config
    reclaim(agentstate_server, other.run("42").read())
    other.run("42").acquire(ttl_seconds=LONG_TTL)
    written = len(list(other.run("42").events(origin="worker")))

    with pytest.raises(StaleFence):
        saver.put_writes(newest, [("messages", ["late"])], "task")
    with pytest.raises(LeaseLost):  # from then on nothing leaves any more
        saver.put(newest, empty_checkpoint(), {"source": "loop", "step": 9}, {})
    assert len(list(other.run("42").events(origin="worker"))) == written


def test_a_graph_whose_thread_was_reclaimed_raises_and_puts_nothing_more(agentstate_server):
    saver = AgentStateSaver(agentstate_server.client("first"), ttl_seconds=LONG_TTL)
    other = agentstate_server.client("second")

    def taken_over(node):
        if node == "search":
            reclaim(agentstate_server, other.run("42").read())
            other.run("42").acquire(ttl_seconds=LONG_TTL)

    graph = build(taken_over).compile(checkpointer=saver)
    with pytest.raises((StaleFence, LeaseLost)):
        graph.invoke({"messages": ["how many?"]}, CONFIG, durability="sync")
    put = other.run("42").events(type="langgraph.checkpoint")
    assert len(list(put)) == 3  # the input, before the first node, after it


def reclaim(server, record):
    """An operator takes a live lease away."""
    answer = httpx.post(
        f"{server.url}/api/v1/leases/run:{record.key}/reclaim",
        headers={"Authorization": f"Bearer {server.key}"},
        json={"expected_token": record.token, "expected_owner": record.owner,
              "reason": "it is stuck", "force": True},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text


def test_a_thread_that_somebody_holds_is_refused_to_others(agentstate_server):
    one = AgentStateSaver(agentstate_server.client("one"), ttl_seconds=LONG_TTL)
    two = AgentStateSaver(agentstate_server.client("two"), ttl_seconds=LONG_TTL)
    with one.hold("42"):
        graph = build().compile(checkpointer=two)
        with pytest.raises(LeaseHeld) as refused:
            graph.invoke({"messages": ["how many?"]}, CONFIG)
        assert refused.value.owner.startswith("one~")
    assert build().compile(checkpointer=two).invoke({"messages": ["how many?"]}, CONFIG)


def test_who_read_the_thread_before_another_went_on_with_it_is_told(agentstate_server):
    one = AgentStateSaver(agentstate_server.client("one"), ttl_seconds=LONG_TTL)
    two = AgentStateSaver(agentstate_server.client("two"), ttl_seconds=LONG_TTL)
    with one.hold("42"):
        build().compile(checkpointer=one).invoke({"messages": ["how many?"]}, CONFIG)

    def meanwhile(node):
        if node == "plan":
            until = time.monotonic() + 60
            while not gone_on() and time.monotonic() < until:
                pass  # what the graph was still writing beside took the thread again
            written.extend(run.events(type="langgraph.checkpoint"))

    def gone_on() -> bool:
        two.release("42")
        try:
            with one.hold("42"):
                build().compile(checkpointer=one).invoke({"messages": ["and now?"]}, CONFIG)
        except LeaseHeld:
            return False
        return True

    written, run = [], agentstate_server.client("looks").run("42")
    slow = build(meanwhile).compile(checkpointer=two)
    with pytest.raises(ThreadMoved, match="invoke it again"):
        slow.invoke({"messages": ["me too"]}, CONFIG, durability="sync")
    assert list(run.events(type="langgraph.checkpoint")) == written
    assert build().compile(checkpointer=two).invoke({"messages": ["again"]}, CONFIG)


def test_an_idle_thread_is_given_back_by_itself(agentstate_server):
    saver = AgentStateSaver(agentstate_server.client("one"), ttl_seconds=LONG_TTL, idle_seconds=0.2)
    build().compile(checkpointer=saver).invoke({"messages": ["how many?"]}, CONFIG)
    run, until = agentstate_server.client("two").run("42"), time.monotonic() + 60
    while run.read().owner is not None:
        assert time.monotonic() < until
    with run.acquire():
        assert run.read().owner.startswith("two~")
