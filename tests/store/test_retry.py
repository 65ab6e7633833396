"""What the database rolls back is tried again, a few times; then nothing of it is written."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import ProgrammingError, connection, transaction

from agentstate.store import audit
from agentstate.store.asks import Ask
from agentstate.store.commands import Append, Appended, Charge, NewBudget, Spend
from agentstate.store.errors import Unavailable
from agentstate.store.execute import TRIES, TRIES_OF_A_BATCH, execute_all
from agentstate.store.minutes import TALLY
from tests.store.asking import FLEET, Asking, event, rows
from tests.store.waiting import wait_until_blocked

TRIPPED = """
CREATE SEQUENCE tripped;
CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tripped') <= {times} THEN RAISE 'not now' USING ERRCODE = '40001'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER trip BEFORE INSERT ON agentstate_event FOR EACH ROW EXECUTE FUNCTION trip();
"""
MENDED = "DROP TRIGGER trip ON agentstate_event; DROP FUNCTION trip; DROP SEQUENCE tripped;"


@pytest.fixture
def tripping(store):
    """tripping(n): the next n writes of an event end in a serialization failure."""
    made = []

    def trip(times):
        run_script(TRIPPED.format(times=times))
        made.append(times)

    yield trip
    if made:
        run_script(MENDED)


def run_script(text):
    with connection.cursor() as cursor:
        cursor.execute(text)


def tries():
    return rows("SELECT last_value FROM tripped")[0][0]


def test_a_write_that_was_rolled_back_twice_is_written_once(store, tripping):
    store.create("42")
    tripping(2)

    done = store.append("42", add={"steps_done": 1})

    assert (done.first_seq, done.version, tries()) == (2, 2, 3)
    assert store.run("42").counters == {"steps_done": 1}
    assert audit.verify() == []


def test_tries_are_bounded_and_a_write_that_is_given_up_leaves_nothing(store, tripping):
    store.create("42")
    TALLY.write()
    tripping(1_000)

    with pytest.raises(Unavailable) as refused:
        store.append("42", add={"steps_done": 1})

    assert refused.value.retry == "same-request"
    told = refused.value.facts
    assert (told["attempts"], told["last_conflict"]) == (TRIES, "serialization failure")
    TALLY.write()
    counted = rows(
        "SELECT run_key, count, gave_up FROM agentstate_minute WHERE outcome = 'unavailable'"
    )
    assert counted == [("42", 1, 1)]
    assert tries() == TRIES_OF_A_BATCH + TRIES
    assert (store.run("42").version, store.run("42").counters) == (1, {})
    assert audit.verify() == []


def test_a_ring_of_locks_with_somebody_outside_is_left_and_the_write_comes_through(store):
    """The outsider has the budget and wants the run, which the append has: neither waits on.
    O-41."""
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    has_budget, go_on = Event(), Event()

    def outsider():
        try:
            with transaction.atomic():
                rows("SELECT FROM agentstate_budget FOR UPDATE")
                has_budget.set()
                assert go_on.wait(timeout=30)
                rows("SELECT FROM agentstate_run WHERE key = '42' FOR UPDATE")
        finally:
            connection.close()

    def append():
        try:
            return Asking().append("42", spend=(Charge(budget="budget", amount=40),))
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        outside = pool.submit(outsider)
        assert has_budget.wait(timeout=30)
        inside = pool.submit(append)
        wait_until_blocked()
        go_on.set()
        done = inside.result(timeout=30)
        outside.result(timeout=30)

    assert isinstance(done, Appended)
    assert (done.first_seq, done.spent[0].spent) == (2, 40)
    assert audit.verify() == []


def test_what_fails_after_plain_appends_of_its_batch_takes_none_of_them_back(store):
    """They are committed by then: whoever tried the whole batch again would append them twice."""
    store.create("42", budgets=(NewBudget(name="tokens", cap=10),))
    run_script(
        "CREATE FUNCTION break_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'nobody has met this before' USING ERRCODE = 'P0001'; END $$;"
        "CREATE TRIGGER break_it BEFORE INSERT ON agentstate_budgetentry"
        " FOR EACH ROW EXECUTE FUNCTION break_it();"
    )
    commands = (
        Append(run="42", events=(event(),)),
        Spend(run="42", charge=Charge(budget="tokens", amount=1)),
    )
    try:
        done, failed = execute_all([Ask(command=command, by=FLEET) for command in commands])
    finally:
        run_script("DROP TRIGGER break_it ON agentstate_budgetentry; DROP FUNCTION break_it;")

    assert (done.first_seq, type(failed)) == (2, ProgrammingError)
    assert store.types("42") == ["run.created", "step.done"]
    assert audit.verify() == []
