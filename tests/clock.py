"""The database's clock, set by a test. Nobody waits for a lease to run out."""

from agentstate.store.settable_clock import START, Clock, install

__all__ = ["START", "Clock", "install"]
