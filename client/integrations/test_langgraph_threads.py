"""What a thread keeps, and what reading it costs."""

from __future__ import annotations

import asyncio
import operator
import os
from collections import Counter
from typing import Annotated, TypedDict

import pytest
from conftest import LONG_TTL
from graph_process import build
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph

from agentstate_client import Unsendable
from agentstate_client.langgraph import (
    AgentStateSaver,
    AgentStateStore,
    AsyncAgentStateSaver,
    AsyncAgentStateStore,
)
from agentstate_client.packing import VALUE_BYTES_MAX

CONFIG = {"configurable": {"thread_id": "42"}}
ASKED = {"messages": ["how many?"]}


@pytest.fixture
def saver(agentstate_server):
    with AgentStateSaver(agentstate_server.client("one"), ttl_seconds=LONG_TTL) as saver:
        yield saver


@pytest.fixture
def other(agentstate_server):
    """A saver that knows nothing yet."""
    return AgentStateSaver(agentstate_server.client("two"), ttl_seconds=LONG_TTL)


def put(saver, values, *, new, config=CONFIG, versions=None):
    checkpoint = {**empty_checkpoint(), "channel_values": values,
                  "channel_versions": versions or dict.fromkeys(values, "1")}  # fmt: skip
    placed = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    return saver.put(placed, checkpoint, {"source": "loop", "step": 1}, new)


@pytest.mark.parametrize("size", [600, 720 * 1024, 720 * 1024 + 1, 9 * 1024 * 1024])
def test_a_value_of_any_size_comes_back_as_it_was(saver, other, size):
    value = os.urandom(size)
    put(saver, {"blob": value}, new={"blob": "1"})
    assert other.get(CONFIG)["channel_values"] == {"blob": value}


def test_a_value_above_the_limit_is_refused_and_leaves_nothing(saver, agentstate_client):
    put(saver, {"a": 1}, new={"a": "1"})
    with pytest.raises(Unsendable, match="the channel blob is 67,108,865 bytes"):
        put(saver, {"blob": bytes(VALUE_BYTES_MAX + 1)}, new={"blob": "1"})
    assert [e.type for e in agentstate_client.run("42").events(origin="worker")] == [
        "langgraph.checkpoint"
    ]


def test_what_did_not_change_is_not_written_again(saver, other, agentstate_client):
    large = os.urandom(100_000)
    config = put(saver, {"large": large, "n": 0}, new={"large": "1", "n": "1"})
    for n in range(1, 4):
        versions = {"large": "1", "n": str(n + 1)}
        config = put(saver, {"large": large, "n": n}, new={"n": str(n + 1)}, config=config,
                     versions=versions)  # fmt: skip
    kinds = Counter(event.type for event in agentstate_client.run("42").events(origin="worker"))
    assert kinds == {"langgraph.part": 1, "langgraph.checkpoint": 4}
    assert other.get(CONFIG)["channel_values"] == {"large": large, "n": 3}


def test_the_newest_checkpoint_of_a_long_thread_costs_one_page(saver, agentstate_server):
    config = CONFIG
    for n in range(60):
        config = put(saver, {"n": n}, new={"n": str(n)}, config=config, versions={"n": str(n)})
    client = agentstate_server.client("counts")
    asked, send = [], client._transport.send
    client._transport.send = lambda call: asked.append(call.query) or send(call)
    fresh = AgentStateSaver(client)
    assert fresh.get(CONFIG)["channel_values"] == {"n": 59}
    assert len(asked) == 1
    assert [t.checkpoint["channel_values"]["n"] for t in fresh.list(CONFIG, limit=3)] == [
        59,
        58,
        57,
    ]
    assert len(asked) == 2  # whether anything came since
    assert len(list(fresh.list(CONFIG))) == 60
    assert len(asked) < 12


def test_a_list_may_be_left_in_the_middle_to_go_on_from_there(saver):
    graph = build().compile(checkpointer=saver)
    graph.invoke(ASKED, CONFIG)
    for state in graph.get_state_history(CONFIG):
        if state.next == ("search",):
            told = graph.invoke(None, state.config)
    assert told["messages"][-1] == "answer after 3"
    branches = [s for s in graph.get_state_history(CONFIG) if s.next == ("search",)]
    assert {len(s.values["messages"]) for s in branches} == {2}


def test_a_thread_of_any_name_has_a_run(saver, other):
    name = "what is this? ü/" + "x" * 300
    config = {"configurable": {"thread_id": name}}
    build().compile(checkpointer=saver).invoke(ASKED, config)
    assert other.get_tuple(config).config["configurable"]["thread_id"] == name
    assert {t.config["configurable"]["thread_id"] for t in other.list(None)} == {name}


def test_a_deleted_thread_begins_anew(saver, other):
    graph = build().compile(checkpointer=saver)
    graph.invoke(ASKED, CONFIG)
    saver.delete_thread("42")
    assert other.get_tuple(CONFIG) is None
    assert list(other.list(CONFIG)) == []
    assert graph.invoke(ASKED, CONFIG)["messages"][0] == "how many?"
    assert len(other.get(CONFIG)["channel_values"]["messages"]) == 4


