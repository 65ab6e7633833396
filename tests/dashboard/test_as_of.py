"""A run, a unit and a budget as they were: as the rules had left them after each event."""

import json
from datetime import timedelta

import pytest

from agentstate.store.commands import (
    BrakeRun,
    ChangeCap,
    CreateBudget,
    NewBudget,
    NewEvent,
    Patch,
    ReleaseLease,
    Reserve,
    SignalRun,
    Spend,
    SplitBudget,
)
from agentstate.store.effects import Effect
from agentstate.store.errors import Refusal
from agentstate.store.models import Budget, Lease, Run
from agentstate.store.payloads import RawJSON, moment
from dashboard.moments import Moment
from dashboard.queries.clock import database_now
from dashboard.queries.past import read_run
from dashboard.queries.story import read_head
from tests.dashboard.reading import Page
from tests.store.asking import SENIOR, event, rows

ALIKE = (
    "status", "version", "last_seq", "counters", "tags", "notes", "attrs", "result", "owner",
    "token", "attempt", "hold", "retain_seconds", "ended_at", "updated_at", "expires_at",
    "brake_per_second", "brake_until",
)  # fmt: skip
OF_LEASE = (
    "owner", "token", "acquired_at", "renewed_at", "expires_at", "renewals", "ttl_seconds",
    "hold_off_owner", "hold_off_until",
)  # fmt: skip


def refused(ask):
    try:
        ask()
    except Refusal:
        return
    raise AssertionError("it was not refused")


def kept(key="42"):
    """What the store's own rows say of a run now."""
    run = Run.objects.get(key=key)
    lease = Lease.objects.filter(unit=f"run:{key}").first()
    held = lease is not None and lease.token is not None
    return {
        "run": {name: as_told(getattr(run, name)) for name in ALIKE},
        "lease": {name: getattr(lease, name) for name in OF_LEASE} if held else None,
        "signals": json.loads(lease.signals or "[]") if lease else None,
        "budgets": figures(Budget.objects.filter(run=run).order_by("name")),
    }


def told(key, **asked):
    """The same, derived as of a moment."""
    head = read_head(key, now=database_now())
    then = read_run(head, Moment(**asked), page="/")
    lease = then.lease
    held = lease is not None and lease.token is not None
    return {
        "run": {name: as_told(getattr(then.run, name)) for name in ALIKE},
        "lease": {name: getattr(lease, name) for name in OF_LEASE} if held else None,
        "signals": json.loads(lease.signals or "[]") if lease else None,
        "budgets": figures(then.budgets),
    }


def as_told(value):
    return sorted(value) if isinstance(value, list) else value


def figures(budgets):
    return [
        (b.name, b.cap, b.spent, b.reserved, b.version, b.entries, b.overdrawn) for b in budgets
    ]


class Recorded:
    """A story, and what the store's rows said after each event of it."""

    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.after = {}
        self.token = None

    def then(self, ask, *, seconds=1):
        self.clock.advance(seconds=seconds)
        done = ask()
        self.note()
        return done

    def note(self):
        now = kept()
        self.after[now["run"]["last_seq"]] = now

    def play(self):
        s, boss = self.store, self.store.as_caller(SENIOR)
        budgets = (NewBudget(name="calls", cap=9), NewBudget(name="tokens", cap=100))
        attrs = RawJSON('{"m":{"n":1e21}}')
        self.then(lambda: s.create("42", tags=("a", "b"), attrs=attrs, budgets=budgets))
        first = self.then(lambda: s.acquire("run:42", "w-1", ttl_seconds=60))
        fence = {"fence": first.token}
        self.then(lambda: s.move("42", "running", **fence))
        self.then(lambda: s.append("42", [event(), event()], add={"steps": 2}, **fence))
        self.then(lambda: boss.ask(SignalRun(run="42", signal="pause", reason="wait")))
        self.then(lambda: boss.ask(SignalRun(run="42", signal="drain", reason="node")))
        self.then(lambda: boss.ask(BrakeRun(run="42", per_second=5, seconds=600, reason="hot")))
        self.clock.advance(seconds=20)
        s.renew("run:42", first.token)
        self.then(lambda: s.ask(Patch(run="42", notes="one", tags_remove=("a",), **fence)))
        begun = NewEvent(type="mail", effect=Effect(key="m-1", state="begun"))
        self.then(lambda: s.append("42", [begun], **fence))
        self.clock.advance(seconds=61)
        s.sweep()
        self.note()
        boss_reclaims = {"token": first.token, "owner": "w-1", "hold_off_seconds": 90}
        self.then(lambda: boss.reclaim("run:42", **boss_reclaims))
        second = self.then(lambda: s.acquire("run:42", "w-2", ttl_seconds=30))
        fence = {"fence": second.token}
        self.clock.advance(seconds=5)
        s.renew("run:42", second.token, ttl_seconds=30)
        charge = {"run": "42", "budget": "tokens", **fence}
        s.spend("42", 30, budget="tokens", **fence)
        s.ask(Reserve(amount=20, id="h", **charge))
        self.then(lambda: s.append("42", [event()], add={"steps": -1}, **fence))
        self.clock.advance(seconds=1)  # a change of a cap is no event of the run
        boss.ask(ChangeCap(run="42", budget="tokens", cap=400, reason="more"))
        self.then(lambda: boss.ask(BrakeRun(run="42", per_second=None, reason="calm")))
        self.then(lambda: s.ask(ReleaseLease(unit="run:42", token=second.token)))
        third = self.then(lambda: s.acquire("run:42", "w-3"))
        self.then(lambda: boss.ask(Patch(run="42", hold=True, retain_seconds=900, reason="keep")))
        done = {"result": {"n": 1}, "fence": third.token}
        self.then(lambda: s.move("42", "completed", **done))
        return self


