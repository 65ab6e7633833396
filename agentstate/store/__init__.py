"""The only code that changes state. Everybody else asks: `store.execute(command, by=caller)`."""

from agentstate.store.asks import Ask
from agentstate.store.callers import PLAIN, SWEEP, SYSTEM, Caller, Circumstances
from agentstate.store.execute import execute, execute_all

__all__ = [
    "PLAIN",
    "SWEEP",
    "SYSTEM",
    "Ask",
    "Caller",
    "Circumstances",
    "execute",
    "execute_all",
]
