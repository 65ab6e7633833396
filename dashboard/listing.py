"""A list of runs as its address says it: the filter, and which columns stand beside the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from agentstate.store import filters
from agentstate.store.filters import Filter

# Name → label, in the order of the table. Status and run are always there.
COLUMNS = {
    "events": "Events",
    "version": "Version",
    "attempt": "Attempt",
    "tags": "Tags",
    "holder": "Holder",
    "lease": "Lease",
    "budget": "Budget",
    "refused": "Refused",
    "conflicts": "Conflicts",
    "last": "Last event",
    "deadline": "Deadline",
    "ended": "Ended",
    "age": "Age",
}
USUAL = ("events", "holder", "lease", "budget", "refused", "last", "age")


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list shows. columns: by name, in the table's order."""

    wanted: Filter = field(default_factory=Filter)
    columns: tuple[str, ...] = USUAL

    @property
    def parameters(self) -> dict[str, str]:
        """Of its address. The filter is always named: without one the default view opens."""
        usual = self.columns == USUAL
        return {"q": self.wanted.text} | ({} if usual else {"columns": self.columns_text})

    @property
    def columns_text(self) -> str:
        """As the address has it; "-" is none of them."""
        return ",".join(self.columns) or "-"

    @property
    def query(self) -> str:
        return urlencode(self.parameters)

    def asking(self, wanted: Filter) -> Listing:
        return replace(self, wanted=wanted)

    def to(self, wanted: Filter) -> str:
        """The address, on the page of runs, of the same columns under another filter."""
        return f"?{self.asking(wanted).query}"


HIDDEN = "your role does not show payloads, and attrs are one"


def read(parameters: Mapping[str, str], *, payloads: bool = True) -> Listing:
    """The list that an address or a form asks for. Columns that there are not are left out.

    payloads: whether whoever asks may see them; else attrs cannot be asked for either.
    """
    wanted = filters.parse(parameters.get("q", ""))
    if not payloads:
        told = (replace(c, problem=HIDDEN) if c.attr else c for c in wanted.clauses)
        wanted = replace(wanted, clauses=tuple(told))
    return Listing(wanted=wanted, columns=columns_of(parameters.get("columns", "")))


def columns_of(text: str) -> tuple[str, ...]:
    """Names with commas between; nothing: the usual ones."""
    named = {name.strip() for name in text.split(",")} if text else set(USUAL)
    return tuple(name for name in COLUMNS if name in named)