@pytest.fixture
def recorded(store, still_clock):
    return Recorded(store, still_clock).play()


def test_after_each_event_the_page_says_what_the_rows_said_then(recorded):
    """The rows are what the store's rules decided; the page is made of log, terms and ledger."""
    assert len(recorded.after) > 15
    for seq, then in recorded.after.items():
        assert told("42", seq=seq) == then, seq


def test_after_the_last_event_the_page_says_what_it_says_now(recorded):
    last = Run.objects.get(key="42").last_seq
    assert told("42", seq=last) == told("42", at=database_now()) == kept()


def test_a_live_run_is_at_any_moment_what_it_was(store, still_clock):
    """Also between events, where only a lease was renewed or ran out."""
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    lease = store.hold("42", "w-1", ttl_seconds=60)
    seen = []
    for step in range(6):
        still_clock.advance(seconds=20)
        if step < 4:
            store.renew("run:42", lease.token, ttl_seconds=60)
            store.spend("42", 7, budget="tokens", fence=lease.token)
        still_clock.advance(seconds=1)
        seen.append((still_clock.now, kept()))
    still_clock.advance(seconds=120)
    store.acquire("run:42", "w-2")
    for at, then in seen:
        assert told("42", at=at) == then, at


# --- pages ---------------------------------------------------------------------------------------


def show(client, address, asof, **query):
    return Page(client.get(address, {"asof": asof} | query))


def test_the_page_of_then_is_read_only_and_says_as_of_when(recorded, senior):
    page = show(senior, "/runs/42", "e9")

    assert page.status == 200
    assert f"after event 9 of {max(recorded.after)}" in page.text
    assert "w-1" in page.text
    assert "lapsed" not in page.text.partition("Timeline")[0]
    assert "running" in page.text
    forms = [attrs for tag, attrs in page.tags if tag == "form" and attrs.get("method") == "post"]
    assert {form["action"] for form in forms} <= {"/logout", "/theme", "/settings/zone"}
    assert [link for link in page.links if "/reclaim" in link or "/cancel" in link] == []
    assert "data-live" not in page.html
    assert "data-now" not in page.html
    assert {"?asof=e8", "?asof=e10"} <= set(page.links)
    now = page.link(r"^\?$")
    assert now == "?"


def test_every_tab_of_then_ends_with_the_moment(recorded, viewer):
    at = recorded.clock.now
    tabs = ("events", "state", "ownership", "refused", "budget", "audit")
    for tab in tabs:
        page = show(viewer, "/runs/42", "e9", tab=tab)
        assert page.status == 200, tab
        assert "w-3" not in page.text, tab
        assert "keep" not in page.text, tab
        for link in page.links:
            if "tab=" in link and link.partition("asof=")[2] not in ("e8", "e10"):
                assert "asof=e9" in link or tab in link, link
    assert "lease.acquired" in show(viewer, "/runs/42", "e9").text
    assert "run.completed" not in show(viewer, "/runs/42", "e9").text
    assert "had no event number 15" in show(viewer, "/runs/42", "e9", event="15").text
    last = str(max(recorded.after))
    assert "run.completed" in show(viewer, "/runs/42", moment(at), event=last).text


