"""The API for workers and scripts: parse, authenticate, give one command, answer.

Nothing is decided here. What may be asked is `agentstate.store.commands`, what is refused
`agentstate.store.errors`, and how a refusal becomes an HTTP answer `problems.py`. The contract is
the page at /api/v1/docs.
"""
