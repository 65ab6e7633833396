"""LangGraph on agentstate: a checkpointer and a store. `pip install agentstate-client[langgraph]`.

>>> from agentstate_client.langgraph import AgentStateSaver
>>> with Client(url, key) as client, AgentStateSaver(client) as saver:
...     graph = builder.compile(checkpointer=saver)
...     with saver.hold("42", wait_seconds=90):
...         graph.invoke({"question": "…"}, {"configurable": {"thread_id": "42"}})

A thread is a run and every checkpoint and write an event of it, under the fencing token of the
thread's lease: who was paused, overtaken or reclaimed writes nothing any more and is told so
(LeaseLost, StaleFence). After kill -9 the next one goes on at the last checkpoint, with the writes
of the tasks that were done.

Why and how: docs/integrations/langgraph.md, docs/decisions/0050-langgraph.md.
"""

from agentstate_client.langgraph.saver import AgentStateSaver, AsyncAgentStateSaver
from agentstate_client.langgraph.store import AgentStateStore, AsyncAgentStateStore
from agentstate_client.thread_records import ThreadMoved

__all__ = [
    "AgentStateSaver",
    "AgentStateStore",
    "AsyncAgentStateSaver",
    "AsyncAgentStateStore",
    "ThreadMoved",
]
