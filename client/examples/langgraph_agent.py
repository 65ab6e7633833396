"""An agent of three nodes in LangGraph, whose thread is a run of agentstate.

    AGENTSTATE_URL=http://127.0.0.1:8000 AGENTSTATE_KEY=… python langgraph_agent.py 42

The model is made up, so it runs offline. Interrupt it anywhere and start it again: it goes on
where it was. Start it twice: the second waits for the first.
"""

from __future__ import annotations

import operator
import os
import sys
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

from agentstate_client import Charge, Client, Event, Exists, NewBudget
from agentstate_client.langgraph import AgentStateSaver


class State(TypedDict):
    messages: Annotated[list[str], operator.add]


def model(prompt: str) -> tuple[str, int]:
    """An answer, and the tokens that it took."""
    answer = f"what follows from {prompt!r}"
    return answer, len(prompt.split()) + len(answer.split())


def node(name: str, spent: list[int]):
    def work(state: State) -> State:
        answer, tokens = model(state["messages"][-1])
        spent.append(tokens)
        return {"messages": [f"{name}: {answer}"]}

    return work


def main(thread_id: str) -> None:
    with Client(os.environ["AGENTSTATE_URL"], os.environ["AGENTSTATE_KEY"]) as client:
        try:
            client.create(key=thread_id, task="langgraph", status="running", max_attempts=1_000,
                          budgets=[NewBudget("tokens", cap=10_000)])  # fmt: skip
        except Exists:
            print("the thread is there already")
        saver, spent = AgentStateSaver(client), []
        builder = StateGraph(State)
        names = ("plan", "search", "answer")
        for name in names:
            builder.add_node(name, node(name, spent))
        for one, other in zip((START, *names), (*names, END), strict=True):
            builder.add_edge(one, other)
        graph = builder.compile(checkpointer=saver)

        config = {"configurable": {"thread_id": thread_id}}
        with saver.hold(thread_id, wait_seconds=90) as run:
            going_on = graph.get_state(config).next
            begin = None if going_on else {"messages": ["how many are there?"]}
            told = graph.invoke(begin, config)
            run.append(Event("graph.finished"), spend=Charge("tokens", sum(spent)))
        print(*told["messages"], sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "42")
