"""When a budget runs dry if it goes on as it went in the last minutes. Pure: no clock, no database.

A rate is told only of what can be known: not of two charges, and not of a budget that is seconds
old. Then it is said why there is none; a guess that looks like a figure would be believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboard import zones

# So much of the past is the rate's; a budget opened since then is judged by its own age.
OVER = timedelta(minutes=15)
AGE_LEAST = timedelta(minutes=1)
CHARGES_LEAST = 3
FARTHEST = timedelta(days=365)
# Somebody has to do something about it now.
SOON = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """What a ledger tells of the last minutes. spent: in them; charges: lines that spent anything.

    over: how long was looked at: OVER, less of a younger budget, and less of a ledger with more
    lines in that time than are read.
    """

    spent: int = 0
    charges: int = 0
    over: timedelta = OVER

    @property
    def per_second(self) -> float:
        return self.spent / self.over.total_seconds() if self.over > timedelta() else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """rate: in an hour, None where it cannot be told. dry_at: when nothing is left, None: not to
    be foreseen, or it is so now (`is_dry`). why: in words, when there is no dry_at.
    """

    rate: float | None
    dry_at: datetime | None = None
    why: str = ""
    is_dry: bool = False
    over: timedelta = OVER


def foresee(*, left: int, burn: Burn, now: datetime) -> Forecast:
    """When `left` is used up at the rate of the last minutes.

    Holds count as used already: what comes of them is in the rate of the time when it came.
    """
    rate = _rate(burn)
    known = None if isinstance(rate, str) else rate * 3_600
    if left <= 0:
        return Forecast(rate=known, is_dry=True, why="nothing is left", over=burn.over)
    if isinstance(rate, str):
        return Forecast(rate=None, why=rate, over=burn.over)
    seconds = left / rate if rate else None
    if seconds is None or seconds > FARTHEST.total_seconds():
        far = "not within a year at this rate" if rate else _still(burn)
        return Forecast(rate=known, why=far, over=burn.over)
    dry_at = now + timedelta(seconds=seconds)
    return Forecast(rate=known, dry_at=dry_at, over=burn.over)


def _rate(burn: Burn) -> float | str:
    """What is spent in a second, or why that cannot be told."""
    if burn.over < AGE_LEAST:
        return f"too young to tell: {_in_words(burn.over)} of it are known"
    if not burn.charges:
        return 0.0
    if burn.charges < CHARGES_LEAST:
        some = "one charge" if burn.charges == 1 else f"{burn.charges} charges"
        return f"too few to tell: {some} in the last {_in_words(burn.over)}"
    return burn.per_second


def _still(burn: Burn) -> str:
    return f"nothing was spent in the last {_in_words(burn.over)}"


def _in_words(span: timedelta) -> str:
    """`15 minutes`, `40 seconds`."""
    seconds = int(span.total_seconds())
    count, unit = (seconds // 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def at_the_rate(forecast: Forecast) -> str:
    """`at the rate of the last 15 minutes`."""
    return f"at the rate of the last {_in_words(forecast.over)}"


def when(at: datetime, now: datetime) -> str:
    """`04:12` today, `Tue 04:12` within a week, else the day alone; in the zone of the page."""
    if _is_today(at, now):
        return zones.written(at, "%H:%M")
    return zones.written(at, "%a %H:%M" if at - now < timedelta(days=6) else "%Y-%m-%d")


def _is_today(at: datetime, now: datetime) -> bool:
    return zones.local(at).date() == zones.local(now).date()


def in_words(forecast: Forecast, now: datetime) -> str:
    """`dry at 04:12 at the rate of the last 15 minutes`, or why that cannot be said."""
    if forecast.dry_at is None:
        return forecast.why
    preposition = "at" if _is_today(forecast.dry_at, now) else "on"
    return f"dry {preposition} {when(forecast.dry_at, now)} {at_the_rate(forecast)}"
