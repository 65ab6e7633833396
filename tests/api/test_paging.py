"""Pages of the API's lists while rows come, change and go (docs/sweeps.md)."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client

from agentstate.store import deliveries, export, feed
from agentstate.store.proposals import PROPOSALS_MAX
from tests.api.asking import Answer, Api, new_key
from tests.api.test_targets import make
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page

# --- a walk finds each row that is there throughout exactly once ---------------------------------

ROWS = [f"{n:02}" for n in range(9)]


@dataclass(frozen=True)
class List:
    """address: of its first page, with a parameter. key: what tells its rows apart. rows: those
    that are there throughout. on, next: the parameter that goes on, and what of a page it is."""

    address: str
    key: Callable[[Any], Any]
    rows: tuple[Any, ...]
    on: str = "cursor"
    next: Callable[[Answer], Any] = lambda page: page["next"]


def named(member: str, prefix: str, address: str) -> List:
    return List(address, lambda row: row[member], tuple(f"{prefix}-{n}" for n in ROWS))


def last(member: str) -> Callable[[Answer], Any]:
    """The last row's number: until nothing comes."""
    return lambda page: page["items"][-1][member] if page["items"] else None


NUMBERS = tuple(range(1, 10))
SLOTTED = tuple(f"i-{n}" for n in ROWS)
LISTS = {
    "runs": named("key", "r", "/runs?order=newest"),
    "runs, oldest first": named("key", "r", "/runs?order=oldest"),
    "runs of a status": named("key", "r", "/runs?status=pending&q=stays"),
    "runs with a text": named("key", "r", "/runs?q=R-0"),
    "runs, searched": named("key", "r", "/runs/-/search?filter=status:pending+stays"),
    "leases": named("unit", "u", "/leases?owner=w-1"),
    "live leases": named("unit", "u", "/leases?state=live"),
    "workers": named("worker", "w", "/workers?"),
    "shared budgets": named("budget", "b", "/budgets?"),
    "a split ledger": List("/budgets/b-00/ledger?", lambda row: row["id"], SLOTTED),
    "reservations of a split budget": List(
        "/budgets/b-00/reservations?state=held",
        lambda row: row["id"],
        tuple(f"h-{n}" for n in ROWS),
    ),
    "events": List(
        "/runs/long/events?", lambda row: row["seq"], NUMBERS, "after", last("seq")
    ),
    "events, newest first": List(
        "/runs/long/events?order=newest", lambda row: row["seq"], NUMBERS, "before", last("seq")
    ),
    "events of a type": List(
        "/runs/long/events?type=kept", lambda row: row["seq"], NUMBERS[1:], "after", last("seq")
    ),
    "a story": List(
        "/runs/long/story?", lambda row: row.get("seq"), NUMBERS, "after_seq",
        lambda page: page["next_seq"],
    ),
    "items": List(
        "/items?pk=run%23long&sk_prefix=evt", lambda row: row["sk"],
        tuple(f"evt#{n:06}" for n in NUMBERS), "after", lambda page: page["after"],
    ),
    "a ledger of a run": List(
        "/runs/long/budgets/own/ledger?", lambda row: row["id"], SLOTTED, "after", last("n")
    ),
    "terms": List(
        "/leases/turns/terms?", lambda row: row["owner"], tuple(f"t-{n}" for n in ROWS), "before",
        last("token"),
    ),
    "consumers": List(
        "/feed/consumers?", lambda row: row["consumer"], tuple(f"c-{n}" for n in ROWS),
        "after", last("consumer"),
    ),
    "the feed": List(
        "/feed?types=kept", lambda row: (row["run"], row["first_seq"]),
        tuple(("long", n) for n in NUMBERS[1:]), "after",
        lambda page: page["position"] if page["items"] else None,
    ),
}  # fmt: skip


