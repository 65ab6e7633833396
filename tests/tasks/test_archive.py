"""Our own format: what is written is what is read, to the byte; what is wrong is named."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.commands import (
    CreateRun,
    ImportedBudget,
    ImportedEntry,
    ImportedEvent,
    ImportRun,
)
from agentstate.store.errors import Invalid
from agentstate.store.export import run_lines
from agentstate.store.payloads import RawJSON
from tasks.archive import read_archive
from tasks.drafts import RunDraft, UnreadableFile
from tasks.samples import OWN_FOLDER, read_drafts

AT = datetime(2026, 3, 4, 5, 6, 7, 80, tzinfo=UTC)

# Texts that a parser and a printer would change.
NASTY = [
    "123456789012345678901234567890",
    "1.0",
    "1e0",
    "-0",
    "1E+2",
    "0.10000000000000000555111512312578270211815834045410156250",
    '{"b":1,"a":2,"b2":{"z":[],"a":{}}}',
    '{ "spaced" :\t[ 1 , 2 ] }',
    r'"caf\u00e9 caf" ',
    r'"\u003c\/script\u003e \ud83d\ude00"',
    '"\u2028\u2029\x7f\u0085"',
    '"😀 café"',
    '{\n  "pretty": [\r\n    true\n  ]\n}',
    '{\r"old": "Mac"}',
    "[" * 64 + "]" * 64,
    '""',
    "null",
]


def event(seq=1, **changes):
    usual = {
        "seq": seq,
        "version": seq,
        "type": "run.created" if seq == 1 else "tool.returned",
        "origin": "store" if seq == 1 else "worker",
        "actor": "key:fleet",
        "at": AT,
    }
    return ImportedEvent(**{**usual, **changes})


def history(*events, **changes):
    usual = {"key": "r-1", "task": "Fix it", "status": "pending", "events": events or (event(),)}
    return ImportRun(**{**usual, **changes})


def written(run):
    return "".join(run_lines(run))


def read(text):
    return read_archive(text=text, name="runs.jsonl")


def refused(text):
    with pytest.raises(UnreadableFile) as wrong:
        read(text)
    return str(wrong.value).removeprefix("runs.jsonl: ")


@pytest.mark.parametrize("payload", NASTY)
def test_a_payload_comes_back_as_the_text_it_was(payload):
    run = history(event(), event(2, data=RawJSON(payload)), attrs=RawJSON('{"a": 1.0}'))
    (back,) = read(written(run))

    assert back.events[1].data.text == payload.strip(" ")
    assert back.attrs.text == '{"a": 1.0}'
    assert written(back) == written(run).replace(payload, payload.strip(" "))


def test_every_line_is_one_line_of_json_whatever_the_payloads_hold():
    run = history(event(), *(event(n, data=RawJSON(p)) for n, p in enumerate(NASTY, 2)))

    assert written(run).count("\n") == len(NASTY) + 3
    assert "\r" not in written(run)


def test_a_whole_history_comes_back_equal():
    entry = ImportedEntry(n=1, kind="spend", amount=5, spent=5, id="e", token=7, actor="a", at=AT)
    run = history(
        event(),
        event(2, id="x", token=7, add=RawJSON('{"steps_done": 1}'), request_id="q"),
        status="running",
        tags=("a", "b"),
        notes="two\nlines",
        result=RawJSON("null"),
        attempt=2,
        deadline_at=AT,
        created_by="person:ana",
        created_at=AT,
        budgets=(
            ImportedBudget(name="tokens", unit="tokens", cap=9, version=2, entries=(entry,)),
            ImportedBudget(name="calls", unit="calls", cap=0, overdrawn=True),
        ),
    )

    assert read(written(run)) == (run,)


def test_a_file_can_hold_several_runs():
    both = written(history(key="a")) + "\n" + written(history(key="b"))

    assert [run.key for run in read(both)] == ["a", "b"]


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=4), st.sampled_from([None, 1]))
def test_any_json_comes_back_as_the_text_it_was(values, indent):
    import json

    texts = [json.dumps(value, indent=indent, ensure_ascii=indent is None) for value in values]
    run = history(event(), *(event(n, data=RawJSON(t)) for n, t in enumerate(texts, 2)))

    assert [e.data.text for e in read(written(run))[0].events[1:]] == texts


HEADER = '{"agentstate": 1, "kind": "run", "key": "r", "task": "t", "status": "pending"}\n'
EVENT = (
    '{"kind": "event", "seq": 1, "version": 1, "type": "run.created", "origin": "store",'
    ' "data": {}}\n'
)
HISTORY_EVENT = EVENT.replace('"seq": 1, "version": 1', '"seq": %d, "version": 2, "id": "e-1"')
END = '{"kind": "end", "events": 1, "entries": 0}\n'
BUDGET = '{"kind": "budget", "name": "tokens", "unit": "tokens", "cap": 5}\n'
ENTRY = (
    '{"kind": "entry", "budget": "tokens", "entry": "spend", "n": 1, "amount": 2, "id": "c-1"}\n'
)
DRAFT = '{"agentstate": 1, "kind": "draft", "key": "d", "task": "t"}\n'
STEP = '{"kind": "step", "events": [{"type": "a.b", "data": [1.0]}]}\n'
DONE = '{"kind": "end", "status": "completed"}\n'


def test_what_people_write_by_hand_is_a_draft():
    text = (
        DRAFT
        + '{"kind": "budget", "name": "tokens", "cap": 50}\n'
        + '{"kind": "opening", "events": [{"type": "task.given", "data_text": "{\\n}"}]}\r\n'
        + '{"kind": "step", "add": {"steps_done": 1}, "spend": {"budget": "tokens", "amount": 7},'
        + ' "events": [{"type": "tool.returned", "id": "s-1", "data": {"a": 1e2}}]}\n'
        + '{"kind": "end", "status": "failed", "result": {"why": "x"}}'
    )
    (draft,) = read(text)

    assert isinstance(draft, RunDraft)
    assert (draft.key, draft.status, draft.result.text) == ("d", "failed", '{"why": "x"}')
    assert draft.opening[0].data.text == "{\n}"
    assert draft.steps[0].events[0].data.text == '{"a": 1e2}'
    assert (draft.spent("tokens"), draft.event_count) == (7, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: there is no run in the file"),
        ("\n\n", "line 1: there is no run in the file"),
        ("{", "line 1, column 2: "),
        (HEADER + '{"kind": "event", "seq" 1}\n', "line 2, column 25: ':' is missing"),
        (HEADER + "[1]\n", "line 2: each line is a JSON object"),
        (EVENT, "line 1: a header is missing"),
        (HEADER + EVENT, "line 3: the file ends before the run's end line"),
        (HEADER + HEADER, "line 2: a new run begins before the end line of the one of line 1"),
        (HEADER.replace("1,", "2,", 1), "line 1: this release reads format 1 only"),
        (HEADER.replace('"run"', '"runs"'), 'line 1: kind: "run" or "draft"'),
        (HEADER.replace('"task"', '"tusk"'), "line 1: tusk: no such member here"),
        (HEADER.replace(', "task": "t"', ""), "line 1: task: is missing"),
        (HEADER + EVENT + '{"kind": "evnt"}\n', "line 3: kind: budget, entry, event or end"),
        (HEADER + EVENT + EVENT, "line 3: seq: 2 is next, not 1"),
        (HEADER + EVENT.replace("store", "me"), "line 2: origin: one of store, worker"),
        (HEADER + EVENT.replace('"seq": 1', '"seq": true'), "line 2: seq: a whole number"),
        (HEADER + EVENT.replace('"data": {}', '"data": 1e999'), "line 2: data: 1e999 is too large"),
        (HEADER + EVENT.replace('"data": {}', '"data": NaN'), "line 2: data: NaN is not JSON"),
        (HEADER + EVENT.replace("{}", '{"a":1,"a":2}'), "line 2: data: the same name twice"),
        (HEADER + EVENT.replace("{}", '"\\ud800"'), "line 2: data: no U+0000 and no lone"),
        (HEADER + EVENT.replace("{}", '{"a":"\\u0000"}'), "line 2: data.a: no U+0000"),
        (HEADER + EVENT.replace("{}", '"' + "x" * 1024 * 1024 + '"'), "line 2: data has 1048578"),
        (HEADER + EVENT.replace('"data"', '"data_text"'), "line 2: data_text: a text"),
        (HEADER + EVENT.replace('"data": {}', '"data": {}, "at": 5'), "line 2: at: an RFC 3339"),
        (
            HEADER + EVENT.replace('"data": {}', '"data": {}, "at": "2026-03-04T05:06:07"'),
            "line 2: at: an RFC 3339 time with its offset",
        ),
        (
            HEADER + EVENT + (HISTORY_EVENT % 2) + (HISTORY_EVENT % 3),
            "line 4: id: e-1 is there twice among the events",
        ),
        (
            HEADER + BUDGET + ENTRY + ENTRY.replace('"n": 1', '"n": 2'),
            "line 4: id: c-1 is there twice among the entries of tokens",
        ),
        (HEADER + BUDGET + BUDGET, "line 3: the budget tokens is there twice"),
        (HEADER + BUDGET.replace("5", "5.5"), "line 2: cap: a whole number from 0"),
        (HEADER + BUDGET + ENTRY.replace('"n": 1', '"n": 2'), "line 3: n: 1 is next, not 2"),
        (HEADER + BUDGET + ENTRY.replace('"entry": "spend", ', ""), "line 3: entry: is missing"),
        (HEADER + ENTRY, "line 2: budget: no line before this one is the budget 'tokens'"),
        (HEADER + EVENT + END.replace("1", "2"), "line 3: events: the end line says 2"),
        (HEADER + EVENT + END + HEADER + EVENT + END, "line 4: the run r is twice in the file"),
        (HEADER + END.replace("1", "0"), "line 2: events[0]: the first event is run.created"),
        (DRAFT + EVENT, "line 2: kind: budget, opening, step or end"),
        (DRAFT + '{"kind": "step", "events": []}', "line 2: events: a list of the step's events"),
        (DRAFT + '{"kind": "step"}', "line 2: events: a list of the step's events"),
        (DRAFT + STEP.replace("a.b", "7"), "line 2: type: letters, digits"),
        (DRAFT + STEP.replace('"data"', '"dat"'), "line 2: dat: no such member here"),
        (DRAFT + STEP.replace("[1.0]", "[1e999]"), "line 2: events[0].data: 1e999 is too"),
        (DRAFT + STEP[:-2] + ', "spend": 7}', "line 2: spend: an object of budget and amount"),
        (
            DRAFT + STEP[:-2] + ', "spend": {"budget": "tokens", "amount": -1}}',
            "line 2: amount: a whole number from 1",
        ),
        (DRAFT + STEP[:-2] + ', "add": [1]}', "line 2: add: an object of counter names"),
        (DRAFT + STEP + DONE.replace("completed", "running"), "line 3: status: one of pending"),
        (DRAFT.replace('"d"', '"d d"') + STEP + DONE, "line 3: key: letters, digits"),
    ],
)
def test_a_malformed_file_is_refused_with_line_and_reason(text, says):
    assert says in refused(text)


def test_our_own_samples_are_whole_runs_within_their_budgets():
    drafts = [draft for path in sorted(OWN_FOLDER.glob("*.jsonl")) for draft in read_drafts(path)]

    assert {draft.key for draft in drafts} >= {"invoice-rounding", "failed-uploads"}
    for draft in drafts:
        assert draft.event_count >= 10
        assert 0 < draft.spent("tokens") <= draft.budgets[0].cap
        ids = [event.id for step in draft.steps for event in step.events]
        assert None not in ids
        assert len(set(ids)) == len(ids)


def test_a_history_keeps_what_was_taken_before_the_unseen_was_refused():
    """S-102 (docs/sweeps.md): what was exported once comes back as it was."""
    kept = history(task="\u200b", tags=("\u2060",))
    assert (kept.task, kept.tags) == ("\u200b", ("\u2060",))
    with pytest.raises(Invalid):
        CreateRun(task="\u200b")
