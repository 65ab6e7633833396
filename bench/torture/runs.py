"""Each run as a log with dense numbers, a register with versions and one holder at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.torture.final import EventLine, Final, Head
from bench.torture.history import OK, REFUSED, Op
from bench.torture.order import (
    DOUBLED,
    HOLE,
    INVENTED,
    LOST,
    ORDER,
    STALE,
    TORN,
    WRONG,
    Finding,
    Placed,
    check_order,
)

TERMINAL = frozenset({"completed", "failed", "cancelled"})
MARKED = frozenset({"append", "patch", "cas", "move", "create", "acquire", "claim"})


@dataclass(frozen=True, slots=True)
class State:
    """A run as it was at one version."""

    last_seq: int
    status: str
    token: int | None
    ever_leased: bool
    cas: str | None
    counters: dict[str, int]


@dataclass(slots=True)
class Log:
    """A run's events in order, the state at each version (index), and where each mark is."""

    key: str
    events: list[EventLine]
    states: list[State]
    marks: dict[str, list[EventLine]]

    def at(self, version: Any) -> State | None:
        known = type(version) is int and 1 <= version < len(self.states)
        return self.states[version] if known else None


def check_runs(ops: Iterable[Op], final: Final) -> Iterator[Finding]:
    """Everything about runs. ops: whatever calls there are; those about other things are passed."""
    by_run: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.on.startswith("run:"):
            by_run[op.on[4:]].append(op)
        if op.kind == "claim":
            for item in claimed_by(op):
                by_run[item.on[4:]].append(item)
    claims = {op.id for op in ops if op.kind == "claim" and op.outcome != REFUSED}
    for key in by_run.keys() | final.events.keys():
        yield from check_run(
            key, by_run[key], final.events.get(key, []), final.heads.get(key), claims
        )


def claimed_by(op: Op) -> Iterator[Op]:
    """A claim's grants, each as an acquire of its run."""
    for item in op.answer.get("items", []) if op.outcome == OK else []:
        yield Op(
            id=op.id,
            kind="claimed",
            on=f"run:{item['run']}",
            ask={},
            invoked_at=op.invoked_at,
            ended_at=op.ended_at,
            outcome=OK,
            answer=item,
            replayed=op.replayed,
        )


def check_run(
    key: str, ops: list[Op], events: list[EventLine], head: Head | None, claims: set[str]
) -> Iterator[Finding]:
    """One run: numbers, fence, every call at its place, and the order against time."""
    what = f"run {key}"
    yield from check_numbers(what, events, head)
    log = replay(key, events)
    yield from check_fence(what, events)
    yield from check_marks(what, ops, log, claims)
    placed: list[Placed] = []
    for op in ops:
        yield from place(what, op, log, placed)
    yield from check_order(what, placed)


# --- the log by itself ----------------------------------------------------------------------------


def check_numbers(what: str, events: list[EventLine], head: Head | None) -> Iterator[Finding]:
    """1, 2, 3 … without a hole, versions that move by one, and a row that says the same."""
    version = 0
    for expected, event in enumerate(events, 1):
        if event.seq != expected:
            yield Finding(HOLE, what, f"after {expected - 1} comes {event.seq}")
            return
        if event.version not in (version, version + 1):
            yield Finding(HOLE, what, f"event {event.seq}: v{event.version} after v{version}")
        version = event.version
    if head is not None and (head.last_seq, head.version) != (len(events), version):
        yield Finding(
            HOLE,
            what,
            f"the row says {head.last_seq} at v{head.version}, the log {len(events)} at v{version}",
        )
    if head is None and events:
        yield Finding(HOLE, what, "events without a run")


def replay(key: str, events: list[EventLine]) -> Log:
    """The state at each version, made from the events alone."""
    states: list[State] = [State(0, "", None, False, None, {})]
    marks: dict[str, list[EventLine]] = defaultdict(list)
    for event in events:
        state = after(states[min(event.version, len(states) - 1)], event)
        if event.version >= len(states):
            states.append(state)
        else:
            states[event.version] = state
        if event.mark:
            marks[event.mark].append(event)
    return Log(key, events, states, marks)


def after(state: State, event: EventLine) -> State:
    """The state with one event more."""
    token, leased = state.token, state.ever_leased
    if event.type == "lease.acquired" and event.origin == "store":
        token, leased = event.token, True
    elif event.origin == "store" and event.type in ("lease.released", "lease.reclaimed"):
        token = None
    status = event.status or state.status
    if status in TERMINAL:
        token = None
    counters = state.counters
    if event.add:
        counters = dict(counters)
        for name, amount in event.add.items():
            counters[name] = counters.get(name, 0) + amount
    cas = state.cas if event.cas is None else event.cas
    return State(event.seq, status, token, leased, cas, counters)


