"""A graph of three nodes with a model that is made up, as a process: for the tests that harm it.

    python graph_process.py URL KEY THREAD TTL_SECONDS WAIT_AT FOLDER [hold]

It says what it does line by line. In the node WAIT_AT it waits until FOLDER/go is there. With
`hold` the thread is held from the first line to the last, else the first write takes it.
"""

from __future__ import annotations

import operator
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

from agentstate_client import AgentStateError, Client
from agentstate_client.langgraph import AgentStateSaver

NODES = ("plan", "search", "answer")


class State(TypedDict):
    messages: Annotated[list[str], operator.add]


def model(node: str, messages: list[str]) -> str:
    return f"{node} after {len(messages)}"


def build(before_node=lambda node: None):
    def node(name):
        def work(state: State) -> State:
            before_node(name)
            return {"messages": [model(name, state["messages"])]}

        return work

    builder = StateGraph(State)
    for name in NODES:
        builder.add_node(name, node(name))
    for one, other in zip((START, *NODES), (*NODES, END), strict=True):
        builder.add_edge(one, other)
    return builder


def main(url, key, thread, ttl_seconds, wait_at, folder, *more) -> int:
    def before_node(name):
        print(f"begins {name}")
        while name == wait_at and not (Path(folder) / "go").exists():
            time.sleep(0.02)

    config = {"configurable": {"thread_id": thread}}
    with Client(url, key, worker="graph") as client:
        saver = AgentStateSaver(client, ttl_seconds=int(ttl_seconds))
        graph = build(before_node).compile(checkpointer=saver)
        held = saver.hold(thread, wait_seconds=120) if "hold" in more else nullcontext()
        try:
            with held:
                going_on = graph.get_state(config).next
                print(f"goes on at {list(going_on)}" if going_on else "begins anew")
                begin = None if going_on else {"messages": ["how many?"]}
                told = graph.invoke(begin, config, durability="sync")
                print(f"done {told['messages']}")
        except AgentStateError as failure:
            print(f"refused {type(failure).__name__}")
            return 3
        finally:
            saver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
