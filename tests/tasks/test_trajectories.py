"""The reader of .traj files: small made-up ones, malformed ones, real ones where there are any."""

import json
from pathlib import Path

import pytest

from agentstate.store.payloads import PAYLOAD_BYTES_MAX
from tasks.drafts import UnreadableFile, key_from_name, task_line
from tasks.samples import trajectory_folder
from tasks.trajectories import read_trajectory

ISSUE = "We're solving an issue.\nISSUE:\nThe clock is late\nBy an hour.\n\nINSTRUCTIONS:\nGo on."


def step(**changes):
    usual = {
        "thought": "Look first.",
        "response": "Look first.\n```\nls -la\n```",
        "action": "ls -la\n",
        "observation": "clock.py\n",
        "state": '{"open_file": "n/a"}',
    }
    return {**usual, **changes}


def trajectory(**changes):
    usual = {
        "environment": "swe_main",
        "trajectory": [step(), step(action="submit", observation="diff")],
        "history": [
            {"role": "system", "content": "You are a programmer."},
            {"role": "user", "content": "A demonstration", "is_demo": True},
            {"role": "user", "content": ISSUE},
        ],
        "info": {"exit_status": "submitted", "submission": "diff --git a/clock.py b/clock.py\n"},
    }
    return json.dumps({**usual, **changes}, indent=1)


def read(text, name="clock.traj"):
    return read_trajectory(text=text, name=name)


def refused(text, name="clock.traj"):
    with pytest.raises(UnreadableFile) as wrong:
        read(text, name)
    return str(wrong.value)


def events(draft):
    return [event for step in draft.steps for event in step.events]


def test_a_step_becomes_a_response_a_call_and_an_answer_with_the_full_texts():
    draft = read(trajectory())

    assert [event.type for event in events(draft)][:3] == [
        "model.responded",
        "tool.called",
        "tool.returned",
    ]
    responded, called, returned = (event.data.value() for event in events(draft)[:3])
    assert responded["thought"] == "Look first."
    assert responded["response"] == "Look first.\n```\nls -la\n```"
    assert called == {"step": 1, "tool": "ls", "action": "ls -la\n"}
    assert returned == {
        "step": 1,
        "observation": "clock.py\n",
        "state": '{"open_file": "n/a"}',
    }


def test_the_task_is_the_title_of_the_issue_and_its_whole_text_opens_the_run():
    draft = read(trajectory())

    assert (draft.key, draft.task) == ("clock", "The clock is late")
    assert draft.tags == ("issue", "swe-agent")
    assert draft.opening[0].type == "task.given"
    assert draft.opening[0].data.value() == {"system": "You are a programmer.", "task": ISSUE}


def test_a_challenge_is_named_after_its_name():
    text = 'The CTF challenge is a cryptography problem named "Time", worth 10 points. Go.'
    draft = read(
        trajectory(history=[{"role": "user", "content": [{"type": "text", "text": text}]}])
    )

    assert draft.task == "Solve “Time” (cryptography challenge)"
    assert draft.tags == ("ctf", "swe-agent")


def test_the_submission_ends_the_run_in_full_with_what_else_is_known():
    draft = read(trajectory(info={"exit_status": "submitted", "submission": "x\r\n", "note": 1}))

    assert events(draft)[-1].type == "submission.made"
    assert events(draft)[-1].data.value() == {
        "exit_status": "submitted",
        "submission": "x\r\n",
        "note": 1,
    }
    assert draft.status == "completed"


def test_a_run_that_handed_nothing_in_has_failed():
    draft = read(trajectory(info={"exit_status": "exit_cost", "submission": None}))

    assert (events(draft)[-1].type, draft.status) == ("agent.exited", "failed")
    assert "not-submitted" in draft.tags


def test_without_counts_the_tokens_of_a_step_are_estimated_from_its_length_and_say_so():
    long = step(response="r" * 400, observation="o" * 401)
    draft = read(trajectory(trajectory=[long], info={"model_stats": {"tokens_sent": 0}}))

    assert draft.spent("tokens") == draft.steps[0].add["tokens_spent"] == 201
    assert events(draft)[0].data.value()["usage"] == {"tokens": 201, "estimated": True}
    assert draft.budgets[0].cap == 1_000


def test_measured_tokens_are_shared_out_without_losing_one():
    counts = {"tokens_sent": 7141, "tokens_received": 243, "api_calls": 5}
    steps = [step(observation="o" * n) for n in (0, 10, 100, 1_000, 7)]
    draft = read(trajectory(trajectory=steps, info={"model_stats": counts}))

    assert draft.spent("tokens") == 7141 + 243
    assert all(step.spend.amount >= 1 for step in draft.steps[:-1])
    assert draft.attrs.value()["tokens"] == "measured"
    assert draft.budgets[0].cap == 12_000


