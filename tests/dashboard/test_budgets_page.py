import pytest

from agentstate.store.commands import (
    AnnounceWorker,
    ChangeCap,
    Charge,
    CreateBudget,
    NewBudget,
    Reserve,
    Spend,
)
from agentstate.store.errors import BudgetExhausted
from dashboard.queries import budgets as queries
from dashboard.queries import ledgers
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, rows


def open_shared(store, name, cap, parent=None):
    store.ask(CreateBudget(run=None, budget=NewBudget(name=name, cap=cap, parent=parent)))


def charge(store, name, amount, *, run=None, note="", id=None, fence=None):
    asked = Charge(budget=name, amount=amount, note=note, id=id)
    return store.ask(Spend(run=run, charge=asked, fence=fence))


@pytest.fixture
def team(store, still_clock):
    """`company` of 1000 above `team` of 500; run 42 has `tokens` of 100 below it."""
    open_shared(store, "company", 1000)
    open_shared(store, "team", 500, parent="company")
    store.create("42", budgets=(NewBudget(name="tokens", cap=100, parent="team"),))


def test_an_empty_page_says_so(viewer):
    text = Page(viewer.get("/budgets")).text

    assert "No run is close to its cap" in text
    assert "No shared budget" in text
    assert "No charge was refused" in text


def test_runs_close_to_their_cap_come_first_the_fullest_on_top(store, team, viewer):
    for key, spent in (("half", 50), ("near", 80), ("full", 100)):
        store.create(key, budgets=(NewBudget(name="b", cap=100),))
        store.spend(key, spent, budget="b")

    page = Page(viewer.get("/budgets"))

    assert page.links.index("/runs/full/budgets/b") < page.links.index("/runs/near/budgets/b")
    assert "/runs/half/budgets/b" not in page.links


def test_a_run_that_has_ended_is_not_close_to_anything(store, viewer):
    store.create("42", budgets=(NewBudget(name="b", cap=1),))
    store.spend("42", 1, budget="b")
    store.move("42", "cancelled")

    assert "No run is close to its cap" in Page(viewer.get("/budgets")).text


def test_shared_budgets_stand_below_their_parents_with_their_rate_and_when_they_are_dry(
    store, team, still_clock, viewer
):
    open_shared(store, "aside", 10)
    open_shared(store, "young", 10)
    charge(store, "team", 40)
    still_clock.advance(hours=2)
    for _ in range(3):
        charge(store, "team", 20)

    text = Page(viewer.get("/budgets")).text

    at = [
        text.index(name) for name in ("aside 0 %", "company below it", "└ team below it 1 budget")
    ]
    assert at == sorted(at)
    # 60 in 15 minutes are 240 an hour: 400 last 1 h 40 min, 900 of the parent 3 h 45 min.
    assert "400 tokens 100 0 500 240 15:40" in text
    assert "900 tokens 100 0 1 000 240 17:45" in text
    assert "nothing was spent in the last 15 minutes" in text


def test_a_tree_tells_the_sums_of_what_is_below_each(store, team, viewer):
    open_shared(store, "people", 300, parent="company")
    store.create("43", budgets=(NewBudget(name="tokens", cap=70, parent="team"),))
    store.spend("42", 30, budget="tokens")
    store.spend("43", 5, budget="tokens")
    charge(store, "people", 7)

    text = Page(viewer.get("/budgets")).text
    page = Page(viewer.get("/budgets/company"))

    assert "company below it 2 shared budgets, caps 800, used 42" in text
    assert "team below it 2 budgets of runs, caps 170, used 35" in text
    assert "Below it 2 shared budgets, caps 800, used 42" in page.text
    assert page.links.index("/budgets/people") < page.links.index("/budgets/team")