def fill(api: Api) -> None:
    """Nine rows of each list."""
    api.create("long", budgets=[{"name": "own", "cap": 10_000}])
    for n in ROWS:
        api.create(f"r-{n}", task="stays")
        api.acquire(f"u-{n}", "w-1", 3_600)
        api.send("PUT", f"/workers/w-{n}", "{}")
        api.post("/budgets", {"name": f"b-{n}", "cap": 10_000, "slots": 3} if n == "00" else
                 {"name": f"b-{n}", "cap": 100})  # fmt: skip
        api.post("/budgets/b-00/spend", {"amount": 1, "id": f"i-{n}"})
        api.post("/budgets/b-00/reserve", {"amount": 1, "id": f"h-{n}", "ttl_seconds": 3_600})
        api.post("/runs/long/budgets/own/spend", {"amount": 1, "id": f"i-{n}"})
        api.send("PUT", f"/feed/consumers/c-{n}", '{"position": 0}')
        turn = api.acquire("turns", f"t-{n}")
        assert api.post("/leases/turns/release", {"token": turn["token"]}).status == 200
    for _ in NUMBERS[1:]:
        assert api.append("long", {"type": "kept"}).status == 201
    while feed.move():
        pass


def cancel_one(api: Api) -> None:
    for run in api.get("/runs?task=stays+too&status=pending&limit=1")["items"]:
        api.move("cancelled", key=run["key"])


def stir(api: Api, chance: random.Random) -> None:
    """One write that somebody else makes meanwhile: rows come, change, leave their filter."""
    name, near = f"{chance.randrange(10**6):06}", chance.choice(ROWS)
    lease = api.get(f"/leases/u-{near}")
    writes: list[Callable[[], Any]] = [
        lambda: api.create(f"r-{near}.{name}", task="stays too"),
        lambda: cancel_one(api),
        lambda: api.post(
            f"/leases/u-{near}/renew", {"token": lease["token"], "ttl_seconds": 3_000}
        ),
        lambda: api.acquire(f"u-{near}.{name}", "w-1"),
        lambda: api.send("PUT", f"/workers/w-{near}", '{"version": "2"}'),
        lambda: api.send("PUT", f"/workers/w-{near}.{name}", "{}"),
        lambda: api.post("/budgets", {"name": f"b-{near}.{name}", "cap": 1}),
        lambda: api.post("/budgets/b-00/spend", {"amount": 1, "id": f"x-{name}"}),
        lambda: api.post("/budgets/b-00/reserve", {"amount": 1, "id": f"x-{name}"}),
        lambda: api.post("/runs/long/budgets/own/spend", {"amount": 1, "id": f"x-{name}"}),
        lambda: api.append("long", {"type": "added"}),
        lambda: api.acquire("turns", f"w-{name}"),
        lambda: api.send("PUT", f"/feed/consumers/c-{near}.{name}", '{"position": 0}'),
        lambda: api.send("PUT", f"/feed/consumers/c-{near}", '{"position": 1}'),
        feed.move,
    ]
    chance.choice(writes)()


def pages(api: Api, of: List, *, limit: int, meanwhile: Callable[[], Any]) -> Iterator[Answer]:
    address = f"{of.address}&limit={limit}"
    page = api.get(address)
    while True:
        assert page.status == 200, page.text
        yield page
        at = of.next(page)
        if at is None:
            return
        meanwhile()
        page = api.get(f"{address}&{of.on}={quote(str(at))}")


def check_walk(api: Api, of: List, *, limit: int, meanwhile: Callable[[], Any]) -> None:
    """Forward to the end, and back by `prev` where there is one."""
    told = list(pages(api, of, limit=limit, meanwhile=meanwhile))
    found = [of.key(row) for page in told for row in page["items"]]
    found = [key for key in found if key is not None]
    assert len(set(found)) == len(found) or of.address.startswith("/runs/long/story")
    assert sorted(key for key in found if key in of.rows) == sorted(of.rows)
    back, page = [], told[-1]
    while (page.json.get("prev")) is not None:
        meanwhile()
        page = api.get(f"{of.address}&limit={limit}&cursor={page['prev']}")
        assert page.status == 200, page.text
        back += [of.key(row) for row in reversed(page["items"])]
    if "prev" in page.json:
        back = [of.key(row) for row in reversed(told[-1]["items"])] + back
        assert len(set(back)) == len(back)
        assert [key for key in back if key in of.rows] == [
            key for key in reversed(found) if key in of.rows
        ]


LONG = [pytest.mark.long, pytest.mark.many]


