"""Plain functions that survive their process: a call is a run, and what is finished is remembered.

>>> from agentstate_client.durable import Durable
>>> durable = Durable(client)
>>> @durable.step
... def fetch(url): ...
>>> @durable
... def report(day):
...     return {"pages": len(fetch(f"https://example.org/{day}"))}
>>> report("2026-03-02")

The run's key is made of the function's name and arguments: the same call again goes on where the
first was cut off, and returns what it returned once it is done. Steps are known by their name,
arguments and order, so the function has to call them in the same order each time: what decides
that (time, chance, what is read) belongs in a step. Everything is written under the fencing token
of the run's lease: who was overtaken writes nothing any more (StaleFence, LeaseLost).

`AsyncDurable` is the same on an `AsyncClient`, for async functions: docs/integrations/durable.md.
"""

from agentstate_client._async.durable import AsyncDurable, AsyncDurableFunction
from agentstate_client._sync.durable import Durable, DurableFunction
from agentstate_client.endings import CallEnded

__all__ = ["AsyncDurable", "AsyncDurableFunction", "CallEnded", "Durable", "DurableFunction"]
