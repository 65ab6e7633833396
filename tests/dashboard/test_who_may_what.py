"""The one table of who may what (docs/access.md) against what the product does.

With AGENTSTATE_RECORD=1 the tables of the page are written anew; look at the difference.
"""

from __future__ import annotations

import copy
import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, get_resolver

from agentstate.api import examples
from agentstate.api.urls import api
from agentstate.store import deliveries, keys, targets
from agentstate.store.callers import ROLES, SCOPES, SYSTEM
from agentstate.store.commands import (
    AnnounceWorker,
    CreateBudget,
    CreateBulk,
    NewBudget,
    Picked,
    PutRule,
    TryTarget,
)
from agentstate.store.made import Definition
from agentstate.store.models import RefusedAction
from agentstate.store.payloads import RawJSON
from dashboard import rights
from dashboard.models import SavedView
from tests.api.asking import Api, _operations
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page
from tests.store.asking import event, rows

pytestmark = [pytest.mark.long, pytest.mark.many]  # addresses by the hundred, and all callers

PATH = Path(settings.BASE_DIR) / "docs" / "access.md"
PEOPLE = ("anonymous", "no role", *ROLES)
# Beside one scope: what a call wants as well, once it knows what it is about.
ALSO = {"export_run": "payloads", "read_trace": "payloads"}
# What the example changes is a worker's alone; an operator changes notes, tags and retention.
OTHERWISE = {("change_run", "operate"): '{"notes": "seen"}'}
SECRET = "a-secret-of-the-agent"
# A thing of each kind that stands in an address.
PARTS = {
    "key": "42", "unit": "run:42", "name": "w-1", "rule": "fenced", "seq": "1", "pk": "1",
    "code": "stale-fence", "action": "cancel", "uidb64": "MQ", "token": "set-password",
    "kind": "refusals", "proposal": "019cae6c-5448-7ab6-86ab-25fdcce0da84",
}  # fmt: skip
NAMES = {"budgets": "shared", "alerts/-/targets": "ops", "people": "somebody", "keys": "fleet",
         "runs/<str:key>/budgets": "tokens"}  # fmt: skip
RULES = {"alerts/-/rules/": "own-mine"}  # those that people made have pages of their own
ACTIONS = {"workers": "drain", "runs/-/views": "default"}


# --- the tables ----------------------------------------------------------------------------------


def routes() -> dict[str, URLPattern]:
    """Every address of the URLconf but those of the API's calls, which OpenAPI tells of."""
    found: dict[str, URLPattern] = {}

    def walk(patterns, prefix=""):
        for one in patterns:
            route = prefix + str(one.pattern)
            if not isinstance(one, URLPattern):
                walk(one.url_patterns, route)
            elif route.startswith("admin/"):  # all of them are behind one door (site.py)
                found["admin/"] = one
            elif "^" not in route and not is_call(route):
                found[route] = one

    walk(get_resolver().url_patterns)
    return found


def is_call(route: str) -> bool:
    known = {told for _, told in _operations()}
    return route in known or route in ("api/v1/", "api/v1/openapi.json/")


def may(role: str, scope: str | None) -> bool:
    if scope in (None, rights.EVERYBODY):
        return scope is not None
    if scope == rights.PERSON:
        return role != "anonymous"
    return scope in ROLES.get(role, ())


def calls() -> dict[str, tuple[str, str, list[str]]]:
    """Each call of OpenAPI: method, path, the scopes of which one is needed."""
    document = api.get_openapi_schema(path_prefix="/api/v1/")
    return {
        told["operationId"]: (method.upper(), path, told["x-scopes"])
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    }


def needed(operation: str, scopes: list[str]) -> str:
    one = " or ".join(scopes) if scopes else "no key"
    return f"{one} and {ALSO[operation]}" if operation in ALSO else one


def tables() -> str:
    mark = {True: "yes", False: ""}
    lines = ["| address | | " + " | ".join(PEOPLE) + " | beside that |", "|---|" * 1 + "---|" * 8]
    for route, told in rights.LINES.items():
        for word, scope in (("look", told.get), ("send", told.post)):
            if scope is None:
                continue
            key = scope.removeprefix("key: ") if scope.startswith("key: ") else ""
            who = [mark[may(role, scope)] for role in PEOPLE]
            more = f"a key with {key}" if key else told.more
            lines.append(f"| `/{route}` | {word} | {' | '.join(who)} | {more} |")
    lines += ["", "| call | | no key | " + " | ".join(SCOPES) + " | needs |"]
    lines.append("|---|" + "---|" * (len(SCOPES) + 3))
    for operation, (method, path, scopes) in calls().items():
        who = [mark[not scopes]]
        who += [mark[(not scopes or one in scopes) and operation not in ALSO] for one in SCOPES]
        lines.append(
            f"| {operation} | `{method} {path}` | {' | '.join(who)} | {needed(operation, scopes)} |"
        )
    return "\n".join(lines)


