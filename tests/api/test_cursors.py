"""Cursors: opaque, signed, of one list with one set of filters, exact to the microsecond."""

import pytest
from django.db import connection

from tests.api.asking import Api, new_key

LISTS = (
    "/runs?limit=1",
    "/runs?limit=1&order=oldest",
    "/runs?limit=1&task=audit+checkout",
    "/leases?limit=1",
    "/leases?limit=1&state=live",
    "/workers?limit=1",
    "/budgets?limit=1",
    "/budgets/a/ledger?limit=1",
    "/budgets/b/ledger?limit=1",
    "/budgets/a/reservations?limit=1",
    "/budgets/a/reservations?limit=1&state=held",
)


@pytest.fixture
def filled(api):
    """Two rows and more in each of the lists."""
    for n in ("1", "2", "3"):
        api.create(n)
        api.acquire(f"u-{n}")
        api.send("PUT", f"/workers/w-{n}", "{}")
    for name in ("a", "b"):
        api.post("/budgets", {"name": name, "cap": 100})
        for n in ("1", "2"):
            api.post(f"/budgets/{name}/reserve", {"amount": 1, "id": n})
    return api


def test_a_cursor_is_good_for_the_list_that_gave_it_out_and_for_no_other(filled):
    cursors = {address: filled.get(address)["next"] for address in LISTS}
    assert all(cursors.values())
    for address in LISTS:
        for of, cursor in cursors.items():
            answer = filled.get(f"{address}&cursor={cursor}")
            if of == address:
                assert answer.status == 200
            else:
                assert (answer.refused, answer["field"]) == ((422, "invalid"), "cursor")


def test_a_cursor_that_was_changed_anywhere_is_refused(filled):
    cursor = filled.get(LISTS[0])["next"]
    for n, letter in enumerate(cursor):
        changed = cursor[:n] + ("A" if letter != "A" else "B") + cursor[n + 1 :]
        assert filled.get(f"{LISTS[0]}&cursor={changed}").refused == (422, "invalid"), n


def test_rows_of_one_microsecond_and_of_neighbouring_ones_are_each_on_one_page(clock):
    api = Api(new_key("fleet"))
    for n in range(12):
        api.create(f"r-{n}")
    with connection.cursor() as cursor:
        # Twelve runs in four microseconds.
        cursor.execute(
            "UPDATE agentstate_run SET created_at = created_at"
            " + (substr(key, 3)::int / 3) * interval '1 microsecond'"
        )
    for order in ("newest", "oldest"):
        whole = [run["key"] for run in api.get(f"/runs?order={order}")["items"]]
        assert pages(api, f"/runs?order={order}&limit=2") == whole
        assert len(set(whole)) == 12


def test_a_row_that_comes_or_goes_meanwhile_moves_no_other(clock):
    api = Api(new_key("fleet"))
    for n in range(6):
        api.create(f"r-{n}")
        clock.advance(seconds=1)
    first = api.get("/runs?limit=2")
    api.create("between")
    second = api.get(f"/runs?limit=2&cursor={first['next']}")
    assert [run["key"] for run in second["items"]] == ["r-3", "r-2"]
    back = api.get(f"/runs?limit=2&cursor={second['prev']}")
    assert [run["key"] for run in back["items"]] == ["r-5", "r-4"]


def pages(api: Api, address: str) -> list[str]:
    """The keys of all pages, one after the other."""
    page = api.get(address)
    found = [run["key"] for run in page["items"]]
    while page["next"]:
        page = api.get(f"{address}&cursor={page['next']}")
        found += [run["key"] for run in page["items"]]
    return found


@pytest.mark.parametrize("octets", ["%ED%A0%80", "%FF", "a%C3", "%C0%AF", "%F4%90%80%80"])
@pytest.mark.parametrize(
    ("address", "name"),
    [("/runs?task=", "task"), ("/runs?limit=2&q=", "q"), ("/runs/-/search?filter=", "filter")],
)
def test_octets_that_are_no_utf8_are_refused_with_the_parameters_name(api, address, name, octets):
    """S-101 (docs/sweeps.md): they were looked for as another text, which nothing matches."""
    answer = api.get(f"{address}{octets}")
    assert (answer.status, answer.json["field"]) == (422, name)
