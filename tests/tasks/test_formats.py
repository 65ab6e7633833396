"""Formats of others: what goes in comes out again, and what cannot is said. Pure."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstate.store.commands import ImportRun
from tasks.atif import read_atif
from tasks.atif_out import write_atif
from tasks.drafts import UnreadableFile
from tasks.formats import FORMATS, format_of, tell_left_out
from tasks.histories import check_history, rehearsed
from tasks.messages import read_messages, write_messages
from tasks.samples import OWN_FOLDER, read_drafts, trajectory_folder
from tasks.swe_agent import write_trajectory
from tasks.trajectories import read_trajectory
from tests.tasks.test_trajectories import step, trajectory

DOCS = Path(__file__).parents[2] / "docs" / "formats.md"
CASES = 60


def examples(language: str, containing: str) -> str:
    """The block of docs/formats.md in which this stands: what the page shows is what is read."""
    blocks = DOCS.read_text().split(f"```{language}\n")[1:]
    (found,) = [block.split("\n```")[0] for block in blocks if containing in block]
    return found


def history(draft) -> ImportRun:
    run = rehearsed(draft, name="f")
    check_history(run, name="f")
    return run


def bare(value):
    """Without what says nothing in these formats: null, empty lists, no results."""
    if isinstance(value, dict):
        parts = {n: bare(v) for n, v in value.items() if v is not None and v != []}
        return {n: v for n, v in parts.items() if (n, v) != ("observation", {})}
    return [bare(one) for one in value] if isinstance(value, list) else value


# --- what files are made of ----------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
words = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
plain = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | texts | st.floats(-1e9, 1e9)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
)
objects = st.dictionaries(words, values, max_size=3)
counts = st.integers(0, 10_000)


def some(**parts):
    return st.fixed_dictionaries({}, optional=parts)


metrics = some(
    prompt_tokens=counts, completion_tokens=counts, cached_tokens=counts, extra=objects,
    cost_usd=st.floats(0, 5), logprobs=st.lists(st.floats(-9, 0), max_size=3),
)  # fmt: skip
parts = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1, max_size=2
)


@st.composite
def atif_files(draw):
    steps = []
    for number in range(1, draw(st.integers(2, 5))):
        source = draw(st.sampled_from(["system", "user", "agent", "agent"]))
        one = {"step_id": number, "source": source, "message": draw(texts | parts)}
        one |= draw(some(timestamp=words, extra=objects, is_copied_context=st.booleans()))
        if source == "agent":
            one |= draw(some(
                model_name=words, reasoning_content=texts, metrics=metrics,
                reasoning_effort=st.sampled_from(["low", 0.5]), llm_call_count=st.integers(0, 2),
            ))  # fmt: skip
            calls = [f"c{n}" for n in range(draw(st.integers(0, 2)))]
            one["tool_calls"] = [
                {"tool_call_id": id, "function_name": draw(words), "arguments": draw(objects)}
                | draw(some(extra=objects))
                for id in calls
            ]
            one["observation"] = {"results": [
                draw(some(source_call_id=st.just(id), content=texts | parts, extra=objects))
                for id in [*calls, "own"][: draw(st.integers(0, 3))]
            ]}  # fmt: skip
        steps.append(one)
    document = {
        "schema_version": "ATIF-v1.7",
        "agent": {
            "name": draw(words),
            "version": "1",
            **draw(some(tool_definitions=st.lists(objects, max_size=2))),
        },
        "steps": steps,
        **draw(some(session_id=words, notes=texts, extra=objects, final_metrics=metrics)),
    }  # fmt: skip
    if draw(st.booleans()):
        document["subagent_trajectories"] = [{"trajectory_id": "t", "steps": [{"step_id": 1}]}]
    return document


@st.composite
def message_logs(draw):
    log = []
    for _ in range(draw(st.integers(1, 6))):
        role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
        one = {"role": role, "content": draw(st.none() | texts | parts)} | draw(some(name=words))
        if role == "tool":
            one["tool_call_id"] = draw(words)
        if role == "assistant":
            one |= draw(some(refusal=texts, audio=objects))
            calls = draw(st.integers(0, 2))
            one["tool_calls"] = [
                {
                    "id": f"c{n}",
                    "type": "function",
                    "function": {"name": draw(words), "arguments": draw(texts)},
                }
                for n in range(calls)
            ] + draw(
                st.sampled_from([[], [{"id": "x", "type": "custom", "custom": {"name": "n"}}]])
            )
        log.append(one)
    return log


# --- there and back ------------------------------------------------------------------------------


@given(atif_files())
@settings(max_examples=CASES, deadline=None)
def test_a_file_of_atif_comes_out_as_it_came_in(document):
    draft = read_atif(text=json.dumps(document), name="t.json")
    out = write_atif(history(draft))

    assert bare(json.loads(out.text)) == bare(document)
    again = read_atif(text=out.text, name="t.json")
    assert again == draft


@given(message_logs())
@settings(max_examples=CASES, deadline=None)
def test_a_log_of_messages_comes_out_as_it_came_in(log):
    (draft,) = read_messages(text=json.dumps(log), name="t.json")

    out = write_messages(history(draft))

    assert bare(json.loads(out.text)) == bare(log)
    assert all("store" in what for what in out.left_out if what.startswith("event"))


@given(message_logs())
@settings(max_examples=CASES // 3, deadline=None)
def test_what_is_said_in_messages_can_be_said_in_atif_and_in_a_trajectory(log):
    (draft,) = read_messages(text=json.dumps(log), name="t.json")
    run = history(draft)

    told = json.loads(write_atif(run).text)
    assert check_atif(told) == []
    assert read_atif(text=json.dumps(told), name="t.json").task == draft.task
    calls = sum(len(one.get("tool_calls") or []) for one in log)
    assert sum(len(s.get("tool_calls", [])) for s in told["steps"]) == calls
    told = json.loads(write_trajectory(run).text)
    if told["trajectory"]:
        read_trajectory(text=json.dumps(told), name="t.traj")


def check_atif(document) -> list[str]:
    """What of the written rules of ATIF-v1.7 a document breaks. Written after the specification,
    not after our writer."""
    wrong = [n for n in ("schema_version", "agent", "steps") if n not in document]
    wrong += [n for n in ("name", "version") if not isinstance(document["agent"].get(n), str)]
    root = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "extra",
            "final_metrics", "continued_trajectory_ref", "subagent_trajectories"}  # fmt: skip
    of_all = {"step_id", "timestamp", "source", "message", "observation", "extra",
              "llm_call_count", "is_copied_context"}  # fmt: skip
    of_agent = of_all | {
        "model_name",
        "reasoning_effort",
        "reasoning_content",
        "tool_calls",
        "metrics",
    }
    wrong += sorted(set(document) - root)
    for number, one in enumerate(document["steps"], 1):
        if one["step_id"] != number:
            wrong.append(f"step_id {one['step_id']}")
        wrong += sorted(set(one) - (of_agent if one["source"] == "agent" else of_all))
        if not isinstance(one["message"], (str, list)):
            wrong.append("message")
        if one.get("llm_call_count") == 0 and {"metrics", "reasoning_content"} & set(one):
            wrong.append("metrics of a step without a model")
        for call in one.get("tool_calls", []):
            wrong += sorted(set(call) - {"tool_call_id", "function_name", "arguments", "extra"})
            if not isinstance(call["arguments"], dict):
                wrong.append("arguments")
        for result in one.get("observation", {}).get("results", []):
            wrong += sorted(
                set(result) - {"source_call_id", "content", "extra", "subagent_trajectory_ref"}
            )
            if not isinstance(result.get("content", ""), (str, list)):
                wrong.append("content")
    return wrong


@pytest.mark.parametrize("path", sorted(OWN_FOLDER.glob("*.jsonl")), ids=lambda p: p.stem)
def test_our_samples_can_be_said_in_every_format(path):
    (draft,) = read_drafts(path)
    run = history(draft)

    told = json.loads(write_atif(run).text)
    assert check_atif(told) == []
    back = read_atif(text=json.dumps(told), name=path.name)
    assert (back.task, back.tags, back.status, back.result.value()) == (
        draft.task, draft.tags, draft.status, draft.result.value()
    )  # fmt: skip
    assert back.attrs.value() == draft.attrs.value()
    log = json.loads(write_messages(run).text)
    read_messages(text=json.dumps(log), name="t.json")
    asked = [call["id"] for one in log for call in one.get("tool_calls", [])]
    answered = [one["tool_call_id"] for one in log if one["role"] == "tool"]
    assert asked
    assert set(answered) <= set(asked)


def test_the_real_trajectories_come_out_as_they_came_in():
    folder = trajectory_folder()
    if folder is None:
        return  # they do not come with the project
    for path in sorted(folder.glob("*.traj")):
        text = path.read_text(encoding="utf-8")
        source = json.loads(text)
        draft = read_trajectory(text=text, name=path.name)

        out = write_trajectory(history(draft))

        told = json.loads(out.text)
        assert bare(told["trajectory"]) == bare([
            {n: v for n, v in one.items() if n not in ("query", "messages")}
            for one in source["trajectory"]
        ]), path.name  # fmt: skip
        assert bare(told["info"]) == bare(source["info"])
        assert told["environment"] == source["environment"]
        assert read_trajectory(text=out.text, name=path.name) == draft
        assert draft.left_out["messages of history"] == len(source["history"]) - 2
        told = json.loads(write_atif(history(draft)).text)
        assert check_atif(told) == []
        assert len([one for one in told["steps"] if one["source"] == "agent"]) == len(
            source["trajectory"]
        )


def test_what_a_trajectory_has_beside_its_steps_is_counted():
    text = trajectory(trajectory=[step(query=[{"role": "user"}]), step()], replay_config="{}")
    text = json.dumps(json.loads(text) | {"replay_config": "{}"})

    left_out = read_trajectory(text=text, name="t.traj").left_out

    assert left_out["query of a step"] == 1
    assert left_out["replay_config"] == 1


def test_what_a_format_cannot_hold_is_counted():
    (draft,) = read_drafts(OWN_FOLDER / "invoice-rounding.jsonl")
    run = history(draft)

    otlp = FORMATS["otlp"].write(run)
    assert otlp.left_out["addition to counters"] == sum(bool(step.add) for step in draft.steps)
    assert "invoke_agent" in otlp.text
    told = {name: FORMATS[name].write(run).left_out for name in ("atif", "messages", "swe-agent")}

    for left_out in told.values():
        assert left_out["event run.created of the store"] == 1
        assert left_out["line of a budget's ledger"] > 1
        assert left_out["actor, token and version of an event"] == len(run.events)
    assert told["messages"]["key, task, status, tags and attrs of the run"] == 1
    # Every event of a worker is in ATIF; those that are no messages are not in a log of these.
    assert not any(what.startswith("event") and "store" not in what for what in told["atif"])


def test_the_examples_of_the_page_are_read_and_written_again():
    document = json.loads(examples("json", '"ATIF-v1.7"'))
    draft = read_atif(text=json.dumps(document), name="clock.json")
    assert check_atif(document) == []
    assert (draft.task, draft.spent("tokens")) == ("Mend the clock. It is an hour late.", 812)
    assert json.loads(write_atif(history(draft)).text) == document

    log = examples("jsonl", '"role"')
    (draft,) = read_messages(text=log, name="clock.jsonl")
    assert draft.task == "Mend the clock. It is an hour late."
    assert json.loads(write_messages(history(draft)).text) == [
        json.loads(line) for line in log.splitlines()
    ]


# --- which it is, and what is wrong with it ------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "suffix", "name"),
    [
        ("", ".traj", "swe-agent"),
        ('{"schema_version": "ATIF-v1.4"}', ".json", "atif"),
        ('{"trajectory": []}', ".json", "swe-agent"),
        ('[{"role": "user", "content": "x"}]', ".json", "messages"),
        ('{"messages": []}', ".json", "messages"),
        ("[1", ".json", "swe-agent"),
        ('\n{"role": "user"}\n', ".jsonl", "messages"),
        ('{"messages": []}\n', ".jsonl", "messages"),
        ('{"agentstate": 1}\n', ".jsonl", "agentstate"),
        ("", ".jsonl", "agentstate"),
    ],
)
def test_a_file_is_known_by_its_name_and_what_it_begins_with(text, suffix, name):
    assert format_of(text=text, suffix=suffix).name == name


def refused(read, text, name="clock.json"):
    with pytest.raises(UnreadableFile) as wrong:
        read(text=text if isinstance(text, str) else json.dumps(text), name=name)
    return str(wrong.value)


AGENT = {"name": "a", "version": "1"}


def atif(*steps, **more):
    return {"schema_version": "ATIF-v1.7", "agent": AGENT, "steps": list(steps), **more}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "line 1, column 2: "),
        ([], "$: must be an object, is a list"),
        ({}, "$.schema_version: is missing"),
        ({"schema_version": "ATIF-v2.0"}, "$.schema_version: ATIF-v1.0 and later of ATIF-v1"),
        ({"schema_version": "ATIF-v1.7", "agent": {"name": 1}}, "$.agent.name: must be a text"),
        (atif(), "$.steps: has no step"),
        (atif({"step_id": 2}), "$.steps[0].step_id: 1 is next"),
        (atif({"step_id": 1, "source": "me"}), "$.steps[0].source: one of system, user, agent"),
        (
            atif({"step_id": 1, "source": "user", "message": 1}),
            "$.steps[0].message: must be a text",
        ),
        (
            atif({"step_id": 1, "source": "agent", "message": "", "tool_calls": [{}]}),
            "$.steps[0].tool_calls[0].tool_call_id: is missing",
        ),
        (
            atif({"step_id": 1, "source": "agent", "message": "", "observation": {"results": 1}}),
            "$.steps[0].observation.results: must be a list, is a number",
        ),
        (
            atif({"step_id": 1, "source": "agent", "message": "x" * (1024 * 1024 + 1)}),
            "$.steps[0]: model.responded would hold",
        ),
    ],
)
def test_what_is_no_atif_is_refused_with_place_and_reason(document, says):
    assert f"clock.json: {says}" in refused(read_atif, document)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "$.messages: has no message"),
        ('[{"role": "user"}, 7]', "$.messages[1]: must be an object, is a number"),
        ('[{"role": "me"}]', "$.messages[0].role: one of system"),
        ('[{"role": "user", "content": 1}]', "$.messages[0].content: must be a text, a list"),
        ('[{"role": "tool", "tool_call_id": 1}]', "$.messages[0].tool_call_id: must be a text"),
        (
            '[{"role": "assistant", "tool_calls": [{"function": {}}]}]',
            "$.messages[0].tool_calls[0].function.name: is missing",
        ),
        ('{"role": "user"}\n{"role": ', "line 2, column "),
        ('{"role": "user"}\n[]', "line 2: $: must be an object, is a list"),
        ('{"role": "user"}\n{"messages": []}', "line 2: either messages or objects with"),
        ('{"messages": 1}', "$.messages: must be a list, is a number"),
    ],
)
def test_what_is_no_log_of_messages_is_refused_with_place_and_reason(text, says):
    assert f"clock.json: {says}" in refused(read_messages, text)


def test_lines_with_messages_are_a_run_each():
    line = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"a": 1}]})

    found = read_messages(text=f"{line}\n{line}\n", name="chats.jsonl")

    assert [draft.key for draft in found] == ["chats-1", "chats-2"]
    out = json.loads(write_messages(history(found[0])).text)
    assert out == json.loads(line)


# --- what no writer of these formats writes ------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "place"),
    [(7, "$.history"), (True, "$.history"), ("talk", "$.history"), ({"role": "user"}, "$.history")],
)
def test_a_conversation_that_is_no_list_is_refused_with_its_place(history, place):
    """S-105: some of these ended the import with an error of ours, others were taken for none."""
    with pytest.raises(UnreadableFile) as refused:
        read_trajectory(text=trajectory(history=history), name="f.traj")
    assert refused.value.place == place


@pytest.mark.parametrize("role", [[], ["user"], {"user": 1}, 7, None])
def test_a_role_that_is_no_text_says_nothing(role):
    """S-105: a list as a role ended the import with an error of ours."""
    told = [{"role": role, "content": "A"}, {"role": "user", "content": "B"}]
    assert history(read_trajectory(text=trajectory(history=told), name="f.traj")).task == "B"


@pytest.mark.parametrize("unseen", ["\u200b", "\ufe0f", "\u200b\u00a0\u2060", "\u3164"])
@pytest.mark.parametrize(("after", "task"), [("", None), ("\nMend it", "Mend it")])
def test_a_first_line_that_nobody_can_see_is_no_task_and_no_reason_to_refuse(unseen, after, task):
    """S-106: the whole file was refused because of it, with a place that it does not have."""
    said = unseen + after
    user = {"role": "user", "content": said}
    steps = [{"step_id": 1, "source": "user", "message": said}]
    agent = {"name": "a", "version": "1"}
    atif = {"schema_version": "ATIF-v1.7", "agent": agent, "steps": steps}

    drafts = {
        "Messages of f": read_messages(text=json.dumps([user]), name="f.json")[0],
        "Trajectory of a": read_atif(text=json.dumps(atif), name="f.json"),
        "Replay of f": read_trajectory(text=trajectory(history=[user]), name="f.traj"),
    }

    assert [history(one).task for one in drafts.values()] == [task or other for other in drafts]


def test_what_a_file_says_cannot_reach_the_terminal():
    """S-107: a version or a name in a file of somebody else could colour or forge a line."""
    hostile = "\x1b[2J\u202e\n9b\x9b"
    told = io.StringIO()

    with pytest.raises(UnreadableFile) as refused:
        read_atif(text=json.dumps({"schema_version": hostile}), name="f.json")
    draft = read_trajectory(text=trajectory(**{hostile: 1}), name="f.traj")
    tell_left_out(told, "f.traj", draft.left_out)

    for text in (str(refused.value), told.getvalue()):
        assert "\\u001b[2J\\u202e\\u000a9b\\u009b" in text
        assert not set(text) & set(hostile) - set("[2J9b")
