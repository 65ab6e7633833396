"""What is going on where writers meet, in a sentence or two, and what would cure it.

Pure: it judges what was read (`queries.contention`, `queries.blockers`) and asks nothing itself.
The cause that turned most commands away comes first and gives the cure; the others follow. A run,
worker or column is named only when it has half of a cause or more: less would send somebody after
what is a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from agentstate.store.collisions import (
    EXPECTED_SEQ,
    HOLDER,
    STATUS,
    VERSION,
    Collision,
)
from agentstate.store.errors import CONFLICTS, FENCED, FenceRequired, RunHot, Unavailable
from dashboard.families import BY_NAME
from dashboard.queries.blockers import OPEN_FOR, Blocker, Waits
from dashboard.queries.contention import HELD, OVER_BUDGET, Contention
from dashboard.templatetags.console import duration, number

# From this share on, one run, worker or column is the cause; below it none is named as such.
MOST_PART = 0.5
# So few writers are named; of more it is told how many they are.
FEW = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for commands to be turned away. count: how many; name: of its part of the page."""

    name: str
    count: int
    said: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """said: what is going on. cure: what would help, "" where nothing has to. also: what else, of
    less weight. cause: what has most of it: lock, conflicts, fenced, budget, hot, held, failed,
    other, none (nothing was turned away) or nothing (nobody wrote).
    """

    cause: str
    said: str
    cure: str = ""
    also: str = ""

    @property
    def good(self) -> bool:
        return self.cause == "none"


def judge(found: Contention, said: str, waits: Waits | None = None) -> Verdict:
    """said: how the window is called, as `60 min`. waits: None when they could not be read."""
    locks = _locks(waits)
    total = found.total
    if not total.writes:
        told = f"Nothing was written in {said}."
        if locks is None:
            return Verdict(cause="nothing", said=told)
        return Verdict(cause=locks.name, said=locks.said, cure=locks.cure, also=told)
    # Of as many, what does more harm is first.
    causes = [one for one in (tell(found, said) for tell in _CAUSES) if one is not None]
    causes.sort(key=lambda one: -one.count)
    if locks is not None:
        causes.insert(0, locks)
    parts = [one.said for one in causes]
    if not total.conflicts:
        parts.append(f"No conflict in {said} ({number(total.writes)} writes).")
    if not causes:
        return Verdict(cause="none", said=parts[0])
    first = causes[0]
    return Verdict(cause=first.name, said=first.said, cure=first.cure, also=" ".join(parts[1:]))


# --- conflicts -----------------------------------------------------------------------------------


