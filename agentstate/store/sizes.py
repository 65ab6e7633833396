"""How many commands went in one transaction: counted for each lane, told by `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock

# The last is what a batch may have at most (lanes.BATCH_COMMANDS).
BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200)


class Sizes:
    """Counts of batches by size, since the process began. For any number of threads."""

    __slots__ = ("_counts", "_lock", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0
        self._lock = Lock()

    def note(self, commands: int) -> None:
        """Count a batch of so many; once a batch, so it costs a command next to nothing."""
        n = bisect_left(BOUNDS, commands)
        with self._lock:
            self._counts[n] += 1
            self._sum += commands

    def read(self) -> tuple[list[int], int]:
        """How many batches there were up to each bound and beyond the last, and all commands."""
        with self._lock:
            return list(self._counts), self._sum


def together(parts: Sequence[Sizes]) -> tuple[list[tuple[str, float]], float]:
    """Of several lanes: how many batches had at most so many commands, and all commands.

    Each count holds those before it, as in a histogram of Prometheus; the last bound is `+Inf`.
    """
    read = [part.read() for part in parts]
    cumulative, seen = [], 0
    for n, bound in enumerate((*(str(float(bound)) for bound in BOUNDS), "+Inf")):
        seen += sum(counts[n] for counts, _ in read)
        cumulative.append((bound, float(seen)))
    return cumulative, float(sum(total for _, total in read))
