"""Copies: lost at any moment, made again by one filler, and never what anything is decided on."""

import ast
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.db import connection
from django.db.models import Count
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentstate import caching
from agentstate.caching import CACHES_OF, Copies, copies
from agentstate.store import listeners
from agentstate.store.models import Event, Run
from dashboard.views import now as now_view
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.dashboard.test_live_costs import parts
from tests.store.asking import SENIOR, Asking, at_once, event, rows
from tests.store.waiting import wait_for


def ints(found):
    if type(found) is not list:
        raise TypeError("a list")
    return found


class Filler:
    """Counts how often it is asked to fill; holds everybody up until it is let go."""

    def __init__(self, *, held=False):
        self.times, self.going = 0, threading.Event()
        self._counting = threading.Lock()
        if not held:
            self.going.set()

    def __call__(self):
        with self._counting:
            self.times += 1
        assert self.going.wait(20)
        return [self.times]


def together(count, ask):
    """What so many threads got that ask at the same moment, or the exception that each met."""
    barrier = threading.Barrier(count)

    def one(number):
        barrier.wait(20)
        try:
            return ask(number)
        except Exception as met:
            return met

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.fixture
def shared():
    """A cache that several processes see."""
    cache = LocMemCache("shared", {})
    yield cache
    cache.clear()


def marks_of(keeper, run, fill, version=1):
    return keeper.of_run("marks", run, version, fill=fill, read=ints)


def test_a_copy_is_filled_once_and_superseded_by_the_next_version():
    keeper, run, fill = Copies(), uuid4(), Filler()

    assert [marks_of(keeper, run, fill) for _ in range(3)] == [[1], [1], [1]]
    assert marks_of(keeper, run, fill, version=2) == [2]
    assert marks_of(keeper, run, fill, version=1) == [1]
    assert fill.times == 2


def test_fifty_misses_at_once_are_one_fill():
    keeper, run, fill = Copies(), uuid4(), Filler(held=True)
    threading.Timer(0.2, fill.going.set).start()

    found = together(50, lambda _: marks_of(keeper, run, fill))

    assert found == [[1]] * 50
    assert fill.times == 1


def test_processes_that_share_a_cache_fill_once_too(shared):
    run, fill = uuid4(), Filler(held=True)
    processes = [Copies(cache=lambda: shared) for _ in range(4)]
    threading.Timer(0.2, fill.going.set).start()

    found = together(12, lambda n: marks_of(processes[n % 4], run, fill))

    assert found == [[1]] * 12
    assert fill.times == 1


def test_a_filler_of_another_process_that_died_is_not_waited_for_long(shared, monkeypatch):
    monkeypatch.setattr(caching, "WAIT_SECONDS", 0.1)
    run, fill = uuid4(), Filler()
    shared.set(f"run:{run}:v1:marks:filling", b'j""', 60)

    assert marks_of(Copies(cache=lambda: shared), run, fill) == [1]


def test_whoever_finds_a_filler_at_work_gets_the_count_before_it():
    keeper, first, second = Copies(), Filler(), Filler(held=True)
    read = {"fill": first, "read": ints}
    assert keeper.count("statuses", **read) == [1]
    keeper.end("statuses")
    slow = threading.Thread(target=lambda: keeper.count("statuses", fill=second, read=ints))
    slow.start()
    wait_for(lambda: second.times == 1)

    began = time.monotonic()
    assert keeper.count("statuses", **read) == [1]
    assert time.monotonic() - began < 1
    second.going.set()
    slow.join()
    assert first.times == 1


def test_a_count_that_was_ended_is_never_found_again():
    keeper, fill = Copies(), Filler()

    seen = []
    for _ in range(4):
        seen.append(keeper.count("statuses", fill=fill, read=ints))
        keeper.end("statuses")
        caches["default"].delete("counts:statuses:generation")  # as one that ran out of room does

    assert seen == [[1], [2], [3], [4]]


