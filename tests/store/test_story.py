"""One query for a run's whole story, in the single table's order."""

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentstate.store.commands import CreateBudget, ImportedEvent, ImportRun, NewBudget, NewEvent
from agentstate.store.errors import Invalid, NotFound, RunExpired
from agentstate.store.payloads import RawJSON
from agentstate.store.story import items, story
from tests.store.asking import event, rows

WHOLE = ["budget", "budget#calls", "evt#000001", "evt#000002", "evt#000003", "meta"]


def keys(found):
    return [json.loads(item.text)["sk"] for item in found.items]


@pytest.fixture
def run(store):
    store.create(
        "42",
        budgets=(NewBudget(name="tokens", cap=500_000), NewBudget(name="calls", cap=10)),
        events=(event("model.responded"), event("tool.returned")),
    )
    return "42"


def test_the_texts_own_scenario_everything_about_run_42_is_one_query(run):
    with CaptureQueriesContext(connection) as asked:
        found = story("42")

    assert len(asked) == 1
    assert keys(found) == [
        "budget",
        "budget#calls",
        "evt#000001",
        "evt#000002",
        "evt#000003",
        "meta",
    ]
    assert found.as_of_seq == 3
    assert found.next_seq is None
    meta = json.loads(found.items[-1].text)
    assert (meta["pk"], meta["task"], meta["status"]) == ("run#42", "audit checkout", "pending")


def test_payloads_stand_in_it_to_the_letter_or_as_their_size(store, run):
    text = '{"id":1970670598291982290, "f":0.10,"s":"\\u00e9"}'
    store.append("42", [NewEvent(type="x", data=RawJSON(text))])
    assert text in story("42").items[-2].text
    hidden = json.loads(story("42", payloads=False).items[-2].text)
    assert (hidden["data"], hidden["data_bytes"]) == (None, len(text))


def test_a_long_story_is_paged_by_count_and_by_bytes(store, run):
    store.append("42", [event(data="x" * 400_000) for _ in range(4)])
    first = story("42", limit=4)
    assert (keys(first)[2:-1], first.next_seq) == (
        ["evt#000001", "evt#000002", "evt#000003", "evt#000004"], 4)  # fmt: skip
    second = story("42", after_seq=4, limit=100)
    assert (keys(second)[2:-1], second.next_seq) == (["evt#000005", "evt#000006"], 6)
    assert story("42", after_seq=6).next_seq is None


def test_any_partition_key_and_prefix_can_be_asked_for(store, run, clock):
    store.acquire("7", "A")
    store.ask(CreateBudget(run=None, budget=NewBudget(name="fleet", cap=5)))

    assert keys(items("run#42", sk_prefix="evt#")) == ["evt#000001", "evt#000002", "evt#000003"]
    assert keys(items("run#42", sk_prefix="budget")) == ["budget", "budget#calls"]
    lease = json.loads(items("unit#7", sk_prefix="lease").items[0].text)
    assert (lease["owner"], lease["expires_in_ms"]) == ("A", 60_000)
    assert keys(items("budget#fleet")) == ["budget"]
    assert items("unit#7", sk_prefix="evt#").items == ()
    for wrong in ("run42", "x#1", "run#", "run#../x"):
        with pytest.raises(Invalid):
            items(wrong)
    for unknown in ("run#43", "unit#8", "budget#x"):
        with pytest.raises(NotFound):
            items(unknown)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_paging_over_the_sort_keys_gives_each_row_once(run, limit):
    found, after = [], None
    while True:
        page = items("run#42", after=after, limit=limit)
        found += keys(page)
        after = page.after
        if after is None:
            break
    assert found == WHOLE