def test_of_a_thousand_budgets_of_runs_and_more_the_sums_say_so(store, team, viewer, monkeypatch):
    monkeypatch.setattr(queries, "SUMMED_MAX", 2)
    for key in ("43", "44"):
        store.create(key, budgets=(NewBudget(name="tokens", cap=70, parent="team"),))

    text = Page(viewer.get("/budgets")).text

    assert "team below it 2+ budgets of runs, caps" in text


def test_runs_that_go_on_without_a_cap_are_listed_apart(store, team, viewer):
    for key in ("free-1", "free-2"):
        store.create(key, task="unbounded")
    store.move("free-2", "cancelled")

    page = Page(viewer.get("/budgets"))

    assert "Runs without a cap 1 of 2 that go on" in page.text
    assert "free-1 unbounded" in page.text
    assert "/runs/free-2" not in page.links


def test_shared_budgets_are_read_in_pages(store, viewer, monkeypatch):
    monkeypatch.setattr(queries, "SHARED_ROWS", 2)
    for number in range(5):
        open_shared(store, f"b-{number}", 10)

    address, seen = "/budgets", []
    while address:
        page = Page(viewer.get(address))
        seen += [link for link in page.links if link.startswith("/budgets/")]
        more = [link for link in page.links if "after=" in link]
        address = "/budgets" + more[0] if more else ""

    assert seen == [f"/budgets/b-{n}" for n in range(5)]


def test_a_budget_shows_what_is_above_and_below_it_and_who_spent(store, team, viewer):
    store.spend("42", 30, budget="tokens")

    page = Page(viewer.get("/budgets/team"))

    assert "/budgets/company" in page.links
    assert "/runs/42/budgets/tokens" in page.links
    assert "30 spent of 500 tokens" in page.html.replace("\u202f", " ")
    assert "spend 30 42 key:fleet" in page.text
    assert Page(viewer.get("/runs/42/budgets/tokens")).links.count("/budgets/team") == 1
    assert Page(viewer.get("/runs/42/budgets/tokens")).status == 200


def test_holds_below_it_are_listed_and_the_dead_ones_are_marked(store, team, still_clock, viewer):
    lease = store.hold("42", "w-3")
    ask = Reserve(run="42", budget="tokens", amount=20, id="h1", ttl_seconds=600, fence=lease.token)
    store.ask(ask)

    for address in ("/budgets/team", "/runs/42/budgets/tokens"):
        text = Page(viewer.get(address)).text
        assert f"42 w-3 #{lease.token} h1 20 10m" in text

    still_clock.advance(seconds=100)
    store.hold("42", "w-9")

    text = Page(viewer.get("/budgets/team")).text
    assert f"w-3 #{lease.token} h1 20 dead w-9 has the run now The next pass, every 10 s" in text


def hold_of(store, key, worker, *, seconds, amount=20, announce=True):
    if announce:
        store.ask(AnnounceWorker(worker=worker, version="1"))
    lease = store.hold(key, worker, ttl_seconds=seconds)
    hold = {"run": key, "budget": "tokens", "fence": lease.token}
    store.ask(Reserve(amount=amount, id=f"h-{worker}", ttl_seconds=600, **hold))
    return lease


def test_what_gone_workers_hold_says_what_gives_it_back_and_when(store, team, still_clock, viewer):
    for number in range(43, 47):
        store.create(str(number), budgets=(NewBudget(name="tokens", cap=100, parent="team"),))
    hold_of(store, "43", "w-silent", seconds=300)
    hold_of(store, "44", "w-lapsed", seconds=30)
    hold_of(store, "45", "w-overtaken", seconds=30)
    still_clock.advance(seconds=60)
    store.hold("45", "w-9")
    hold_of(store, "46", "w-live", seconds=300, amount=7)

    text = Page(viewer.get("/budgets")).text

    at = [text.index(f"h-w-{name}") for name in ("overtaken", "lapsed", "silent")]
    assert at == sorted(at)
    assert "h-w-live" not in text
    assert "of 4 holds 1 dead, 2 of workers that lapsed or are silent" in text
    assert (
        "lapsed its lease ran out, nobody took the run When a worker takes the run, or by" in text
    )
    assert "itself at 12:10:00 · Reclaim…" in text
    assert "silent no sign of it for 45 s Its lease runs out at 12:05:00, then a worker" in text
    team_page = Page(viewer.get("/budgets/team")).text
    assert "67 in 4 holds, 20 of it dead, 40 by workers that seem gone" in team_page
    assert "Reserved 67 20 of it dead" in team_page