def test_a_part_of_the_page_of_then_is_of_then_too(recorded, viewer):
    for target in ("tab", "pane"):
        answer = viewer.get(
            "/runs/42",
            {"asof": "e4", "event": "4"},
            headers={"HX-Request": "true", "HX-Target": target},
        )
        assert answer.status_code == 200
        assert "asof=e4" in answer.text or target == "pane"
        assert "run.completed" not in answer.text


def test_no_copy_of_a_page_of_then_is_given_to_one_of_now(recorded, store, viewer):
    """A batch makes several events of one version; as of the first of them is not all of it."""
    store.create("b")
    store.append("b", [event("x.first"), event("x.second"), event("x.third")])
    assert "x.second" not in show(viewer, "/runs/b", "e2").text

    page = Page(viewer.get("/runs/b"))

    assert "x.third" in page.text
    assert "x.second" not in show(viewer, "/runs/b", "e2").text


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ("yesterday", 400, "This is no moment"),
        ("e0", 400, "This is no moment"),
        ("118", 400, "This is no moment"),
        ("e999999999999999999999", 400, "This is no moment"),
        ("2026-13-01T00:00:00Z", 400, "This is no moment"),
        ("0001-01-01T00:00:00+14:00", 400, "This is no moment"),
        ("2026-03-02T12:40:00 01:00", 400, "This is no moment"),
        ("<b>\x00", 400, "This is no moment"),
        ("e99", 404, "It has no such event"),
        ("e999999999999999999", 404, "It has no such event"),
        ("8999-12-31T23:59:59Z", 404, "That moment has not come yet"),
        ("1999-12-31T23:59:59Z", 404, "There was no such run then"),
    ],
)
def test_a_moment_that_cannot_be_shown_is_a_clear_page(recorded, viewer, asked, status, said):
    for address in ("/runs/42", "/leases/run:42"):
        page = show(viewer, address, asked)
        assert page.status == status, address
        assert said in page.text
        assert address in page.links
    budget = show(viewer, "/runs/42/budgets/tokens", asked)
    assert budget.status == status


def test_an_empty_moment_is_now(recorded, viewer):
    page = show(viewer, "/runs/42", " ")

    assert page.status == 200
    assert "data-live" in page.html


def test_a_time_is_taken_with_its_offset_or_as_utc(recorded, viewer):
    at = recorded.clock.now - timedelta(seconds=3)
    ahead = (at + timedelta(hours=2)).replace(tzinfo=None).isoformat() + "+02:00"
    texts = [show(viewer, "/runs/42", said).text for said in
             (moment(at), at.replace(tzinfo=None).isoformat(sep=" "), ahead)]  # fmt: skip

    assert len({text.partition("As it was at")[2][:60] for text in texts}) == 1


def test_a_unit_of_a_run_as_it_was(recorded, viewer):
    lapsed_from = next(
        then["lease"]["expires_at"]
        for then in recorded.after.values()
        if then["lease"] and then["lease"]["renewals"] == 1
    )

    page = show(viewer, "/leases/run:42", moment(lapsed_from + timedelta(seconds=2)))

    assert "lapsed 2s ago" in page.text
    assert "lapsed, not taken since" in page.text
    assert "w-2" not in page.text
    assert "reclaimed" not in page.text
    assert "data-live" not in page.html
    assert show(viewer, "/leases/run:42", "e2").text.count("w-1") == 2


def test_a_unit_without_a_run_is_told_by_its_terms(store, still_clock, viewer):
    first = store.acquire("mail:1", "w-1", ttl_seconds=60)
    held = still_clock.now
    still_clock.advance(seconds=100)
    second = store.acquire("mail:1", "w-2", ttl_seconds=60)
    still_clock.advance(seconds=10)
    store.release("mail:1", second.token)
    still_clock.advance(seconds=10)

    def at(seconds):
        return show(viewer, "/leases/mail:1", moment(held + timedelta(seconds=seconds)))

    assert "nobody" not in at(10).text.partition("Terms of ownership")[0]
    assert f"w-1 #{first.token}" in at(10).text
    assert "lapsed 39s ago" in at(99).text
    assert f"w-2 #{second.token}" in at(105).text
    assert "nobody" in at(115).text
    assert at(115).link("Change|asof").startswith("?asof=")
    assert show(viewer, "/leases/mail:1", "e1").status == 400
    assert at(-1).status == 404
    assert "Nobody had held it then" in at(-1).text