@pytest.mark.damages
def test_the_order_is_right_on_both_sides_of_the_millionth_event(store):
    """A million rows would take a while: the log is brought in as far as it matters."""
    store.create("big")
    rows(
        "INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, actor, at)"
        " SELECT id, n, n, 'x', 'worker', 'null', 'key:fleet', now()"
        " FROM agentstate_run, generate_series(999998, 1000002) n WHERE key = 'big'"
    )
    rows("UPDATE agentstate_run SET last_seq = 1000002, version = 1000002 WHERE key = 'big'")

    found = story("big", after_seq=999_997)
    numbers = ("999998", "999999", "1000000", "1000001", "1000002")
    assert keys(found) == [*(f"evt#{n}" for n in numbers), "meta"]
    first = items("run#big", sk_prefix="evt#", after="evt#999999", limit=2)
    assert (keys(first), first.after) == (["evt#1000000", "evt#1000001"], "evt#1000001")
    assert keys(items("run#big", sk_prefix="evt#99999")) == ["evt#999998", "evt#999999"]
    assert store.append("big").last_seq == 1_000_003


def bring_in(numbers):
    rows(
        "INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, actor, at)"
        " SELECT id, n, n, 'x', 'worker', 'null', 'key:fleet', now()"
        f" FROM agentstate_run, unnest(ARRAY{numbers}::bigint[]) n WHERE key = 'big'"
    )
    rows(
        "UPDATE agentstate_run SET last_seq = %s, version = %s WHERE key = 'big'",
        *[numbers[-1]] * 2,
    )


def pages(**wanted):
    found, after = [], None
    while True:
        page = items("run#big", after=after, **wanted)
        found += [int(key.removeprefix("evt#")) for key in keys(page)]
        after = page.after
        if after is None:
            return found


@pytest.mark.damages
@pytest.mark.parametrize("prefix", ["1", "10", "100000", "1000000", "10000000", "00001", "0000001"])
def test_a_prefix_finds_numbers_of_every_length(store, prefix):
    store.create("big")
    numbers = [2, 9, 10, 19, 20, 99_999, 100_000, 100_001, 199_999, 200_000, 999_999, 1_000_000,
               1_000_009, 1_999_999, 2_000_000, 10_000_000]  # fmt: skip
    bring_in(numbers)
    expected = [n for n in [1, *numbers] if f"{n:06d}".startswith(prefix)]
    for limit in (1, 2, 100):
        assert pages(sk_prefix=f"evt#{prefix}", limit=limit) == expected
    assert items("run#big", sk_prefix="evt#²").items == ()


def test_a_page_that_is_cut_by_its_size_says_where_to_go_on(store, run):
    store.append("42", [event(data="x" * 400_000) for _ in range(4)])
    found, after, count = [], None, 0
    while count == 0 or after is not None:
        page = items("run#42", after=after)
        found += keys(page)
        after, count = page.after, count + 1
    assert found == [*WHOLE[:2], *(f"evt#{n:06d}" for n in range(1, 8)), "meta"]
    assert count > 1


def test_attrs_and_result_are_payloads_too(store, run):
    store.create("a", attrs=RawJSON('{"x": 1.0}'))
    assert '"attrs" : {"x": 1.0}' in story("a").items[-1].text
    hidden = json.loads(story("a", payloads=False).items[-1].text)
    assert (hidden["attrs"], hidden["attrs_bytes"], hidden["result"]) == (None, 10, None)


def test_an_expired_run_has_no_story(store, clock):
    store.create("42", retain_seconds=1)
    store.move("42", "cancelled")
    clock.advance(seconds=1)
    with pytest.raises(RunExpired):
        story("42")


def test_an_import_of_a_long_run_reads_back_whole(store):
    events = tuple(
        ImportedEvent(
            seq=n,
            version=n,
            type="run.created" if n == 1 else "x",
            origin="store" if n == 1 else "worker",
            data=RawJSON('{"status":"running"}'),
        )
        for n in range(1, 3001)
    )  # fmt: skip
    store.ask(ImportRun(key="long", task="x", status="running", events=events))
    seen, after = 0, 0
    while after is not None:
        page = story("long", after_seq=after, limit=700)
        seen += len([k for k in keys(page) if k.startswith("evt#")])
        after = page.next_seq
    assert seen == 3000