def test_what_a_filler_meets_reaches_all_who_wait_and_the_next_fills_again():
    keeper, run, failing = Copies(), uuid4(), threading.Event()

    def fail():
        assert failing.wait(20)
        raise LookupError("no such thing")

    threading.Timer(0.1, failing.set).start()
    found = together(5, lambda _: marks_of(keeper, run, fail))

    assert [type(one) for one in found] == [LookupError] * 5
    assert marks_of(keeper, run, Filler()) == [1]


@pytest.mark.parametrize(
    "found",
    [b"", b"jx", b'j{"a": 1}', b"z123", b"\x80\x04K*.", "text", 7, [1], b"j" + b"[" * 99_999],
)
def test_what_is_not_understood_is_as_if_it_were_not_there(found):
    keeper, run = Copies(), uuid4()
    caches["default"].set(f"run:{run}:v1:marks", found)

    assert marks_of(keeper, run, Filler()) == [1]


def test_many_runs_are_looked_up_together():
    keeper, one, two = Copies(), uuid4(), uuid4()
    made = []

    def fill(run):
        made.append(run)
        return f"<{run}>"

    keeper.of_runs("summary", [(one, 1)], fill=fill)
    found = keeper.of_runs("summary", [(one, 1), (two, 5)], fill=fill)

    assert found == {one: f"<{one}>", two: f"<{two}>"}
    assert made == [one, two]


class Broken(LocMemCache):
    """A cache whose server is gone."""

    asked = 0

    def _gone(self, *_given, **_named):
        type(self).asked += 1
        raise ConnectionError("connection refused")

    get = set = add = delete = get_many = set_many = clear = _gone


def test_a_cache_that_is_down_is_one_that_is_always_empty(caplog):
    Broken.asked = 0
    keeper, run, fill = Copies(cache=lambda: Broken("broken", {})), uuid4(), Filler()

    for _ in range(20):
        marks_of(keeper, run, fill)
        keeper.count("lapsed", fill=fill, read=ints)
        keeper.end("lapsed")
        keeper.of_runs("summary", [(run, 1)], fill=lambda _run: "text")

    assert fill.times == 40
    assert Broken.asked == 1  # then it is left alone for a while
    assert caplog.text.count("the cache is down") == 1


# --- on pages ------------------------------------------------------------------------------------


def figures(page):
    """The counts by status, and the badge of leases that lapsed."""
    found = re.findall(r'count-card status-(\w+)"[\s\S]*?count-figure[^>]*>([^<]*)<', page.html)
    badge = re.search(r'badge-bad"[^>]*>(\d+)', page.html)
    return {status: int(n) for status, n in found} | {"lapsed": int(badge[1]) if badge else 0}


def stored_figures():
    counted = dict(Run.objects.values_list("status").annotate(n=Count("id")))
    lapsed = rows(
        "SELECT count(*) FROM agentstate_lease"
        " WHERE token IS NOT NULL AND expires_at <= agentstate_now()"
    )
    return {s: counted.get(s, 0) for s in figures_of_statuses()} | {"lapsed": lapsed[0][0]}


def figures_of_statuses():
    return ("pending", "running", "paused", "completed", "failed", "cancelled")


def queries_on(statement):
    """How many statements with this text a request made."""

    class Counting:
        times = 0

        def __call__(self, execute, sql, params, many, context):
            self.times += statement in sql
            return execute(sql, params, many, context)

    return Counting()


def test_a_write_ends_the_counts_before_it_is_answered(store, viewer):
    store.create("42")
    assert figures(Page(viewer.get("/runs")))["pending"] == 1

    for number in range(3):
        store.create(f"more-{number}")
        assert figures(Page(viewer.get("/runs")))["pending"] == 2 + number

    lease = store.hold("42")
    assert figures(Page(viewer.get("/runs")))["running"] == 1
    store.move("42", "completed", fence=lease.token)
    assert figures(Page(viewer.get("/runs"))) == stored_figures()


def test_a_hint_ends_what_another_process_wrote(store, viewer, monkeypatch):
    store.create("42")
    viewer.get("/runs")
    monkeypatch.setattr(listeners, "after_write", [])  # as if another process wrote
    store.create("43")

    caching.note_hint(("lease",))
    assert figures(Page(viewer.get("/runs")))["pending"] == 1
    caching.note_hint(("run",))
    assert figures(Page(viewer.get("/runs")))["pending"] == 2
    store.create("44")
    caching.note_hint(None)
    assert figures(Page(viewer.get("/runs")))["pending"] == 3