def check_fence(what: str, events: list[EventLine]) -> Iterator[Finding]:
    """No write under a token that is not, or no more, the run's; none without one once leased."""
    token: int | None = None
    highest, leased, status = 0, False, ""
    for event in events:
        if event.origin == "store" and event.type == "lease.acquired":
            if (event.token or 0) <= highest:
                yield Finding(STALE, what, f"token {event.token} was given after {highest}")
            token, highest, leased = event.token, max(highest, event.token or 0), True
        elif event.token is not None and event.token != token:
            yield Finding(
                STALE, what, f"event {event.seq} under token {event.token}; current is {token}"
            )
        elif event.origin == "worker" and leased and event.token is None:
            yield Finding(STALE, what, f"event {event.seq} without a token on a leased run")
        if status in TERMINAL and event.type != "run.changed":
            yield Finding(WRONG, what, f"event {event.seq} after the run was {status}")
        if event.origin == "store" and event.type in ("lease.released", "lease.reclaimed"):
            token = None
        status = event.status or status
        if status in TERMINAL:
            token = None


# --- calls against the log ------------------------------------------------------------------------


def marks_of(op: Op) -> list[str]:
    """The marks that a call leaves when it is carried out."""
    if op.kind == "append":
        return [f"{op.id}.{n}" for n in range(op.ask["count"])]
    return [op.id] if op.kind in MARKED else []


def check_marks(what: str, ops: list[Op], log: Log, claims: set[str]) -> Iterator[Finding]:
    """Every mark once at most, of a call that was made and not refused; all of a call's or none."""
    known: set[str] = set(claims)
    for op in ops:
        marks = marks_of(op)
        if op.kind in ("release", "reclaim"):
            known.add(f"token {op.ask['token']}")
        there = [mark for mark in marks if mark in log.marks]
        if op.outcome != REFUSED:
            known.update(marks)
        elif there:
            known.update(marks)
            yield Finding(
                INVENTED, what, f"{op.kind} {op.id} was refused ({op.code}), and is there"
            )
        if there and len(there) < len(marks):
            yield Finding(TORN, what, f"{op.kind} {op.id}: {len(there)} of {len(marks)} are there")
        elif len(there) > 1:
            seqs = [log.marks[mark][0].seq for mark in marks]
            if seqs != list(range(seqs[0], seqs[0] + len(seqs))):
                yield Finding(TORN, what, f"{op.kind} {op.id} was taken apart: numbers {seqs}")
    for mark, events in log.marks.items():
        # A claim may take several runs, each once; everything else leaves its mark once.
        if len(events) > 1:
            seqs = [event.seq for event in events]
            yield Finding(DOUBLED, what, f"{mark} is there {len(seqs)} times: numbers {seqs}")
        if mark not in known:
            yield Finding(INVENTED, what, f"event {events[0].seq} has the mark {mark} of no call")


def place(what: str, op: Op, log: Log, placed: list[Placed]) -> Iterator[Finding]:
    """Find the call's place, hold its answer against the log, and add it to `placed`."""
    name = f"{op.kind} {op.id}"
    if op.kind == "read":
        if op.outcome == OK:
            placed.append(Placed(op.answer["version"] + 0.5, op.invoked_at, op.ended_at, name))
            yield from check_read(what, op, log)
        return
    if op.kind in ("events", "renew", "stream"):  # a renewal leaves nothing in the log
        if op.kind == "events" and op.outcome == OK:
            yield from check_page(what, op, log)
        return
    if op.outcome != OK:
        yield from place_refused(what, op, log, placed)
    version = version_of(op, log)
    if version is None:
        if op.outcome == OK:
            yield Finding(LOST, what, f"{name} was answered with {shown(op.answer)}")
        return
    placed.append(Placed(version, op.invoked_at, op.effective_end, name))
    if op.outcome == OK:
        yield from check_answer(what, op, version, log)
    yield from check_conditions(what, op, version, log)


def shown(answer: dict[str, Any]) -> str:
    kept = ("first_seq", "last_seq", "version", "token", "status")
    return ", ".join(f"{name} {answer[name]}" for name in kept if name in answer) or "nothing"


def version_of(op: Op, log: Log) -> int | None:
    """The version that a call's effect has in the log; None when it is not there."""
    if op.kind == "claimed":
        of_token = (e for e in log.marks.get(op.id, []) if e.token == op.answer["token"])
        return next((event.version for event in of_token), None)
    if op.kind in ("release", "reclaim"):
        wanted = {"release": "lease.released", "reclaim": "lease.reclaimed"}[op.kind]
        found = (e for e in log.marks.get(f"token {op.ask['token']}", []) if e.type == wanted)
        return next((event.version for event in found), ended_with_run(op, log))
    for mark in reversed(marks_of(op)):
        if mark in log.marks:
            return log.marks[mark][0].version
    return None


def ended_with_run(op: Op, log: Log) -> int | None:
    """A release of a lease that the run's end had ended is answered, and writes nothing."""
    if op.kind == "release" and op.replayed and log.states[-1].status in TERMINAL:
        return len(log.states) - 1
    return None


