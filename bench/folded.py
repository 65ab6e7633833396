"""Folded stacks, as py-spy writes them, and a flame picture of them that is small enough to commit.

A line of folded stacks is `outermost;…;innermost COUNT`, a frame is `function (file.py)`. In the
picture a frame's width is its share of all samples, and what it calls stands on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, LINE, MARGIN, LETTER = 1_200, 17, 8, 6.3
LEAST_SHARE = 1 / 200
LONGEST_BYTES = 150_000
# How a thread comes to its work says nothing about the work.
WAYS_IN = ("threading.py", "runpy.py", "<frozen runpy>")
# The first that is in a frame's file; the last is for all others.
COLOURS = {
    "agentstate/": ("agentstate", "#f0a35e"),
    "ninja/": ("ninja, pydantic", "#e58fb1"),
    "pydantic/": ("ninja, pydantic", "#e58fb1"),
    "django/": ("Django", "#8fc48a"),
    "psycopg": ("psycopg", "#86b3e0"),
    "uvicorn/": ("uvicorn", "#c3a6e0"),
    "": ("Python and the rest", "#d5d0c8"),
}


@dataclass(slots=True)
class Frame:
    """samples: in it and in all that it called."""

    name: str
    samples: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)

    def call(self, name: str) -> Frame:
        return self.calls.setdefault(name, Frame(name))


@dataclass(frozen=True, slots=True)
class Box:
    """depth: 0 is the outermost. left and share: of the whole width, 0 to 1."""

    name: str
    depth: int
    left: float
    share: float


def read(folded: str) -> Frame:
    """All stacks as one tree, without what they have in common at the outer end."""
    root = Frame("all")
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [name for name in stack.split(";") if not any(way in name for way in WAYS_IN)]
        here = root
        here.samples += int(count)
        for name in frames:
            here = here.call(name)
            here.samples += int(count)
    return _shorter(root)


def _shorter(root: Frame) -> Frame:
    """Without outer frames that are in every sample."""
    here = root
    while (
        len(here.calls) == 1 and (only := next(iter(here.calls.values()))).samples == root.samples
    ):
        if not only.calls:
            break
        here = only
    return Frame("all", here.samples, here.calls)


def boxes(root: Frame, least_share: float = LEAST_SHARE) -> Iterator[Box]:
    """Widest first among those that stand on one; what is narrower than the least is left out."""
    if root.samples:
        yield from _boxes(root, 0, 0.0, root.samples, least_share)


def _boxes(frame: Frame, depth: int, left: float, whole: int, least: float) -> Iterator[Box]:
    for one in sorted(frame.calls.values(), key=lambda one: (-one.samples, one.name)):
        share = one.samples / whole
        if share < least:
            break
        yield Box(one.name, depth, left, share)
        yield from _boxes(one, depth + 1, left, whole, least)
        left += share


def draw(folded: str, title: str, *, longest: int = LONGEST_BYTES) -> str:
    """An SVG of at most so many octets: what is too narrow for that is left out."""
    root, least = read(folded), LEAST_SHARE
    while len((made := _svg(list(boxes(root, least)), title)).encode()) > longest:
        least *= 1.5
    return made


def _svg(found: Sequence[Box], title: str) -> str:
    deepest = max((box.depth for box in found), default=0)
    bottom = MARGIN + 2 * LINE + (deepest + 1) * LINE
    height = bottom + LINE + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="monospace" font-size="10.5"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + LINE - 5}" font-size="13">{escape(title)}</text>',
        *(_rect(box, bottom - (box.depth + 1) * LINE) for box in found),
        *_legend(bottom + LINE - 3),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rect(box: Box, top: int) -> str:
    across = WIDTH - 2 * MARGIN
    left, width = MARGIN + box.left * across, box.share * across
    letters = int((width - 4) / LETTER)
    shown = box.name if len(box.name) <= letters else f"{box.name[: max(0, letters - 1)]}…"
    text = f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(shown)}</text>' if letters > 3 else ""
    return (
        f"<g><title>{escape(box.name)}: {box.share:.1%}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{max(0.3, width - 0.6):.1f}" height="{LINE - 1}"'
        f' fill="{colour_of(box.name)[1]}"/>{text}</g>'
    )


def colour_of(name: str) -> tuple[str, str]:
    """What it belongs to and its colour."""
    return next(told for part, told in COLOURS.items() if part in name)


def _legend(bottom: int) -> Iterator[str]:
    left = MARGIN
    for name, colour in dict(COLOURS.values()).items():
        yield f'<rect x="{left}" y="{bottom - 9}" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{left + 14}" y="{bottom}">{escape(name)}</text>'
        left += round(30 + len(name) * LETTER)