def test_refused_charges_stand_with_the_level_that_refused_them(store, team, viewer):
    with pytest.raises(BudgetExhausted):
        charge(store, "team", 501)
    with pytest.raises(BudgetExhausted):
        store.spend("42", 101, budget="tokens")

    assert "501" in Page(viewer.get("/budgets/team")).text
    assert "101" not in Page(viewer.get("/budgets/team")).text
    assert "101 42" in Page(viewer.get("/runs/42/budgets/tokens")).text
    assert "101 tokens 42" in Page(viewer.get("/budgets")).text


def test_the_ledger_is_read_in_pages_to_its_first_line(store, viewer, monkeypatch):
    monkeypatch.setattr(ledgers, "PAGE_ROWS", 2)
    open_shared(store, "b", 100)
    for number in range(4):
        charge(store, "b", number + 1, note=f"note {number}")

    address, pages = "/budgets/b", []
    while address:
        page = Page(viewer.get(address))
        pages.append([n for n in range(4) if f"note {n}" in page.text])
        more = [link for link in page.links if "after=" in link]
        address = "/budgets/b" + more[0] if more else ""

    assert pages == [[2, 3], [0, 1], []]
    assert Page(viewer.get("/budgets/b?after=nonsense")).status == 200


def test_a_cap_is_shown_for_what_it_means_before_it_is_set(store, team, still_clock, senior):
    still_clock.advance(minutes=20)
    for _ in range(2):
        with pytest.raises(BudgetExhausted):
            charge(store, "team", 501)

    asked = Page(senior.get("/budgets/team/cap", {"cap": "1 100"}))

    assert "600 more than now: 1 100 tokens would be left" in asked.text
    assert "2 of the 2 charges refused in the last hour would fit if they come again" in asked.text
    assert "would have let through 2 of 2 refused charges, 1 002 tokens" in asked.text
    assert "company , above it, leaves 1 000: it keeps its own cap" in asked.text
    assert "When it would be dry" not in asked.text
    assert "The forecast stays: nothing was spent in the last 15 minutes" in asked.text
    assert asked.text.count("fits") == 2
    assert asked.field("cap") == "1 100"


def test_the_preview_says_when_it_would_be_dry_with_the_new_cap(store, team, still_clock, senior):
    still_clock.set(still_clock.now.replace(hour=11, minute=45))
    still_clock.advance(hours=24, minutes=15)
    for _ in range(3):
        charge(store, "team", 40)

    asked = Page(senior.get("/budgets/team/cap", {"cap": "600"})).text

    # 120 in 15 minutes are 480 an hour: 480 last an hour, 380 47 minutes.
    assert "It would be dry at 13:00 at the rate of the last 15 minutes" in asked
    assert "as it is, dry at 12:47 at the rate of the last 15 minutes" in asked


def change(client, address, cap, **fields):
    asked = Page(client.get(address, {"cap": str(cap)}))
    form = {name: asked.field(name) for name in ("form_key", "seen_version")}
    return client.post(address, form | {"cap": str(cap), "reason": "needed"} | fields)


@pytest.mark.parametrize(
    ("address", "back"),
    [
        ("/budgets/team/cap", "/budgets/team"),
        ("/runs/42/budgets/tokens/cap", "/runs/42/budgets/tokens"),
    ],
)
def test_a_senior_changes_a_cap_and_it_is_audited(store, team, senior, address, back):
    answer = change(senior, address, 700, reason="the release needs it")

    assert answer.url == back
    assert "The cap of" in Page(senior.get(back)).text
    assert rows("SELECT actor, action, reason FROM agentstate_operatoraction") == [
        ("person:bo", "budget.cap-changed", "the release needs it")
    ]