def test_the_page_has_the_table():
    page = PATH.read_text()
    begin, end = "<!-- tables: made by the test -->\n", "\n<!-- end of the tables -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    made = f"{before}{begin}{tables()}{end}{after}"
    if os.environ.get("AGENTSTATE_RECORD"):
        PATH.write_text(made)
    assert PATH.read_text() == made


def test_every_address_has_a_line_and_every_line_an_address():
    assert set(routes()) == set(rights.LINES)


# --- the walk ------------------------------------------------------------------------------------


@pytest.fixture
def things(store):
    """A thing of each kind; what of it stands in an address."""
    keys.create_key(name="fleet", scopes=("write",), by=SYSTEM)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="shared", cap=1_000)))
    store.create(
        "42", attrs=RawJSON(f'{{"note": "{SECRET}"}}'), budgets=(NewBudget(name="tokens", cap=9),)
    )
    lease = store.hold("42")
    store.append("42", [event(data={"text": SECRET})], fence=lease.token)
    store.ask(AnnounceWorker(worker="w-1", host="h", version="1"))
    targets.create_target(
        name="ops", kind="webhook", address="https://hooks.example.org/x", hint="h", by=SYSTEM
    )
    store.ask(TryTarget(name="ops"))
    (delivery,) = deliveries.claim(limit=1)
    person("somebody", "viewer")
    view = SavedView.objects.create(
        name="all", changed_by="x", changed_at="2026-01-01T00:00Z", owner=None
    )
    mine = Definition(title="Mine", metric="fenced")
    store.ask(PutRule(rule="own-mine", version=0, definition=mine, warn=1, alert=2, reason="r"))
    (now,) = rows("SELECT agentstate_now()")[0]
    picked = (Picked(run="42", status="running", owner="w-1", token=lease.token),)
    bulk = CreateBulk(kind="tag", picked=picked, seen_at=now, shown=1, tags=("x",), reason="r")
    made = store.ask(bulk).bulk
    return {"delivery": f"msg_{delivery.id.hex}", "number": str(view.pk),
            "bulk": made.hex}  # fmt: skip


@contextmanager
def undone():
    """What is done within is not there afterwards."""
    block = transaction.atomic()
    block._from_testcase = True  # the store's own transactions may stand in it, as in a test's
    with block:
        yield
        transaction.set_rollback(True)


@contextmanager
def cookies_kept(client: Client):
    kept = copy.deepcopy(client.cookies)
    yield
    client.cookies = kept


def address(route: str, found: dict[str, str]) -> str:
    name = next((thing for start, thing in NAMES.items() if route.startswith(start)), "w-1")
    action = next((one for start, one in ACTIONS.items() if route.startswith(start)), "cancel")
    rule = next((one for start, one in RULES.items() if route.startswith(start)), PARTS["rule"])
    values = PARTS | {"name": name, "action": action, "rule": rule} | found
    return "/" + re.sub(r"<\w+:(\w+)>", lambda part: values[part[1]], route)


def let_in(answer) -> bool:
    """Whether it was not refused for who asks: neither sent to the login, nor 401, nor 403."""
    if answer.status_code == 302 and answer["Location"].startswith("/login?next="):
        return False
    return answer.status_code not in (401, 403)


def people() -> dict[str, Client]:
    clients = {"anonymous": Client()}
    for role in PEOPLE[1:]:
        clients[role] = Client()
        clients[role].force_login(person(role.replace(" ", "-"), ROLES.get(role) and role))
    return clients


@pytest.mark.long  # a thousand requests
@pytest.mark.many
def test_everybody_is_let_in_where_the_table_says_so_and_nowhere_else(things):
    """Case O-40 (docs/cases.md)."""
    clients, wrong = people(), []
    for route, told in rights.LINES.items():
        if route == "live/console" or str(told.get).startswith("key:"):
            continue  # asked below; with a key
        for method, scope in (("get", told.get), ("post", told.post)):
            for role, client in clients.items():
                with undone(), cookies_kept(client):
                    answer = getattr(client, method)(address(route, things))
                    b"".join(answer.streaming_content if answer.streaming else ())
                if scope is None:
                    expected, got = False, answer.status_code != 405 and let_in(answer)
                else:
                    expected, got = may(role, scope), let_in(answer)
                if expected != got:
                    wrong.append((role, method, route, answer.status_code))
                if role == "admin" and method == "get" and scope in ROLES["admin"]:
                    assert answer.status_code in (200, 302), route  # the thing is there
    assert wrong == []


