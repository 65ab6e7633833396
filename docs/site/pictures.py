"""The pictures of the concepts: `python docs/site/pictures.py` writes docs/img/concepts.

They are drawn from what they show where the code has it: the statuses are those of states.py.
tests/bootstrap/test_docs.py compares what is in git with what is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from agentstate.store.states import MOVES, OPERATOR_MOVES, TERMINAL
from docs.site.drawing import Sheet

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "img" / "concepts"
WIDE = 720


def run() -> Sheet:
    s = Sheet("run", "A run", "A head with status, version and counters; a log of events numbered "
              "one to five without a hole; beside it the lease and the budget.", WIDE, 250)  # fmt: skip
    s.box(20, 20, 210, 150)
    s.words(36, 46, "run 42", bold=True, size=15)
    for n, (name, what) in enumerate((("status", "running"), ("version", "5"),
                                      ("counters", "steps_done 2"), ("tags", "eu, urgent"))):  # fmt: skip
        s.words(36, 74 + 23 * n, name, colour="soft", size=13)
        s.words(112, 74 + 23 * n, what, size=13, mono=True)
    s.words(264, 40, "the log", colour="soft", size=13)
    events = ("run.created", "lease.acquired", "run.running", "model.responded", "tool.returned")
    for n, name in enumerate(events):
        x = 264 + 88 * n
        by_store = name.startswith(("run.", "lease."))
        s.box(x, 52, 80, 62, fill="fill" if by_store else "first-fill",
              edge="line" if by_store else "first")  # fmt: skip
        s.words(x + 40, 78, str(n + 1), at="middle", bold=True, size=16)
        s.words(x + 40, 98, name.split(".")[1], at="middle", size=11.5, colour="soft")
    s.words(264, 140, "written by the store", size=12, colour="soft")
    s.words(528, 140, "written by the worker", size=12, colour="first")
    s.words(
        264,
        160,
        "numbered under the run's lock; never changed, never deleted",
        size=12,
        colour="soft",
    )
    s.labelled(20, 192, 210, 40, "lease: w-1, token 819", fill="second-fill", edge="second")
    s.labelled(264, 192, 216, 40, "budget: 12 of 1,000", fill="good-fill", edge="good")
    s.labelled(500, 192, 196, 40, "children, effects")
    return s


def statuses() -> Sheet:
    s = Sheet("statuses", "The status of a run",
              "; ".join(f"{a} to {', '.join(map(str, to))}" for a, to in MOVES.items() if to)
              + ". Dashed: an operator needs no token.", WIDE, 300)  # fmt: skip
    at = {"pending": (20, 120), "running": (270, 120), "paused": (270, 20),
          "completed": (560, 120), "failed": (560, 40), "cancelled": (560, 220)}  # fmt: skip
    ends = {  # from the border of one to that of the other
        ("pending", "running"): (150, 134, 268, 134), ("running", "pending"): (270, 150, 152, 150),
        ("running", "paused"): (320, 120, 320, 66), ("paused", "running"): (350, 64, 350, 118),
        ("running", "completed"): (400, 142, 558, 142), ("running", "failed"): (400, 128, 558, 70),
        ("running", "cancelled"): (380, 164, 558, 232), ("pending", "cancelled"): (85, 164, 558, 250),
        ("paused", "failed"): (400, 38, 558, 56), ("paused", "cancelled"): (400, 52, 580, 218),
    }  # fmt: skip
    wanted = {(str(a), str(to)) for a, all_ in MOVES.items() for to in all_}
    if wanted != set(ends):
        raise ValueError(f"the picture of the statuses has other moves: {wanted ^ set(ends)}")
    for (a, to), (x1, y1, x2, y2) in ends.items():
        by_operator = (a, to) in OPERATOR_MOVES
        s.line(x1, y1, x2, y2, arrow=True, dashed=by_operator,
               colour="second" if by_operator else "soft")  # fmt: skip
    for status, (x, y) in at.items():
        ended = status in TERMINAL
        s.labelled(x, y, 130, 44, status, fill="good-fill" if ended else "fill",
                   edge="good" if ended else "line")  # fmt: skip
    s.words(20, 290, "dashed: an operator needs no token", size=12, colour="second")
    s.words(440, 290, "green: nothing leads out of it", size=12, colour="good")
    return s


def lease() -> Sheet:
    s = Sheet("lease", "A lease over time", "A acquires at 0 with token 1 and renews at 20; B is "
              "refused at 29; A crashes at 35; its lease ends at 80; C acquires at 90 with token 2.",
              WIDE, 250)  # fmt: skip

    def x(seconds: float) -> float:
        return 80 + seconds * 4.4

    s.words(20, 60, "unit 7", bold=True)
    s.line(80, 190, 700, 190, colour="line")
    for seconds in (0, 20, 40, 60, 80, 100, 120, 140):
        s.line(x(seconds), 186, x(seconds), 194, colour="line")
        s.words(x(seconds), 212, f"{seconds} s", at="middle", size=12, colour="soft")
    s.box(x(0), 40, x(35) - x(0), 32, fill="first-fill", edge="first", round_=4)
    s.words(x(0) + 10, 61, "A · token 1", size=13, colour="first", bold=True)
    s.box(x(35), 40, x(80) - x(35), 32, fill="fill", edge="first", dashed=True, round_=4)
    s.words(x(39), 61, "nobody is there; still A's", size=13, colour="soft")
    s.box(x(90), 40, x(140) - x(90), 32, fill="second-fill", edge="second", round_=4)
    s.words(x(90) + 10, 61, "C · token 2", size=13, colour="second", bold=True)
    s.dot(x(20), 88, colour="first", r=4)
    s.words(x(20) - 10, 108, "renews", at="middle", size=12, colour="soft")
    s.cross(x(35), 56)
    s.words(x(35) + 6, 104, "A crashes", size=12, colour="bad")
    s.line(x(35), 78, x(35), 108, colour="bad", dashed=True)
    s.line(x(29), 172, x(29), 76, colour="soft", dashed=True)
    s.words(x(29) + 6, 152, "B asks: lease-held", size=12, colour="soft")
    s.line(x(80), 36, x(80), 178, colour="soft", dashed=True)
    s.words(x(80) + 6, 130, "its time is over, by the", size=12, colour="soft")
    s.words(x(80) + 6, 146, "database's clock", size=12, colour="soft")
    s.words(x(90) + 4, 104, "C asks, and gets it", size=12, colour="second")
    s.words(
        80, 240, "No crash detector: whoever asks next finds the time over.", size=12, colour="soft"
    )
    return s


def fence() -> Sheet:
    s = Sheet("fence", "A write that comes too late", "Worker A holds token 1 and stands still. "
              "B acquires with token 2 and writes. A wakes up and writes with token 1: refused.",
              WIDE, 270)  # fmt: skip
    for y, name, colour in (
        (50, "worker A", "first"),
        (130, "store", "ink"),
        (210, "worker B", "second"),
    ):
        s.words(20, y + 5, name, bold=True, colour=colour)
        s.line(110, y, 700, y, colour="line")
    s.box(130, 38, 110, 24, fill="first-fill", edge="first", round_=4)
    s.words(185, 55, "token 1", at="middle", size=12, colour="first")
    s.box(240, 38, 280, 24, dashed=True, round_=4)
    s.words(380, 55, "stands still, knows nothing", at="middle", size=12, colour="soft")
    s.line(170, 62, 170, 126, colour="first", arrow=True)
    s.words(178, 98, "write, token 1: stored", size=12, colour="good")
    s.box(330, 198, 370, 24, fill="second-fill", edge="second", round_=4)
    s.words(345, 215, "token 2", size=12, colour="second")
    s.line(330, 198, 330, 134, colour="second", arrow=True)
    s.words(338, 176, "acquire", size=12, colour="soft")
    s.line(450, 198, 450, 134, colour="second", arrow=True)
    s.words(458, 176, "write, token 2: stored", size=12, colour="good")
    s.line(540, 50, 540, 126, colour="bad", arrow=True)
    s.words(548, 84, "write, token 1", size=12, colour="bad")
    s.words(548, 102, "1 < 2: stale-fence", size=12, colour="bad", bold=True)
    s.cross(540, 130)
    s.words(
        110, 256, "The owner's name would have passed. The number does not.", size=12, colour="soft"
    )
    return s


def policy() -> Sheet:
    s = Sheet("policy", "Two writers meet", "For each field what A writes, what B writes at the same "
              "time, and what is there afterwards.", WIDE, 262)  # fmt: skip
    columns = (20, 140, 290, 440)
    for x, name in zip(
        columns, ("field", "A writes", "B writes, at once", "afterwards"), strict=True
    ):
        s.words(x, 30, name, size=12, colour="soft")
    rows = (
        ("counters", "+1", "+2", "+3: both are added", "good"),
        ("tags", "eu", "urgent", "eu, urgent: both stay", "good"),
        ("events", "number 5", "number 5", "one gets 5, the other is told", "second"),
        ("status", "completed", "cancelled", "one wins, and stays", "second"),
        ("attrs", "if version 7", "if version 7", "one wins, the other reads again", "second"),
        ("spent", "600 of 1,000", "600 of 1,000", "one is admitted, one refused", "bad"),
        ("notes", "half way", "nearly there", "the later one; no harm", "soft"),
    )
    for n, (name, a, b, after, colour) in enumerate(rows):
        y = 58 + 29 * n
        s.line(20, y - 19, 700, y - 19, colour="line", wide=1)
        s.words(columns[0], y, name, bold=True)
        s.words(columns[1], y, a, size=13, mono=True)
        s.words(columns[2], y, b, size=13, mono=True)
        s.words(columns[3], y, after, size=13, colour=colour)
    return s


def budget() -> Sheet:
    s = Sheet("budget", "Reserve, call, commit", "A cap of 10,000. First 8,000 are held; of them 6,500 "
              "are spent and the rest is free again; a second hold of 8,000 is refused.", WIDE, 246)  # fmt: skip

    def bar(y: float, told: str, spent: int, held: int) -> None:
        s.words(20, y + 20, told, size=13)
        s.box(240, y, 400, 28, round_=4)
        if spent:
            s.box(240, y, spent / 25, 28, fill="good-fill", edge="good", round_=4)
            s.words(
                240 + spent / 50, y + 19, f"spent {spent:,}", at="middle", size=12, colour="good"
            )
        if held:
            s.box(240 + spent / 25, y, held / 25, 28, fill="first-fill", edge="first", round_=4)
            s.words(240 + spent / 25 + held / 50, y + 19, f"held {held:,}", at="middle", size=12,
                    colour="first")  # fmt: skip

    s.words(640, 26, "cap 10,000", at="end", size=12, colour="soft")
    s.line(640, 32, 640, 212, colour="soft", dashed=True)
    bar(38, "1. reserve 8,000", 0, 8_000)
    bar(82, "2. the model is called", 0, 8_000)
    bar(126, "3. commit 6,500", 6_500, 0)
    bar(170, "4. reserve 8,000", 6_500, 0)
    s.box(500, 170, 320 - 140, 28, fill="bad-fill", edge="bad", dashed=True, round_=4)
    s.words(512, 189, "does not fit: refused", size=12, colour="bad")
    s.words(
        20,
        232,
        "What is held counts against the cap, so no two are admitted to the same room.",
        size=12,
        colour="soft",
    )
    return s


def once() -> Sheet:
    s = Sheet("once", "The answer is lost", "A write with key k is stored and its answer lost. The "
              "same request is sent again, and gets the first answer; it is stored once.", WIDE, 200)  # fmt: skip
    for y, name in ((50, "worker"), (140, "store")):
        s.words(20, y + 5, name, bold=True)
        s.line(100, y, 700, y, colour="line")
    s.line(150, 50, 150, 134, colour="first", arrow=True)
    s.words(158, 84, "write, key k", size=12, colour="first")
    s.box(150, 128, 96, 24, fill="good-fill", edge="good", round_=4)
    s.words(198, 145, "stored as 5", at="middle", size=12, colour="good")
    s.line(270, 138, 270, 88, colour="soft", dashed=True)
    s.cross(270, 84)
    s.words(282, 88, "the answer is lost", size=12, colour="bad")
    s.line(430, 50, 430, 134, colour="first", arrow=True)
    s.words(438, 84, "the same again, key k", size=12, colour="first")
    s.box(430, 128, 120, 24, round_=4)
    s.words(490, 145, "known: nothing new", at="middle", size=11.5, colour="soft")
    s.line(590, 136, 590, 56, colour="good", arrow=True)
    s.words(598, 100, "as before: 5", size=12, colour="good")
    s.words(
        100, 186, "Sent twice, stored once; both askers are told the same.", size=12, colour="soft"
    )
    return s


def feed() -> Sheet:
    s = Sheet("feed", "The feed", "Writers commit rows to the outbox in any order; one mover gives "
              "positions one to four; readers go on where they were.", WIDE, 230)  # fmt: skip
    for n, name in enumerate(("writer 1", "writer 2", "writer 3")):
        s.labelled(20, 30 + 56 * n, 110, 40, name)
        s.line(130, 50 + 56 * n, 186, 50 + 56 * n, arrow=True)
    s.box(190, 30, 130, 152, fill="fill")
    s.words(255, 54, "outbox", at="middle", bold=True)
    for n, name in enumerate(("run 42", "run 7", "run 42")):
        s.box(206, 66 + 36 * n, 98, 26, fill="first-fill", edge="first", round_=4)
        s.words(255, 84 + 36 * n, name, at="middle", size=12, colour="first")
    s.line(320, 106, 366, 106, arrow=True)
    s.labelled(370, 82, 90, 48, "mover", under="only one", fill="second-fill", edge="second")
    s.line(460, 106, 506, 106, arrow=True)
    s.box(510, 30, 70, 152)
    s.words(545, 54, "feed", at="middle", bold=True)
    for n in range(3):
        s.words(545, 84 + 36 * n, str(n + 1), at="middle", size=14, mono=True)
    for n, name in enumerate(("billing", "search")):
        s.line(580, 74 + 64 * n, 606, 74 + 64 * n, arrow=True)
        s.labelled(610, 54 + 64 * n, 90, 40, name)
    s.words(20, 216, "In the writer's own transaction: the row of the outbox. After it: a position. No hole, and no step back within a run.",
            size=12, colour="soft")  # fmt: skip
    return s


def copies() -> Sheet:
    s = Sheet("copies", "One truth and its copies", "PostgreSQL in the middle; run heads, feed, "
              "minutes, caches and presence around it, each made again from it.", WIDE, 250)  # fmt: skip
    s.box(270, 80, 180, 84, fill="first-fill", edge="first")
    s.words(360, 114, "PostgreSQL", at="middle", bold=True, size=16, colour="first")
    s.words(360, 136, "events, ledger, terms", at="middle", size=12, colour="soft")
    around = (
        (20, 20, "head of the run", "from its events", 200, 48, 268, 92),
        (20, 102, "the feed", "from the outbox", 200, 126, 266, 122),
        (20, 184, "charts", "from the minute table", 200, 206, 268, 152),
        (520, 20, "cached pages", "by version, and an age", 518, 48, 452, 92),
        (520, 102, "cached counts", "ended by who writes", 518, 126, 454, 122),
        (520, 184, "who looks at a page", "a map that merges", 518, 206, 0, 0),
    )
    for x, y, name, source, x1, y1, x2, y2 in around:
        s.labelled(x, y, 180, 48, name, under=source, dashed=x > 300)
        if x2:
            s.line(x2, y2, x1, y1, arrow=True)
    s.words(360, 196, "dashed: may vanish", at="middle", size=12, colour="soft")
    s.words(360, 213, "at any moment", at="middle", size=12, colour="soft")
    return s


def write() -> Sheet:
    s = Sheet("write", "One write, from the worker to the operator", "Worker, door, lane, lock, rule, "
              "commit, answer; then outbox, mover, hint, page.", WIDE, 214)  # fmt: skip
    first = (("worker", "fence, key"), ("door", "bounds, key"), ("lane", "one batch"),
             ("lock, clock", "one order"), ("rule", "pure"), ("commit", "then answer"))  # fmt: skip
    for n, (name, under) in enumerate(first):
        x = 20 + 116 * n
        inside = name in ("lane", "lock, clock", "rule", "commit")
        s.labelled(x, 30, 98, 54, name, under=under, fill="first-fill" if inside else "fill",
                   edge="first" if inside else "line")  # fmt: skip
        if n:
            s.line(x - 18, 57, x - 2, 57, arrow=True)
    s.words(252, 20, "store.execute", size=12, colour="first", mono=True)
    second = (("page", "asks for what is new"), ("hint", "run 42 is at 5"), ("mover", "a position"),
              ("outbox", "same transaction"))  # fmt: skip
    for n, (name, under) in enumerate(second):
        s.labelled(20 + 174 * n, 130, 152, 54, name, under=under)
        if n:
            s.line(20 + 174 * n - 1, 157, 20 + 174 * n - 20, 157, arrow=True)
    s.line(649, 84, 649, 128, arrow=True)
    s.words(
        20,
        206,
        "The upper row is what the worker waits for. The lower one comes after its answer.",
        size=12,
        colour="soft",
    )
    return s


PICTURES: tuple[Callable[[], Sheet], ...] = (
    run, statuses, lease, fence, policy, budget, once, feed, copies, write,
)  # fmt: skip


def drawn() -> dict[str, Sheet]:
    """Each picture by its name."""
    return {make.__name__: make() for make in PICTURES}


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, sheet in drawn().items():
        (FOLDER / f"{name}.svg").write_text(sheet.svg(), encoding="utf-8")
    sys.stderr.write(f"{len(PICTURES)} pictures are in {FOLDER.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
