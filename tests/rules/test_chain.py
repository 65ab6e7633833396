"""Lines of which each holds the hash of all before it: whatever was done to them shows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.chain import START, Chain, Reader, hash_of, seal
from agentstate.store.opened import read_lines
from agentstate.store.payloads import RawJSON

NAMES = st.text(min_size=1, max_size=5).filter(lambda n: n not in ("line", "chain", "kind"))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=20),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=2), st.integers()),
)  # fmt: skip
MEMBERS = st.dictionaries(NAMES, VALUES, max_size=4).map(lambda m: {"kind": "x"} | m)
FILES = st.lists(MEMBERS, max_size=8).map(lambda lines: "".join(seal(lines)).encode())


def verdict_of(raw: bytes):
    reader = Reader()
    for line, ended in read_lines(raw):
        reader.take(line, ended=ended)
    return reader.verdict()


def with_lines(lines):
    return b"".join(line + b"\n" for line in lines)


@given(FILES)
def test_what_was_sealed_is_whole_and_known_by_its_last_hash(raw):
    lines = raw.splitlines()
    found = verdict_of(raw)

    assert (found.state, found.line, found.lines) == (Chain.WHOLE, None, len(lines))
    last = json.loads(lines[-1])
    assert found.hash == last["chain"]
    assert (last["kind"], last["lines"]) == ("end", len(lines) - 1)
    assert found == verdict_of(raw.removesuffix(b"\n"))


@given(FILES, st.data())
def test_a_line_that_was_taken_out_is_missed(raw, data):
    lines = raw.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))

    found = verdict_of(with_lines(lines[:at] + lines[at + 1 :]))

    assert (found.state, found.line, found.lines) == (Chain.TRIMMED, at + 1, at)


@given(FILES, st.data())
def test_a_file_that_was_cut_off_anywhere_is_trimmed_there(raw, data):
    whole = raw.rstrip(b"\n")
    end = data.draw(st.integers(0, len(whole) - 1))

    found = verdict_of(raw[:end])

    assert found.state is Chain.TRIMMED
    only_its_end_is_missing = raw[end:].startswith(b"\n")
    assert found.line == raw[:end].count(b"\n") + 1 + only_its_end_is_missing


@given(FILES.filter(lambda raw: raw.count(b"\n") > 1), st.data())
def test_two_lines_that_changed_places_are_found(raw, data):
    lines = raw.splitlines()
    first, second = sorted(
        data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=2, max_size=2, unique=True))
    )
    lines[first], lines[second] = lines[second], lines[first]

    found = verdict_of(with_lines(lines))

    assert (found.state, found.line, found.lines) == (Chain.MOVED, first + 1, first)


@given(FILES, st.data())
def test_a_line_that_is_there_twice_is_found(raw, data):
    lines = raw.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))

    found = verdict_of(with_lines([*lines[: at + 1], *lines[at:]]))

    last = at == len(lines) - 1
    assert found.state is (Chain.CHANGED if last else Chain.MOVED)
    assert found.line == at + 2


@given(FILES, st.data())
def test_an_octet_that_was_changed_is_found_in_its_line(raw, data):
    """Which of the three it is called depends on what the octet was: a number, a line end, …"""
    place = data.draw(st.integers(0, len(raw) - 2))
    instead = data.draw(st.integers(0, 255).filter(lambda octet: octet != raw[place]))

    found = verdict_of(raw[:place] + bytes([instead]) + raw[place + 1 :])

    assert not found.whole
    assert found.line == raw[:place].count(b"\n") + 1


@given(FILES, st.data())
def test_a_member_that_was_edited_is_a_change_of_its_line(raw, data):
    lines = raw.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at] = lines[at].replace(b'"kind":"', b'"kind":"y', 1)

    found = verdict_of(with_lines(lines))

    assert (found.state, found.line) == (Chain.CHANGED, at + 1)


@given(FILES, st.binary(min_size=1, max_size=20))
def test_what_stands_after_the_end_is_found(raw, more):
    assert not verdict_of(raw + more.replace(b"\n", b"x")).whole


@given(FILES, st.data())
def test_a_line_made_anew_breaks_the_one_after_it(raw, data):
    """Whoever edits a line and its own hash has to make all the hashes after it."""
    lines = raw.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    before = json.loads(lines[at - 1])["chain"] if at else START
    members = json.loads(lines[at])
    del members["chain"]
    body = json.dumps({**members, "edited": 1}, separators=(",", ":")).encode()
    made = body[:-1] + b',"chain":"' + hash_of(body, before).encode() + b'"}'
    lines[at] = made

    found = verdict_of(with_lines(lines))

    assert not found.whole
    if at < len(lines) - 1:
        assert (found.state, found.line) == (Chain.CHANGED, at + 2)


@pytest.mark.parametrize("raw", [b"", b"\n", b"{}\n", b"[" * 10_000, b"\x1f\x8b\x08", b"null\n\n"])
def test_what_is_no_such_file_is_never_whole(raw):
    assert not verdict_of(raw).whole


def test_payloads_stand_as_they_were_sent():
    (line, _) = seal([{"kind": "x", "data": RawJSON('{"n": 1.50}'), "more": RawJSON("[\n1]")}])

    assert '"data":{"n": 1.50}' in line
    assert '"more_text":"[\\n1]"' in line
