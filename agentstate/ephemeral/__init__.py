"""A site for the tests of workers: the real API, a scratch database, a clock that can be set.

`agentstate_client.testing` drives it, in its own process or in a child (`python -m
agentstate.ephemeral`). It is the API alone: no console, no Celery, nothing of the environment.
Why it is as it is: docs/decisions/0018-testing-server.md.
"""