def test_what_was_not_kept_of_a_term_is_said(store, still_clock, viewer):
    """The last forty renewals are kept: before them it is known who held it, and no more."""
    store.create("42")
    lease = store.hold("42", "w-1", ttl_seconds=60)
    started = still_clock.now
    for _ in range(50):
        still_clock.advance(seconds=20)
        store.renew("run:42", lease.token, ttl_seconds=60)

    page = show(viewer, "/runs/42", moment(started + timedelta(seconds=65)))

    assert "w-1 held it; when it had last renewed then is not kept" in page.text
    assert "Of each term the last 40 renewals are kept" in page.text
    later = show(viewer, "/runs/42", moment(started + timedelta(seconds=905)))
    assert "ago, 45 so far" in later.text


def test_a_run_that_was_imported_was_held_by_nobody_here(store, still_clock, viewer):
    from agentstate.store.export import export
    from tasks.archive import read_archive

    store.create("42")
    store.hold("42", "w-1")
    (history,) = read_archive(text="".join(export("42")).replace('"42"', '"43"'), name="x")
    store.ask(history)

    page = show(viewer, "/runs/43", "e2")

    assert "nobody" in page.text
    assert "in the store that it was imported from" in page.text


def test_a_budget_as_it_was(store, still_clock, senior):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=500)))
    opened = still_clock.now
    still_clock.advance(seconds=10)
    store.create("42", budgets=(NewBudget(name="tokens", cap=100, parent="team"),))
    for amount in (10, 20, 30):
        still_clock.advance(seconds=10)
        store.spend("42", amount, budget="tokens")
    still_clock.advance(seconds=10)
    store.ask(Reserve(run="42", budget="tokens", amount=25, id="h-1", ttl_seconds=600))
    still_clock.advance(seconds=10)
    refused(lambda: store.spend("42", 50, budget="tokens"))
    still_clock.advance(seconds=10)
    store.as_caller(SENIOR).ask(ChangeCap(run="42", budget="tokens", cap=900, reason="more"))

    def at(seconds, address="/runs/42/budgets/tokens"):
        return show(senior, address, moment(opened + timedelta(seconds=seconds)))

    page = at(35)
    assert "Left 70 tokens Cap 100 Spent 30 Reserved 0 Version b3" in page.text
    assert "Change the cap" not in page.text
    assert "data-live" not in page.html
    assert "Nothing is held" in page.text
    assert "Line before" in page.text
    assert "Line after" in page.text
    held = at(55)
    assert "Spent 60 Reserved 25" in held.text
    assert "h-1" in held.text
    assert "more" not in held.text.partition("Ledger")[2]
    assert "Refused, the 60 min before No charge" in held.text
    assert "50" in at(65).text
    assert "Cap 900" in at(70).text
    assert "Spent 10" in at(25, "/budgets/team").text
    assert at(-5, "/budgets/team").status == 404
    assert show(senior, "/budgets/team", "e1").status == 400
    assert "Spent 0" in show(senior, "/runs/42/budgets/tokens", "e1").text


def test_the_course_of_a_budget_ends_at_the_moment_and_another_cap_is_replayed_until_then(
    store, still_clock, senior
):
    store.create("42", budgets=(NewBudget(name="tokens", cap=100),))
    opened = still_clock.now
    for amount in (40, 80, 50, 90):  # the second and the last one find no room
        still_clock.advance(seconds=10)
        if amount >= 80:
            refused(lambda amount=amount: store.spend("42", amount, budget="tokens"))
        else:
            store.spend("42", amount, budget="tokens")
    still_clock.advance(seconds=10)

    def at(seconds, **query):
        asof = moment(opened + timedelta(seconds=seconds))
        address = "/runs/42/budgets/tokens"
        return Page(senior.get(address, {"asof": asof, **query}))

    assert "40 tokens spent, 1 charge refused" in at(20, cap="500").text
    assert "1 of the 1 refused charge would have been let through, 80 tokens" in (
        at(20, cap="500").text
    )
    assert "40 tokens spent." in at(10).text
    assert "90 tokens spent, 2 charges refused" in at(40).text
    assert "1 charge refused" in at(39).text
    assert "too young to tell: 20 seconds of it are known" in at(20).text.lower()
    part = at(45, **{"from": moment(opened + timedelta(seconds=25)), "to": ""})
    assert "50 tokens spent, 1 charge refused" in part.text
    assert "Ledger of 2026-03-02 12:00:25 to 12:00:45 alone" in part.text
    for wrong in ({"from": "x"}, {"from": "9999"}, {"cap": "-1"}, {"after": "x"}, {"window": "x"}):
        assert at(40, **wrong).status == 200