def test_a_graph_goes_on_after_a_prune_and_the_older_ones_are_gone(saver, other):
    graph = build().compile(checkpointer=saver)
    graph.invoke(ASKED, CONFIG)
    saver.prune(["42"])
    assert len(list(other.list(CONFIG))) == 1
    graph.invoke({"messages": ["and now?"]}, CONFIG)
    assert len(other.get(CONFIG)["channel_values"]["messages"]) == 8
    with pytest.raises(ValueError, match="strategy"):
        saver.prune(["42"], strategy="keep-some")


def test_subgraphs_have_their_own_checkpoints(saver, other):
    class State(TypedDict):
        messages: Annotated[list[str], operator.add]

    inner = build().compile(checkpointer=True)
    outer = StateGraph(State)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    graph = outer.compile(checkpointer=saver)
    graph.invoke(ASKED, CONFIG)
    graph.invoke(ASKED, CONFIG)
    spaces = Counter(t.config["configurable"]["checkpoint_ns"] for t in other.list(CONFIG))
    assert set(spaces) == {"", "inner"}
    assert spaces["inner"] == 10


def test_the_async_saver_is_used_by_async_graphs_and_from_threads_by_sync_ones(agentstate_server):
    async def go():
        async with (
            agentstate_server.async_client("a") as client,
            AsyncAgentStateSaver(client, ttl_seconds=LONG_TTL) as saver,
        ):
            graph = build().compile(checkpointer=saver)
            async with saver.hold("42"):
                told = await graph.ainvoke(ASKED, CONFIG)
                with pytest.raises(RuntimeError, match="ainvoke"):
                    graph.get_state(CONFIG)
            again = await asyncio.to_thread(graph.invoke, ASKED, CONFIG)
            states = [s async for s in graph.aget_state_history(CONFIG)]
            return told["messages"], again["messages"], len(states)

    told, again, states = asyncio.run(go())
    assert (len(told), len(again), states) == (4, 8, 10)


def test_a_worker_goes_on_with_the_thread_that_it_claimed(agentstate_server):
    client = agentstate_server.client("worker")
    saver = AgentStateSaver(client, ttl_seconds=LONG_TTL)
    client.create(task="chat", key="42", status="pending")

    @client.worker(task="chat", ttl_seconds=LONG_TTL)
    def chat(run):
        with saver.hold(run):
            graph = build().compile(checkpointer=saver)
            return graph.invoke(ASKED, {"configurable": {"thread_id": run.key}})["messages"]

    client.work(until_idle=True)
    record = client.run("42").read()
    assert (record.status, record.attempt, len(record.result)) == ("completed", 1, 4)


# --- the store ---


def check_store(store):
    store.put(("users", "ana"), "name", {"name": "Ana", "age": 41})
    store.put(("users", "ana"), "likes", {"what": ["tea"]})
    store.put(("users", "ben"), "name", {"name": "Ben", "age": 17})
    store.put(("users", "ana"), "name", {"name": "Ana", "age": 42})
    found = store.get(("users", "ana"), "name")
    assert found.value == {"name": "Ana", "age": 42}
    assert found.updated_at > found.created_at
    assert store.get(("users", "ana"), "nothing") is None
    assert store.get(("users",), "name") is None
    names = [item.value["name"] for item in store.search(("users",), filter={"age": {"$gte": 18}})]
    assert names == ["Ana"]
    assert [item.key for item in store.search(("users", "ana"))] == ["name", "likes"]
    assert [item.key for item in store.search(("users",), limit=1, offset=1)] == ["name"]
    assert store.list_namespaces() == [("users", "ana"), ("users", "ben")]
    assert store.list_namespaces(prefix=("users", "*"), suffix=("ben",)) == [("users", "ben")]
    assert store.list_namespaces(max_depth=1) == [("users",)]
    store.delete(("users", "ben"), "name")
    assert store.list_namespaces() == [("users", "ana")]
    with pytest.raises(Unsendable):
        store.put(("users",), "odd", {"odd": {1, 2}})
    with pytest.raises(NotImplementedError):
        store.put(("users",), "short", {"a": 1}, ttl=5)


def test_items_are_found_by_namespace_key_and_filter(agentstate_server):
    check_store(AgentStateStore(agentstate_server.client("one")))


def test_what_one_worker_puts_every_other_reads(agentstate_server):
    one = AgentStateStore(agentstate_server.client("one"))
    two = AgentStateStore(agentstate_server.client("two"))
    assert two.search(("notes",)) == []
    one.put(("notes",), "a", {"n": 1})
    assert two.get(("notes",), "a").value == {"n": 1}
    two.put(("notes",), "a", {"n": 2})
    assert one.get(("notes",), "a").value == {"n": 2}
    assert AgentStateStore(agentstate_server.client("three"), name="other").search(()) == []


def test_the_async_store_is_the_same(agentstate_server):
    async def go():
        async with agentstate_server.async_client("a") as client:
            await asyncio.to_thread(check_store, AsyncAgentStateStore(client))

    asyncio.run(go())
