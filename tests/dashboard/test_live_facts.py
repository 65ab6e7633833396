"""No stale fact: whatever an open page shows is told anew once it changes, by a write or by time.
What has not changed is 304. And one statement finds what the pages' own reads find."""

from __future__ import annotations

import re

import pytest

from agentstate.caching import copies
from agentstate.store.commands import AnnounceWorker, PutTelemetry, SignalRun
from agentstate.store.errors import LeaseHeld, Refusal
from agentstate.store.models import Run
from tests.browser.scene import Scene
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.dashboard.test_live_costs import parts
from tests.dashboard.test_presence import looks
from tests.store.asking import SENIOR, event

pytestmark = [pytest.mark.long, pytest.mark.many]


class Open:
    """An open page of one live part, as the browser refreshes it."""

    def __init__(self, client, page: str, *, at: int = 0) -> None:
        self.client, self.page = client, page
        self.part = list(parts(client.get(page).text))[at]
        self.tag = ""
        assert self.refresh().status_code == 200

    def refresh(self):
        headers = self.part.headers(self.page) | ({"If-None-Match": self.tag} if self.tag else {})
        answer = self.client.get(self.part.address, headers=headers)
        self.tag = answer.headers.get("ETag", "")
        return answer

    def is_same(self) -> bool:
        return self.refresh().status_code == 304

    def news(self) -> str:
        """What a refresh shows that is no 304."""
        answer = self.refresh()
        assert answer.status_code == 200, "it is said to be as it was"
        return Page(answer).text


@pytest.fixture
def lease(store, still_clock):
    """Run 42, held by w-3 for fifteen minutes each."""
    store.create("42")
    return store.hold("42", "w-3", ttl_seconds=900)


@pytest.fixture
def asking(lease, senior) -> Open:
    return Open(senior, "/leases/run:42/reclaim")


def test_facts_that_have_not_changed_are_not_told_again(asking, store, still_clock):
    answer = asking.refresh()
    assert (answer.status_code, answer.content) == (304, b"")
    before = int(answer.headers["Agentstate-Now"])

    still_clock.advance(seconds=7)  # ages run on in the browser by themselves
    later = asking.refresh()

    assert later.status_code == 304
    assert int(later.headers["Agentstate-Now"]) - before == 7_000
    store.create("43")
    store.hold("43", "w-9")
    assert asking.is_same()


def refused(ask) -> None:
    with pytest.raises(Refusal):
        ask()


# What changes, and what of the page says so. Each changes nothing else.
WRITES = {
    "a renewal": lambda s, t: s.renew("run:42", t, ttl_seconds=900),
    "another length of the lease": lambda s, t: s.renew("run:42", t, ttl_seconds=120),
    "an accepted write": lambda s, t: s.append("42", [event()], fence=t),
    "a heartbeat": lambda s, t: s.ask(AnnounceWorker(worker="w-3")),
    "a status": lambda s, t: s.as_caller(SENIOR).move("42", "paused", reason="r"),
    "who waits": lambda s, t: refused(lambda: s.acquire("run:42", "w-8")),
    "nobody holds it": lambda s, t: s.release("run:42", t),
    "another holder": lambda s, t: (s.release("run:42", t), s.hold("42", "w-4", ttl_seconds=900)),
    "who is kept off": lambda s, t: s.as_caller(SENIOR).reclaim(
        "run:42", token=t, owner="w-3", force=True, hold_off_seconds=30
    ),
}
SAID = {
    "a renewal": "Last renewal 0s ago",
    "another length of the lease": "for 2m each",
    "an accepted write": "Last accepted write 0s ago, event",
    "a heartbeat": "Heartbeat 0s ago",
    "a status": "paused",
    "who waits": "Waiting for it, in 5 minutes w-8",
    "nobody holds it": "now nobody holds it",
    "another holder": "now w-4 has token",
    "who is kept off": "Kept off w-3 for 30s",
}


@pytest.mark.parametrize("what", WRITES)
def test_each_fact_that_a_write_changes_is_told(what, asking, store, still_clock, lease):
    still_clock.advance(seconds=3)
    assert asking.is_same()

    WRITES[what](store, lease.token)

    assert SAID[what] in asking.news()
    assert asking.is_same()


