"""The API against the plain model: workers, an operator and time, as hypothesis draws them.

Real requests through the whole stack on real PostgreSQL, whose clock the machine sets. A failure
is printed as a short script of calls. The same model as for the rules (plain.py), which shares
nothing with them.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentstate.store.settable_clock import START
from tests.api.asking import Api, new_key
from tests.model.plain import ENDED, Plain

_numbers = count(1)
# Whoever holds the run mostly, so that much is accepted.
WORKERS = st.sampled_from(("holder", "holder", "a", "b"))
KEYS = {
    "a": ("read", "payloads", "write"),
    "b": ("read", "payloads", "write"),
    "operator": ("read", "operate", "override"),
}
# Which token is sent: the current one mostly, else an older one, a foreign one, or none.
WHICH = st.sampled_from(("current", "current", "current", "older", "none"))


class Machine(RuleBasedStateMachine):
    api: dict[str, Api]
    clock: object

    def __init__(self):
        super().__init__()
        self.number = next(_numbers)
        self.key = f"r-{self.number}"
        self.model = Plain()
        self.model.given = {}
        self.tokens = []
        self.calls = 0
        self.last = None
        # Each story has an hour of its own, so that none sees the leases of another.
        self.began = START + timedelta(hours=self.number)
        self.clock.set(self.began)

    # --- time and repetition ---------------------------------------------------------------------

    @initialize(cap=st.sampled_from((0, 10, 30)), attempts=st.sampled_from((2, 50)))
    def create(self, cap, attempts):
        body = {
            "key": self.key,
            "task": "x",
            "budgets": [{"name": "b", "cap": cap}],
            "max_attempts": attempts,
        }
        answer = self.call("a", "/runs", body)
        self.compare(answer, self.model.create(self.key, cap, attempts), ("last_seq", "version"))

    @rule(until=st.sampled_from(("a second", "just before the expiry", "the expiry", "later")))
    def wait(self, until):
        lease = self.run.lease
        left = max(0, lease[2] - self.model.now) if lease else 1
        waits = {"a second": 1, "just before the expiry": max(0, left - 1), "the expiry": left}
        self.model.now += waits.get(until, left + 5)
        self.clock.set(self.began + timedelta(seconds=self.model.now))
        self.last = None

    @precondition(lambda self: self.last is not None)
    @rule()
    def send_it_again(self):
        who, path, body, headers, first = self.last
        again = self.api[who].post(path, body, **headers)
        assert (again.status, again.text) == (first.status, first.text)
        assert again.headers["Idempotent-Replayed"] == "true"

    # --- what workers do -------------------------------------------------------------------------

    @rule(
        who=WORKERS,
        which=WHICH,
        behind=st.sampled_from((None, None, 0, 1)),
        event_id=st.sampled_from((None, None, "e1", "e2")),
        add=st.sampled_from((0, 1)),
        charge=st.sampled_from((0, 0, 3, 7)),
    )
    def append(self, who, which, behind, event_id, add, charge):
        who = self.who(who)
        run, token = self.run, self.token(which)
        expected = None if behind is None else max(0, run.seq - behind)
        body = {"events": [{"type": "x"} if event_id is None else {"type": "x", "id": event_id}]}
        body |= {} if expected is None else {"expected_seq": expected}
        body |= {"add": {"n": 1}} if add else {}
        body |= {"spend": [{"budget": "b", "amount": charge}]} if charge else {}
        answer = self.call(who, f"/runs/{self.key}/events", body, token)
        self.drop_what_is_dead(charge)
        told = self.model.append(self.key, who, token, expected, event_id, add, charge)
        self.compare(answer, told, ("last_seq", "version"))

    @rule(
        who=WORKERS,
        which=WHICH,
        to=st.sampled_from(
            ("running", "running", "running", "paused", "pending", "completed", "failed")
        ),
    )
    def move(self, who, which, to):
        who = self.who(who)
        token = self.token(which)
        answer = self.call(who, f"/runs/{self.key}/transitions", {"to": to}, token)
        told = self.model.move(self.key, who, token, to)
        self.compare(answer, told, ("last_seq", "version"))

    @rule(who=WORKERS, ttl=st.sampled_from((1, 10)))
    def acquire(self, who, ttl):
        who = self.who(who)
        body = {"owner": who, "ttl_seconds": ttl}
        answer = self.call(who, f"/leases/run:{self.key}/acquire", body)
        token = answer["token"] if answer.status == 200 else 0
        told = self.model.acquire(self.key, who, ttl, token)
        self.compare(answer, told, ("last_seq", "version"))
        if token:
            assert all(token > earlier for earlier in self.tokens)
            self.tokens.append(token)
            self.model.given[token] = who

    @rule(who=WORKERS, which=WHICH, ttl=st.sampled_from((1, 10)))
    def renew(self, who, which, ttl):
        who = self.who(who)
        token = self.token(which) or 1
        body = {"token": token, "ttl_seconds": ttl}
        answer = self.call(who, f"/leases/run:{self.key}/renew", body, keyed=False)
        told = self.model.renew(self.key, who, token, ttl)
        if told[0] == "ok":
            assert (answer.status, answer["expires_in_ms"]) == (200, ttl * 1_000)
        else:
            assert (answer.code, answer["reason"]) == told

    @precondition(lambda self: self.run.lease is not None)
    @rule(seconds=st.sampled_from((-1, 0, 1)), by=st.sampled_from(("holder", "a", "b")))
    def meet_at_the_expiry(self, seconds, by):
        """A second before it, at it and after it: the holder renews, or somebody acquires."""
        self.model.now = max(self.model.now, self.run.lease[2] + seconds)
        self.clock.set(self.began + timedelta(seconds=self.model.now))
        self.last = None
        if by == "holder":
            self.renew.__wrapped__(self, "holder", "current", 10)
        else:
            self.acquire.__wrapped__(self, by, 10)

    @rule(who=WORKERS, which=WHICH)
    def release(self, who, which):
        who = self.who(who)
        token = self.token(which) or 1
        answer = self.call(who, f"/leases/run:{self.key}/release", {"token": token}, keyed=False)
        told = self.model.release(self.key, who, token)
        assert (
            (answer.status, "ok") == (200, told[0])
            if told[0] == "ok"
            else ((answer.code, answer["reason"]) == told)
        )

    @rule(owner=WORKERS, which=WHICH, force=st.booleans())
    def reclaim(self, owner, which, force):
        owner = self.who(owner)
        token = self.token(which) or 1
        body = {"expected_token": token, "expected_owner": owner, "reason": "x", "force": force}
        answer = self.call("operator", f"/leases/run:{self.key}/reclaim", body)
        told = self.model.reclaim(self.key, owner, token, force, 0)
        self.compare(answer, told, ("last_seq", "version"))

    @rule(
        who=WORKERS,
        which=WHICH,
        amount=st.sampled_from((2, 5)),
        hold=st.sampled_from(("h1", "h2", "h3")),
    )
    def reserve(self, who, which, amount, hold):
        who = self.who(who)
        token = self.token(which)
        body = {"amount": amount, "id": hold, "ttl_seconds": 3_600}
        answer = self.call(who, f"/runs/{self.key}/budgets/b/reserve", body, token)
        self.drop_what_is_dead(amount)
        told = self.model.reserve(self.key, who, token, amount, 3_600, hold)
        self.compare(answer, told, ("spent", "reserved") if len(told) > 1 else ())

    @rule(
        who=WORKERS,
        which=WHICH,
        hold=st.sampled_from(("h1", "h2", "h3")),
        actual=st.sampled_from((None, 0, 4, 9)),
    )
    def settle(self, who, which, hold, actual):
        who = self.who(who)
        token = self.token(which)
        path = f"/runs/{self.key}/budgets/b/reservations/{hold}"
        if actual is None:
            answer = self.call(who, f"{path}/release", {}, token)
        else:
            answer = self.call(who, f"{path}/commit", {"amount": actual}, token)
        told = self.model.settle(self.key, who, token, hold, actual)
        self.compare(answer, told, ("spent", "reserved"))

    # --- what has to hold after each step --------------------------------------------------------

    @invariant()
    def the_run_is_as_the_model_has_it(self):
        if self.key not in self.model.runs:
            return
        run, shown = self.run, self.api["a"].get(f"/runs/{self.key}").json
        found = [shown[name] for name in ("status", "last_seq", "version", "token", "owner")]
        assert found == [run.status, run.seq, run.version, run.token, run.holder]
        (budget,) = shown["budgets"]
        assert [budget[name] for name in ("cap", "spent", "reserved")] == [
            run.cap,
            run.spent,
            run.reserved,
        ]
        assert shown["counters"].get("n", 0) == run.counter
        assert shown["token"] is None or shown["status"] not in ENDED

    def teardown(self):
        if self.key in self.model.runs:
            assert self.api["a"].get(f"/runs/{self.key}/verify")["differences"] == []

    # --- how -------------------------------------------------------------------------------------

    @property
    def run(self):
        return self.model.runs[self.key]

    def token(self, which):
        if which == "current":
            return self.run.token
        return self.tokens[-2] if which == "older" and len(self.tokens) > 1 else None

    def drop_what_is_dead(self, amount):
        """A charge that would else be refused first gives back the holds of dead tokens."""
        run = self.run
        if amount and run.reserved and run.reserved + run.spent + amount > run.cap:
            for hold in run.holds.values():
                if hold["token"] is not None and hold["token"] != run.token:
                    self.model.drop(run, hold)

    def who(self, drawn):
        return (self.run.holder or "a") if drawn == "holder" else drawn

    def call(self, who, path, body, token=None, *, keyed=True):
        self.calls += 1
        headers = {"Idempotency_Key": f"{self.key}-{self.calls}"} if keyed else {}
        headers |= {} if token is None else {"Agentstate_Fence": str(token)}
        answer = self.api[who].post(path, body, **headers)
        kept = keyed and answer.status < 300
        self.last = (who, path, body, headers, answer) if kept else None
        return answer

    def compare(self, answer, told, members):
        found = (
            ("ok", *(answer[name] for name in members)) if answer.status < 300 else (answer.code,)
        )
        assert found == tuple(told), answer.text


def check_machine(clock, *, examples, steps):
    machine = type(
        "Story",
        (Machine,),
        {
            "api": {name: Api(new_key(name, scopes)) for name, scopes in KEYS.items()},
            "clock": clock,
        },
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_api_does_what_the_model_does(clock):
    check_machine(clock, examples=12, steps=40)


@pytest.mark.long
@pytest.mark.deep
def test_the_api_does_what_the_model_does_in_many_stories(clock):
    check_machine(clock, examples=50, steps=50)
