"""What clients wrote down is read back as it was meant, also when they were killed on the way."""

import json

import pytest

from bench.torture.final import read_final, write_final
from bench.torture.history import BUSY, NEVER, OK, REFUSED, SILENT, UNKNOWN, read_history
from bench.torture.trial import check_again
from tests.faults.plain_store import PlainStore


@pytest.fixture
def wrote(tmp_path):
    """wrote(line, line, …): the history of one file with these lines."""

    def write(*lines, cut=""):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
        return read_history([path])

    return write


def sent(id="a", at=1.0, kind="append", on="run:r", **ask):
    return {"op": id, "at": at, "kind": kind, "on": on, "ask": {"count": 1} | ask}


def came(said, id="a", at=2.0, **more):
    return {"op": id, "at": at, "said": said, "sent": 1.5, **more}


def test_an_answer_ends_a_call(wrote):
    (op,) = wrote(sent(), came(OK, answer={"version": 2})).ops
    assert (op.outcome, op.invoked_at, op.ended_at, op.answer) == (OK, 1.0, 2.0, {"version": 2})


def test_a_client_that_was_killed_leaves_a_call_that_may_have_happened(wrote):
    history = wrote(sent(), cut='{"op": "b", "at"')
    (op,) = history.ops
    assert (op.outcome, op.ended_at, history.tally.calls) == (UNKNOWN, NEVER, 1)


def test_a_refusal_after_no_answer_says_nothing_of_the_first_try(wrote):
    (op,) = wrote(sent(), came(SILENT), came(REFUSED, at=3.0, code="seq-conflict")).ops
    assert op.outcome == UNKNOWN


def test_not_now_is_a_refusal(wrote):
    (op,) = wrote(sent(), came(BUSY, code="unavailable")).ops
    assert op.outcome == REFUSED


def test_tries_are_counted_and_their_ends(wrote):
    history = wrote(sent(), came(BUSY, code="unavailable"), came(SILENT), came(OK, at=4.0))
    tally = history.tally
    assert (tally.calls, tally.busy, tally.unknown, tally.acknowledged) == (3, 1, 1, 1)
    assert history.acknowledged_at["run:r"] == [(1.5, 4.0)]


def test_a_read_does_not_show_that_writes_are_served(wrote):
    assert not wrote(sent(kind="read"), came(OK, answer={"version": 1})).acknowledged_at


def test_a_batch_is_taken_apart_with_each_parts_answer(wrote):
    parts = [
        {"kind": "append", "on": "run:r", "ask": {"count": 1}},
        {"kind": "spend", "on": "budget:/b", "ask": {"amount": 1}},
    ]
    answer = {"results": [{"version": 2}, {"version": 7}]}
    ops = wrote(sent(kind="batch", on="batch", parts=parts), came(OK, answer=answer)).ops
    assert [(op.id, op.kind, op.answer["version"], op.whole) for op in ops] == [
        ("a#0", "append", 2, "a"),
        ("a#1", "spend", 7, "a"),
    ]


def test_a_charge_that_rides_along_is_a_part_of_the_whole(wrote):
    answer = {"version": 2, "spent": [{"version": 9}]}
    charge = {"on": "budget:r/own", "amount": 1}
    append, spend = wrote(sent(spend=charge), came(OK, answer=answer)).ops
    assert append.whole == spend.whole == "a"
    assert (spend.id, spend.on, spend.answer) == ("a$", "budget:r/own", {"version": 9})


def test_what_is_stored_is_read_back_as_it_was_written(tmp_path):
    store = PlainStore()
    store.create("r")
    store.append("r", 2)
    store.acquire("u")
    store.open("/b", 10)
    store.reserve("/b", 3)
    write_final(store.final, tmp_path / "final.jsonl")

    assert read_final(tmp_path / "final.jsonl") == store.final


def test_a_kept_trial_is_checked_again(tmp_path, capsys):
    store = PlainStore()
    store.create("r")
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "a.jsonl").write_text("")
    write_final(store.final, tmp_path / "final.jsonl")

    assert check_again(tmp_path) == 1
    assert "invented: run r" in capsys.readouterr().out
