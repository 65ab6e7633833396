"""More charts of contention as numbers for the templates: who met whom, added latency, attempts.

Drawn as SVG by the server, as those in `charts.py`. Each says its figures in words as well: a cell
and a bar have their number written on them, so that nothing has to be told by its colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentstate.store.errors import CONFLICTS
from agentstate.store.minutes import OK
from agentstate.store.rates import Figures
from dashboard import zones
from dashboard.charts import HEIGHT, LEVELS, WIDTH, Column, Piece, cut_middle, round_up
from dashboard.families import FAMILIES
from dashboard.queries.contention import Contention, Meeting, Slot
from dashboard.templatetags.console import NOTHING, number

NAMES = 8
OTHERS = "all others"
NOBODY = "nobody known"
CELL_WIDTH, CELL_HEIGHT = 132, 30
LEFT, TOP = 210, 34
CHAR_WIDTH = 7.6
MEETINGS_TOLD = NAMES * NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A cell: how often the row lost to the column. level: 1 to 5 of the most of any cell."""

    x: float
    y: float
    width: float
    count: int
    level: int
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A label: cut in its middle where it does not fit, whole in its title."""

    x: float
    y: float
    label: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Who lost (rows) to whom (columns), in a box of 1060 by `height`; width: of a cell.

    meetings: as a table, the most frequent first, `more` of them left out there.
    """

    losers: list[Name]
    winners: list[Name]
    cells: list[Clash]
    meetings: list[Meeting]
    more: int
    height: int
    width: float
    total: int
    told: str


