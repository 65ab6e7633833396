"""The merge of who looks at what: in any order, any number of times, the same."""

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from agentstate.presence import (
    EXPIRES_SECONDS,
    SIGNS_PER_PERSON_MAX,
    Board,
    Sign,
    bounded,
    later,
    living,
    merge,
    onlookers,
)

SECOND = 1_000_000
PEOPLE = st.sampled_from(["ana", "bo", "cy", "<b>dee</b>\u202e"])
# Few values, so that keys meet and instants tie.
KEYS = st.tuples(PEOPLE, st.sampled_from(["a1", "b2"]))
INSTANTS = st.integers(0, 6).map(lambda n: n * 20 * SECOND)
SIGNS = st.builds(
    Sign,
    at=INSTANTS,
    gone=st.booleans(),
    page=st.sampled_from(["run:42", "reclaim:run:42"]),
    since=INSTANTS,
)
MAPS = st.dictionaries(KEYS, SIGNS, max_size=6)


@given(MAPS, MAPS)
def test_it_does_not_matter_who_merges_with_whom(one, other):
    assert merge(one, other) == merge(other, one)


@given(MAPS, MAPS, MAPS)
def test_it_does_not_matter_what_is_merged_first(one, two, three):
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(MAPS, MAPS)
def test_what_is_heard_again_changes_nothing(one, other):
    both = merge(one, other)

    assert merge(one, one) == one
    assert merge(both, other) == both


@given(st.lists(MAPS, max_size=5), st.randoms())
def test_all_who_heard_the_same_see_the_same(told, chance):
    shuffled = [*told, *random.Random(1).choices(told, k=3)] if told else []
    chance.shuffle(shuffled)
    one, other = {}, {}
    for signs in told:
        one = merge(one, signs)
    for signs in shuffled:
        other = merge(other, signs)

    assert one == other


@given(MAPS, MAPS, st.integers(0, 200).map(lambda s: s * SECOND))
def test_what_has_expired_may_be_forgotten_before_or_after(one, other, now):
    first = living(merge(living(one, now), living(other, now)), now)
    last = living(merge(one, other), now)

    # Only when somebody's page began may have been forgotten with a sign that expired.
    assert {k: (s.at, s.gone, s.page) for k, s in first.items()} == {
        k: (s.at, s.gone, s.page) for k, s in last.items()
    }


@given(MAPS, MAPS, st.integers(1, 3))
def test_what_is_too_much_of_one_person_may_be_left_out_before_or_after(one, other, most):
    first = bounded(merge(bounded(one, most), bounded(other, most)), most)
    last = bounded(merge(one, other), most)

    assert {k: (s.at, s.gone, s.page) for k, s in first.items()} == {
        k: (s.at, s.gone, s.page) for k, s in last.items()
    }
    assert max(Counter(person for person, _ in last).values(), default=0) <= most


# What is told at an instant; the clock may be set to any later or earlier one between two.
TOLD = st.lists(st.tuples(st.integers(0, 400), PEOPLE), min_size=1, max_size=8)


@given(TOLD)
def test_whoever_has_just_given_a_sign_is_seen_however_the_clock_was_set(told):
    board = Board()
    for number, (at, person) in enumerate(told):
        page = {(person, f"p{number}"): sign(at)}
        board.merge(page, now=at * SECOND)

        assert person in [one.name for one in board.others("run:42", "nobody")]


@given(TOLD)
def test_boards_that_heard_the_same_see_the_same_also_when_told_twice(told):
    one, other = Board(), Board()
    for number, (at, person) in enumerate(told):
        page = {(person, f"p{number}"): sign(at)}
        one.merge(page, now=at * SECOND)
        for _ in range(2):
            other.merge(page, now=at * SECOND)

    assert one.others("run:42", "") == other.others("run:42", "")


def sign(at, *, gone=False, page="run:42", since=None):
    return Sign(
        at=at * SECOND, gone=gone, page=page, since=(at if since is None else since) * SECOND
    )