def test_every_event_has_an_id_of_its_own_so_that_writing_it_again_is_harmless():
    ids = [event.id for event in events(read(trajectory()))]

    assert len(set(ids)) == len(ids)
    assert None not in ids


def test_a_step_without_an_action_has_no_call():
    draft = read(trajectory(trajectory=[step(action="", observation="no command found")]))

    assert [event.type for event in draft.steps[0].events] == ["model.responded", "tool.returned"]


def test_what_a_newer_release_adds_to_a_step_is_kept_but_not_the_repeated_conversation():
    newer = step(execution_time=0.25, extra_info={"cost": 3}, query=[{"role": "user"}] * 50)
    returned = read(trajectory(trajectory=[newer])).steps[0].events[-1].data.value()

    assert returned["execution_time"] == 0.25
    assert returned["extra"] == {"extra_info": {"cost": 3}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1, column 1: Expecting value"),
        ('{"trajectory": [\n  {"action": "a",}\n]}', "line 2, column 18: "),
        ('{"trajectory": []} {}', "line 1, column 19: text after the JSON value"),
        ("[]", "$: must be an object, is a list"),
        ("{}", "$.trajectory: is missing"),
        ('{"trajectory": {}}', "$.trajectory: must be a list, is an object"),
        ('{"trajectory": []}', "$.trajectory: has no step"),
        ('{"trajectory": [7]}', "$.trajectory[0]: must be an object, is a number"),
        ('{"trajectory": [{"action": "a"}, {}]}', "$.trajectory[1].action: is missing"),
        ('{"trajectory": [{"action": 5}]}', "$.trajectory[0].action: must be a text, is a number"),
        (
            '{"trajectory": [{"action": "a", "observation": [1]}]}',
            "$.trajectory[0].observation: must be a text, is a list",
        ),
        ('{"trajectory": [{"action": "a"}], "info": [1]}', "$.info: must be an object, is a list"),
        (
            '{"trajectory": [{"action": "a", "execution_time": NaN}]}',
            "$.trajectory[0].execution_time: NaN is not JSON",
        ),
        ('{"trajectory": [{"action": "a", "action": "b"}]}', "the same name twice in one object"),
        ('{"trajectory": [{"action": "a\\u0000b"}]}', "$.trajectory[0].action: no U+0000"),
        (
            '{"trajectory": [{"action": "\\ud83d"}]}',
            "$.trajectory[0].action: no U+0000 and no lone",
        ),
        ('{"trajectory": ' + "[" * 5_000 + "]" * 5_000 + "}", "nested deeper than 64"),
    ],
)
def test_a_malformed_file_is_refused_with_place_and_reason(text, says):
    message = refused(text)

    assert message.startswith("clock.traj: ")
    assert says in message


def test_a_text_that_is_too_large_for_an_event_is_refused_and_not_cut():
    message = refused(trajectory(trajectory=[step(observation="o" * (PAYLOAD_BYTES_MAX + 1))]))

    assert "$.trajectory[0]: tool.returned would hold" in message
    assert f"at most {PAYLOAD_BYTES_MAX}" in message


def test_a_name_of_which_no_key_can_be_made_is_refused():
    assert "no run key can be made of the name '….traj'" in refused(trajectory(), name="….traj")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a/b/test-repo-1c2844.traj", "test-repo-1c2844"),
        ("C:\\runs\\Fix the clock (2).traj", "Fix-the-clock-2"),
        ("Café.traj", "Caf"),
        (".traj", "traj"),
        ("x" * 300 + ".traj", "x" * 196),
    ],
)
def test_a_file_name_gives_a_run_key(name, key):
    assert key_from_name(name) == key


def test_a_long_task_is_cut_at_a_word():
    assert task_line("one\n two\tthree\x07") == "one two three"
    assert task_line("word " * 200).endswith("word…")
    assert len(task_line("word " * 200)) <= 500
    assert len(task_line("w" * 900)) == 500


def test_the_real_trajectories_are_read_without_losing_a_character():
    folder = trajectory_folder()
    if folder is None:
        return  # they do not come with the project
    for path in sorted(folder.glob("*.traj")):
        check_nothing_is_lost(path)


def check_nothing_is_lost(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    draft, source = read(text, path.name), json.loads(text)
    payloads = [event.data.value() for step in draft.steps for event in step.events]
    for name in ("thought", "response", "action", "observation", "state"):
        taken = [data[name] for data in payloads if name in data]
        assert taken == [step[name] for step in source["trajectory"]], (path.name, name)
    assert payloads[-1]["submission"] == source["info"]["submission"]
    assert draft.status == "completed"
    assert draft.budgets[0].cap >= draft.spent("tokens") > 0
