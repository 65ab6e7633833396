"""What the store should do, told a second time in the plainest way: dictionaries and ifs.

It shares nothing with the rules but the names of the refusals. Answers are ("ok", facts…) or the
refusal's code alone.
"""

from __future__ import annotations

MOVES = {
    "pending": {"running", "cancelled"},
    "running": {"paused", "pending", "completed", "failed", "cancelled"},
    "paused": {"running", "cancelled", "failed"},
}
ENDED = {"completed", "failed", "cancelled"}


class Run:
    def __init__(self, cap, max_attempts):
        self.status, self.seq, self.version = "pending", 1, 1
        self.token, self.holder, self.ever_leased, self.attempt = None, None, False, 0
        self.ended_by_token = None
        self.counter = 0
        self.ids = {}
        self.cap, self.spent, self.reserved = cap, 0, 0
        self.charges, self.holds = {}, {}
        self.lease = None  # (token, who, expires_at)
        self.ends = {}  # token -> how its lease ended
        self.max_attempts = max_attempts


class Plain:
    """Runs by key; `now` counts seconds; tokens are given by the caller, so that both agree."""

    def __init__(self):
        self.runs = {}
        self.now = 0

    def fence(self, run, token, who):
        if token is not None:
            return None if (run.token == token and run.holder == who) else "stale-fence"
        return "fence-required" if run.ever_leased else None

    def own(self, run, token, who, writer, stored_token):
        """Whether a repetition by `who` is answered as the first time was."""
        if token is None and not run.ever_leased:
            return True
        current = token is not None and run.token == token and run.holder == who
        return current or (writer == who and token == stored_token)

    def ended_it(self, run, token, who):
        if token is None:
            return run.status in ENDED and not run.ever_leased
        given = self.given.get(token) == who
        return run.status in ENDED and token == run.ended_by_token and given

    def create(self, key, cap, max_attempts):
        if key in self.runs:
            return ("exists",)
        self.runs[key] = Run(cap, max_attempts)
        return ("ok", 1, 1)

    def append(self, key, who, token, expected, event_id, add, charge):
        run = self.runs.get(key)
        if run is None:
            return ("not-found",)
        known = run.ids.get(event_id)
        if known and self.own(run, token, who, known[3], known[2]):
            return ("ok", known[0], known[1])
        refused = self.fence(run, token, who)
        if refused:
            return (refused,)
        if run.status in ENDED:
            return ("already-terminal",)
        if expected is not None and expected != run.seq:
            return ("seq-conflict",)
        if charge and run.spent + run.reserved + charge > run.cap:
            return ("budget-exhausted",)
        run.seq += 1
        run.version += 1
        run.counter += add
        run.spent += charge
        if event_id is not None:
            run.ids[event_id] = (run.seq, run.version, token, who)
        return ("ok", run.seq, run.version)

    def move(self, key, who, token, to):
        run = self.runs.get(key)
        if run is None:
            return ("not-found",)
        if run.status == to and self.ended_it(run, token, who):
            return ("ok", run.seq, run.version)
        refused = self.fence(run, token, who)
        if refused:
            return (refused,)
        if run.status in ENDED:
            return ("already-terminal",)
        if to not in MOVES[run.status]:
            return ("illegal-transition",)
        run.status = to
        run.seq += 1
        run.version += 1
        if to in ENDED:
            if run.lease:
                run.ends[run.lease[0]] = "run-terminal"
            run.ended_by_token, run.token, run.holder, run.lease = run.token, None, None, None
            for hold in run.holds.values():
                self.drop(run, hold)
        return ("ok", run.seq, run.version)

    def acquire(self, key, who, ttl, new_token):
        run = self.runs.get(key)
        if run is None:
            return ("not-found",)
        if run.status in ENDED:
            return ("already-terminal",)
        if run.status == "paused":
            return ("paused",)
        if run.attempt >= run.max_attempts:
            return ("attempts-exhausted",)
        if run.lease and self.now < run.lease[2]:
            return ("lease-held",)
        if run.lease:
            run.ends[run.lease[0]] = "taken"
        run.lease = (new_token, who, self.now + ttl)
        run.token, run.holder, run.ever_leased = new_token, who, True
        run.attempt += 1
        run.seq += 1
        run.version += 1
        return ("ok", run.seq, run.version)

    def renew(self, key, who, token, ttl):
        run = self.runs.get(key)
        if run is None or not run.lease or run.lease[:2] != (token, who):
            return ("lease-lost", run.ends.get(token, "unknown") if run else "unknown")
        if self.now >= run.lease[2]:
            return ("lease-lost", "expired")
        run.lease = (token, who, self.now + ttl)
        return ("ok", self.now + ttl)

    def release(self, key, who, token):
        run = self.runs.get(key)
        if run is None:
            return ("lease-lost", "unknown")
        if run.ends.get(token) in ("released", "run-terminal") and self.was(run, token) == who:
            return ("ok",)
        if not run.lease or run.lease[:2] != (token, who):
            return ("lease-lost", run.ends.get(token, "unknown"))
        run.ends[token] = "released"
        run.lease = run.token = run.holder = None
        run.seq += 1
        run.version += 1
        return ("ok",)

    def was(self, run, token):
        return self.given.get(token)

    def reclaim(self, key, owner, token, force, new_token):
        run = self.runs.get(key)
        if run is None or not run.lease or (run.lease[0], run.lease[1]) != (token, owner):
            return ("holder-changed",)
        if self.now < run.lease[2] and not force:
            return ("lease-held",)
        run.ends[token] = "reclaimed"
        run.lease = run.token = run.holder = None
        run.seq += 1
        run.version += 1
        return ("ok", run.seq, run.version)

    def reserve(self, key, who, token, amount, ttl, hold_id):
        run = self.runs.get(key)
        if run is None:
            return ("not-found",)
        hold = run.holds.get(hold_id)
        if hold and self.own(run, token, who, hold["who"], hold["token"]):
            return self.same_hold(hold, who, amount)
        refused = self.fence(run, token, who)
        if refused:
            return (refused,)
        if run.status in ENDED:
            return ("already-terminal",)
        if hold:
            return self.same_hold(hold, who, amount, ok_is=None) or ("?",)
        if run.spent + run.reserved + amount > run.cap:
            return ("budget-exhausted",)
        run.reserved += amount
        made = {"amount": amount, "token": token, "who": who}
        run.holds[hold_id] = made | {"state": "held", "actual": None}
        return ("ok", run.spent, run.reserved)

    def same_hold(self, hold, who, amount, ok_is="replay"):
        if hold["amount"] != amount:
            return ("event-id-reuse",)
        if hold["state"] != "held":
            return ("reservation-settled",)
        return ("ok",) if ok_is else None

    def settle(self, key, who, token, hold_id, actual):
        """Commit `actual`, or with None release."""
        run = self.runs.get(key)
        if run is None:
            return ("not-found",)
        hold = run.holds.get(hold_id)
        if hold is None:
            return ("not-found",)
        if not self.ended_it(run, token, who):
            refused = self.fence(run, token, who)
            if refused:
                return (refused,)
        to = "committed" if actual is not None else "released"
        if hold["state"] == "dropped" and to == "released":
            return ("ok", run.spent, run.reserved)
        if hold["state"] not in ("held", "dropped"):
            alike = hold["state"] in (("committed", "late") if to == "committed" else ("released",))
            same = alike and hold["actual"] == (actual or 0)
            return ("ok", run.spent, run.reserved) if same else ("reservation-settled",)
        if hold["state"] == "held":
            run.reserved -= hold["amount"]
        else:
            to = "late"
        run.spent += actual or 0
        hold["state"], hold["actual"] = to, actual or 0
        return ("ok", run.spent, run.reserved)

    def drop(self, run, hold):
        if hold["state"] == "held":
            run.reserved -= hold["amount"]
            hold["state"], hold["actual"] = "dropped", 0