def test_sent_twice_it_acts_once(store, team, senior):
    asked = Page(senior.get("/budgets/team/cap", {"cap": "700"}))
    form = {n: asked.field(n) for n in ("form_key", "seen_version")} | {"cap": "700", "reason": "x"}

    for _ in range(2):
        assert senior.post("/budgets/team/cap", form).status_code == 302

    assert len(rows("SELECT id FROM agentstate_operatoraction")) == 1


def test_somebody_was_faster_and_nothing_is_done(store, team, senior):
    asked = Page(senior.get("/budgets/team/cap", {"cap": "700"}))
    form = {n: asked.field(n) for n in ("form_key", "seen_version")} | {"cap": "700", "reason": "x"}
    ask = ChangeCap(run=None, budget="team", cap=600, reason="me first")
    store.as_caller(SENIOR).ask(ask)

    answer = Page(senior.post("/budgets/team/cap", form))

    assert answer.status == 409
    assert "Nothing was done" in answer.text
    assert "Cap now 600" in answer.text
    assert answer.field("seen_version") != form["seen_version"]
    assert rows("SELECT cap FROM agentstate_budget WHERE name = 'team'") == [(600,)]


def test_a_cap_below_what_is_used_is_refused_in_words(store, team, senior):
    charge(store, "team", 400)

    assert (
        "below the 400 that are spent and reserved"
        in Page(senior.get("/budgets/team/cap", {"cap": "300"})).text
    )
    form = {"cap": "300", "reason": "x", "seen_version": "2", "form_key": "0123456789abcdef"}
    answer = Page(senior.post("/budgets/team/cap", form))
    assert answer.status == 409
    assert "The cap is below what is used".lower() in answer.text.lower()


@pytest.mark.parametrize("wrong", [{"reason": "a\0b"}, {"seen_version": "0"}])
def test_what_the_store_cannot_take_is_said_and_nothing_done(store, team, senior, wrong):
    assert change(senior, "/budgets/team/cap", 700, **wrong).status_code == 422
    assert rows("SELECT cap FROM agentstate_budget WHERE name = 'team'") == [(500,)]


@pytest.mark.parametrize("typed", ["", "-1", "1.5", "a lot", "9" * 30, "99999999999999999", "١٢"])
def test_what_is_no_amount_is_said_and_nothing_done(store, team, senior, typed):
    form = {"cap": typed, "reason": "x", "seen_version": "1", "form_key": "0123456789abcdef"}
    answer = Page(senior.post("/budgets/team/cap", form))

    assert answer.status == 422
    assert "A whole number from 0" in answer.text


def test_a_reason_is_needed(store, team, senior):
    answer = Page(change_answer := change(senior, "/budgets/team/cap", 700, reason="  "))

    assert change_answer.status_code == 422
    assert "Say why" in answer.text


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_who_is_not_senior_sees_why_not_and_is_refused(store, team, log_in, role):
    client = log_in("pat", role)

    assert "needs the role senior" in Page(client.get("/budgets/team")).text
    assert "needs the role senior" in Page(client.get("/budgets/team/cap")).text
    form = {"cap": "700", "reason": "x", "seen_version": "1"}
    assert client.post("/budgets/team/cap", form).status_code == 403
    assert rows("SELECT cap FROM agentstate_budget WHERE name = 'team'") == [(500,)]


@pytest.mark.parametrize(
    "address",
    [
        "/budgets/nothing",
        "/budgets/nothing/cap",
        "/budgets/%00",
        "/runs/42/budgets/nothing",
        "/runs/nothing/budgets/tokens",
    ],
)
def test_what_is_not_there_is_not_found(store, team, viewer, address):
    assert viewer.get(address).status_code == 404


