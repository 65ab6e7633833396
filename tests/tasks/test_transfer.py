"""Import and export against the real store: all or nothing, and the same run back."""

import fcntl
import io
import json
import os

import pytest
from django.core.management import CommandError, call_command

from agentstate.store.callers import SYSTEM
from agentstate.store.commands import (
    AcquireLease,
    Append,
    Charge,
    CreateRun,
    NewBudget,
    NewEvent,
    ReleaseLease,
    Transition,
)
from agentstate.store.execute import execute
from agentstate.store.models import Budget, Event, Run
from agentstate.store.payloads import RawJSON
from tasks.samples import OWN_FOLDER, trajectory_folder
from tests.tasks.test_archive import NASTY

pytestmark = pytest.mark.django_db(transaction=True)

SAMPLE = OWN_FOLDER / "invoice-rounding.jsonl"


def run_import(*paths, **options):
    out = io.StringIO()
    call_command("import_runs", *map(str, paths), stdout=out, **options)
    return out.getvalue()


def refused(*paths, **options):
    with pytest.raises(CommandError) as wrong:
        run_import(*paths, **options)
    return str(wrong.value)


def run_export(*keys, **options):
    out = io.StringIO()
    call_command("export_runs", *keys, stdout=out, **options)
    return out.getvalue()


def lived_through(key):
    """A run with everything in it: payloads of all kinds, a lease, charges, an end."""
    execute(
        CreateRun(
            key=key,
            task="Fix it",
            tags=("b", "a"),
            attrs=RawJSON('{"z": 1.0, "a": [ 1 ]}'),
            budgets=(NewBudget(name="tokens", cap=100), NewBudget(name="calls", cap=9, unit="n")),
            events=(NewEvent(type="task.given"),),
        ),
        by=SYSTEM,
    )
    lease = execute(AcquireLease(unit=f"run:{key}", owner="w-1~0001"), by=SYSTEM)
    execute(Transition(run=key, to="running", fence=lease.token), by=SYSTEM)
    for number, payload in enumerate(NASTY):
        execute(
            Append(
                run=key,
                events=(NewEvent(type="a.b", data=RawJSON(payload.strip(" ")), id=f"e {number}"),),
                add={"steps_done": 1},
                spend=(Charge(budget="tokens", amount=3, id=f"c-{number}", note="a call"),),
                fence=lease.token,
            ),
            by=SYSTEM,
        )
    return lease


def write(folder, text, name="runs.jsonl"):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_export_and_import_give_the_same_run_back_byte_for_byte(tmp_path):
    lease = lived_through("r-1")
    execute(
        Transition(
            run="r-1", to="completed", result=RawJSON('{ "ok":\n true }'), fence=lease.token
        ),
        by=SYSTEM,
    )
    text = run_export("r-1")

    run_import(write(tmp_path, text), key="r-2")

    assert run_export("r-2").replace('"key":"r-2"', '"key":"r-1"') == text
    assert payloads("r-2") == payloads("r-1")
    assert head("r-2") == head("r-1")


def payloads(key):
    return list(Event.objects.filter(run__key=key).order_by("seq").values_list("data", flat=True))


def head(key):
    names = ("status", "version", "last_seq", "counters", "tags", "attrs", "result", "attempt")
    budgets = Budget.objects.filter(run__key=key).order_by("name")
    return (
        Run.objects.values(*names).get(key=key),
        list(budgets.values("name", "unit", "cap", "spent", "reserved", "version", "entries")),
    )


def test_a_run_that_was_going_on_is_claimed_and_goes_on(tmp_path):
    lease = lived_through("r-1")
    execute(ReleaseLease(unit="run:r-1", token=lease.token), by=SYSTEM)
    text = run_export("r-1")

    run_import(write(tmp_path, text), key="r-2")
    again = execute(AcquireLease(unit="run:r-2", owner="w-2~0001"), by=SYSTEM)

    assert again.token > lease.token
    assert again.last_seq == Run.objects.get(key="r-1").last_seq + 1


def test_an_imported_run_that_was_held_has_no_holder_here(tmp_path):
    lived_through("r-1")

    run_import(write(tmp_path, run_export("r-1")), prefix="copy-")

    run = Run.objects.get(key="copy-r-1")
    assert (run.status, run.owner, run.token) == ("running", None, None)
    assert run_export("copy-r-1").replace("copy-r-1", "r-1", 1) == run_export("r-1")