def draw_matrix(meetings: Sequence[Meeting]) -> Matrix:
    """Those who lost most often and those to whom, eight each; the others together."""
    lost: Counter[str] = Counter()
    won: Counter[str] = Counter()
    for one in meetings:
        lost[one.loser] += one.total
        won[one.winner or NOBODY] += one.total
    rows, columns = _axis(lost), _axis(won)
    width = min(CELL_WIDTH, (WIDTH + 60 - LEFT) / max(1, len(columns)))
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in meetings:
        row = one.loser if one.loser in rows else OTHERS
        column = (one.winner or NOBODY) if (one.winner or NOBODY) in columns else OTHERS
        counts.setdefault((row, column), Counter()).update(one.families)
    most = max((families.total() for families in counts.values()), default=0)
    cells = [
        Clash(
            x=round(LEFT + columns.index(column) * width, 2),
            y=TOP + rows.index(row) * CELL_HEIGHT,
            width=round(width - 3, 2),
            count=families.total(),
            level=-(-families.total() * LEVELS // most),
            title=f"{row} lost to {column} {_times(families.total())}: {told_families(families)}",
        )
        for (row, column), families in counts.items()
    ]
    chars = int((width - 6) / CHAR_WIDTH)
    return Matrix(
        losers=[
            Name(x=LEFT - 10, y=TOP + n * CELL_HEIGHT, label=cut_middle(name, 26), name=name)
            for n, name in enumerate(rows)
        ],
        winners=[
            Name(x=round(LEFT + n * width, 2), y=0, label=cut_middle(name, chars), name=name)
            for n, name in enumerate(columns)
        ],
        cells=cells,
        meetings=list(meetings[:MEETINGS_TOLD]),
        more=max(0, len(meetings) - MEETINGS_TOLD),
        height=TOP + len(rows) * CELL_HEIGHT,
        width=round(width - 3, 2),
        total=lost.total(),
        told=" ".join(f"{cell.title}." for cell in sorted(cells, key=lambda c: -c.count)[:NAMES]),
    )


def _axis(counts: Counter[str]) -> list[str]:
    """The most frequent by name, and one for the others if there are more."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    names = [name for name, _ in ordered[:NAMES]]
    return [*names, OTHERS] if len(ordered) > NAMES else names


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def told_families(families: Mapping[str, int]) -> str:
    """`3 fenced, 12 conflicts`."""
    parts = [(f.label.lower(), families.get(f.name, 0)) for f in FAMILIES]
    return ", ".join(f"{count} {label}" for label, count in parts if count)


# --- latency -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What conflicts added, slot by slot, in a box of 1000 by 120. top: milliseconds at its edge.

    worst: the slot with most, if there was any.
    """

    columns: list[Column]
    top: int
    worst: Slot | None


def draw_latency(slots: Sequence[Slot]) -> Latency:
    """One column a slot: milliseconds that the store spent on what it then refused as conflicts."""
    worst = max(slots, key=lambda slot: slot.added_ms, default=None)
    top = round_up(worst.added_ms if worst is not None else 0)
    width = WIDTH / max(1, len(slots))
    columns = [_added(slot, n * width, width, top) for n, slot in enumerate(slots)]
    return Latency(
        columns=columns,
        top=top,
        worst=worst if worst is not None and worst.added_ms else None,
    )


def _added(slot: Slot, x: float, width: float, top: int) -> Column:
    height = HEIGHT * slot.added_ms / top
    time = zones.clock(slot.at)
    each = slot.added_per_write
    per_write = f"{each:.1f} ms to each accepted write" if each is not None else "nothing accepted"
    return Column(
        x=round(x, 2),
        width=round(width * 0.78, 2),
        title=f"{time}: {slot.added_ms} ms on {slot.conflicts} conflicts, {per_write}",
        pieces=[Piece(y=round(HEIGHT - height, 1), height=round(height, 1), family="conflict")]
        if height
        else [],
    )


def bound(milliseconds: float | None) -> str:
    """A percentile as the bound that it is: `up to 5 ms`, `more than 2 s`; a dash for none."""
    if milliseconds is None:
        return NOTHING
    return "more than 2 s" if milliseconds == float("inf") else f"up to {milliseconds:g} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How long writes of a kind took in the store: half of them, and nearly all."""

    kind: str
    writes: int
    half: str
    most: str


def speeds(found: Contention) -> list[Speed]:
    """Accepted writes beside conflicts, so that one sees what a conflict costs."""
    kinds = {"accepted": found.of(frozenset({OK})), "conflicts": found.of(CONFLICTS)}
    return [
        Speed(
            kind=kind,
            writes=figures.writes,
            half=bound(figures.percentile_ms(0.5)),
            most=bound(figures.percentile_ms(0.95)),
        )
        for kind, figures in kinds.items()
    ]


# --- attempts ------------------------------------------------------------------------------------

TRY_HEIGHT, TRY_LEFT, TRY_WIDTH = 46, 112, 380
PARTS = ("accepted", "conflict", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A bar of the histogram: how many writes were this try of a change, and what became of them.

    counts: accepted, conflicts, refused otherwise or failed.
    """

    y: int
    label: str
    count: int
    counts: dict[str, int]
    parts: list[Part]
    end: float
    told: str

    @property
    def parts_told(self) -> str:
        return self.told.partition(": ")[2]


def draw_tries(found: Contention) -> list[Try]:
    """Bars as long as their share of the longest; each in parts by what became of the writes."""
    accepted, conflicts = found.of(frozenset({OK})), found.of(CONFLICTS)
    names = ["First try", *(f"Try {n}" for n in range(2, len(found.total.attempts)))]
    names.append(f"Try {len(found.total.attempts)} or later")
    most = max(found.total.attempts, default=0)
    return [
        _try(n, name, _became(n, found.total, accepted, conflicts), most)
        for n, name in enumerate(names)
    ]


def _became(n: int, total: Figures, accepted: Figures, conflicts: Figures) -> dict[str, int]:
    counts = {"accepted": accepted.attempts[n], "conflict": conflicts.attempts[n]}
    return counts | {"other": total.attempts[n] - sum(counts.values())}


def _try(n: int, name: str, counts: dict[str, int], most: int) -> Try:
    parts: list[Part] = []
    x = 0.0
    for kind in PARTS:
        width = TRY_WIDTH * counts[kind] / most if most else 0.0
        if width:
            parts.append(Part(kind=kind, x=round(TRY_LEFT + x, 2), width=round(width, 2)))
        x += width
    whole = sum(counts.values())
    words = {"accepted": "accepted", "conflict": "conflicts", "other": "refused otherwise"}
    told = ", ".join(f"{counts[kind]} {words[kind]}" for kind in PARTS if counts[kind])
    return Try(
        y=n * TRY_HEIGHT,
        label=name,
        count=whole,
        counts=counts,
        parts=parts,
        end=round(TRY_LEFT + x + 8, 2),
        told=f"{whole}: {told}" if told else "0",
    )


# --- the day before ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure now and at the same time of the day before, as texts. before: None without data.
    change: more, less or the same; "" where there is nothing to compare.
    """

    name: str
    now: str
    before: str | None
    change: str = ""


def compare(now: Figures, before: Figures | None) -> list[Compared]:
    """The page's figures side by side."""
    figures: tuple[tuple[str, Callable[[Figures], float | None], Callable[[float], str]], ...] = (
        ("Writes", lambda f: f.writes, _whole),
        ("Conflicts", lambda f: f.conflicts, _whole),
        ("Conflicts of all writes", lambda f: f.conflict_ratio, lambda v: f"{100 * v:.1f} %"),
        ("Retries per success", lambda f: f.retries_per_success, lambda v: f"{v:.2f}"),
        ("Changes given up", lambda f: f.gave_up, _whole),
        ("Latency added to each accepted write", lambda f: f.added_ms_per_success, _ms),
        ("Fenced calls", lambda f: f.fenced, _whole),
        ("Refused in all", lambda f: f.refused, _whole),
    )
    return [
        _compared(name, of(now), None if before is None else of(before), told)
        for name, of, told in figures
    ]


def _compared(
    name: str, now: float | None, before: float | None, told: Callable[[float], str]
) -> Compared:
    said = NOTHING if now is None else told(now)
    if before is None:
        return Compared(name=name, now=said, before=None)
    change = ""
    if now is not None:
        # What is written alike is the same to a reader.
        change = "the same" if told(now) == told(before) else "more" if now > before else "less"
    return Compared(name=name, now=said, before=told(before), change=change)


def _whole(value: float) -> str:
    return number(int(value))


def _ms(value: float) -> str:
    return f"{value:.1f} ms"