def test_each_fact_that_time_changes_is_told(asking, store, still_clock, lease):
    store.renew("run:42", lease.token, ttl_seconds=900)
    store.renew("run:42", lease.token, ttl_seconds=900)
    with pytest.raises(LeaseHeld):
        store.acquire("run:42", "w-8")
    assert "w-8" in asking.news()

    still_clock.advance(seconds=299)
    assert asking.is_same()
    still_clock.advance(seconds=2)
    assert "nobody asked" in asking.news()  # who asked five minutes ago waits no more
    still_clock.advance(seconds=190)
    assert asking.is_same()
    still_clock.advance(seconds=5)
    assert "late," in asking.news()
    still_clock.advance(seconds=400)
    assert asking.is_same()
    still_clock.advance(seconds=5)
    assert "lapsed" in asking.news()
    store.as_caller(SENIOR).reclaim("run:42", token=lease.token, owner="w-3", hold_off_seconds=30)
    assert "Kept off" in asking.news()
    still_clock.advance(seconds=29)
    assert asking.is_same()
    still_clock.advance(seconds=2)
    assert "Kept off" not in asking.news()


def test_who_else_has_the_page_open_is_told(asking, still_clock):
    looks(still_clock, "ana", "reclaim:run:42")
    assert "ana is here too" in asking.news()
    still_clock.advance(seconds=44)
    assert asking.is_same()
    still_clock.advance(seconds=1)
    assert "is here too" not in asking.news()


def test_the_facts_of_another_run_of_that_key_or_of_none_are_read_all_the_same(asking, store):
    other = "019cae6b-6600-7193-8711-25d0b0172d5e"
    address = "/leases/run:42/reclaim"
    headers = {"HX-Request": "true", "HX-Target": "facts"}
    for of in ("", "?of=", f"?of={other}", "?of=nonsense", "?seen=1&of=%00"):
        page = Page(asking.client.get(address + of, headers=headers))
        assert page.status == 200
        assert "Holder w-3" in page.text
    gone = asking.client.get("/leases/run:none/reclaim", headers=headers)
    assert gone.status_code == 404


@pytest.fixture
def watch(store, still_clock, senior, lease) -> Open:
    store.as_caller(SENIOR).reclaim("run:42", token=lease.token, owner="w-3", force=True)
    return Open(senior, "/leases/run:42")


def test_a_takeover_watch_tells_each_step(watch, store, still_clock, lease):
    still_clock.advance(seconds=3)
    assert watch.is_same()
    new = store.hold("42", "w-4", ttl_seconds=60)
    assert "New holder w-4" in watch.news()
    still_clock.advance(seconds=3)
    assert watch.is_same()
    refused(lambda: store.append("42", [event()], fence=lease.token))
    assert "1 late write, all refused" in watch.news()
    still_clock.advance(seconds=20)
    assert watch.is_same()
    still_clock.advance(seconds=20)
    assert "late," in watch.news()
    store.renew("run:42", new.token)
    assert "Last renewal 0s ago" in watch.news()
    still_clock.advance(seconds=61)
    assert "lapsed" in watch.news()
    still_clock.advance(seconds=60)
    assert "over: quiet for 2m" in watch.news()


def test_an_open_run_tells_what_time_and_others_do(store, still_clock, lease, senior):
    run = Open(senior, "/runs/42")
    assert run.is_same()
    still_clock.advance(seconds=500)
    assert "late" in run.news()
    store.renew("run:42", lease.token, ttl_seconds=60)
    assert not run.is_same()
    store.as_caller(SENIOR).ask(SignalRun(run="42", signal="pause", reason="the shop is shut"))
    assert "the shop is shut" in run.news()
    store.ask(PutTelemetry(run="42", host="node-a", fence=lease.token))
    assert "node-a" in run.news()
    refused(lambda: store.acquire("run:42", "w-8"))
    assert "Refused 1" in run.news()
    store.append("42", [event("found.it")], fence=lease.token)
    assert "found.it" in run.news()
    looks(still_clock, "ana", "run:42")
    assert "ana is here too" in run.news()
    still_clock.advance(seconds=61)
    assert not run.is_same()


def test_open_leases_tell_each_state_that_time_brings(store, still_clock, viewer):
    store.acquire("mailbox", "w-1", ttl_seconds=300)
    store.ask(AnnounceWorker(worker="w-1"))
    board = Open(viewer, "/leases")
    for seconds, said in ((46, "Holder silent 1"), (120, "Renewing late 1"), (140, "Lapsed 1")):
        still_clock.advance(seconds=seconds)
        assert said in board.news()
    store.acquire("mailbox", "w-2", ttl_seconds=300)
    assert "Live 1" in board.news()


