"""Holds of workers that are gone, in words: why each counts as gone, and what gives it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from dashboard import zones
from dashboard.queries.holds import SWEEP_SECONDS, Hold
from dashboard.queries.leases import SILENT


def frees(hold: Hold, now: datetime) -> str:
    """What gives the amount back, and when, in words."""
    match hold.state:
        case "over" | "overtaken":
            return f"the next pass, every {SWEEP_SECONDS} s, or the first charge that needs it"
        case "lapsed":
            return f"when a worker takes the run, or by itself at {_clock(hold.expires_at, now)}"
        case "silent" if hold.lease_ends_at is not None:
            ends = min(hold.lease_ends_at, hold.expires_at)
            return (
                f"its lease runs out at {_clock(ends, now)}, then a worker takes the run; or by"
                f" itself at {_clock(hold.expires_at, now)}"
            )
        case _:
            return f"its worker, or by itself at {_clock(hold.expires_at, now)}"


def why(hold: Hold) -> str:
    """Why its worker counts as gone; nothing of one that works."""
    match hold.state:
        case "over":
            return "its time is over"
        case "overtaken":
            return f"{hold.holder} has the run now" if hold.holder else "it holds the run no more"
        case "lapsed":
            return "its lease ran out, nobody took the run"
        case "silent":
            return f"no sign of it for {int(SILENT / timedelta(seconds=1))} s"
        case _:
            return ""


def _clock(at: datetime, now: datetime) -> str:
    same = zones.local(at).date() == zones.local(now).date()
    return zones.written(at) if same else zones.full(at)


def shown(holds: Sequence[Hold], now: datetime) -> list[tuple[Hold, str, str]]:
    """Each with why its worker counts as gone, and what gives it back."""
    return [(hold, why(hold), frees(hold, now)) for hold in holds]