def test_several_runs_in_one_file_come_back_as_several(tmp_path):
    for key in ("r-1", "r-2"):
        lived_through(key)
    text = run_export("r-1", "r-2", "r-1")

    said = run_import(write(tmp_path, text), prefix="b.")

    assert said.count("running") == 2
    assert run_export("b.r-1", "b.r-2").replace('"key":"b.', '"key":"') == text


def test_the_sample_run_is_a_finished_run_within_its_budget():
    assert "invoice-rounding  completed  34 events" in run_import(SAMPLE)

    run = Run.objects.get(key="invoice-rounding")
    budget = Budget.objects.get(run=run)
    assert (run.last_seq, run.counters["steps_done"]) == (34, 10)
    assert 0 < budget.spent == run.counters["tokens_spent"] <= budget.cap
    assert set(Event.objects.filter(run=run).values_list("actor", flat=True)) == {"system:import"}


def test_the_real_trajectories_come_in_whole():
    folder = trajectory_folder()
    if folder is None:
        return  # they do not come with the project
    run_import(folder)

    for run in Run.objects.all():
        assert run.status == "completed"
        assert run.last_seq == run.events.count() > 10


def test_a_key_that_is_taken_is_refused_and_nothing_of_any_file_is_written(tmp_path):
    run_import(SAMPLE)
    other = OWN_FOLDER / "failed-uploads.jsonl"

    message = refused(other, SAMPLE)

    assert "a run with this key already: invoice-rounding. Nothing was imported" in message
    assert "--as KEY or --rename PREFIX" in message
    assert Run.objects.count() == 1
    assert "again-invoice-rounding" in run_import(SAMPLE, prefix="again-")
    assert run_import(SAMPLE, key="third").startswith("third  completed")


def test_two_files_with_one_key_are_refused(tmp_path):
    assert "invoice-rounding" in refused(SAMPLE, write(tmp_path, SAMPLE.read_text()))
    assert Run.objects.count() == 0


def test_one_malformed_file_among_good_ones_leaves_nothing_behind(tmp_path):
    bad = write(tmp_path, SAMPLE.read_text().replace('"kind": "end"', '"kind": "ende"'), "b.jsonl")

    message = refused(SAMPLE, bad)

    assert f"{bad}: line 15: kind: budget, opening, step or end, not 'ende'" in message
    assert "Nothing was imported." in message
    assert Run.objects.count() == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('"status":"running"', '"status":"completed"'), "the events lead to running"),
        (('"spent":3,', '"spent":300,'), "more is used than the cap allows"),
        (('"version":3,', '"version":9,'), "1 and then never down"),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(tmp_path, change, says):
    lived_through("r-1")
    text = run_export("r-1")
    assert change[0] in text

    message = refused(write(tmp_path, text.replace(*change, 1)), key="r-2")

    assert says in message
    assert "run r-2" in message
    assert not Run.objects.filter(key="r-2").exists()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "line 1: there is no run in the file"),
        (b'{"agentstate": 1,\n\xff}', "line 2: not UTF-8 (byte 0xff)"),
        (b"\x1f\x8b\x08", "line 1: not UTF-8 (byte 0x8b)"),
    ],
)
def test_what_is_no_text_at_all_is_refused(tmp_path, raw, says):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(raw)

    assert says in refused(path)


def test_a_file_that_is_not_there_and_an_empty_folder_are_named(tmp_path):
    assert "nowhere.jsonl: file: No such file" in refused(tmp_path / "nowhere.jsonl")
    assert "holds no .traj and no .jsonl file" in refused(tmp_path)


def test_a_check_writes_nothing():
    assert run_import(SAMPLE, check=True) == "1 runs in 1 files can be imported.\n"
    assert Run.objects.count() == 0


@pytest.mark.parametrize(("key", "says"), [("a b", "letters, digits"), ("x" * 197, "1 to 196")])
def test_a_key_that_cannot_be_one_is_refused(key, says):
    assert says in refused(SAMPLE, key=key)


def test_one_key_for_two_runs_is_refused():
    assert "--as names one run, the files hold 2" in refused(
        SAMPLE, OWN_FOLDER / "failed-uploads.jsonl", key="one"
    )


def test_an_unknown_run_is_named_and_nothing_is_written():
    run_import(SAMPLE)
    with pytest.raises(CommandError, match="no run r-9"):
        run_export("invoice-rounding", "r-9")