def test_holds_of_then_are_dead_once_their_time_or_their_lease_was_over(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=500)))
    for key, parent in (("1", "team"), ("2", "team"), ("3", "team"), ("4", None)):
        store.create(key, budgets=(NewBudget(name="tokens", cap=100, parent=parent),))
    lease = store.hold("1", "w-1", ttl_seconds=3600)
    began = still_clock.now
    hold = {"budget": "tokens", "ttl_seconds": 600}
    store.ask(Reserve(run="1", amount=5, id="h-1", fence=lease.token, **hold))
    store.ask(Reserve(run="2", amount=7, id="h-2", **hold | {"ttl_seconds": 60}))
    still_clock.advance(seconds=30)
    store.spend("3", 11, budget="tokens")
    store.release("run:1", lease.token)
    still_clock.advance(seconds=60)

    def at(seconds):
        return show(viewer, "/budgets/team", moment(began + timedelta(seconds=seconds))).text

    assert "12 in 2 holds" in at(20)
    assert "of it dead" not in at(20)
    assert "12 in 2 holds, 5 of it dead" in at(40)
    assert "it holds the run no more" in at(40)
    assert "12 in 2 holds, 12 of it dead" in at(70)
    assert "3 budgets of runs, caps 300, used 12" in at(20)
    assert "3 budgets of runs, caps 300, used 23" in at(40)


def test_a_split_budget_is_as_it_was_as_a_whole_and_in_its_slots(store, still_clock, viewer):
    store.ask(CreateBudget(run=None, budget=NewBudget(name="hot", cap=100)))
    still_clock.advance(seconds=10)
    seen = []
    for number in range(6):
        still_clock.advance(seconds=10)
        if number == 2:
            boss = store.as_caller(SENIOR)
            boss.ask(SplitBudget(budget="hot", slots=3, reason="many write"))
        store.ask(Spend(run=None, charge=charge("hot", 5)))
        seen.append((still_clock.now, of_hot()))

    for at, (cap, spent, version, slots) in seen:
        page = show(viewer, "/budgets/hot", moment(at))
        assert f"Cap {cap} Spent {spent} Reserved 0 Version b{version}" in page.text
        assert page.text.count("Slots of hot") == (1 if slots else 0)
        for slot, slot_cap, slot_spent in slots:
            assert f"{slot} {slot_spent * 100 // slot_cap} % {slot_spent} 0 {slot_cap}" in page.text


def charge(name, amount):
    from agentstate.store.commands import Charge

    return Charge(budget=name, amount=amount)


def of_hot():
    """Cap, spent and version of the whole, and the slots, by the store's own rows."""
    ((cap, version, own),) = rows(
        "SELECT cap, version, spent FROM agentstate_budget WHERE name = 'hot'"
    )
    slots = rows(
        "SELECT slot, cap, spent FROM agentstate_budget WHERE slot_of_id IS NOT NULL ORDER BY slot"
    )
    return cap, own + sum(spent for _, _, spent in slots), version, slots


def test_the_moment_of_each_deed_is_a_link_to_its_thing_then(recorded, store, viewer):
    boss = store.as_caller(SENIOR)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=5)))
    boss.ask(ChangeCap(run=None, budget="team", cap=50, reason="grows"))

    page = Page(viewer.get("/audit"))

    then = [link for link in page.links if "asof=" in link]
    pages = {link.partition("?")[0] for link in then}
    assert pages == {"/runs/42", "/leases/run:42", "/runs/42/budgets/tokens", "/budgets/team"}
    for link in then:
        assert viewer.get(link).status_code == 200, link
    of_run = Page(viewer.get("/runs/42", {"tab": "audit"}))
    assert any(link.startswith("/leases/run:42?asof=") for link in of_run.links)


def test_a_long_run_is_looked_up_and_not_read_through(
    store, still_clock, viewer, django_assert_max_num_queries
):
    store.create("long")
    for _ in range(40):
        still_clock.advance(seconds=1)
        store.append("long", [event() for _ in range(50)])
    at = still_clock.now - timedelta(seconds=20, milliseconds=500)

    with django_assert_max_num_queries(60):
        page = show(viewer, "/runs/long", moment(at))

    said = page.text.partition("As it was at")[2][:120]
    assert "when the last was event 951 of 2 001" in said