def test_of_two_signs_of_one_instant_that_it_is_gone_stands():
    assert later(sign(5), sign(5, gone=True)).gone
    assert not later(sign(5, gone=True), sign(6)).gone


def test_a_late_sign_brings_nobody_back():
    key = ("ana", "a1")
    known = merge({key: sign(10)}, {key: sign(12, gone=True)})

    assert onlookers(merge(known, {key: sign(11)}), "run:42", 12 * SECOND) == []


def test_who_gives_no_sign_is_gone_by_itself():
    signs = {("ana", "a1"): sign(10)}

    assert onlookers(signs, "run:42", (9 + EXPIRES_SECONDS) * SECOND)
    assert onlookers(signs, "run:42", (10 + EXPIRES_SECONDS) * SECOND) == []


def test_a_person_counts_once_and_the_first_one_is_first():
    signs = {
        ("bo", "b1"): sign(20, since=7),
        ("ana", "a1"): sign(20, since=9),
        ("ana", "a2"): sign(21, since=5),
        ("cy", "c1"): sign(20, page="run:43"),
        ("dee", "d1"): sign(20, gone=True),
    }

    found = onlookers(signs, "run:42", 21 * SECOND)

    assert [one.name for one in found] == ["ana", "bo"]
    assert found[0].since == datetime.fromtimestamp(5, UTC)


def test_a_board_tells_on_which_pages_other_people_are_seen_now():
    board = Board()

    assert board.merge({("ana", "a1"): sign(10)}, now=10 * SECOND) == {"run:42"}
    assert board.merge({("ana", "a1"): sign(20)}, now=20 * SECOND) == set()
    assert board.merge({("ana", "a2"): sign(21)}, now=21 * SECOND) == set()
    assert board.merge({("bo", "b1"): sign(22)}, now=22 * SECOND) == {"run:42"}
    assert [one.name for one in board.others("run:42", "bo")] == ["ana"]
    assert board.merge({("bo", "b1"): sign(23, gone=True)}, now=23 * SECOND) == {"run:42"}
    # Others' signs carry the time: ana is gone because nothing came from her.
    cy = {("cy", "c1"): sign(90, page="run:7")}
    assert board.merge(cy, now=90 * SECOND) == {"run:42", "run:7"}
    assert board.others("run:42", "bo") == []


def test_a_clock_that_was_set_back_hides_nobody():
    board = Board()
    board.merge({("ana", "a1"): sign(36_000)}, now=36_000 * SECOND)

    assert board.merge({("bo", "b1"): sign(32_400)}, now=32_400 * SECOND) == {"run:42"}
    assert [one.name for one in board.others("run:42", "cy")] == ["bo"]
    board.merge({("ana", "a1"): sign(32_401)}, now=32_401 * SECOND)
    assert [one.name for one in board.others("run:42", "cy")] == ["bo", "ana"]
    # And who is gone since then is gone.
    board.merge({("ana", "a1"): sign(32_402, gone=True)}, now=32_402 * SECOND)
    assert [one.name for one in board.others("run:42", "cy")] == ["bo"]


def test_one_who_opens_pages_without_end_fills_no_board():
    board = Board()
    board.merge({("ana", "a1"): sign(1)}, now=1 * SECOND)
    for number in range(SIGNS_PER_PERSON_MAX * 2):
        one = replace(sign(2, page=f"run:vi-{number}"), at=2 * SECOND + number)
        board.merge({("vi", f"{number:08x}"): one}, now=one.at)

    seen = [n for n in range(SIGNS_PER_PERSON_MAX * 2) if board.others(f"run:vi-{n}", "cy")]
    assert seen == list(range(SIGNS_PER_PERSON_MAX, SIGNS_PER_PERSON_MAX * 2))
    assert [one.name for one in board.others("run:42", "cy")] == ["ana"]
