"""Statuses of a run and the legal moves between them: the one table that rules, API, console and
docs are made from. Terminal states absorb. An unknown status (a newer release wrote it) has no
legal move here and is not taken for finished."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


MOVES: dict[str, tuple[str, ...]] = {
    Status.PENDING: (Status.RUNNING, Status.CANCELLED),
    Status.RUNNING: (
        Status.PAUSED,
        Status.PENDING,
        Status.COMPLETED,
        Status.FAILED,
        Status.CANCELLED,
    ),
    Status.PAUSED: (Status.RUNNING, Status.CANCELLED, Status.FAILED),
    Status.COMPLETED: (),
    Status.FAILED: (),
    Status.CANCELLED: (),
}

TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})

# What an operator may do to a leased run without its token: the rest needs the holder.
OPERATOR_MOVES = frozenset(
    {
        (Status.PENDING, Status.CANCELLED),
        (Status.RUNNING, Status.CANCELLED),
        (Status.RUNNING, Status.PAUSED),
        (Status.PAUSED, Status.RUNNING),
        (Status.PAUSED, Status.CANCELLED),
    }
)


def allowed_moves(status: str) -> tuple[str, ...]:
    """Where a run may go from `status`; nothing for a status that this release does not know."""
    return tuple(str(move) for move in MOVES.get(status, ()))
