"""Rules of bulks: what can be done to many runs, to which of them, and how much is asked first.
Pure. Why: docs/decisions/0026-bulk.md.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from agentstate.store.permits import MOVES, allowed_actions
from agentstate.store.states import TERMINAL

# More runs than these want the scope override, and the number typed.
ALONE_MAX = 50
# So many that match are looked at before one is asked, and so many are taken in one bulk.
LOOKED_MAX, ROWS_MAX = 10_000, 100_000
PICKED_MAX = 1_000
# What an operator saw longer ago is no longer what they decide on.
SEEN_SECONDS_MAX = 3_600
TRIES = 5
TAGS_MAX = 10
HOLD_OFF_SECONDS_MAX = 86_400

COLLECTING, WORKING, DONE, STOPPED = "collecting", "working", "done", "stopped"
AT_WORK = (COLLECTING, WORKING)
WAITING, SKIPPED, REFUSED = "waiting", "skipped", "refused"
OUTCOMES = (WAITING, DONE, SKIPPED, REFUSED)
BY_FILTER, BY_SELECTION = "filter", "selection"

GONE = "the run is gone"
MORE_THAN_SHOWN = "more match than you were shown"
STILL_LIVE = "the holder's lease was live when you looked"
NO_WORD = f"could not be tried in {TRIES} tries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An action on many runs. permit: the name under which `permits` decides it for one.

    ends: it cannot be taken back. past: of a run to which it was done.
    """

    name: str
    title: str
    past: str
    permit: str
    says: str
    ends: bool = False
    tags: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="cancel",
            title="Cancel",
            past="cancelled",
            permit="cancel",
            says="End them as cancelled, whoever holds them.",
            ends=True,
        ),
        Kind(
            name="pause",
            title="Pause",
            past="paused",
            permit="pause",
            says="No worker is given them until they are resumed.",
        ),
        Kind(
            name="resume",
            title="Resume",
            past="resumed",
            permit="resume",
            says="Let those that are paused go on.",
        ),
        Kind(
            name="reclaim",
            title="Reclaim",
            past="reclaimed",
            permit="reclaim",
            says="Free those whose lease has lapsed, and fence who had them. None that is live.",
        ),
        Kind(
            name="tag",
            title="Tag",
            past="tagged",
            permit="edit",
            says="Add tags. Those that are there stay.",
            tags=True,
        ),
        Kind(
            name="untag",
            title="Untag",
            past="untagged",
            permit="edit",
            says="Take tags away. All others stay.",
            tags=True,
        ),
        Kind(
            name="hold",
            title="Hold",
            past="held",
            permit="keep",
            says="Keep them whatever their retention says.",
        ),
        Kind(
            name="let-go",
            title="Let go",
            past="let go",
            permit="keep",
            says="Give them back to their retention. One that is over hides them at once.",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a bulk does. at: when the operator looked, by the database's clock."""

    kind: str
    at: datetime
    tags: tuple[str, ...] = ()
    hold_off_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run as a bulk finds it. owner, token, expires_at: of its lease, if somebody has it."""

    id: UUID
    key: str
    status: str
    tags: tuple[str, ...]
    hold: bool
    owner: str | None
    token: int | None
    expires_at: datetime | None

    def lapsed(self, at: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= at


def stands_against(work: Work, run: RunSeen, scopes: Set[str]) -> str:
    """Why this is not done to the run, as it is; "" if nothing stands against it.

    A lease counts as it was when the operator looked: one that lapsed only later is left alone.
    """
    live = run.token is not None and not run.lapsed(work.at)
    thing = {"kind": "run", "status": run.status, "held": run.token is not None, "live": live}
    if work.kind == "reclaim" and live:
        return STILL_LIVE
    verdict = allowed_actions(scopes, thing)[KINDS[work.kind].permit]
    return verdict.why or _nothing_to_do(work, run)


def _nothing_to_do(work: Work, run: RunSeen) -> str:
    asked, there = set(work.tags), set(run.tags)
    match work.kind:
        case "tag" if asked <= there:
            return "it has the tags already" if len(asked) > 1 else "it has the tag already"
        case "untag" if not asked & there:
            return "it has none of the tags" if len(asked) > 1 else "it does not have the tag"
        case "hold" if run.hold:
            return "it is held already"
        case "let-go" if not run.hold:
            return "it is not held"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a row was decided on: as the operator saw it, or as it was when it was found."""

    status: str
    owner: str | None = None
    token: int | None = None


def moved_on(work: Work, seen: Seen, run: RunSeen) -> str:
    """How the run is no more what it was when it was seen; "" where that does not matter."""
    if work.kind in MOVES and run.status != seen.status:
        return f"it was {seen.status}, and is {run.status} now"
    if work.kind == "reclaim" and (run.token, run.owner) != (seen.token, seen.owner):
        now = f"{run.owner} has it under token {run.token}" if run.token else "nobody holds it"
        ended = f", and it is {run.status}" if run.status in TERMINAL else ""
        return f"{seen.owner} had it under token {seen.token}, and {now} now{ended}"
    return ""


NAMED = "bulk-"


def name_of(bulk: UUID) -> str:
    """How a bulk is called where its effects are written down: their request has this id."""
    return f"{NAMED}{bulk.hex}"


def asks_for_more(shown: int, *, is_all: bool) -> bool:
    """Whether so many want a senior and the number typed. is_all: not counted to the end else."""
    return shown > ALONE_MAX or not is_all


def typed_for(shown: int, *, is_all: bool) -> str:
    """What has to be typed to do it to so many."""
    return f"{shown}" if is_all else f"{shown}+"
