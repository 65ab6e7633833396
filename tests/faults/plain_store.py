"""A plain store that does one thing after the other, and writes down histories of it.

Each call has a moment at which it is done; what its caller sees lies around it, `early` before and
`late` after. So whatever is told with it is linearizable, and must pass the checker.
"""

from __future__ import annotations

from typing import Any

from bench.torture.final import Budget, Entry, EventLine, FeedRow, Final, Head, Term
from bench.torture.history import NEVER, OK, REFUSED, UNKNOWN, History, Op

TTL_SECONDS = 10.0


class PlainStore:
    """runs, units and budgets in memory. now: the moment of the next call, in seconds."""

    def __init__(self) -> None:
        self.history, self.final = History(), Final()
        self.now, self.early, self.late, self.count, self.token = 0.0, 0.4, 0.4, 0, 0
        self.silent = False  # the next call is done, and its caller never hears of it
        self.cas: dict[str, str | None] = {}

    def op(self, kind: str, on: str, **more: Any) -> Op:
        """One more call; times around now, unless given."""
        self.now += 1
        self.count += 1
        op = Op(
            id=more.pop("id", f"op{self.count}"),
            kind=kind,
            on=on,
            ask=more.pop("ask", {}),
            invoked_at=self.now - self.early,
            ended_at=NEVER if self.silent else self.now + self.late,
            outcome=UNKNOWN if self.silent else OK,
            **more,
        )
        self.silent = False
        self.history.ops.append(op)
        return op

    def refuse(self, op: Op, code: str, **saw: Any) -> Op:
        if op.outcome == OK:
            op.outcome, op.code, op.answer = REFUSED, code, saw
        return op

    def told(self) -> tuple[History, Final]:
        """What the checker gets: of calls without an answer nobody wrote one down."""
        for op in self.history.ops:
            if op.outcome == UNKNOWN:
                op.answer = {}
        return self.history, self.final

    # --- runs -------------------------------------------------------------------------------------

    def write(self, run: str, *events: EventLine) -> Head:
        """Events as one version, with the feed's row."""
        head, log = self.final.heads[run], self.final.events[run]
        head.version += 1
        first = head.last_seq + 1
        for event in events:
            head.last_seq += 1
            event.seq, event.version = head.last_seq, head.version
            head.status = event.status or head.status
            log.append(event)
        position = len(self.final.feed) + 1
        row = FeedRow(
            position=position,
            run=run,
            first_seq=first,
            last_seq=head.last_seq,
            version=head.version,
        )
        self.final.feed.append(row)
        return head

    def line(self, type: str, **more: Any) -> EventLine:
        return EventLine(seq=0, version=0, type=type, **more)

    def create(self, run: str) -> Op:
        op = self.op("create", f"run:{run}")
        self.final.heads[run] = Head(version=0, last_seq=0, status="running")
        self.final.events[run] = []
        line = self.line("run.created", origin="store", mark=op.id, status="running")
        head = self.write(run, line)
        op.answer = {"version": head.version, "last_seq": head.last_seq, "status": "running"}
        return op

    def facts(self, run: str) -> dict[str, Any]:
        head = self.final.heads[run]
        return {"version": head.version, "last_seq": head.last_seq, "status": head.status}

    def append(self, run: str, count: int = 1, **ask: Any) -> Op:
        op = self.op("append", f"run:{run}", ask={"count": count, **ask})
        head = self.final.heads[run]
        if "expected_seq" in ask and ask["expected_seq"] != head.last_seq:
            return self.refuse(op, "seq-conflict", **self.facts(run))
        if ask.get("fence") != head.token:
            return self.refuse(op, "stale-fence", **self.facts(run))
        first = head.last_seq + 1
        lines = [self.line("step", mark=f"{op.id}.{n}", token=head.token) for n in range(count)]
        lines[-1].add = {"steps": 1}
        head = self.write(run, *lines)
        head.counters["steps"] = head.counters.get("steps", 0) + 1
        op.answer = {"first_seq": first, "last_seq": head.last_seq, "version": head.version}
        return op

    def set(self, run: str, seen: str | None) -> Op:
        op = self.op("cas", f"run:{run}", ask={"seen": seen})
        if self.cas.get(run) != seen:
            return self.refuse(op, "expectation-failed", **self.facts(run))
        self.cas[run] = op.id
        head = self.write(run, self.line("run.changed", origin="store", mark=op.id, cas=op.id))
        op.answer = {"version": head.version, "last_seq": head.last_seq}
        return op

    def change(self, run: str, if_match: int) -> Op:
        op = self.op("patch", f"run:{run}", ask={"if_match": if_match})
        if self.final.heads[run].version != if_match:
            return self.refuse(op, "version-conflict", **self.facts(run))
        head = self.write(run, self.line("run.changed", origin="store", mark=op.id))
        op.answer = {"version": head.version, "last_seq": head.last_seq}
        return op

    def end(self, run: str) -> Op:
        token = self.final.heads[run].token
        op = self.op("move", f"run:{run}", ask={"fence": token})
        line = self.line(
            "run.completed", origin="store", mark=op.id, status="completed", token=token
        )
        head = self.write(run, line)
        head.token = None
        op.answer = self.facts(run)
        return op

    def read(self, run: str) -> Op:
        op, head = self.op("read", f"run:{run}"), self.final.heads[run]
        op.answer = self.facts(run) | {
            "token": head.token,
            "counters": dict(head.counters),
            "cas": self.cas.get(run),
        }
        return op

    # --- leases -----------------------------------------------------------------------------------

    def acquire(self, unit: str) -> Op:
        """By force of time: whoever holds it has run out."""
        on = unit if unit.startswith("run:") else f"unit:{unit}"
        terms = self.final.terms.setdefault(unit, [])
        if terms and terms[-1].ends_at is None:
            self.now += TTL_SECONDS * 2
            terms[-1].ends_at = self.now - TTL_SECONDS
        op = self.op("acquire", on)
        self.token += 1
        owner = f"w~{op.id}"
        terms.append(Term(token=self.token, owner=owner, starts_at=self.now))
        op.answer = {
            "token": self.token,
            "at": self.now,
            "expires_at": self.now + TTL_SECONDS,
        }
        if unit.startswith("run:"):
            line = self.line("lease.acquired", origin="store", mark=op.id, token=self.token)
            head = self.write(unit[4:], line)
            head.token = self.token
            op.answer |= {"version": head.version, "last_seq": head.last_seq}
        return op

    def renew(self, unit: str, token: int) -> Op:
        op = self.op("renew", f"unit:{unit}", ask={"token": token})
        terms = self.final.terms[unit]
        if terms[-1].token != token or terms[-1].ends_at is not None:
            return self.refuse(op, "lease-lost", reason="taken")
        op.answer = {"token": token, "at": self.now, "expires_at": self.now + TTL_SECONDS}
        return op

    def release(self, unit: str, token: int) -> Op:
        op = self.op("release", f"unit:{unit}", ask={"token": token})
        term = self.final.terms[unit][-1]
        if term.token != token or term.ends_at is not None:
            return self.refuse(op, "lease-lost", reason="taken")
        term.ends_at = self.now
        return op

    # --- budgets ----------------------------------------------------------------------------------

    def open(self, name: str, cap: int, parent: str | None = None) -> None:
        entry = Entry(n=1, kind="open", cap=cap)
        self.final.budgets[name] = Budget(
            cap=cap, spent=0, reserved=0, version=1, parent=parent, entries=[entry]
        )

    def balance(self, name: str) -> dict[str, Any]:
        budget, (spent, reserved) = self.final.budgets[name], self.sums(name)
        return {
            "version": budget.version,
            "cap": budget.cap,
            "spent": spent,
            "reserved": reserved,
            "left": max(0, budget.cap - spent - reserved),
        }

    # A split budget: charges go to the slot of the moment, and room is dealt when that has none.

    def split(self, name: str, cap: int, slots: int) -> None:
        self.open(name, cap)
        for n in range(slots):
            self.open(f"{name}#{n}", 0)
            self.final.budgets[f"{name}#{n}"].slot_of = name
        for one in (name, *self.slots_of(name)):
            self.final.budgets[one].entries[0].at = self.now
        self.deal(name)

    def slots_of(self, name: str) -> list[str]:
        return [slot for slot, budget in self.final.budgets.items() if budget.slot_of == name]

    def sums(self, name: str) -> tuple[int, int]:
        """spent and reserved, also of a split budget."""
        of = [self.final.budgets[one] for one in (name, *self.slots_of(name))]
        return sum(b.spent for b in of), sum(b.reserved for b in of)

    def deal(self, name: str, to: str = "") -> None:
        """Give all room to one slot, or to all alike, at one moment."""
        slots = self.slots_of(name)
        room = self.final.budgets[name].cap - sum(self.sums(name))
        for n, one in enumerate(slots):
            share = room * (one == to) if to else room // len(slots) + (n < room % len(slots))
            slot = self.final.budgets[one]
            cap = slot.spent + slot.reserved + share
            if cap != slot.cap:
                slot.cap, slot.version = cap, slot.version + 1
                slot.entries.append(Entry(n=slot.version, kind="shift", cap=cap, at=self.now))

    def slot_for(self, name: str, amount: int) -> str:
        """The slot that takes it; the whole has room for it."""
        slot = self.slots_of(name)[self.count % len(self.slots_of(name))]
        budget = self.final.budgets[slot]
        if budget.spent + budget.reserved + amount > budget.cap:
            self.deal(name, slot)
        return slot

    def enter(self, name: str, kind: str, mark: str, spent: int, reserved: int) -> None:
        """A line on this level and on those above."""
        if self.slots_of(name):
            name = self.slot_for(name, spent + reserved)
        budget = self.final.budgets[name]
        budget.version += 1
        budget.spent, budget.reserved = budget.spent + spent, budget.reserved + reserved
        budget.overdrawn = budget.spent + budget.reserved > budget.cap
        line = Entry(
            n=budget.version,
            kind=kind,
            spent=spent,
            reserved=reserved,
            mark=mark,
            overdrawn=budget.overdrawn,
            at=self.now,
        )
        budget.entries.append(line)
        if budget.parent is not None:
            self.enter(budget.parent, kind, mark, spent, reserved)

    def has_room(self, name: str, amount: int) -> bool:
        budget = self.final.budgets[name]
        fits = sum(self.sums(name)) + amount <= budget.cap
        return fits and (budget.parent is None or self.has_room(budget.parent, amount))

    def spend(self, name: str, amount: int) -> Op:
        op = self.op("spend", f"budget:{name}", ask={"amount": amount})
        if not self.has_room(name, amount):
            return self.refuse(op, "budget-exhausted", **self.balance(name))
        self.enter(name, "spend", op.id, amount, 0)
        op.answer = self.balance(name)
        return op

    def reserve(self, name: str, amount: int) -> Op:
        op = self.op("reserve", f"budget:{name}", ask={"amount": amount})
        if not self.has_room(name, amount):
            return self.refuse(op, "budget-exhausted", **self.balance(name))
        self.enter(name, "reserve", op.id, 0, amount)
        self.final.budgets[name].holds[op.id] = "held"
        op.answer = self.balance(name)
        return op

    def commit(self, name: str, hold: Op, used: int) -> Op:
        ask = {"hold": hold.id, "amount": used}
        op = self.op("commit", f"budget:{name}", ask=ask)
        self.enter(name, "commit", hold.id, used, -hold.ask["amount"])
        self.final.budgets[name].holds[hold.id] = "committed"
        op.answer = self.balance(name)
        return op

    def look(self, name: str) -> Op:
        op = self.op("budget", f"budget:{name}")
        op.answer = self.balance(name)
        return op

    # --- the feed, batches ------------------------------------------------------------------------

    def page(self, after: int, limit: int = 1_000) -> Op:
        op = self.op("feed", "feed", ask={"after": after, "limit": limit})
        rows = self.final.feed[after : after + limit]
        items = [[r.position, r.run, r.first_seq, r.last_seq, r.version] for r in rows]
        op.answer = {"items": items, "position": after + len(items)}
        return op

    def stream(self, run: str, after: int = 0, to_end: int = 0) -> Op:
        op = self.op("stream", f"run:{run}", ask={"after": after, "to_end": to_end})
        came = self.final.events[run][after:]
        op.answer = {"items": [[e.seq, e.version, e.type] for e in came], "end": "quiet"}
        return op

    def checkpoint(self, name: str, position: int) -> Op:
        op = self.op("checkpoint", f"consumer:{name}", ask={"position": position})
        stands = self.final.consumers.get(name, 0)
        if position < stands:
            return self.refuse(op, "version-conflict", position=stands)
        self.final.consumers[name] = position
        op.answer = {"position": position}
        return op

    def consumer(self, name: str) -> Op:
        op = self.op("consumer", f"consumer:{name}")
        op.answer = {"position": self.final.consumers.get(name, 0)}
        return op

    def batch(self, run: str, budget: str) -> tuple[Op, Op]:
        """An append and a charge, all or nothing, at one moment."""
        silent, self.silent = self.silent, False
        append = self.append(run)
        charge = self.spend(budget, 1)
        for part in (append, charge):
            part.whole = f"batch{self.count}"
            if silent:
                part.outcome, part.ended_at, part.answer = UNKNOWN, NEVER, {}
        charge.invoked_at, charge.ended_at = append.invoked_at, max(charge.ended_at, self.now)
        append.ended_at = charge.ended_at
        return append, charge
