"""Copies that can be lost: what each holds, how long, and how it is made again.

Nothing here is true by itself. A copy of a part of a run has the run's version in its key: it is
never invalidated, only superseded, because the page reads the version from the store anyway. A
copy of a count has a generation in its key, and whoever writes gives out a new generation. Both
have an age beside it. Emptied at any moment, they are made again from the store, by one filler at a
time; a cache that is down is a cache that is always empty.

The store does not know of this module. What offers an action or answers a worker does not use it.
docs/decisions/0011-caches-and-presence.md says why.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillFilling
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID

from django.core.cache import BaseCache, caches
from django.core.cache.backends.locmem import LocMemCache

from agentstate.store import Written

# What a reader gets who finds somebody else filling: at most so old.
STALE_SECONDS = 2
# Longer: more readers wait for a filler that hangs. Shorter: more of them fill themselves.
WAIT_SECONDS = 2.0
LEASE_SECONDS = 5
LOOK_AGAIN_SECONDS = 0.02
# A cache that failed is left alone for so long: a page must not wait for each of its copies.
PAUSE_SECONDS = 5.0
LOG_EVERY_SECONDS = 60.0
COMPRESS_OCTETS = 4_096
OCTETS_MAX = 8 * 1024 * 1024
GENERATION_SECONDS = 3_600

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A kind of copy. ends: what makes it superseded before its age does."""

    key: str
    ttl_seconds: int
    holds: str
    source: str
    ends: str
    grace: bool = False  # a reader who finds a filler at work may have the one before


CACHES_OF: Final[dict[str, Copy]] = {
    "marks": Copy(
        key="run:{id}:v{version}:marks",
        ttl_seconds=600,
        holds="a run's events as its timeline draws them",
        source="`event`: all of them, or of a long run every n-th",
        ends="the run's next version, which has a key of its own",
    ),
    "rows": Copy(
        key="run:{id}:v{version}:rows:{what was asked, and whether payloads may be seen}",
        ttl_seconds=600,
        holds="a page of a run's events, as rows",
        source="`event`",
        ends="the run's next version, which has a key of its own",
    ),
    "summary": Copy(
        key="run:{id}:v{version}:row",
        ttl_seconds=600,
        holds="what the list of runs says of a run by its head row alone",
        source="`run`",
        ends="the run's next version, which has a key of its own",
    ),
    "statuses": Copy(
        key="counts:statuses:{generation}",
        ttl_seconds=5,
        holds="how many runs there are of each status",
        source="`run.status`",
        ends="a write of an event `run.*`",
        grace=True,
    ),
    "tally": Copy(
        key="counts:tally:{generation}",
        ttl_seconds=4,
        holds="the numbers above the list of all runs, as an open list shows them",
        source="`run`",
        ends="its age: nothing ends it before",
        grace=True,
    ),
    "filtered": Copy(
        key="counts:filtered:{generation}:{the filter, and where the list begins}",
        ttl_seconds=20,
        holds="the same under a filter, and how many runs came since the list was opened",
        source="`run`",
        ends="its age: nothing ends it before",
        grace=True,
    ),
    "lapsed": Copy(
        key="counts:lapsed:{generation}",
        ttl_seconds=2,
        holds="how many leases ran out and were not taken, for the badge",
        source="`lease`",
        ends="a write that changes a holder; time passes without one, so the age is short",
        grace=True,
    ),
    "answers": Copy(
        key="counts:answers:{generation}:{which part of which address, for which rights, in which"
        " zone}, in the process",
        ttl_seconds=1,
        holds="a refreshed part of a page, for all who see the same",
        source="what the page reads",
        ends="any write; time passes without one, so the age is short",
    ),
    "holders": Copy(
        key="counts:holders:{generation}:{which part of which address, for which rights, in which"
        " zone}, in the process",
        ttl_seconds=2,
        holds="a refreshed part of a page about who holds what, for all who see the same",
        source="what the page reads",
        ends="a write that changes a holder; leases are renewed without one, so the age is short",
    ),
    "yesterday": Copy(
        key="counts:yesterday:{generation}:{from when to when}",
        ttl_seconds=300,
        holds="what was counted at the same time of the day before",
        source="`minute`",
        ends="its age; what is counted again of so long ago is shown after that",
    ),
}
# What of a hint moves which generation; any of them moves that of answers.
KINDS = {"run": "statuses", "lease": "lapsed"}

_MISSING: Final = object()


class Plain:
    """What Redis keeps: our octets as they are. Pickle would run whatever somebody put there."""

    def dumps(self, value: bytes) -> bytes:
        return value

    def loads(self, value: bytes) -> bytes:
        return value


@dataclass(slots=True)
class _Flight:
    """One filler at work in this process; those who wait for it get what it lands with."""

    key: str
    began: float
    landed: Future[Any]