def check_answer(what: str, op: Op, version: int, log: Log) -> Iterator[Finding]:
    """The numbers that the caller was told are those in the log."""
    name, told = f"{op.kind} {op.id}", op.answer
    if op.kind in ("release", "reclaim") and "version" not in told:
        return
    # A move that rides along, and a pending run that is claimed, take one version more.
    last = version + (1 if op.ask.get("to") or op.kind == "claimed" else 0)
    if told.get("version") not in (version, last):
        yield Finding(LOST, what, f"{name} was told v{told.get('version')}; it is v{version}")
    if op.kind == "append":
        marks = marks_of(op)
        seqs = [log.marks[mark][0].seq for mark in marks if mark in log.marks]
        if [told.get("first_seq"), told.get("last_seq")] != [min(seqs), max(seqs)]:
            yield Finding(LOST, what, f"{name} was told {shown(told)}; it is at {seqs}")
        rode = log.at(version + 1)
        if op.ask.get("to") and (rode is None or rode.status != op.ask["to"]):
            yield Finding(TORN, what, f"{name} was to move the run to {op.ask['to']} as well")


def check_conditions(what: str, op: Op, version: int, log: Log) -> Iterator[Finding]:
    """What the call was made on condition of held at the version before it."""
    before, ask, name = log.at(version - 1), op.ask, f"{op.kind} {op.id}"
    if before is None:
        return
    if "expected_seq" in ask and ask["expected_seq"] != before.last_seq:
        yield Finding(
            ORDER,
            what,
            f"{name} expected seq {ask['expected_seq']}, was put after {before.last_seq}",
        )
    if "if_match" in ask and ask["if_match"] != version - 1:
        yield Finding(ORDER, what, f"{name} expected v{ask['if_match']}, became v{version}")
    if op.kind == "cas" and ask["seen"] != before.cas:
        yield Finding(ORDER, what, f"{name} expected {ask['seen']}, replaced {before.cas}")
    if ask.get("fence") is not None and ask["fence"] != before.token:
        yield Finding(STALE, what, f"{name} under token {ask['fence']}; current is {before.token}")


def check_read(what: str, op: Op, log: Log) -> Iterator[Finding]:
    """A read shows exactly the state of the version that it says."""
    told, state = op.answer, log.at(op.answer["version"])
    if state is None:
        yield Finding(LOST, what, f"read {op.id} saw v{told['version']}, which is not there")
        return
    seen = (told["last_seq"], told["status"], told["token"], told["cas"], nonzero(told["counters"]))
    there = (state.last_seq, state.status, state.token, state.cas, nonzero(state.counters))
    if seen != there:
        yield Finding(WRONG, what, f"read {op.id} at v{told['version']} saw {seen}, it was {there}")


def nonzero(counters: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in counters.items() if value}


def check_page(what: str, op: Op, log: Log) -> Iterator[Finding]:
    """A page of the log is what the log holds there. items: [number, version, mark] each."""
    for seq, version, mark in op.answer["items"]:
        event = log.events[seq - 1] if 1 <= seq <= len(log.events) else None
        if event is None:
            yield Finding(LOST, what, f"{op.id} read event {seq}, which is not there")
        elif (event.version, event.mark) != (version, mark):
            yield Finding(
                WRONG,
                what,
                f"{op.id} read event {seq} as v{version} {mark}, it is v{event.version}",
            )


def place_refused(what: str, op: Op, log: Log, placed: list[Placed]) -> Iterator[Finding]:
    """A refusal showed the run as it was, so it is a read; and its reason must have held."""
    saw = op.answer
    if op.replayed or "version" not in saw:
        return
    name = f"{op.kind} {op.id} ({op.code})"
    placed.append(Placed(saw["version"] + 0.5, op.invoked_at, op.ended_at, name))
    state = log.at(saw["version"])
    if state is None:
        yield Finding(LOST, what, f"{name} saw v{saw['version']}, which is not there")
    elif (state.last_seq, state.status) != (saw["last_seq"], saw["status"]):
        yield Finding(WRONG, what, f"{name} saw {shown(saw)}, it was {state}")
    elif is_unjust(op, state, saw["version"]):
        yield Finding(WRONG, what, f"{name} was refused, and its condition held: {op.ask}")


def is_unjust(op: Op, state: State, version: int) -> bool:
    """Whether what the refusal says was not so."""
    ask = op.ask
    if op.code == "seq-conflict":
        return bool(ask.get("expected_seq") == state.last_seq)
    if op.code == "version-conflict":
        return bool(ask.get("if_match") == version)
    if op.code == "expectation-failed":
        return bool(ask.get("seen", "") == state.cas)
    if op.code == "stale-fence":
        return bool(ask.get("fence") == state.token)
    if op.code == "fence-required":
        return not state.ever_leased
    if op.code == "already-terminal":
        return state.status not in TERMINAL
    return False
