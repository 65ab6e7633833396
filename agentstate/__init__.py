"""agentstate: the durable state of agent runs, and the ops console over it."""

__version__ = "0.1.0"