@dataclass(frozen=True, slots=True)
class _Wanted[V]:
    """What a reader asks for. flight: one filler at a time for this; key: where the copy is."""

    copy: Copy
    flight: str
    key: str
    fill: Callable[[], Any]
    read: Callable[[Any], V]

    @property
    def before(self) -> str:
        return f"{self.flight}:before"


class Copies:
    """Reads copies of one cache and fills what is missing. One per process; safe among threads."""

    def __init__(self, *, cache: Callable[[], BaseCache] = lambda: caches["default"]) -> None:
        self._cache = cache
        self._flights: dict[str, _Flight] = {}
        self._joining = threading.Lock()
        self._paused_until = self._logged_at = float("-inf")

    @property
    def is_of_this_process(self) -> bool:
        """Whether no other process sees this cache, nor what becomes of it."""
        return isinstance(self._cache(), LocMemCache)

    def of_run[V](
        self,
        name: str,
        run: UUID,
        version: int,
        *,
        fill: Callable[[], Any],
        read: Callable[[Any], V],
        variant: str = "",
    ) -> V:
        """A part of a run at a version.

        fill: makes it, of what JSON can hold, and only from what that version has. read: makes of
        it what the page needs, and raises on what it does not know: that counts as missing.
        """
        key = _run_key(name, run, version) + (f":{variant}" if variant else "")
        return self._keep(_Wanted(CACHES_OF[name], key, key, fill, read))

    def of_runs(
        self, name: str, runs: Iterable[tuple[UUID, int]], *, fill: Callable[[UUID], str]
    ) -> dict[UUID, str]:
        """A text for each of many runs, looked up together.

        Those that are missing are made here and now: it takes no question to the store, so that
        nobody has to wait for anybody.
        """
        keys = {_run_key(name, run, version): run for run, version in runs}
        kept = {key: text for key, text in self._get_many(keys).items() if isinstance(text, str)}
        made = {key: fill(run) for key, run in keys.items() if key not in kept}
        if made:
            self._set_many(made, CACHES_OF[name].ttl_seconds)
        return {keys[key]: text for key, text in (kept | made).items()}

    def count[V](
        self, name: str, *, fill: Callable[[], Any], read: Callable[[Any], V], variant: str = ""
    ) -> V:
        """A count, or an answer, that a write ends. fill and read: as for `of_run`."""
        counts, ending = f"counts:{name}", f":{variant}" if variant else ""
        key = f"{counts}:{self._generation(counts)}{ending}"
        return self._keep(_Wanted(CACHES_OF[name], counts + ending, key, fill, read))

    def generation(self, name: str) -> str:
        """Of a count: another one once a write has ended it."""
        return self._generation(f"counts:{name}")

    def end(self, name: str) -> None:
        """Let the next reader count again."""
        self._set(f"counts:{name}:generation", uuid.uuid4().hex, GENERATION_SECONDS)

    def empty(self) -> None:
        """Throw everything away, at any moment."""
        self._ask(lambda cache: cache.clear(), None)

    def _generation(self, counts: str) -> str:
        """Never one that was there before: a copy of an old one must not come back."""
        key, fresh = f"{counts}:generation", uuid.uuid4().hex
        found = self._get(key)
        if found is _MISSING and not self._add(key, fresh, GENERATION_SECONDS):
            found = self._get(key)  # somebody else was quicker
        return found if isinstance(found, str) else fresh

    # --- one filler at a time --------------------------------------------------------------------

    def _keep[V](self, wanted: _Wanted[V]) -> V:
        if (found := self._look(wanted.key, wanted.read)) is not _MISSING:
            return cast("V", found)
        flight, leads = self._join(wanted)
        if leads:
            return self._lead(wanted, flight)
        if wanted.copy.grace:
            before = self._look(wanted.before, wanted.read)
            if before is not _MISSING:
                return cast("V", before)
        return self._wait(wanted, flight)

    def _join(self, wanted: _Wanted[Any]) -> tuple[_Flight, bool]:
        """The filler at work and False, or a new one and True."""
        with self._joining:
            there = self._flights.get(wanted.flight)
            if there is not None:
                return there, False
            own = _Flight(wanted.key, time.monotonic(), Future())
            self._flights[wanted.flight] = own
            return own, True

    def _lead[V](self, wanted: _Wanted[V], flight: _Flight) -> V:
        try:
            value = self._fill(wanted)
            flight.landed.set_result(value)
            return value
        except Exception as failed:
            flight.landed.set_exception(failed)
            raise
        finally:
            with self._joining:
                del self._flights[wanted.flight]
            if not flight.landed.done():
                flight.landed.set_result(_MISSING)

    def _wait[V](self, wanted: _Wanted[V], flight: _Flight) -> V:
        """What the filler at work lands with; fills by itself if that takes long or is too old."""
        try:
            value = flight.landed.result(WAIT_SECONDS)
        except StillFilling:
            return _through_json(wanted)[1]
        young = time.monotonic() - flight.began <= STALE_SECONDS
        if value is not _MISSING and (young or flight.key == wanted.key):
            return cast("V", value)
        return _through_json(wanted)[1]

    def _fill[V](self, wanted: _Wanted[V]) -> V:
        """Fill, unless another process is at it. Its lease is short: it may be gone."""
        lease = f"{wanted.flight}:filling"
        ends_at = time.monotonic() + WAIT_SECONDS
        while not self._add(lease, "", LEASE_SECONDS) and time.monotonic() < ends_at:
            for key in (wanted.key, wanted.before) if wanted.copy.grace else (wanted.key,):
                if (found := self._look(key, wanted.read)) is not _MISSING:
                    return cast("V", found)
            time.sleep(LOOK_AGAIN_SECONDS)
        try:
            # Whoever had the lease before us has left what it filled.
            if (found := self._look(wanted.key, wanted.read)) is not _MISSING:
                return cast("V", found)
            raw, value = _through_json(wanted)
            self._set(wanted.key, raw, wanted.copy.ttl_seconds)
            if wanted.copy.grace:
                self._set(wanted.before, raw, STALE_SECONDS)
            return value
        finally:
            self._ask(lambda cache: cache.delete(lease), None)

    # --- the cache -------------------------------------------------------------------------------

    def _look(self, key: str, read: Callable[[Any], Any]) -> Any:
        found = self._get(key)
        if found is _MISSING:
            return _MISSING
        try:
            return read(found)
        except (ValueError, TypeError, LookupError, AttributeError):
            return _MISSING  # another release's, or of somebody who has no business there

    def _get(self, key: str) -> Any:
        return _unpack(self._ask(lambda cache: cache.get(key), None))

    def _get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        nothing: dict[str, Any] = {}
        found = self._ask(lambda cache: cache.get_many(list(keys)), nothing)
        return {key: _unpack(octets) for key, octets in found.items()}

    def _set(self, key: str, value: Any, seconds: int) -> None:
        self._ask(lambda cache: cache.set(key, _pack(value), seconds), None)

    def _set_many(self, values: dict[str, Any], seconds: int) -> None:
        packed = {key: _pack(value) for key, value in values.items()}
        self._ask(lambda cache: cache.set_many(packed, seconds), [])

    def _add(self, key: str, value: str, seconds: int) -> bool:
        """True when it was free; also when nobody can tell."""
        return self._ask(lambda cache: cache.add(key, _pack(value), seconds), True)

    def _ask[R](self, ask: Callable[[BaseCache], R], instead: R) -> R:
        """What the cache says; `instead` while it is down."""
        if time.monotonic() < self._paused_until:
            return instead
        try:
            return ask(self._cache())
        except Exception as failed:  # whatever its driver raises: a copy is never worth an error
            self._note(failed)
            return instead

    def _note(self, failed: Exception) -> None:
        now = time.monotonic()
        self._paused_until = now + PAUSE_SECONDS
        if now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            log.warning("the cache is down, pages are made without it: %s", type(failed).__name__)