def test_files_are_written_whole_and_never_over_others(tmp_path):
    run_import(SAMPLE)

    run_export("invoice-rounding", out=tmp_path / "runs")

    path = tmp_path / "runs" / "invoice-rounding.jsonl"
    assert [p.name for p in path.parent.iterdir()] == ["invoice-rounding.jsonl"]
    assert path.read_text() == run_export("invoice-rounding")
    with pytest.raises(CommandError, match="there already"):
        run_export("invoice-rounding", out=path.parent)


ATIF = {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "mender", "version": "2"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Mend the clock"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "It is late.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "date", "arguments": {}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "05:06"}]},
            "metrics": {"prompt_tokens": 700, "completion_tokens": 112},
        },
    ],
}


def test_formats_of_others_go_through_the_store_and_say_what_is_left_out(tmp_path):
    path = write(tmp_path, json.dumps(ATIF), "clock.json")
    errors = io.StringIO()

    assert run_import(path).startswith("clock  completed")
    assert Budget.objects.get(run__key="clock").spent == 812
    assert json.loads(run_export("clock", format="atif", stderr=errors)) == ATIF
    assert "clock: left out: " in errors.getvalue()
    assert "event run.created of the store (1)" in errors.getvalue()

    run_export("clock", format="messages", out=tmp_path / "out", stderr=errors)
    log = tmp_path / "out" / "clock.messages.json"
    assert [one["role"] for one in json.loads(log.read_text())] == ["user", "assistant", "tool"]
    assert run_import(log, key="again", format="messages").startswith("again  completed")
    with pytest.raises(CommandError, match="a document for each run: name one"):
        run_export("clock", "again", format="atif")


def test_a_file_of_another_format_than_was_said_is_refused(tmp_path):
    path = write(tmp_path, json.dumps(ATIF), "clock.json")

    assert "clock.json: $.messages[0].role: is missing" in refused(path, format="messages")


def test_what_a_killed_import_left_is_finished_without_a_run_twice(tmp_path):
    """S-509 (docs/sweeps.md): the same command was refused for all that was there already."""
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(SAMPLE.read_text().replace("invoice-rounding", f"part-{number}"))
    run_import(files[0])  # and then it was killed
    assert "--missing" in refused(tmp_path)
    told = run_import(tmp_path, missing=True)
    assert f"{files[0]}  was imported already" in told
    assert "part-1  completed" in told
    assert "part-2  completed" in told
    assert sorted(Run.objects.values_list("key", flat=True)) == ["part-0", "part-1", "part-2"]
    events = Event.objects.count()
    run_import(tmp_path, missing=True)
    assert Event.objects.count() == events


def test_another_run_of_the_same_key_is_not_taken_for_what_was_imported(tmp_path):
    """S-509 (docs/sweeps.md)."""
    execute(CreateRun(key="invoice-rounding", task="something else"), by=SYSTEM)
    assert "a run with this key already: invoice-rounding" in refused(SAMPLE, missing=True)


def test_an_export_that_could_not_be_finished_leaves_no_file_and_can_be_said_again(tmp_path):
    """S-510. The first files had their names already, and kept the same command from being run."""
    run_import(SAMPLE)
    run_import(SAMPLE, key="r-2")
    (tmp_path / "r-2.jsonl.part").mkdir()  # what cannot be written
    with pytest.raises(CommandError, match=r"r-2\.jsonl\.part: .*Nothing was exported"):
        run_export("invoice-rounding", "r-2", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["r-2.jsonl.part"]

    (tmp_path / "r-2.jsonl.part").rmdir()
    (tmp_path / "r-2.jsonl.part").write_text("what a killed export left")
    run_export("invoice-rounding", "r-2", out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"invoice-rounding.jsonl", "r-2.jsonl"}
    assert (tmp_path / "r-2.jsonl").read_text() == run_export("r-2")


def test_two_exports_into_a_folder_do_not_write_into_each_others_files(tmp_path):
    """S-511. Both wrote into one draft, and the one that ended first gave it the run's name."""
    run_import(SAMPLE)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        with pytest.raises(CommandError, match="another export writes into"):
            run_export("invoice-rounding", out=tmp_path)
        assert not list(tmp_path.iterdir())
    finally:
        os.close(other)
    run_export("invoice-rounding", out=tmp_path)
