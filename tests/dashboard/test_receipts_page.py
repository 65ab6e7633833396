import pytest

from agentstate.store import execute
from agentstate.store.callers import Circumstances
from agentstate.store.commands import (
    AcquireLease,
    Append,
    Charge,
    NewBudget,
    Spend,
    Transition,
)
from agentstate.store.errors import IllegalTransition, Refusal
from tests.dashboard.reading import Page
from tests.store.asking import ANA, event

KEY = "append-7f3a"


def send(store, command, key, request_id="req-2"):
    """A request of its own; those of `store` all have the id req-1."""
    under = Circumstances(
        idempotency_key=key, fingerprint=b"same" if key else None, request_id=request_id
    )
    return execute(command, by=store.by, under=under)


def show(client, **asked):
    return Page(client.get("/receipts", asked))


@pytest.fixture
def applied(store):
    """Two events of run 42, sent with a key and then twice again."""
    store.create("42", budgets=(NewBudget(name="budget", cap=100),))
    for _ in range(3):
        send(store, Append(run="42", events=(event(), event("step.failed"))), KEY)


def test_an_applied_request_has_its_events_and_how_often_it_was_repeated(applied, viewer):
    for name in ("key", "text"):
        page = show(viewer, **{name: KEY})
        assert (
            "Applied once, run 42 at version 2 with events 2 to 3; repeated 2 times and answered as"
            " before" in page.text
        )
        assert "2 to 3 step.done, step.failed" in page.text
        assert "/runs/42?event=2" in page.links
        assert "key:fleet" in page.text


def test_a_request_id_finds_everything_that_it_wrote(applied, viewer):
    page = show(viewer, request_id="req-1")

    assert "Applied once" in page.text
    assert "1 run.created" in page.text
    assert "open 100" in page.text


def test_a_refused_request_says_why(store, viewer):
    store.create("42")
    for _ in range(2):
        with pytest.raises(IllegalTransition):
            send(store, Transition(run="42", to="completed"), "done-1")

    text = show(viewer, key="done-1").text

    assert "Refused as illegal-transition; repeated 1 time and answered as before" in text
    assert "Nothing of it was written" in text


def test_what_an_operator_did_has_its_receipt(store, viewer):
    store.create("42")
    store.as_caller(ANA).ask(Transition(run="42", to="cancelled", reason="x"), key="ana-1")

    assert "ana run.cancelled" in show(viewer, key="ana-1").text


def test_what_was_never_seen_says_so(applied, viewer):
    for asked in ({"key": "nothing"}, {"request_id": "nothing"}, {"text": "nothing"}):
        assert "Never seen" in show(viewer, **asked).text
    assert "Was it applied?" in show(viewer).text
    assert show(viewer, text="\0" + "x" * 5_000).status == 200


def test_the_search_on_top_finds_a_request_by_its_key_or_id(applied, store, viewer):
    assert viewer.get("/jump", {"to": KEY}).url == f"/receipts?key={KEY}"
    assert viewer.get("/jump", {"to": "req-1"}).url == "/receipts?request_id=req-1"

    store.create(KEY)

    assert "names 2 things" in Page(viewer.get("/jump", {"to": KEY})).text


def test_keys_of_several_callers_are_told_apart(applied, store, viewer):
    store.as_caller(ANA).ask(Transition(run="42", to="cancelled", reason="x"), key=KEY)

    page = show(viewer, key=KEY)

    assert page.text.count("Applied once") == 2


def test_what_was_asked_is_text(viewer):
    page = show(viewer, text="<img src=x onerror=alert(1)>")

    assert page.status == 200
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_nobody_without_a_role_sees_a_receipt(applied, log_in):
    assert log_in("nobody", None).get("/receipts", {"key": KEY}).status_code == 403


def refuse(store, command, request_id):
    with pytest.raises(Refusal):
        send(store, command, None, request_id)


def test_a_refusal_without_a_key_says_why(store, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    refuse(store, Append(run="42", events=(event(),), if_match=7), "r-version")
    refuse(store, Append(run="42", events=(event(),), expected_seq=9), "r-seq")
    lease = store.hold("42", "w-1")
    refuse(store, Append(run="42", events=(event(),)), "r-none")
    refuse(store, AcquireLease(unit="run:42", owner="w-2"), "r-held")
    charge = Charge(budget="tokens", amount=300)
    refuse(store, Spend(run="42", charge=charge, fence=lease.token), "r-budget")
    store.move("42", "completed", fence=lease.token)
    refuse(store, Append(run="42", events=(event(),), fence=lease.token), "r-late")

    said = {
        "r-version": "Refused as version-conflict: it expected version 7, and 1 was there",
        "r-seq": "Refused as seq-conflict: it expected the last event to be 9, and it was 1",
        "r-none": "Refused as fence-required: it came without a token, and the run was leased",
        "r-held": "Refused as lease-held: w-1 held it",
        "r-budget": "budget-exhausted: it asked for 300, and 100 of 100 were left",
        "r-late": f"it came under token {lease.token}, and nobody held it",
    }
    for request_id, sentence in said.items():
        assert sentence in show(viewer, request_id=request_id).text, request_id


def test_a_charge_alone_is_told_by_its_line(store, viewer):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    send(store, Spend(run="42", charge=Charge(budget="tokens", amount=3)), "charge-1", "r-9")

    page = show(viewer, key="charge-1")

    assert "Applied once, line 2 of the budget tokens of 42." in page.text
    assert any(link.startswith("/runs/42/budgets/tokens?asof=") for link in page.links)


def test_a_text_that_is_a_key_and_another_requests_id_finds_both(store, viewer):
    store.create("42")
    store.create("43")
    send(store, Append(run="42", events=(event(),)), "twin", "r-1")
    send(store, Append(run="43", events=(event(),)), None, "twin")
    send(store, Append(run="43", events=(event(),)), "same", "same")

    assert show(viewer, text="twin").text.count("Applied once") == 2
    assert show(viewer, text="same").text.count("Applied once") == 1


def test_what_was_written_is_linked_as_of_then(applied, viewer):
    page = show(viewer, key=KEY)

    assert "/runs/42?asof=e3" in page.links
    assert viewer.get("/runs/42?asof=e3").status_code == 200