def _run_key(name: str, run: UUID, version: int) -> str:
    return f"run:{run}:v{version}:{name}"


def _through_json[V](wanted: _Wanted[V]) -> tuple[Any, V]:
    """Filled, as a reader of the copy will see it too."""
    raw = json.loads(json.dumps(wanted.fill()))
    return raw, wanted.read(raw)


def _pack(value: Any) -> bytes:
    octets = json.dumps(value, separators=(",", ":")).encode()
    return b"j" + octets if len(octets) < COMPRESS_OCTETS else b"z" + zlib.compress(octets, 1)


def _unpack(octets: Any) -> Any:
    """What was packed, or _MISSING for whatever else is there."""
    try:
        if octets[:1] == b"z":
            return json.loads(zlib.decompressobj().decompress(octets[1:], OCTETS_MAX))
        return json.loads(octets[1:]) if octets[:1] == b"j" else _MISSING
    except (TypeError, ValueError, RecursionError, zlib.error):
        return _MISSING


copies: Final = Copies()
# In each process its own: every write ends them, and no write shall ask a cache elsewhere first.
answers: Final = Copies(cache=lambda: caches["answers"])


def note_write(written: Written) -> None:
    """What a write of this process ends; a listener of the store."""
    if any(name.startswith("run.") for name in written.types):
        copies.end("statuses")
    if written.units:
        copies.end("lapsed")
        answers.end("holders")
    answers.end("answers")


def note_hint(kinds: Collection[str] | None) -> None:
    """What was written elsewhere, as hints tell it; None: it may be anything.

    Of a cache that processes share nothing need be ended here: whoever wrote has done so.
    """
    answers.end("answers")
    if kinds is None or "lease" in kinds:
        answers.end("holders")
    if copies.is_of_this_process:
        for kind in KINDS if kinds is None else kinds:
            if kind in KINDS:
                copies.end(KINDS[kind])
