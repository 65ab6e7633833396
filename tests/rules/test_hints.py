"""What pages that look at many runs are told when several hints became one."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from agentstate.live.hub import NAMED_MAX, Hint

kinds = st.none() | st.lists(st.sampled_from(["run", "lease"]), max_size=2, unique=True).map(tuple)
runs = st.none() | st.dictionaries(st.integers(0, 60).map(str), st.integers(1, 9), max_size=40)
hints = st.lists(st.builds(Hint, st.integers(1, 99), runs, kinds), min_size=1, max_size=6)


@given(hints)
def test_nothing_that_moved_is_left_out_and_no_hint_names_many(several):
    told = reduce(lambda one, later: one.with_later(later.of_many), several[1:], several[0].of_many)
    assert told.position == several[-1].position
    if told.runs is not None:
        assert len(told.runs) <= NAMED_MAX
        assert told.runs.keys() == {run for hint in several for run in hint.runs}
        assert all(told.runs[run] == seq for run, seq in several[-1].runs.items())
    if told.kinds is None:
        assert any(hint.kinds is None for hint in several)
    else:
        assert {*told.kinds} == {kind for hint in several for kind in hint.kinds}
        assert len(told.kinds) <= 2


def test_few_runs_are_named():
    one, other = Hint(1, {"42": 3}, ("run",)), Hint(2, {"43": 1}, ("lease",))
    assert one.of_many.with_later(other.of_many) == Hint(2, {"42": 3, "43": 1}, ("lease", "run"))