@pytest.fixture
def scene(store, still_clock):
    scene = Scene(store, still_clock)
    scene.play(others=16)
    scene.company()
    return scene


def without(text: str) -> str:
    """Without what each answer has of its own: which run it asks for, and a page's number."""
    return re.sub(r"\s+", " ", re.sub(r"(&amp;|&|\?)of=[0-9a-f-]+", "", text)).strip()


def test_a_refresh_in_one_statement_shows_what_the_page_itself_does(scene, operator):
    for page, end in (
        ("/leases", ""),
        ("/leases?only=lapsed", ""),
        ("/leases?owner=w-4", ""),
        ("/leases/run:checkout-42", ""),
        ("/leases/run:ticket-77", ""),
        ("/leases/mailbox:support@example.org", ""),
        ("/leases/run:ticket-77/reclaim", "</dl> </div>"),
        ("/leases/run:inv-1008/reclaim", "</dl> </div>"),
        ("/leases/mailbox:support@example.org/reclaim", "</dl> </div>"),
    ):
        whole = operator.get(page).text
        (part,) = parts(whole)
        fresh = without(operator.get(part.address, headers=part.headers(page)).text)
        start = re.search(rf'<div[^>]* id="{part.target}"', fresh)
        assert start, page
        shown = fresh[start.start() :]
        shown = shown[: shown.index(end) + len(end)] if end else shown.removesuffix("</div>")
        assert shown.strip() in without(whole), page


def test_a_run_in_one_statement_is_the_run_in_many(scene, operator, log_in):
    viewer = log_in("vi", "viewer")
    ways = ("?errors=1", "?find=pytest", "?type=tool&show=compact", "?show=raw")
    pages = [f"checkout-42{way}" for way in ways]
    pages += ["checkout-42", "ticket-77", "inv-1000", "issue-1005", "deps-1002"]
    for client, shown in ((operator, pages), (viewer, ["checkout-42?find=pytest", "ticket-77"])):
        for page in (f"/runs/{one}" for one in shown):
            for part in parts(client.get(page).text):
                after = "&after=3" if "/refresh" in part.address else ""
                address = re.sub(r"&after=\d+", "", part.address) + after
                one = client.get(address, headers=part.headers(page))
                slow = re.sub(r"of=[0-9a-f-]+", "of=", address)
                many = client.get(slow, headers=part.headers(page))
                assert (one.status_code, many.status_code) == (200, 200)
                assert without(one.text) == without(many.text), address


def test_a_list_in_one_statement_is_the_list(scene, operator):
    text = operator.get("/runs").text
    (part,) = parts(text)
    fresh = operator.get(part.address, headers=part.headers("/runs")).text
    rows = re.findall(r'<tr id="run-.*?</tr>', fresh, re.DOTALL)
    assert len(rows) > 10
    assert all(without(row) in without(text) for row in rows)


def test_numbers_that_are_older_than_a_write_are_asked_for_again(
    scene, operator, store, still_clock
):
    runs = Open(operator, "/runs")
    assert runs.is_same()
    store.create("fresh", task="triage")
    store.hold("fresh")
    for _ in range(2):  # no 304 until they are counted anew
        still_clock.advance(seconds=2)
        assert "data-more" in runs.refresh().text
    copies.empty()  # as their age does
    assert "data-more" not in runs.refresh().text
    assert runs.is_same()


def test_a_new_run_is_told_with_the_rows(scene, operator, store):
    runs = Open(operator, "/runs")
    store.create("fresh", task="triage")
    assert "1 new run" in runs.news()
    person("somebody", "viewer")
    assert runs.is_same()


def test_a_runs_refresh_brings_its_timeline_only_when_that_is_asked_for(scene, operator):
    run = Run.objects.get(key="ticket-77")
    bare = operator.get(f"/runs/ticket-77/refresh?of={run.id}", headers={"HX-Request": "true"}).text
    address = f"/runs/ticket-77/refresh?of={run.id}&drawn=1"
    drawn = operator.get(address, headers={"HX-Request": "true"}).text
    alone = operator.get(
        f"/runs/ticket-77/timeline?of={run.id}", headers={"HX-Request": "true"}
    ).text
    assert 'id="timeline"' not in bare
    assert alone.strip() in drawn
