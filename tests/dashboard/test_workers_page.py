import pytest

from agentstate.store import keys, minutes
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import AnnounceWorker, DrainWorker
from agentstate.store.errors import StaleFence
from dashboard.queries import workers as queries
from tests.dashboard.reading import Page
from tests.store.asking import ANA, event, rows


def announce(store, name="w-3", **said):
    return store.ask(AnnounceWorker(worker=name, **said))


def drain(store, name="w-3", draining=True, reason="a new release"):
    ask = DrainWorker(worker=name, reason=reason, draining=draining)
    return store.as_caller(ANA).ask(ask)


def show(client, **parameters):
    minutes.TALLY.write()
    return Page(client.get("/workers", parameters))


def test_an_empty_page_says_how_a_worker_comes_there(viewer):
    text = show(viewer).text

    assert "No worker yet" in text
    assert "curl -X PUT http://testserver/api/v1/workers/w-1" in text
    assert "Overtaken" not in text


def test_a_worker_has_three_ages_and_what_it_holds(store, still_clock, viewer):
    store.create("42")
    announce(store, version="1.4", host="node-a", slots=4)
    lease = store.hold("42", "w-3", ttl_seconds=3600)
    store.append("42", fence=lease.token)
    still_clock.advance(minutes=10)
    store.renew("run:42", lease.token, ttl_seconds=3600)
    still_clock.advance(seconds=7)

    text = show(viewer).text

    assert "here w-3 1.4 · node-a heartbeat 10m 7s · renewal 7s · write 10m 7s" in text
    assert "10m 7s 7s / \u2013 10m 7s 1 / 4" in text


def test_a_worker_has_the_rhythm_of_all_that_it_holds(store, still_clock, viewer):
    slow, quick = (store.acquire(unit, "w-3", ttl_seconds=900).token for unit in ("slow", "quick"))
    for _ in range(3):
        still_clock.advance(seconds=10)
        store.renew("quick", quick, ttl_seconds=900)
        still_clock.advance(seconds=10)
        store.renew("slow", slow, ttl_seconds=900)
        store.renew("quick", quick, ttl_seconds=900)

    assert "0s / 13s" in show(viewer).text


def test_commands_of_the_last_hour_are_counted(store, still_clock, viewer):
    store.create("42")
    lease = store.hold("42", "w-3", ttl_seconds=86_400)
    store.append("42", fence=lease.token)
    minutes.TALLY.write()
    assert queries.read_one("w-3", now=still_clock.now).accepted >= 2

    still_clock.advance(hours=2)

    assert "0 · 0" in show(viewer).text


def test_a_worker_that_holds_and_never_announced_itself_is_there_and_stuck_once_it_lapsed(
    store, still_clock, viewer
):
    store.acquire("unit", "w-1", ttl_seconds=10)
    assert show(viewer).rows("w-") == ["w-1"]

    still_clock.advance(seconds=11)

    assert "stuck w-1" in show(viewer).text
    assert "+1 lapsed" in show(viewer).text


def test_one_that_gives_no_sign_is_away(store, still_clock, viewer):
    announce(store)
    still_clock.advance(minutes=6)

    assert "away w-3" in show(viewer).text


def test_a_clock_that_is_off_is_told(store, still_clock, viewer):
    from datetime import timedelta

    announce(store, worker_time=still_clock.now + timedelta(seconds=9))

    page = show(viewer)

    assert '<span class="warn">+9.0 s</span>' in page.html


def test_an_overtaken_worker_that_still_writes_stands_on_top(store, still_clock, viewer):
    store.create("42")
    old = store.hold("42", "w-3", ttl_seconds=10)
    still_clock.advance(seconds=20)
    store.acquire("run:42", "w-9")
    for _ in range(3):
        with pytest.raises(StaleFence):
            store.append("42", [event()], fence=old.token)

    page = show(viewer)

    assert f"w-3 3 0s ago 42 {old.token} w-9" in page.text
    assert "/runs/42?tab=refused" in page.links


def test_workers_are_read_in_pages(store, viewer, monkeypatch):
    monkeypatch.setattr(queries, "PAGE_ROWS", 2)
    for number in range(5):
        announce(store, f"w-{number}")

    address, found = "/workers", []
    while address:
        page = Page(viewer.get(address))
        found += page.rows("w-")
        more = [link for link in page.links if "after=" in link]
        address = "/workers" + more[0] if more else ""

    assert found == [f"w-{n}" for n in range(5)]


def test_those_that_need_somebody_come_first(store, still_clock, viewer):
    announce(store, "a-here")
    store.acquire("unit", "b-stuck", ttl_seconds=10)
    announce(store, "c-draining")
    drain(store, "c-draining")
    still_clock.advance(seconds=11)

    assert show(viewer).rows("w-") == ["b-stuck", "c-draining", "a-here"]


def send(client, action, name="w-3", **fields):
    asked = Page(client.get(f"/workers/{name}/{action}"))
    form = {"form_key": asked.field("form_key"), "reason": "a new release"}
    return client.post(f"/workers/{name}/{action}", form | fields)


