"""The texts' figures come out of the real store."""

import pytest

from agentstate.store import audit
from agentstate.store.labs import agent_state, distributed_state

# What the first text prints, white space apart.
AGENT_STATE = """
--- one table, one query: the run's whole story ---
run#42 budget {'cap': 500000, 'spent': 0}
run#42 evt#000001 {'type': 'run.created'}
run#42 evt#000002 {'type': 'model.responded'}
run#42 evt#000003 {'type': 'tool.returned'}
run#42 evt#000004 {'type': 'run.completed'}
run#42 meta {'task': 'audit checkout', 'status': 'running'}
--- conditional append: two workers race for seq 5 ---
worker A: append seq 5 -> ok
worker B: append seq 5 -> ConditionalCheckFailed (retries at seq 6)
worker B: append seq 6 -> ok
--- leases: acquire, refuse, reclaim after a crash ---
t=0 worker A acquires unit#7 : True
t=10 worker B tries unit#7 : False (A's lease is live; B is refused)
... worker A crashes; its lease keeps ticking toward expiry
t=70 worker B reclaims unit#7 : True (lease expired at t=60; B wins)
unit#7 lease now held by B until t=130
"""
# What the second text prints, and below it what its examples 5 and 6 lead to.
DISTRIBUTED_STATE = """
after A: Record(record_id='run-1', value={'status': 'running', 'steps_done': 1}, version=2)
B rejected: expected v1, found v2
no lost update, steps_done: 1
retry loop succeeded on attempt 2 -> Record(record_id='run-1', value={'status': 'running', 'steps_done': 2}, version=4)
applied at v5
duplicate ignored (v5)
final: Record(record_id='run-1', value={'status': 'running', 'steps_done': 3}, version=5)
last-write-wins result: {'status': 'running', 'steps_done': 1} (A's increment was lost)
atomic add result: {'steps_done': 2, 'tokens_spent': 350} (no increment was lost)
late owner: rejected, its fencing token was superseded by a higher one
new owner: completed
"""  # noqa: E501


def lines(text):
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    ("play", "printed"),
    [(agent_state.play, AGENT_STATE), (distributed_state.play, DISTRIBUTED_STATE)],
)
def test_the_lab_prints_what_the_text_prints(clock, play, printed):
    assert lines("\n".join(play(clock))) == lines(printed)
    assert audit.verify() == []