def test_of_a_cache_of_all_the_writer_alone_ends_copies(monkeypatch, shared):
    monkeypatch.setattr(Copies, "is_of_this_process", False)
    keeper, fill = Copies(), Filler()
    keeper.count("statuses", fill=fill, read=ints)

    caching.note_hint(None)

    assert keeper.count("statuses", fill=fill, read=ints) == [1]


def test_ordinary_events_leave_the_counts_alone(store, viewer):
    store.create("42")
    lease = store.hold("42")
    viewer.get("/runs")

    store.append("42", [event("tool.called")], fence=lease.token)
    counting = queries_on("AS counted")
    with connection.execute_wrapper(counting):
        viewer.get("/runs")

    assert counting.times == 0


def test_the_badge_follows_reclaims_at_once(store, still_clock, operator):
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=10)
    still_clock.advance(seconds=11)
    copies.end("lapsed")  # time alone ends it only by its age
    assert figures(Page(operator.get("/runs")))["lapsed"] == 1

    store.as_caller(SENIOR).reclaim("run:42", token=lease.token, owner="w-3")

    assert figures(Page(operator.get("/runs")))["lapsed"] == 0


def test_a_long_run_is_read_once_per_version(store, viewer):
    store.create("42")
    store.append("42", [event("tool.called") for _ in range(40)])
    viewer.get("/runs/42")
    counting = queries_on("FROM agentstate_event")

    with connection.execute_wrapper(counting):
        again = Page(viewer.get("/runs/42"))
        viewer.get("/runs/42/timeline")
    assert counting.times == 0
    assert again.rows("e-") == [str(n) for n in range(1, 42)]

    store.append("42", [event("tool.called")])
    with connection.execute_wrapper(counting):
        assert Page(viewer.get("/runs/42")).rows("e-")[-1] == "42"
    assert counting.times == 2


def test_whoever_may_see_less_gets_no_copy_of_one_who_may_see_more(store, log_in, monkeypatch):
    from dashboard import access

    store.create("42")
    store.append("42", [event("tool.called", {"secret": "swordfish"})])
    assert "swordfish" in Page(log_in("vi", "viewer").get("/runs/42")).text

    monkeypatch.setitem(access.ROLES, "viewer", frozenset({"read"}))
    other = Page(log_in("al", "viewer").get("/runs/42"))

    assert other.rows("e-") == ["1", "2"]
    assert "swordfish" not in other.html


def test_a_copy_of_rows_is_of_what_was_asked(store, viewer):
    store.create("42")
    store.append("42", [event("tool.called"), event("model.responded")])

    def shown(**query):
        return Page(viewer.get("/runs/42", query)).rows("e-")

    for _ in range(2):
        assert shown() == ["1", "2", "3"]
        assert shown(type="tool") == ["2"]
        assert shown(origin="store") == ["1"]
        assert shown(after="1") == ["2", "3"]
        assert shown(before="3") == ["1", "2"]


class Lying(LocMemCache):
    """A cache that gives what it had first of a kind, whatever version or generation is asked."""

    def make_key(self, key, version=None):
        key = re.sub(r":v\d+:", ":", key)
        return super().make_key(re.sub(r":[0-9a-f]{32}$", ":any", key), version)

    def set(self, key, value, *more, **named):
        if "generation" in key or not self.has_key(key):
            super().set(key, value, *more, **named)


@pytest.fixture
def lying(monkeypatch):
    cache = Lying("lying", {})
    monkeypatch.setattr(copies, "_cache", lambda: cache)
    yield cache
    cache.clear()


