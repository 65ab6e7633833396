"""A sheet to draw on: boxes, lines, dots and words as SVG that is read in light and in dark.

Colours are named by what they mean and live in one <style>: in a file they follow the reader's
system, on the site they are taken over by its own light and dark (site.css has the same names). The
same calls give the same text to the letter, so that a picture in git changes only when it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

# name: (light, dark). site.css has them again, for pictures within pages.
COLOURS = {
    "ink": ("#1c2024", "#edeef0"),
    "soft": ("#60646c", "#b0b4ba"),
    "line": ("#cdced6", "#43484e"),
    "fill": ("#f9f9fb", "#1d2024"),
    "first": ("#3358d4", "#9eb1ff"),
    "first-fill": ("#edf2fe", "#182449"),
    "second": ("#0d74ce", "#70b8ff"),
    "second-fill": ("#e6f4fe", "#0d2847"),
    "good": ("#218358", "#3dd68c"),
    "good-fill": ("#e6f6eb", "#132d21"),
    "bad": ("#ce2c31", "#ff9592"),
    "bad-fill": ("#feebec", "#3b1219"),
}
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"


def style() -> str:
    """Light, and dark for whoever has that."""
    light, dark = (
        "".join(f"--p-{name}:{pair[which]};" for name, pair in COLOURS.items()) for which in (0, 1)
    )
    return (
        f"<style>.as-picture{{{light}}}"
        f"@media (prefers-color-scheme:dark){{.as-picture{{{dark}}}}}</style>"
    )


def ink(name: str) -> str:
    if name not in COLOURS:
        raise ValueError(f"no colour {name}")
    return f"var(--p-{name})"


@dataclass
class Sheet:
    """width and height in units of a pixel at full size. title: what a reader who cannot see it
    is told first; told: the rest of it."""

    name: str
    title: str
    told: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, *, fill: str = "fill", edge: str = "line",
        dashed: bool = False, round_: float = 8,
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round_:g}" '
            f'fill="{ink(fill)}" stroke="{ink(edge)}" stroke-width="1.5"{dash}/>'
        )

    def words(
        self, x: float, y: float, text: str, *, colour: str = "ink", size: float = 14,
        at: str = "start", mono: bool = False, bold: bool = False,
    ) -> None:  # fmt: skip
        weight = ' font-weight="600"' if bold else ""
        family = f' font-family="{MONO}"' if mono else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{at}" '
            f'fill="{ink(colour)}"{weight}{family}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, colour: str = "soft",
        arrow: bool = False, dashed: bool = False, wide: float = 1.5,
    ) -> None:  # fmt: skip
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink(colour)}" '
            f'stroke-width="{wide:g}"{dash}/>'
        )
        if arrow:
            self._head(x1, y1, x2, y2, colour)

    def _head(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        """A tip of its own, since markers do not take the line's colour everywhere."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 8 * ux, y2 - 8 * uy
        corners = ((x2, y2), (bx - 4 * uy, by + 4 * ux), (bx + 4 * uy, by - 4 * ux))
        points = " ".join(f"{round(x, 2):g},{round(y, 2):g}" for x, y in corners)
        self.parts.append(f'<polygon points="{points}" fill="{ink(colour)}"/>')

    def dot(self, x: float, y: float, *, colour: str = "first", r: float = 5) -> None:
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" fill="{ink(colour)}"/>')

    def cross(self, x: float, y: float, *, colour: str = "bad", r: float = 6) -> None:
        for dx in (r, -r):
            self.line(x - dx, y - r, x + dx, y + r, colour=colour, wide=2.5)

    def labelled(
        self, x: float, y: float, w: float, h: float, text: str, *, under: str = "",
        fill: str = "fill", edge: str = "line", colour: str = "ink", mono: bool = False,
        dashed: bool = False,
    ) -> None:  # fmt: skip
        """A box with a word in its middle, and a smaller one below that."""
        self.box(x, y, w, h, fill=fill, edge=edge, dashed=dashed)
        middle = y + h / 2
        self.words(x + w / 2, middle + (5 if not under else -3), text, at="middle", bold=True,
                   colour=colour, mono=mono)  # fmt: skip
        if under:
            self.words(x + w / 2, middle + 15, under, at="middle", size=12, colour="soft")

    def svg(self, *, alone: bool = True) -> str:
        """alone: with its colours, as a file; else for a page that has them."""
        return "\n".join([
            f'<svg class="as-picture" xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" aria-labelledby="{self.name}-title '
            f'{self.name}-told">',
            f'<title id="{self.name}-title">{escape(self.title)}</title>',
            f'<desc id="{self.name}-told">{escape(self.told)}</desc>',
            *([style()] if alone else []),
            *self.parts,
            "</svg>",
        ]) + "\n"  # fmt: skip
