"""The checker is checked: histories that no sound store can leave are told from those it can."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.torture.checker import check
from bench.torture.final import Entry, Term
from bench.torture.history import NEVER, REFUSED, UNKNOWN, Op
from bench.torture.order import (
    DOUBLED,
    FEED,
    HOLE,
    INVENTED,
    LOST,
    MEANINGS,
    ORDER,
    OVER_CAP,
    OVERLAP,
    STALE,
    TORN,
    WRONG,
)
from tests.faults.plain_store import TTL_SECONDS, PlainStore

type Damage = Callable[[PlainStore], object]


def kinds(store: PlainStore) -> set[str]:
    return {finding.kind for finding in check(*store.told())}


def told(store: PlainStore) -> PlainStore:
    """Something of everything."""
    store.create("r")
    store.append("r", 2)
    store.append("r", expected_seq=3)
    store.set("r", None)
    store.change("r", 4)
    store.read("r")
    store.create("held")
    token = store.acquire("run:held").answer["token"]
    store.append("held", fence=token)
    first = store.acquire("u").answer["token"]
    store.renew("u", first)
    store.acquire("u")
    store.open("/shared", 100)
    store.open("r/own", 50, "/shared")
    store.spend("r/own", 5)
    store.commit("r/own", store.reserve("r/own", 10), 8)
    store.look("r/own")
    store.batch("r", "/shared")
    store.split("/split", 90, 3)
    store.open("r/of-split", 1_000, "/split")
    store.spend("/split", 40)
    store.spend("r/of-split", 30)
    store.look("/split")
    store.page(0)
    store.stream("r", 1, to_end=store.final.heads["r"].last_seq)
    for position in (3, 5, 4):
        store.checkpoint("c", position)
    store.consumer("c")
    return store


@pytest.fixture
def store() -> PlainStore:
    return told(PlainStore())


def op_of(store: PlainStore, kind: str, number: int = 0) -> Op:
    return [op for op in store.history.ops if op.kind == kind][number]


def test_a_sound_history_has_no_findings(store):
    assert check(*store.told()) == []


# --- what must be found ---------------------------------------------------------------------------


def lose_the_last_event(store):
    store.final.events["r"].pop()
    store.final.heads["r"].last_seq -= 1
    store.final.heads["r"].version -= 1
    store.final.feed.pop()


def lose_a_run(store):
    del store.final.events["held"], store.final.heads["held"]
    store.final.feed = [row for row in store.final.feed if row.run != "held"]


def answer_with_other_numbers(store):
    op_of(store, "append").answer["first_seq"] += 1


def write_twice(store):
    mark = store.final.events["r"][1].mark
    store.write("r", store.line("step", mark=mark))


def skip_a_number(store):
    for event in store.final.events["r"][3:]:
        event.seq += 1
    store.final.heads["r"].last_seq += 1


def skip_a_version(store):
    store.final.events["r"][-1].version += 1
    store.final.heads["r"].version += 1


def have_a_row_that_disagrees(store):
    store.final.heads["r"].last_seq += 1


def overlap_terms(store):
    store.final.terms["u"][0].ends_at += TTL_SECONDS * 2


def leave_two_terms_open(store):
    store.final.terms["u"][0].ends_at = None


def give_tokens_backwards(store):
    first, second = store.final.terms["u"]
    first.token, second.token = second.token, first.token


def grant_before_the_time_is_up(store):
    op_of(store, "acquire", -1).answer["at"] -= TTL_SECONDS * 2


def renew_after_a_successor(store):
    token = store.final.terms["u"][0].token
    op = store.op("renew", "unit:u", ask={"token": token})
    op.answer = {"token": token, "at": store.now, "expires_at": store.now + TTL_SECONDS}


def grant_without_a_term(store):
    store.final.terms["u"].pop()


def grant_to_nobody(store):
    at = store.now + 100
    store.final.terms["u"][-1].ends_at = at
    store.final.terms["u"].append(Term(token=99, owner="w~nobody", starts_at=at))


def grant_what_was_refused(store):
    op_of(store, "acquire", -1).outcome = REFUSED


def grant_two_terms_for_one_call(store):
    term = store.final.terms["u"][-1]
    term.ends_at = term.starts_at + 1
    store.final.terms["u"].append(replace(term, token=99, starts_at=term.ends_at, ends_at=None))


def write_under_a_superseded_token(store):
    old = store.final.heads["held"].token
    store.acquire("run:held")
    zombie = store.op("append", "run:held", ask={"count": 1, "fence": old})
    head = store.write("held", store.line("step", mark=f"{zombie.id}.0", token=old))
    zombie.answer = {"first_seq": head.last_seq, "last_seq": head.last_seq, "version": head.version}


def write_under_no_token(store):
    store.final.events["held"][-1].token = None


def write_on_after_the_end(store):
    store.end("r")
    store.final.heads["r"].token = None
    store.append("r")


def answer_before_it_was_asked(store):
    early, late = op_of(store, "append", 0), op_of(store, "append", 1)
    late.invoked_at, late.ended_at = early.invoked_at - 2, early.invoked_at - 1


def read_the_past(store):
    stale = dict(op_of(store, "read").answer)
    store.append("r")
    store.op("read", "run:r").answer = stale


def read_what_never_was(store):
    op_of(store, "read").answer["status"] = "paused"


def read_a_lost_count(store):
    op_of(store, "read").answer["counters"] = {"steps": 1}


def read_a_version_that_is_not_there(store):
    op_of(store, "read").answer["version"] = 99


def ignore_an_expected_number(store):
    op_of(store, "append", 1).ask["expected_seq"] = 2


def ignore_an_expected_version(store):
    op_of(store, "patch").ask["if_match"] = 2


def lose_an_update(store):
    store.set("r", op_of(store, "cas").id).ask["seen"] = None


def ignore_a_fence(store):
    op_of(store, "append", 2).ask["fence"] = 99


def do_what_was_refused(store):
    op = op_of(store, "append")
    op.outcome, op.answer = REFUSED, {}


def write_what_nobody_asked_for(store):
    store.write("r", store.line("step", mark="nobody.0"))


def refuse_for_no_reason(store):
    head = store.final.heads["r"]
    op = store.append("r", expected_seq=head.last_seq + 1)
    op.ask["expected_seq"] = head.last_seq


def write_half_an_append(store):
    store.final.events["r"][2].mark = ""


def write_half_a_batch(store):
    op = op_of(store, "append", -1)
    store.final.events["r"][-1].mark = ""
    op.outcome, op.ended_at = UNKNOWN, NEVER
    charge = op_of(store, "spend", -1)
    charge.outcome, charge.ended_at = UNKNOWN, NEVER


def move_without_its_append(store):
    op_of(store, "append").ask["to"] = "completed"


def admit_beyond_the_cap(store):
    store.enter("/shared", "spend", store.op("spend", "budget:/shared", ask={"amount": 900}).id,
                900, 0)  # fmt: skip
    op_of(store, "spend", -1).answer = store.balance("/shared")


def hide_an_overdraft(store):
    store.commit("r/own", store.reserve("r/own", 1), 500)
    store.final.budgets["r/own"].entries[-1].overdrawn = False


def charge_twice(store):
    store.enter("r/own", "spend", op_of(store, "spend").id, 5, 0)


def lose_a_charge(store):
    op = store.op("spend", "budget:/shared", ask={"amount": 3})
    op.answer = store.balance("/shared")


def charge_what_was_refused(store):
    op_of(store, "spend").outcome = REFUSED
    op_of(store, "spend").answer = {}


def settle_twice(store):
    hold = op_of(store, "reserve")
    store.enter("r/own", "release", hold.id, 0, 0)


def forget_a_settlement(store):
    store.final.budgets["r/own"].holds[op_of(store, "reserve").id] = "held"


def lose_a_line(store):
    del store.final.budgets["/shared"].entries[2]


def have_a_sum_that_disagrees(store):
    store.final.budgets["/shared"].spent += 1


def charge_one_level_only(store):
    mark = op_of(store, "spend").id
    above = store.final.budgets["/shared"].entries
    at = next(n for n, entry in enumerate(above) if entry.mark == mark)
    above[at] = Entry(n=above[at].n, kind="spend", spent=5, mark="another")
    other = store.op("spend", "budget:/shared", id="another", ask={"amount": 5})
    other.outcome, other.ended_at = UNKNOWN, NEVER


def show_a_sum_that_never_was(store):
    op_of(store, "budget").answer["spent"] += 1


def show_money_twice(store):
    op_of(store, "budget").answer["left"] += 1


def refuse_with_room(store):
    store.refuse(store.op("spend", "budget:/shared", ask={"amount": 1}), "budget-exhausted",
                 **store.balance("/shared"))  # fmt: skip


def show_an_old_balance(store):
    old = store.balance("/shared")
    store.spend("/shared", 1)
    store.op("budget", "budget:/shared").answer = old


def skip_a_position(store):
    for row in store.final.feed[3:]:
        row.position += 1


def feed_backwards(store):
    feed = store.final.feed
    first, second = [row for row in feed if row.run == "r"][:2]
    for name in ("first_seq", "last_seq", "version"):
        mine, other = getattr(first, name), getattr(second, name)
        setattr(first, name, other)
        setattr(second, name, mine)


def feed_too_little(store):
    store.final.feed.pop()
    store.history.ops = [op for op in store.history.ops if op.kind != "feed"]


def feed_twice(store):
    row = store.final.feed[-1]
    store.final.feed.append(replace(row, position=row.position + 1))


def split_a_batch(store):
    feed = store.final.feed
    at = next(n for n, row in enumerate(feed) if row.last_seq > row.first_seq)
    whole = feed[at]
    half = replace(whole, last_seq=whole.first_seq)
    rest = replace(whole, first_seq=whole.first_seq + 1)
    feed[at : at + 1] = [half, rest]
    for position, row in enumerate(feed, 1):
        row.position = position
    store.history.ops = [op for op in store.history.ops if op.kind != "feed"]


def skip_on_a_page(store):
    del op_of(store, "feed").answer["items"][2]


def go_on_in_the_wrong_place(store):
    op_of(store, "feed").answer["position"] += 1


def show_less_than_before(store):
    page = store.page(0)
    page.answer = {"items": page.answer["items"][:2], "position": 2}


def last_slot_line(store):
    """(slot's name, line) of the last charge of the split budget."""
    lines = [(slot, e) for slot in store.slots_of("/split")
             for e in store.final.budgets[slot].entries if e.kind == "spend"]  # fmt: skip
    return max(lines, key=lambda line: line[1].at)


def admit_beyond_a_slots_cap(store):
    slot, line = last_slot_line(store)
    budget = store.final.budgets[slot]
    line.spent, budget.spent = line.spent + budget.cap, budget.spent + budget.cap


def make_room_by_moving_caps(store):
    store.now += 1
    budget = store.final.budgets["/split#1"]
    budget.cap, budget.version = budget.cap + 5, budget.version + 1
    budget.entries.append(Entry(n=budget.version, kind="shift", cap=budget.cap, at=store.now))


def lose_room_in_the_slots(store):
    budget = store.final.budgets["/split#2"]
    budget.cap -= 5
    budget.entries[-1].cap = budget.cap


def charge_two_slots(store):
    slot, line = last_slot_line(store)
    other = next(name for name in store.slots_of("/split") if name != slot)
    budget = store.final.budgets[other]
    budget.version += 1
    budget.entries.append(replace(line, n=budget.version, spent=0))


def lose_a_slots_line(store):
    slot, _ = last_slot_line(store)
    del store.final.budgets[slot].entries[1]


def lose_a_charge_of_a_slot(store):
    store.op("spend", "budget:/split", ask={"amount": 3}).answer = store.balance("/split")


def have_a_slot_that_disagrees(store):
    store.final.budgets["/split#0"].spent -= 1


def charge_no_slot_from_below(store):
    _, line = last_slot_line(store)
    line.mark = "another"
    other = store.op("spend", "budget:/split", id="another", ask={"amount": 30})
    other.outcome, other.ended_at = UNKNOWN, NEVER


def miss_a_charge_in_a_slot(store):
    store.spend("/split", 2)
    old = store.look("/split").answer
    old["spent"], old["left"] = old["spent"] - 2, old["left"] + 2


def see_a_charge_before_it_was_sent(store):
    look = op_of(store, "budget", 1)
    store.spend("/split", 2)
    look.answer["spent"], look.answer["left"] = look.answer["spent"] + 2, look.answer["left"] - 2


def refuse_with_room_in_another_slot(store):
    store.refuse(store.op("spend", "budget:/split", ask={"amount": 9}), "budget-exhausted",
                 **store.balance("/split"))  # fmt: skip


def miss_an_event_in_a_stream(store):
    del op_of(store, "stream").answer["items"][1]


def stream_an_event_again(store):
    items = op_of(store, "stream").answer["items"]
    items.insert(1, items[0])


def stream_what_is_not_there(store):
    last = len(store.final.events["r"])
    op_of(store, "stream").answer["items"].append([last + 1, 99, "step"])


def stream_something_else(store):
    op_of(store, "stream").answer["items"][0][2] = "other"


def fall_silent(store):
    op_of(store, "stream").answer["items"].pop()


def forget_a_checkpoint(store):
    store.final.consumers["c"] = 3


def set_a_checkpoint_back(store):
    op = op_of(store, "checkpoint", 2)
    op.outcome, op.code, op.answer = "ok", "", {"position": 4}


def read_an_old_checkpoint(store):
    op_of(store, "consumer").answer["position"] = 3


def read_a_checkpoint_that_nobody_set(store):
    op_of(store, "consumer").answer["position"] = 6


def stand_where_nobody_set_it(store):
    store.final.consumers["c"] = 6


def pass_the_feeds_end(store):
    store.checkpoint("c", len(store.final.feed) + 1)


def refuse_a_later_checkpoint(store):
    op_of(store, "checkpoint", 2).ask["position"] = 5


BAD: list[tuple[Damage, str]] = [
    (lose_the_last_event, LOST),
    (lose_a_run, LOST),
    (answer_with_other_numbers, LOST),
    (write_twice, DOUBLED),
    (skip_a_number, HOLE),
    (skip_a_version, HOLE),
    (have_a_row_that_disagrees, HOLE),
    (overlap_terms, OVERLAP),
    (leave_two_terms_open, OVERLAP),
    (give_tokens_backwards, STALE),
    (grant_before_the_time_is_up, OVERLAP),
    (renew_after_a_successor, ORDER),
    (grant_without_a_term, LOST),
    (grant_to_nobody, INVENTED),
    (grant_what_was_refused, INVENTED),
    (grant_two_terms_for_one_call, DOUBLED),
    (write_under_a_superseded_token, STALE),
    (write_under_no_token, STALE),
    (write_on_after_the_end, WRONG),
    (answer_before_it_was_asked, ORDER),
    (read_the_past, ORDER),
    (read_what_never_was, WRONG),
    (read_a_lost_count, WRONG),
    (read_a_version_that_is_not_there, LOST),
    (ignore_an_expected_number, ORDER),
    (ignore_an_expected_version, ORDER),
    (lose_an_update, ORDER),
    (ignore_a_fence, STALE),
    (do_what_was_refused, INVENTED),
    (write_what_nobody_asked_for, INVENTED),
    (refuse_for_no_reason, WRONG),
    (write_half_an_append, TORN),
    (write_half_a_batch, TORN),
    (move_without_its_append, TORN),
    (admit_beyond_the_cap, OVER_CAP),
    (hide_an_overdraft, OVER_CAP),
    (charge_twice, DOUBLED),
    (lose_a_charge, LOST),
    (charge_what_was_refused, INVENTED),
    (settle_twice, DOUBLED),
    (forget_a_settlement, WRONG),
    (lose_a_line, HOLE),
    (have_a_sum_that_disagrees, WRONG),
    (charge_one_level_only, TORN),
    (show_a_sum_that_never_was, WRONG),
    (show_money_twice, WRONG),
    (refuse_with_room, WRONG),
    (show_an_old_balance, ORDER),
    (skip_a_position, FEED),
    (feed_backwards, FEED),
    (feed_too_little, FEED),
    (feed_twice, FEED),
    (split_a_batch, FEED),
    (skip_on_a_page, FEED),
    (go_on_in_the_wrong_place, FEED),
    (show_less_than_before, FEED),
    (admit_beyond_a_slots_cap, OVER_CAP),
    (make_room_by_moving_caps, OVER_CAP),
    (lose_room_in_the_slots, OVER_CAP),
    (charge_two_slots, DOUBLED),
    (lose_a_slots_line, HOLE),
    (lose_a_charge_of_a_slot, LOST),
    (have_a_slot_that_disagrees, WRONG),
    (charge_no_slot_from_below, TORN),
    (miss_a_charge_in_a_slot, ORDER),
    (see_a_charge_before_it_was_sent, ORDER),
    (refuse_with_room_in_another_slot, WRONG),
    (miss_an_event_in_a_stream, FEED),
    (stream_an_event_again, FEED),
    (stream_what_is_not_there, LOST),
    (stream_something_else, WRONG),
    (fall_silent, FEED),
    (forget_a_checkpoint, LOST),
    (set_a_checkpoint_back, ORDER),
    (read_an_old_checkpoint, ORDER),
    (read_a_checkpoint_that_nobody_set, WRONG),
    (stand_where_nobody_set_it, WRONG),
    (pass_the_feeds_end, WRONG),
    (refuse_a_later_checkpoint, WRONG),
]


@pytest.mark.parametrize(("damage", "kind"), BAD, ids=[damage.__name__ for damage, _ in BAD])
def test_a_broken_promise_is_found(store, damage, kind):
    damage(store)

    assert kind in kinds(store)


def test_each_kind_of_finding_has_a_history_that_shows_it():
    assert {kind for _, kind in BAD} == set(MEANINGS)


# --- what must not be found -----------------------------------------------------------------------


def test_a_call_without_an_answer_may_have_happened_or_not(store):
    store.silent = True
    store.append("r")
    never = store.op("append", "run:r", ask={"count": 1})
    never.outcome, never.ended_at = UNKNOWN, NEVER

    assert check(*store.told()) == []


def test_calls_at_the_same_time_may_stand_in_any_order(store):
    for op in store.history.ops:
        op.invoked_at, op.ended_at = 0.0, NEVER if op.ended_at == NEVER else store.now

    assert check(*store.told()) == []


STEPS = st.sampled_from(
    [
        "append", "append-expected", "set", "change", "read", "acquire", "append-held", "stale",
        "hold", "renew", "release", "spend", "reserve", "look", "batch", "page", "stream",
        "checkpoint", "consumer", "spend-split", "look-split",
    ]
)  # fmt: skip


# Those that are done all the same when their caller never hears of it.
SILENT = ("append", "set", "spend", "batch", "acquire", "checkpoint", "spend-split")


class Told:
    """Steps on a plain store; what each expects may or may not be so."""

    def __init__(self) -> None:
        self.store = PlainStore()
        for run in ("r", "held"):
            self.store.create(run)
        self.store.open("/shared", 40)
        self.store.open("r/own", 25, "/shared")
        self.store.split("/split", 60, 3)
        self.store.open("r/of-split", 1_000, "/split")
        self.seen_seq = self.seen_version = 1
        self.seen_cas: str | None = None
        self.tokens = [self.store.acquire("u").answer["token"]]
        self.held = [self.store.acquire("run:held").answer["token"]]

    def step(self, name: str, number: int) -> None:
        store, head = self.store, self.store.final.heads["r"]
        {
            "append": lambda: store.append("r", 1 + number % 3),
            "append-expected": lambda: store.append("r", expected_seq=self.seen_seq),
            "set": lambda: store.set("r", self.seen_cas),
            "change": lambda: store.change("r", self.seen_version),
            "read": lambda: store.read("r"),
            "acquire": lambda: self.take("u", self.tokens),
            "append-held": lambda: store.append("held", fence=self.held[-1]),
            "stale": lambda: store.append("held", fence=self.held[number % len(self.held)]),
            "hold": lambda: self.take("run:held", self.held),
            "renew": lambda: store.renew("u", self.tokens[number % len(self.tokens)]),
            "release": lambda: store.release("u", self.tokens[number % len(self.tokens)]),
            "spend": lambda: store.spend(("r/own", "/shared")[number % 2], 1 + number % 5),
            "reserve": lambda: self.hold_money(number),
            "look": lambda: store.look("/shared"),
            "batch": lambda: self.batch(),
            "page": lambda: store.page(number % (len(store.final.feed) + 1), 1 + number % 20),
            "stream": lambda: store.stream("r", number % (head.last_seq + 1)),
            "checkpoint": lambda: store.checkpoint("c", number % (len(store.final.feed) + 1)),
            "consumer": lambda: store.consumer("c"),
            "spend-split": lambda: store.spend(
                ("/split", "r/of-split")[number % 2], 1 + number % 9
            ),
            "look-split": lambda: store.look("/split"),
        }[name]()
        if number % 3:
            self.seen_seq, self.seen_version = head.last_seq, head.version
            self.seen_cas = store.cas.get("r")

    def take(self, unit: str, tokens: list[int]) -> None:
        self.store.acquire(unit)
        tokens.append(self.store.token)

    def hold_money(self, number: int) -> None:
        hold = self.store.reserve("r/own", 1 + number % 7)
        if hold.outcome != REFUSED and number % 3:
            self.store.commit("r/own", hold, number % 9)

    def batch(self) -> None:
        if self.store.has_room("/shared", 1):
            self.store.batch("r", "/shared")


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(STEPS, st.integers(0, 60), st.booleans(), st.floats(0.05, 6), st.floats(0.05, 6)),
        max_size=60,
    )
)
def test_whatever_a_sound_store_does_passes(steps):
    told = Told()
    for name, number, answered, early, late in steps:
        told.store.early, told.store.late = early, late
        told.store.silent = not answered and name in SILENT
        told.step(name, number)
        told.store.silent = False

    assert check(*told.store.told()) == []