def test_actions_and_facts_are_right_directly_after_a_write_whatever_the_cache_says(
    store, lying, senior
):
    store.create("42", task="audit")
    first = store.hold("42", "w-1", ttl_seconds=600)
    for address in ("/runs", "/runs/42", "/leases/run:42/reclaim"):
        senior.get(address)

    store.as_caller(SENIOR).reclaim("run:42", token=first.token, force=True)
    second = store.hold("42", "w-2", ttl_seconds=600)

    facts = Page(senior.get("/leases/run:42/reclaim"))
    assert facts.field("expected_owner") == "w-2"
    assert facts.field("expected_token") == str(second.token)
    store.move("42", "completed", fence=second.token)
    run = Page(senior.get("/runs/42"))
    assert "It was completed" in run.text
    assert not [link for link in run.links if re.search("reclaim|cancel|pause", link)]
    # The cache did lie: what only tells is old.
    assert figures(Page(senior.get("/runs")))["running"] == 1


STORE = Path(settings.BASE_DIR) / "agentstate" / "store"
COPIED = re.compile(r"\b(agentstate\.caching|agentstate\.presence|django\.core\.cache)\b")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("folder", ["agentstate/store", "agentstate/api", "client/src", "tasks"])
def test_what_decides_and_what_answers_workers_reads_no_copy(folder):
    paths = sorted((Path(settings.BASE_DIR) / folder).rglob("*.py"))

    assert paths
    assert [str(p) for p in paths for name in imported(p) if COPIED.search(name)] == []


@pytest.mark.parametrize("name", ["dashboard/access.py", "dashboard/views/leases.py"])
def test_what_offers_an_action_reads_no_copy(name):
    assert [n for n in imported(Path(settings.BASE_DIR) / name) if "caching" in n] == []


def test_every_kind_of_copy_has_an_age_and_is_explained():
    assert all(0 < copy.ttl_seconds <= 3_600 for copy in CACHES_OF.values())
    assert all(copy.holds and copy.source and copy.ends for copy in CACHES_OF.values())
    assert set(caching.KINDS.values()) <= set(CACHES_OF)


# --- emptied in the middle -----------------------------------------------------------------------


TURNS = 4


