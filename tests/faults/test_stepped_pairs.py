"""Every pair of commands that can touch one run, in both orders, stepped on real connections.

Whatever two transactions do to each other has to look as if one had come after the other, in the
order in which they got the locks. What that looks like is found by asking the same two of a twin,
one after the other.
"""

from __future__ import annotations

from itertools import count

import pytest
from django.db import connection, transaction

from agentstate import store as the_store
from agentstate.store import audit
from tests.faults import scenes
from tests.faults.stepping import Stepped
from tests.store.asking import rows
from tests.store.test_races import meanwhile_elsewhere

NAMES = tuple(scenes.COMMANDS)
# Among them one of each kind of lock: these in every run of the tests, all in the long set.
SHORT = (
    "append at the seen number",
    "append and complete",
    "patch at the seen version",
    "cancel by an operator",
    "reclaim",
    "commit more than was held",
)
# Each beside every command: these in CI, the others when asked for (`./run test-deep`).
OFTEN = ("renew", *SHORT)
DYING = [
    name if name in SHORT[:3] else pytest.param(name, marks=pytest.mark.deep) for name in SHORT
]
OFTEN_AND_DEEP = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.deep) for name in NAMES
]
_numbers = count(1)


def scene() -> scenes.Scene:
    return scenes.set_up(f"r-{next(_numbers):05}")


def one_after_the_other(*names: str) -> tuple[list[object], object, object]:
    twin = scene()
    outcomes = []
    for name in names:
        (outcome,) = the_store.execute_all([scenes.ask(name, twin)])
        outcomes.append(scenes.seen(outcome, twin))
    return outcomes, scenes.state(twin), scenes.refusals(twin)


def stepped(first: str, second: str) -> tuple[bool, list[object], object, object]:
    """Hold `first` at its COMMIT until `second` waits for it or is done. Whether it waited."""
    here = scene()
    one = Stepped(scenes.ask(first, here), hold=True)
    one.wait_until_at_commit()
    two = Stepped(scenes.ask(second, here))
    waited = two.wait_until_blocked_or_done()
    outcomes = [scenes.seen(one.end(), here), scenes.seen(two.end(), here)]
    return waited, outcomes, scenes.state(here), scenes.refusals(here)


def check_pair(first: str, second: str) -> None:
    waited, *found = stepped(first, second)
    in_order = list(one_after_the_other(first, second))
    if not waited and found != in_order:
        # It did not need what the first one holds: then it came before.
        (late, early), *rest = (
            one_after_the_other(second, first)[0][::-1],
            *(one_after_the_other(second, first)[1:]),
        )
        in_order = [[late, early], *rest]
    assert found == in_order, f"{first!r}, then {second!r}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("append", "telemetry"),
        ("renew", "complete"),
        ("spend the shared one", "spend"),
        ("change the shared cap", "commit"),
    ],
)
def test_one_that_needs_a_row_of_the_other_really_waits(clock, first, second):
    waited, *_ = stepped(first, second)
    assert waited
    check_pair(first, second)
    check_pair(second, first)
    assert audit.verify() == []


@pytest.mark.parametrize("first", SHORT)
def test_a_pair_has_an_order(clock, first):
    for second in SHORT:
        check_pair(first, second)
    assert audit.verify() == []


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("first", OFTEN_AND_DEEP)
def test_every_pair_has_an_order(clock, first):
    for second in NAMES:
        check_pair(first, second)
    assert audit.verify() == []


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("first", DYING)
def test_one_whose_connection_dies_at_commit_comes_after_the_other(clock, first):
    for second in NAMES:
        here = scene()
        one = Stepped(scenes.ask(first, here), hold=True)
        if not one.wait_until_at_commit():
            raise AssertionError(f"{first} never came to its COMMIT")
        two = Stepped(scenes.ask(second, here))
        two.wait_until_blocked_or_done()
        one.kill()
        late = scenes.seen(two.end(), here)
        early = scenes.seen(one.end(), here)

        (expected_late, expected_early), state, refused = one_after_the_other(second, first)
        assert (late, early) == (expected_late, expected_early), f"{second!r}, then {first!r}"
        assert scenes.state(here) == state
        assert scenes.refusals(here) == refused
    assert audit.verify() == []


@pytest.mark.long
@pytest.mark.many
@pytest.mark.parametrize("name", OFTEN_AND_DEEP)
def test_whoever_waits_past_the_expiry_behind_a_mere_lock_decides_after_it(clock, name):
    """A mere lock changes nothing, so PostgreSQL looks at no condition again: we have to."""
    twin = scene()
    clock.advance(seconds=61)
    (expected,) = the_store.execute_all([scenes.ask(name, twin)])

    here = scene()
    with transaction.atomic():
        rows("SELECT FROM agentstate_lease WHERE unit = %s FOR UPDATE", f"run:{here.key}")
        rows("SELECT FROM agentstate_run WHERE key = %s FOR UPDATE", here.key)
        rows("SELECT FROM agentstate_budget WHERE name = %s FOR UPDATE", here.fleet)
        one = Stepped(scenes.ask(name, here))
        assert one.wait_until_blocked_or_done()
        meanwhile_elsewhere(lambda: clock.advance(seconds=61))
    found = one.end()

    # The twin's minute began one minute earlier: the moments differ, all else is the same.
    assert without_moments(scenes.seen(found, here)) == without_moments(scenes.seen(expected, twin))
    assert audit.verify() == []
    connection.close()


def without_moments(value: object) -> object:
    if isinstance(value, dict):
        return {k: without_moments(v) for k, v in value.items() if not k.endswith(("at", "_ms"))}
    if isinstance(value, (list, tuple)):
        return [without_moments(one) for one in value]
    return value