def test_what_workers_write_into_the_ledger_is_text(store, viewer):
    open_shared(store, "b", 100)
    charge(store, "b", 1, note="<img src=x onerror=alert(1)>")

    page = Page(viewer.get("/budgets/b"))

    assert "<img src=x onerror=alert(1)>" in page.text
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_a_split_budget_is_one_with_its_slots_their_ledger_and_their_holds(
    store, still_clock, viewer, monkeypatch
):
    monkeypatch.setattr(ledgers, "PAGE_ROWS", 3)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="hot", cap=1000, slots=4)))
    for number in range(6):
        charge(store, "hot", 10, note=f"note {number}")
    store.ask(Reserve(run=None, budget="hot", amount=40, id="h1", ttl_seconds=60))

    board = Page(viewer.get("/budgets")).text
    assert "hot 4 slots 10 % 900 tokens 60 40 1 000" in board
    assert "hot#" not in board
    page = Page(viewer.get("/budgets/hot"))
    assert "Slots each is charged by itself" in page.text
    assert "key:fleet h1 40 1m" in page.text

    address, notes = "/budgets/hot", []
    while address:
        page = Page(viewer.get(address))
        notes += [n for n in range(5, -1, -1) if f"note {n}" in page.text]
        more = [link for link in page.links if "after=" in link]
        address = "/budgets/hot" + more[0] if more else ""
    assert notes == [5, 4, 3, 2, 1, 0]


def test_what_workers_and_operators_say_is_text_in_marks(store, still_clock, viewer):
    open_shared(store, "b", 100)
    store.ask(AnnounceWorker(worker="w-1", version="<img src=x onerror=alert(1)>"))
    ask = ChangeCap(run=None, budget="b", cap=200, reason='"><b hx-get="/evil" hx-trigger="load">')
    store.as_caller(SENIOR).ask(ask)
    still_clock.advance(minutes=1)

    for address in ("/budgets/b", "/", "/?table=1"):
        page = Page(viewer.get(address))
        assert "workers <img src=x onerror=alert(1)>" in page.text
        assert '“"><b hx-get="/evil" hx-trigger="load">”' in page.text
        assert not [
            a for tag, a in page.tags if tag in ("img", "b") and a.keys() & {"src", "hx-get"}
        ]


@pytest.mark.parametrize(
    "query",
    [
        {"from": "\0"},
        {"from": "9" * 400, "to": "x"},
        {"window": "<b>"},
        {"from": "0001-01-01T00:00:00+14:00"},
        {"from": "2026-03-02", "to": "9999-12-31T23:59:59-14:00"},
        {"cap": "\0"},
        {"cap": "1" * 500, "after": "nonsense"},
        {"from": "1970-01-01", "to": "1970-01-01T00:00:01", "cap": "0"},
    ],
)
def test_whatever_an_address_says_a_budget_has_a_page(store, still_clock, viewer, query):
    open_shared(store, "b", 100)
    charge(store, "b", 5)

    page = Page(viewer.get("/budgets/b", query))

    assert page.status == 200
    assert "Ledger" in page.text


def test_a_budget_above_that_is_dry_before_it_is_named(store, team, still_clock, viewer):
    still_clock.advance(minutes=20)
    for _ in range(3):
        charge(store, "team", 120)
    for _ in range(3):
        store.spend("42", 10, budget="tokens")

    # 390 in 15 minutes are 1 560 an hour: 110 of `team` last 4 minutes, 70 of `tokens` 35.
    page = Page(viewer.get("/runs/42/budgets/tokens"))

    assert "Dry at 12:55 at the rate of the last 15 minutes" in page.text
    assert "team , above it, is dry before it: 12:24" in page.text
    assert "dry at 12:55 at the rate of the last 15 minutes" in page.text.partition("Used")[0]