class Hammer:
    """Readers, writers, and somebody who empties the cache at random, all at once."""

    def __init__(self, client):
        self.client, self.over = client, threading.Event()
        self.wrong, self.answers, self.emptied = [], 0, 0

    def write(self, number):
        store = Asking()
        for turn in range(TURNS):
            key = f"run-{number}-{turn}"
            store.create(key)
            lease = store.hold(key, f"w-{number}", ttl_seconds=600)
            for _ in range(3):
                store.append(key, [event("tool.called")], fence=lease.token)
            if turn % 2:
                store.move(key, ("completed", "failed")[turn // 2 % 2], fence=lease.token)

    def read(self, number):
        chosen = random.Random(number)
        client = Client()
        client.cookies = self.client.cookies
        while not self.over.is_set():
            key = f"run-{chosen.randrange(2)}-{chosen.randrange(TURNS)}"
            answer = client.get(chosen.choice(["/runs", f"/runs/{key}", "/leases"]))
            self.answers += 1
            if answer.status_code not in (200, 404):
                self.wrong.append(answer.status_code)

    def empty(self):
        chosen = random.Random(7)
        while not self.over.wait(chosen.uniform(0, 0.03)):
            copies.empty()
            self.emptied += 1

    def one(self, number):
        if number < 2:
            self.write(number)
        elif number < 5:
            self.read(number)
        else:
            self.empty()

    def __call__(self, number):
        try:
            self.one(number)
        finally:
            if number < 2:
                self.writers_left -= 1
                if not self.writers_left:
                    self.over.set()

    writers_left = 2


@pytest.mark.long
@pytest.mark.many
def test_emptied_again_and_again_among_readers_and_writers_pages_end_up_right(transactional_db):
    client = Client()
    client.force_login(person("ana", "operator"))
    hammer = Hammer(client)

    met = [one for one in at_once(6, hammer) if one is not None]

    assert met == []
    assert hammer.wrong == []
    assert hammer.answers > 5
    assert hammer.emptied > 5
    for _ in range(2):  # from the store, and from copies
        shown = Page(client.get("/runs"))
        assert figures(shown) == stored_figures()
        assert_rows_are_right(shown)
        for run in Run.objects.all():
            assert_run_is_right(run, Page(client.get(f"/runs/{run.key}")))


def assert_rows_are_right(shown):
    for run in Run.objects.all():
        row = re.search(rf'<tr id="run-{run.key}"[\s\S]*?</tr>', shown.html)
        assert row is not None
        assert f"status-{run.status}" in row[0]
        assert re.search(rf"c-seq[^>]*>{run.last_seq}<", row[0])


def assert_run_is_right(run, shown):
    numbers = Event.objects.filter(run=run).order_by("seq").values_list("seq", flat=True)
    assert shown.rows("e-") == [str(n) for n in numbers]
    assert f"v{run.version}" in shown.text
    assert shown.html.count('class="dot') >= 1


# --- one answer for all who refresh the same part ------------------------------------------------

PART = {"HX-Request": "true", "HX-Target": "board"}


@pytest.fixture
def sharing(settings):
    settings.AGENTSTATE_SHARED_ANSWERS = True
    caching.answers.empty()
    yield
    caching.answers.empty()


@pytest.fixture
def made(monkeypatch):
    """How often the board of Now was made."""
    times = []
    kept = now_view.board

    def board(now, **more):
        times.append(now)
        return kept(now, **more)

    monkeypatch.setattr(now_view, "board", board)
    return times


def refresh(client, **more):
    return client.get("/", headers=PART | more)


def test_a_part_that_two_refresh_is_made_once_until_somebody_writes(store, log_in, sharing, made):
    ana, bo = log_in("ana", "operator"), log_in("bo", "operator")
    assert refresh(ana).content == refresh(bo).content
    assert len(made) == 1
    store.create("42")
    refresh(bo)
    assert len(made) == 2


def test_who_gets_what_another_was_made_asks_only_who_they_are(store, log_in, sharing):
    store.create("42")
    store.hold("42")
    clients = [log_in(name, "operator") for name in ("ana", "bo")]
    (part,) = parts(clients[0].get("/leases/run:42").text)
    headers = part.headers("/leases/run:42")
    for client in clients:
        with CaptureQueriesContext(connection) as asked:
            assert "w-1" in client.get(part.address, headers=headers).text
        assert len(asked) == 1
    assert "json_build_object" not in asked.captured_queries[0]["sql"]

    # Other rights have an answer of their own, which is read by itself then.
    assert "w-1" in log_in("vi", "viewer").get(part.address, headers=headers).text


def test_what_was_read_before_a_write_is_no_answer_after_it(store, log_in, sharing):
    store.create("42")
    ana = log_in("ana", "operator")
    (part,) = parts(ana.get("/leases/run:42").text)
    headers = part.headers("/leases/run:42")

    def write_after_the_session(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if "dashboard_session" in sql and not held:
            held.append(store.hold("42", "w-7"))
        return found

    held: list = []
    with connection.execute_wrapper(write_after_the_session):
        assert "w-7" in ana.get(part.address, headers=headers).text
    assert "w-7" in ana.get(part.address, headers=headers).text


def test_what_was_written_elsewhere_ends_an_answer_too(log_in, sharing, made):
    ana = log_in("ana", "operator")
    refresh(ana)
    caching.note_hint(["event"])
    refresh(ana)
    assert len(made) == 2


def test_other_rights_another_address_and_a_whole_page_have_their_own(log_in, sharing, made):
    ana, vi = log_in("ana", "operator"), log_in("vi", "viewer")
    refresh(ana)
    refresh(vi)
    ana.get("/?zone=utc", headers=PART)
    refresh(ana, **{"HX-Current-URL": "http://testserver/?card=2"})
    ana.get("/")
    assert len(made) == 5


def test_nobody_without_a_login_gets_what_was_made_for_others(log_in, sharing, made):
    refresh(log_in("ana", "operator"))
    assert refresh(Client()).status_code == 401
    assert len(made) == 1


def test_an_answer_that_is_for_one_alone_is_not_kept(log_in, sharing, monkeypatch):
    ana = log_in("ana", "operator")
    monkeypatch.setattr(now_view, "render", lambda *_: HttpResponse(status=204))
    assert refresh(ana).status_code == 204
    assert refresh(ana).status_code == 204
