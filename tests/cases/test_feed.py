"""Whoever follows all runs gets what is committed late, and waits for nothing that never comes."""

import pytest

from agentstate.store import Ask
from agentstate.store.commands import Append
from tests.faults.stepping import Stepped
from tests.store.asking import FLEET, event


@pytest.mark.parametrize("is_cut", [False, True], ids=["committed", "rolled back"])
def test_a_follower_of_all_runs_gets_late_commits_and_waits_for_no_rollback(
    store, site, follow, is_cut
):
    """O-13: one transaction stays open while another one is begun and committed. One that the
    database rolled back is done again by the store, and comes then."""
    store.create("A")
    store.create("B")
    stream = follow("/feed")
    assert [sent.json["run"] for sent in stream.take(2)] == ["A", "B"]
    late = Stepped(Ask(command=Append(run="A", events=(event("late"),)), by=FLEET), hold=True)
    assert late.wait_until_at_commit()
    store.append("B", [event("early")])
    (early,) = stream.take(1)
    assert (early.json["run"], early.json["types"]) == ("B", ["early"])

    if is_cut:
        late.kill()
    assert late.end().last_seq == 2
    store.append("B", [event("after")])

    seen = {(sent.json["run"], *sent.json["types"]) for sent in stream.take(2)}
    assert seen == {("A", "late"), ("B", "after")}
    assert [e.seq for e in store.events("A")] == [1, 2]
    assert [e.seq for e in store.events("B")] == [1, 2, 3]