def test_what_a_role_may_not_is_shown_as_that_and_a_try_is_written_down(things):
    """Pages that ask: whoever may not send them sees why, and no form; a try leaves a row.
    O-40."""
    clients = people()
    for route, told in rights.LINES.items():
        if told.get != "read" or told.post in (None, "read"):
            continue
        for role in (role for role in ROLES if not may(role, told.post)):
            with undone():
                before = RefusedAction.objects.count()
                page = Page(clients[role].get(address(route, things)))
                sends = [
                    a for tag, a in page.tags
                    if tag == "form" and a.get("method") == "post" and "action" not in a
                ]  # fmt: skip
                assert "needs the role" in page.text, (role, route)
                assert not sends, (role, route)
                answer = clients[role].post(address(route, things), {"reason": "because"})
                assert answer.status_code == 403, (role, route)
                assert "This needs the role" in Page(answer).text
                (row, *more) = RefusedAction.objects.order_by("-id")
                assert len(more) == before, route
                assert (row.outcome, row.actor) == ("forbidden", f"person:{role}")
                assert row.object or route.endswith("/new"), route


def test_payloads_are_shown_to_no_role_that_may_not_see_them(things, settings):
    settings.VIEWERS_SEE_PAYLOADS = False
    clients = people()
    more = ("?tab=state", "?tab=events&event=4", "?tab=state&seq=4&with=1", "?tab=events&list=raw",
            "?tab=events&event=5", "?tab=events&find=secret", "?asof=e4&tab=state")  # fmt: skip
    asked = [address(route, things) for route, told in rights.LINES.items() if told.get == "read"]
    asked += [f"/runs/42{query}" for query in more]
    asked += ["/runs/-/export?format=jsonl", f"/jump?to={SECRET}", "/runs?columns=attr.note",
              f"/runs?q=attr.note:{SECRET}", "/runs/-/suggestions?q=attr.note:"]  # fmt: skip
    seen = dict.fromkeys(("viewer", "operator"), 0)
    for role, addresses in (("viewer", asked), ("operator", [f"/runs/42{one}" for one in more])):
        for one in addresses:
            if one == "/live/console":
                continue
            answer = clients[role].get(one)
            body = b"".join(answer.streaming_content) if answer.streaming else answer.content
            # What somebody asked for themselves stands on the page again.
            echoes = body.count(SECRET.encode()) if SECRET in one else 0
            seen[role] += body.count(SECRET.encode()) - echoes
    assert seen["viewer"] == 0
    assert seen["operator"] > 4


# --- the API -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.many
def test_a_key_is_let_in_where_the_table_says_so_and_a_person_nowhere(things):
    given = {one: Api(keys.create_key(name=f"only-{one}", scopes=(one,), by=SYSTEM))
             for one in SCOPES}  # fmt: skip
    admin = people()["admin"]
    wrong = []
    for operation, (method, path, scopes) in calls().items():
        example = next(iter(examples.of(operation).values()))
        sent = None if example.sent is None else json.dumps(example.sent)
        for one, client in (given | {"no key": Api(None)}).items():
            with undone():
                answer = client.send(method, example.path, OTHERWISE.get((operation, one), sent))
            expected = not scopes or (one in scopes and operation not in ALSO)
            if expected != (answer.status not in (401, 403)):
                wrong.append((operation, path, one, answer.status))
        if scopes:
            body = {"data": sent, "content_type": "application/json"} if sent else {}
            with undone():
                answer = admin.generic(method, example.path, **body)
            assert answer.status_code == 401, operation
    assert wrong == []
    both = Api(keys.create_key(name="both", scopes=("read", "payloads"), by=SYSTEM))
    assert both.send("GET", "/runs/42/export").status == 200


def test_programs_own_addresses_want_a_key(things):
    reader = Api(keys.create_key(name="reader", scopes=("read",), by=SYSTEM))
    writer = Api(keys.create_key(name="writer", scopes=("write",), by=SYSTEM))
    for route, told in rights.LINES.items():
        if str(told.get).startswith("key:") and not route.startswith("live"):
            statuses = [
                one.client.get(
                    address(route, things),
                    headers={"Authorization": f"Bearer {one.key.text}"} if one.key else {},
                ).status_code
                for one in (Api(None), writer, reader)
            ]
            assert statuses == [401, 403, 200], route