def _conflicts(found: Contention, said: str) -> Cause | None:
    total = found.total
    if not total.conflicts:
        return None
    met = _plural(total.conflicts, "write", "writes")
    share = f"{100 * total.conflicts / total.writes:.1f} %"
    told = f"{met} of {number(total.writes)} met another writer first in {said} ({share})."
    if total.gave_up:
        told += f" {_plural(total.gave_up, 'change was', 'changes were')} given up."
    where = _where(found)
    return Cause(
        name="conflicts", count=total.conflicts, said=f"{told} {where.said}", cure=where.cure
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    said: str
    cure: str


def _where(found: Contention) -> _Where:
    """Who and what has most of the conflicts; or that nothing has."""
    pairs, whole = found.clashes.of(CONFLICTS), found.total.conflicts
    joint = _most(pairs, lambda p: [(p.run, *sorted((p.loser, p.winner)), c) for c in p.columns])
    if joint is not None and joint[1] >= MOST_PART * whole:
        (run, one, other, column), count = joint
        said = f"{_share(count, whole)} of these are {_between(one, other)} on {column}{_of(run)}."
        return _Where(said=said, cure=cure_of(column, writers=len({one, other} - {""})))
    place = _most(pairs, lambda p: [(p.run, column) for column in p.columns])
    if place is not None and place[1] >= MOST_PART * whole:
        (run, column), count = place
        here = [p for p in pairs if p.run == run and column in p.columns]
        told = f"{_share(count, whole)} of these are about {column}{_of(run)}{_writers(here)}."
        cure = cure_of(column, writers=len(_names(here)))
        is_hot = any(hot.run == run and hot.live for hot in found.hot)
        brake = f" Until then a brake on {run} slows them down." if is_hot else ""
        return _Where(said=told, cure=cure + brake)
    named, most = _apart(found)
    if named:
        top = found.columns[0] if found.columns else None
        clear = top is not None and top.conflicts >= MOST_PART * whole
        told = f"Of these, {_listed(named)}."
        hot = found.hot[0].run if found.hot else ""
        brake = f"Put a brake on {hot}, and let fewer write to it." if hot else ""
        cure = cure_of(top.name) if top is not None and clear else brake
        return _Where(said=told, cure=cure or BY_NAME["conflict"].cure)
    look = "Begin with the fullest row of the map below, and with what is on top of each list."
    if most:
        return _Where(said=f"No single cause stands out: at most {_listed(most)}.", cure=look)
    return _Where(said="Whose they are is not known.", cure=look)


def _apart(found: Contention) -> tuple[list[str], list[str]]:
    """Of run, column and worker, each by itself: those with half or more, and those with less."""
    named: list[str] = []
    most: list[str] = []
    for rows, words in (
        (found.runs, "are on {}"),
        (found.columns, "are about {}"),
        (found.workers, "come from {}"),
    ):
        row = max(rows, key=lambda one: one.conflicts, default=None)
        if row is None or not row.conflicts:
            continue
        told = f"{_share(row.conflicts, found.total.conflicts)} {words.format(row.name)}"
        is_half = row.conflicts >= MOST_PART * found.total.conflicts
        (named if is_half else most).append(told)
    return named, most


def _between(one: str, other: str) -> str:
    if one == other:
        return f"{one} against itself"
    return " against ".join(filter(None, (one, other)))


def _writers(pairs: Sequence[Collision]) -> str:
    """`, where 8 writers meet; w-3 lost most often (12 times)`."""
    names = _names(pairs)
    lost: Counter[str] = Counter()
    for pair in pairs:
        lost[pair.loser] += pair.count
    loser, count = min(lost.items(), key=lambda one: (-one[1], one[0]))
    times = "once" if count == 1 else f"{number(count)} times"
    return f", where {len(names)} writers meet; {loser} lost most often ({times})"


def _names(pairs: Iterable[Collision]) -> set[str]:
    return {name for pair in pairs for name in (pair.loser, pair.winner) if name}


def cure_of(column: str, *, writers: int = FEW) -> str:
    """What usually helps where writers meet on this column. writers: how many they are."""
    fewer = f"fewer than these {writers} write" if writers > FEW else "one worker write"
    if column.startswith("counters."):
        return f"Make {column} a plain add, without an expected value: adds never conflict."
    if column == EXPECTED_SEQ:
        return (
            "Append without an expected number where the order does not matter, put several events"
            f" in one append, or let {fewer}."
        )
    if column.startswith(("attrs", "notes", "tags")):
        return f"Expect {column} alone instead of the whole version, or let {fewer}."
    if column == STATUS:
        return "Let the holder of its lease alone move the run, and read how it stands before that."
    if column == VERSION:
        return f"Expect the columns that matter instead of the whole version, or let {fewer}."
    if column == HOLDER:
        return "Look at who holds it now before it is asked for again."
    return BY_NAME["conflict"].cure


# --- what else turns commands away ---------------------------------------------------------------


def _fenced(found: Contention, _said: str) -> Cause | None:
    count = found.total.fenced
    if not count:
        return None
    pairs = found.clashes.of(FENCED)
    bare = sum(pair.count for pair in pairs if pair.code == FenceRequired.code)
    if bare > MOST_PART * count:
        told = f"{_plural(count, 'write', 'writes')} without a fencing token {_was(count)} refused"
        cure = "Acquire the lease of a run that others hold by turns, and send its token."
    else:
        told = f"{_plural(count, 'call', 'calls')} of overtaken workers {_was(count)} fenced off"
        cure = ""
    who = _most(pairs, lambda p: [(p.loser, p.run)]) or _worst_of_minutes(found)
    if who is None or who[1] < MOST_PART * count or not who[0][0]:
        told += ", of no one worker more than half."
        return Cause(name="fenced", count=count, said=told, cure=cure or BY_NAME["fenced"].cure)
    (loser, run), theirs = who
    part = "all" if theirs == count else _share(theirs, count)
    holders = _most([p for p in pairs if (p.loser, p.run) == (loser, run)], lambda p: [p.winner])
    holder = holders[0] if holders else ""
    has_it = f", which {holder} has now" if holder and holder != loser else ""
    return Cause(
        name="fenced",
        count=count,
        said=f"{told}, {part} from {loser}{f' on {run}{has_it}' if run else ''}.",
        cure=cure
        or f"See why {loser} was silent for longer than its lease; give it a longer ttl, or"
        " renewals in a thread of their own; drain it if it writes on.",
    )


def _worst_of_minutes(found: Contention) -> tuple[tuple[str, str], int] | None:
    """Who was fenced most often, where an older release did not keep whom it met."""
    row = max(found.workers, key=lambda one: one.families.get("fenced", 0), default=None)
    theirs = row.families.get("fenced", 0) if row is not None else 0
    return ((row.name, ""), theirs) if row is not None and theirs else None


def _budget(found: Contention, _said: str) -> Cause | None:
    count = found.of(OVER_BUDGET).writes
    if not count:
        return None
    told = f"{_plural(count, 'charge was', 'charges were')} refused for a cap"
    shared = found.clashes.shared_budgets
    where = _most(
        found.clashes.of(OVER_BUDGET),
        lambda p: [(p.about, "" if p.about in shared else p.run)],
    )
    if where is None:
        said, name = f"{told}.", "the budget"
    elif where[1] < MOST_PART * count or not where[0][0]:
        said, name = f"{told}, by no one budget more than half.", "the fullest budget"
    else:
        (budget, run), theirs = where
        part = "all" if theirs == count else _share(theirs, count)
        said, name = f"{told}, {part} by {budget}{_of(run)}.", budget
    cure = f"Raise the cap of {name}, free what dead workers hold of it, or let the run end."
    return Cause(name="budget", count=count, said=said, cure=cure)


def _hot(found: Contention, _said: str) -> Cause | None:
    count = found.of(frozenset({RunHot.code})).writes
    if not count:
        return None
    return Cause(
        name="hot",
        count=count,
        said=f"{_plural(count, 'write was', 'writes were')} held up by a brake or a run's limit.",
        cure="That is what they are for: let workers wait as long as they are told, and put several"
        " events in one append.",
    )


def _held(found: Contention, _said: str) -> Cause | None:
    count = found.of(HELD).writes
    if not count:
        return None
    pairs = found.clashes.of(HELD)
    times = "Once" if count == 1 else f"{number(count)} times"
    told = f"{times} a worker asked for what another one holds"
    where = _most(pairs, lambda p: [(p.run or p.about, p.winner)])
    if where is not None and (where[1] < MOST_PART * count or not where[0][0]):
        told += ", for no one unit more than half"
    elif where is not None:
        (unit, holder), theirs = where
        here = [p for p in pairs if (p.run or p.about, p.winner) == (unit, holder)]
        who = _plural(len({p.loser for p in here}), "worker", "workers")
        part = "" if theirs == count else f"{_share(theirs, count)}: "
        told += f": {part}{who} for {unit}{f', which {holder} holds' if holder else ''}"
    return Cause(
        name="held",
        count=count,
        said=f"{told}.",
        cure="Let workers claim whatever waits instead of naming what they want, and wait as long"
        " as Retry-After says.",
    )


def _unavailable(found: Contention, _said: str) -> Cause | None:
    count = found.of(frozenset({Unavailable.code})).writes
    if not count:
        return None
    return Cause(
        name="failed",
        count=count,
        said=f"{_plural(count, 'write was', 'writes were')} given up by the store: a lock or the"
        " database was not to be had in time.",
        cure="See below who keeps a lock now, and System for how the database is.",
    )


def _other(found: Contention, _said: str) -> Cause | None:
    told = {RunHot.code, Unavailable.code, *CONFLICTS, *FENCED, *HELD, *OVER_BUDGET}
    count = found.total.refused - found.of(frozenset(told)).writes
    if count <= 0:
        return None
    return Cause(
        name="other",
        count=count,
        said=f"{_plural(count, 'command was', 'commands were')} refused for other reasons.",
        cure=BY_NAME["other"].cure,
    )


# Of two that turned as many away, the first one here is the cause.
_CAUSES: tuple[Callable[[Contention, str], Cause | None], ...] = (
    _fenced, _conflicts, _budget, _unavailable, _hot, _held, _other,
)  # fmt: skip


# --- locks that are held now ---------------------------------------------------------------------


def _locks(waits: Waits | None) -> Cause | None:
    """Who keeps others waiting that should not: a stranger, or one of ours that lasts too long."""
    for blocker in waits.blockers if waits is not None else ():
        session = blocker.session
        lasts = session.open_for is not None and session.open_for >= OPEN_FOR
        if (blocker.foreign and blocker.waits) or lasts:
            return _lock(blocker)
    return None


def _lock(blocker: Blocker) -> Cause:
    session, waiting = blocker.session, len(blocker.waits)
    open_for = f" for {duration(session.open_for)}" if session.open_for is not None else ""
    if blocker.wants is None:
        kept = _listed([f"agentstate_{table}" for table in blocker.tables[:3]]) or "a lock"
        said = f"{session} has kept rows of {kept}{open_for}; nobody waits for them now."
    else:
        holder = blocker.wants.holder
        held = f" ({holder} holds it)" if holder else ""
        who = _plural(waiting, "session waits", "sessions wait")
        said = f"{session} has kept {blocker.wants}{held}{open_for}, and {who} for it."
    return Cause(
        name="lock",
        count=waiting,
        said=said,
        cure="Commit or roll back that transaction; a database administrator ends it with"
        f" SELECT pg_terminate_backend({session.pid}).",
    )


# --- words ---------------------------------------------------------------------------------------


def _most[K: Hashable](
    pairs: Iterable[Collision], keys: Callable[[Collision], Iterable[K]]
) -> tuple[K, int] | None:
    """What occurs most often, and how often; of as many the first by name."""
    counts: Counter[K] = Counter()
    for pair in pairs:
        for key in keys(pair):
            counts[key] += pair.count
    return min(counts.items(), key=lambda one: (-one[1], str(one[0])), default=None)


def _share(count: int, whole: int) -> str:
    return f"{100 * count // whole} %"


def _of(run: str) -> str:
    return f" of {run}" if run else ""


def _plural(count: int, one: str, many: str) -> str:
    return f"{number(count)} {one if count == 1 else many}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
