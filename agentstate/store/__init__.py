"""The only code that changes state. Everybody else asks: `store.execute(command, by=caller)`."""

from agentstate.store.asks import Ask
from agentstate.store.callers import PLAIN, SCOPES, SWEEP, SYSTEM, Caller, Circumstances
from agentstate.store.execute import aexecute, execute, execute_all
from agentstate.store.listeners import Written, after_write
from agentstate.store.tries import record_action, record_refused_action

__all__ = [
    "PLAIN",
    "SCOPES",
    "SWEEP",
    "SYSTEM",
    "Ask",
    "Caller",
    "Circumstances",
    "Written",
    "aexecute",
    "after_write",
    "execute",
    "execute_all",
    "record_action",
    "record_refused_action",
]