def test_a_worker_is_drained_and_taken_back_and_both_are_audited(store, operator):
    announce(store)

    assert send(operator, "drain").url == "/workers"
    assert "draining w-3" in show(operator).text
    assert announce(store).signals[0].signal == "drain"
    assert send(operator, "stop-draining", reason="it is done").url == "/workers"
    assert announce(store).signals == ()
    assert rows("SELECT action, object, reason FROM agentstate_operatoraction ORDER BY id") == [
        ("worker.drained", "w-3", "a new release"),
        ("worker.undrained", "w-3", "it is done"),
    ]


def test_sent_twice_it_acts_once(store, operator):
    announce(store)
    form = {"form_key": Page(operator.get("/workers/w-3/drain")).field("form_key"), "reason": "x"}

    for _ in range(2):
        assert operator.post("/workers/w-3/drain", form).status_code == 302

    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_a_drain_by_the_name_before_the_tilde_is_taken_back_by_that_name(store, operator):
    announce(store, "w-3~07fe")
    drain(store, "w-3")

    page = show(operator)

    assert "draining w-3~07fe" in page.text
    assert "/workers/w-3/stop-draining" in page.links
    assert "/workers/w-3~07fe/stop-draining" not in page.links
    assert operator.get("/workers/w-3/stop-draining").status_code == 200


@pytest.mark.parametrize("action", ["drain", "stop-draining"])
def test_a_viewer_sees_why_not_and_is_refused(store, viewer, action):
    announce(store)

    assert "/workers/w-3/drain" not in show(viewer).links
    assert "needs the role operator" in Page(viewer.get(f"/workers/w-3/{action}")).text
    assert viewer.post(f"/workers/w-3/{action}", {"reason": "x"}).status_code == 403
    assert rows("SELECT count(*) FROM agentstate_operatoraction") == [(0,)]


@pytest.mark.parametrize("reason", ["", "   ", "x" * 501, "a\0b", "a\x07b"])
def test_a_reason_is_needed_and_short(store, operator, reason):
    announce(store)

    assert send(operator, "drain", reason=reason).status_code == 422


@pytest.mark.parametrize(
    "address", ["/workers/nobody/drain", "/workers/w-3/fire", "/workers/%00/drain"]
)
def test_what_is_not_there_is_not_found(store, operator, address):
    announce(store)

    assert operator.get(address).status_code == 404
    assert operator.post(address, {"reason": "x"}).status_code == 404


def test_what_workers_and_operators_say_is_text(store, viewer):
    announce(store, version="<img src=x>", host="{{ 7 }}<b>")
    drain(store, reason="<img src=x onerror=alert(1)>")

    page = show(viewer)

    assert not [tag for tag, _ in page.tags if tag in ("img", "b") and "onerror" in str(_)]
    assert "<img src=x> · {{ 7 }}<b>" in page.text


@pytest.fixture
def admin(log_in):
    return log_in("ada", "admin")


@pytest.fixture
def key(store):
    """The key `fleet`, with which w-3 and w-4 announced themselves."""
    made = keys.create_key(name="fleet", scopes=["read", "write"], by=SYSTEM)
    for name in ("w-3", "w-4"):
        announce(store, name)
    return made


def revoke(client, **fields):
    asked = Page(client.get("/workers/w-3/revoke-key"))
    form = {"form_key": asked.field("form_key"), "reason": "it leaked", "typed": "fleet"}
    return client.post("/workers/w-3/revoke-key", form | fields)


def test_an_admin_ends_the_key_of_a_worker(key, admin):
    assert "/workers/w-3/revoke-key" in Page(admin.get("/workers/w-3/drain")).links
    asked = Page(admin.get("/workers/w-3/revoke-key"))
    assert "all 2 workers that use it" in asked.text

    assert revoke(admin).url == "/workers"

    with pytest.raises(keys.Unauthenticated):
        keys.find_caller(key.text)
    assert "This key is over already" in Page(admin.get("/workers/w-3/revoke-key")).text
    assert rows("SELECT actor, action, reason FROM agentstate_operatoraction WHERE action LIKE"
                " 'key.rev%%'") == [("person:ada", "key.revoked", "it leaked")]  # fmt: skip


@pytest.mark.parametrize("fields", [{"typed": "fleat"}, {"typed": ""}, {"reason": " "}])
def test_a_key_is_ended_only_with_its_name_and_a_reason(key, admin, fields):
    answer = revoke(admin, **fields)

    assert answer.status_code == 422
    assert keys.find_caller(key.text).name == "fleet"


def test_who_is_no_admin_ends_no_key(key, senior):
    assert "/workers/w-3/revoke-key" not in Page(senior.get("/workers/w-3/drain")).links
    assert "needs the role admin" in Page(senior.get("/workers/w-3/revoke-key")).text
    answer = senior.post("/workers/w-3/revoke-key", {"reason": "x", "typed": "fleet"})

    assert answer.status_code == 403
    assert keys.find_caller(key.text).name == "fleet"


def test_a_worker_without_a_known_key_has_none_to_end(store, admin):
    store.acquire("unit", "w-1")

    assert admin.get("/workers/w-1/revoke-key").status_code == 404
