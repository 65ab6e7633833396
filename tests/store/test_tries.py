"""Refused tries in the audit: who gets a row, how many at most, and that none can be changed."""

from datetime import timedelta

import pytest
from django.db import Error, connection, transaction

from agentstate import store as door
from agentstate.store import retention, rowsql
from agentstate.store.callers import Circumstances
from agentstate.store.commands import ChangeCap, CreateBudget, NewBudget, NoteRefused
from agentstate.store.errors import HolderChanged, NotAllowed, StaleFence, VersionConflict
from agentstate.store.models import OperatorAction, RefusedAction
from tests.store.asking import ANA, FLEET, SENIOR, VIEWER, rows

READER = FLEET.__class__(kind="key", name="reader", scopes=frozenset({"read"}))


def tries():
    return list(
        RefusedAction.objects.order_by("id").values_list("actor", "action", "object", "outcome")
    )


def test_what_a_person_was_refused_is_a_row_and_what_was_done_is_none(store, clock):
    store.create("42")
    lease = store.hold("42", "w-3")
    clock.advance(seconds=100)
    with pytest.raises(NotAllowed):
        store.as_caller(VIEWER).move("42", "cancelled", reason="I want to")
    with pytest.raises(HolderChanged):
        store.as_caller(ANA).reclaim("run:42", token=lease.token + 5, owner="w-3")
    store.as_caller(ANA).reclaim("run:42", token=lease.token, owner="w-3")

    assert tries() == [
        ("person:vi", "run.cancelled", "42", "forbidden"),
        ("person:ana", "lease.reclaimed", "run:42", "refused"),
    ]
    forbidden, refused = RefusedAction.objects.select_related("run").order_by("id")
    assert (forbidden.code, forbidden.reason, forbidden.run.key) == (
        "not-allowed",
        "I want to",
        "42",
    )
    assert refused.code == "holder-changed"
    assert refused.expected["expected_token"] == lease.token + 5
    assert refused.found["token"] == lease.token
    assert refused.request_id == "req-1"
    assert OperatorAction.objects.count() == 1


def test_a_cap_that_somebody_else_changed_first_is_a_refused_try(store):
    store.create("42")
    store.ask(CreateBudget(run="42", budget=NewBudget(name="tokens", cap=10)))
    with pytest.raises(VersionConflict):
        store.as_caller(SENIOR).ask(
            ChangeCap(run="42", budget="tokens", cap=20, if_match=7, reason="more")
        )
    assert tries() == [("person:bo", "budget.cap-changed", "42/tokens", "refused")]


def test_the_daily_work_of_workers_leaves_none_and_a_key_without_the_scope_does(store, clock):
    store.create("42")
    lease = store.hold("42", "w-1")
    clock.advance(seconds=100)
    store.hold("42", "w-2")
    with pytest.raises(StaleFence):
        store.append("42", fence=lease.token)
    for scope in ("write", "override"):
        ask = NoteRefused(operation=f"needs_{scope}", scopes=(scope,), run="42")
        with pytest.raises(NotAllowed):
            store.as_caller(READER).ask(ask)
    assert tries() == [("key:reader", "needs_override", "42", "forbidden")]


def test_a_page_writes_what_it_turned_away_itself(store):
    store.create("42")
    told = {"by": VIEWER, "action": "budget.cap-changed", "thing": "42/tokens", "run": "42"}
    under = Circumstances(request_id="req-9")
    assert door.record_refused_action(**told, expected={"version": 3}, under=under)
    assert not door.record_refused_action(**told), "the same again within ten seconds"
    assert door.record_refused_action(by=VIEWER, action="x", thing="a\0b\ud800", code="gone")

    first, second = RefusedAction.objects.select_related("run").order_by("id")
    assert (first.outcome, first.code, first.run.key, first.request_id) == (
        "forbidden",
        "not-allowed",
        "42",
        "req-9",
    )
    assert first.expected == {"version": 3}
    assert (second.outcome, second.object, second.run) == ("refused", "a�b?", None)


def test_nobody_fills_the_table_by_trying(store, clock):
    def attempts(by, count):
        return sum(
            door.record_refused_action(by=by, action="run.cancelled", thing=f"r-{n}")
            for n in range(count)
        )

    assert attempts(VIEWER, 30) == rowsql.TRIES_OF_ONE
    others = [
        VIEWER.__class__(kind="person", name=f"p-{n}", scopes=VIEWER.scopes) for n in range(9)
    ]
    assert sum(attempts(by, 12) for by in others) == rowsql.TRIES_OF_ALL - rowsql.TRIES_OF_ONE
    clock.advance(seconds=61)
    assert attempts(VIEWER, 30) == rowsql.TRIES_OF_ONE


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE agentstate_refusedaction SET actor = 'person:eve'",
        "DELETE FROM agentstate_refusedaction",
        "UPDATE agentstate_operatoraction SET actor = 'person:eve'",
        "DELETE FROM agentstate_operatoraction",
        "SET LOCAL agentstate.retention = 'on'; DELETE FROM agentstate_operatoraction",
        "SET LOCAL agentstate.retention = 'on';"
        " UPDATE agentstate_refusedaction SET actor = 'person:eve'",
    ],
)
def test_no_statement_changes_the_audit(store, change):
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="not needed")
    door.record_refused_action(by=VIEWER, action="x", thing="y")
    before = rows("SELECT id, actor FROM agentstate_operatoraction"
                  " UNION ALL SELECT id, actor FROM agentstate_refusedaction")  # fmt: skip
    with pytest.raises(Error, match="append-only"), transaction.atomic():  # noqa: SIM117
        with connection.cursor() as cursor:
            cursor.execute(change)
    assert before == rows("SELECT id, actor FROM agentstate_operatoraction"
                          " UNION ALL SELECT id, actor FROM agentstate_refusedaction")  # fmt: skip


def test_the_orm_changes_nothing_of_it_either(store):
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="not needed")
    door.record_refused_action(by=VIEWER, action="x", thing="y")
    for model in (OperatorAction, RefusedAction):
        one = model.objects.get()
        one.actor = "person:eve"
        for change in (
            one.save,
            one.delete,
            model.objects.all().delete,
            lambda model=model: model.objects.update(actor="person:eve"),
            lambda model=model, one=one: model.objects.bulk_update([one], ["actor"]),
        ):
            with pytest.raises(Error, match="append-only"), transaction.atomic():
                change()
        assert model.objects.get().actor != "person:eve"


def test_refused_tries_go_by_their_age_and_what_was_done_never_does(store, clock):
    store.create("42")
    store.as_caller(ANA).move("42", "cancelled", reason="not needed")
    door.record_refused_action(by=VIEWER, action="x", thing="y")
    clock.advance(seconds=timedelta(days=89).total_seconds())
    assert retention.purge("refused tries") == 0
    clock.advance(seconds=timedelta(days=2).total_seconds())
    retention.purge_all()
    assert not RefusedAction.objects.exists()
    assert OperatorAction.objects.count() == 1


def test_the_page_that_says_no_goes_on_when_the_try_cannot_be_written(store):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE agentstate_refusedaction RENAME TO away")
        try:
            assert not door.record_refused_action(by=VIEWER, action="x", thing="y")
        finally:
            cursor.execute("ALTER TABLE away RENAME TO agentstate_refusedaction")