@pytest.mark.parametrize("limit", [pytest.param(1, marks=LONG), 3])
def test_a_walk_finds_each_row_that_stays_once_whatever_is_written_meanwhile(api, limit):
    """Sweep Paging, a second time: none fell."""
    fill(api)
    chance = random.Random(limit)
    for of in LISTS.values():
        check_walk(api, of, limit=limit, meanwhile=lambda: stir(api, chance))


@pytest.mark.long
@pytest.mark.many
def test_a_walk_finds_each_row_that_stays_once_beside_three_who_write(transactional_db):
    """Sweep Paging, a second time: none fell. Each by a connection of its own."""
    api = Api(new_key("fleet"))
    fill(api)
    over = threading.Event()
    failed: list[BaseException] = []

    def write(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not over.is_set():
                stir(Api(api.key), chance)
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    try:
        for limit in (2, 7):
            for of in LISTS.values():
                check_walk(api, of, limit=limit, meanwhile=lambda: None)
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert not failed


# --- lists that ended too soon -------------------------------------------------------------------


@pytest.fixture
def log(api):
    """Six deliveries, the newest first."""
    assert make(api).status == 201
    for _ in range(6):
        assert api.post("/alert-targets/ops/test", {}).status < 300
        for claim in deliveries.claim(limit=5):
            deliveries.settle(claim, deliveries.Answer(arrived=True, text=""))
    return [item["id"] for item in api.get("/deliveries")["items"]]


def test_a_walk_through_deliveries_goes_on_behind_one_that_is_not_kept_any_more(api, log):
    """S-705: the list ended there, although older ones that had waited for longer are kept."""
    first = api.get("/deliveries?limit=3")
    with connection.cursor() as cursor:
        gone = deliveries.read_id(first["next"])
        cursor.execute("DELETE FROM agentstate_delivery WHERE id = %s", [gone])

    rest = api.get(f"/deliveries?before={first['next']}")

    assert len(log) == 6
    assert [item["id"] for item in rest["items"]][-3:] == log[3:]


@pytest.mark.parametrize("before", ["nonsense", "msg_", "msg_" + "f" * 32])
def test_what_is_no_delivery_is_no_place_in_their_list(api, log, before):
    """S-705: it was answered with an empty page, as if there were no more."""
    answer = api.get(f"/deliveries?before={before}")
    assert (answer.refused, answer["field"]) == ((422, "invalid"), "before")


def test_every_open_proposal_is_in_the_list(api):
    """S-706: the 51st and on were left out of the API and of the console, unsaid."""
    made = 2 * PROPOSALS_MAX
    makers = [Api(new_key(f"assistant-{n}", ["read", "propose"])) for n in (1, 2)]
    for n in range(made):
        lease = api.acquire(f"u-{n}", ttl_seconds=600)
        asked = {"expected_owner": "w-1", "expected_token": lease["token"], "reason": "frozen"}
        assert makers[n % 2].post(f"/leases/u-{n}/proposals", asked).status == 201
    viewer = Client()
    viewer.force_login(person("vi", "viewer"))

    told = [one["unit"] for one in api.get("/proposals")["items"]]
    page = Page(viewer.get("/leases"))

    assert sorted(told) == sorted(f"u-{n}" for n in range(made))
    assert f"the newest 50 of {made}" in page.text


def test_the_same_filter_in_another_order_is_the_same_list(api):
    """S-712: its cursor was refused, as one of another list."""
    for n in range(3):
        api.create(f"r-{n}")
    at = api.get("/runs?limit=1&status=pending&status=running")["next"]
    for same in ("status=running&status=pending", "status=pending&status=running&status=pending"):
        assert [r["key"] for r in api.get(f"/runs?limit=9&{same}&cursor={at}")["items"]] == [
            "r-1",
            "r-0",
        ]
    assert api.get(f"/runs?limit=9&status=pending&cursor={at}").refused == (422, "invalid")


def test_a_head_of_an_export_reads_no_event(api, django_assert_max_num_queries, monkeypatch):
    """S-713: the whole history was read and written out, for nobody."""
    api.create()
    monkeypatch.setattr(export, "PAGE", 1)
    for _ in range(20):
        api.append()
    with django_assert_max_num_queries(15):
        head = api.send("HEAD", "/runs/42/export", content_type="")
    whole = api.get("/runs/42/export")
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]
    assert whole.text.count("\n") > 20
