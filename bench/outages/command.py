"""`./run outages`: one outage after the other on a scratch site, and a table of the times."""

from __future__ import annotations

import argparse
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from celery import Celery

from agentstate.cli.database import ready_database
from agentstate.cli.output import CommandFailure, progress, result
from agentstate.cli.site import INTERRUPTED
from agentstate.embedded import EmbeddedPostgres
from bench.outages import clock
from bench.outages.leases import Leases
from bench.outages.outages import HARMS, Outage, carry_out
from bench.outages.probes import Calls, Grows, Marks, Part, Probe, Stream, Worker, ask, until
from bench.outages.site import Site
from bench.torture.trial import move_in, new_folder, scratch

# After the last part is back: the next outage finds a site at work, and not one that just began.
SETTLE_SECONDS = 2.0
NEVER_SECONDS = 60.0  # a part that was not back after so long is told as that
BEAT = "SELECT last_value FROM pgmq.q_default_msg_id_seq"  # only beat sends to this queue
FEED = "SELECT position FROM agentstate_feedhead"
WRITTEN = """
SELECT (data->>'n')::int FROM agentstate_event WHERE type = 'probe.written'
    AND run_id = (SELECT id FROM agentstate_run WHERE key = %s) ORDER BY seq
"""
RUNS = ("of-web", "of-whole", "of-the-client")


def outages(options: argparse.Namespace) -> int:
    """0: every part worked again in time after each outage, and nothing was lost or doubled."""
    names = options.outages or list(HARMS)
    folder = new_folder(secrets.randbelow(2**31), kind="outages")
    move_in(folder)
    trial = Trial(options.within_seconds)
    try:
        with scratch(folder), ready_database():
            trial.play(names, options.away_seconds, folder)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for line in trial.lines():
            result(line)
    if trial.wrong:
        result(f"\nThe logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


class Trial:
    """The outages that were, and what came of each. wrong: what should not have been."""

    def __init__(self, within_seconds: float) -> None:
        self.within_seconds = within_seconds
        self.outages: list[tuple[Outage, dict[str, float | None]]] = []
        self.wrong: list[str] = []
        self.parts: list[Part] = []
        self.counts: Counter[str] = Counter()

    def play(self, names: Sequence[str], away_seconds: float, folder: Path) -> None:
        from agentstate.cli.people import make_key

        server = EmbeddedPostgres(folder / "home" / "postgres")
        key = make_key(name="outages", scopes=("read", "payloads", "write"))
        with Site(folder, server) as site:
            self._make_runs(site, key)
            stopping = threading.Event()
            probes = probes_of(site, key, folder, stopping)
            self.parts = [part for probe in probes for part in probe.parts]
            for probe in probes:
                probe.start()
            try:
                progress("waiting until every part is at work …")
                began = clock.now()
                if not until(lambda: not self._not_back(began), NEVER_SECONDS):
                    told = [text for probe in probes for text in probe.trouble]
                    raise CommandFailure(f"did not begin to work: {self._not_back(began)} {told}")
                leases = Leases(url=site.url("web"), key=key)
                for name in names:
                    self._hold(name, site, leases, away_seconds)
            finally:
                stopping.set()
                for probe in probes:
                    probe.join(75)
            self.wrong += leases.wrong
            self.counts.update(outlived=leases.outlived, ended=leases.ended)
            self._check_writes(site, probes)

    def _make_runs(self, site: Site, key: str) -> None:
        for run in RUNS:
            body = {"key": run, "task": "outages", "status": "running"}
            made = ask(site.url("web"), key, "POST", "/runs", body)
            if made.status != 201:
                raise RuntimeError(f"{run} could not be made: {made.members}")

    def _hold(self, name: str, site: Site, leases: Leases, away_seconds: float) -> None:
        progress(f"{name} …")
        leases.take(name)
        outage = carry_out(name, site, away_seconds)
        until(lambda: not self._not_back(outage.over_at), NEVER_SECONDS)
        took = {part.name: part.again_after(outage.over_at) for part in self.parts}
        self.outages.append((outage, took))
        for part, seconds in took.items():
            if seconds is None or seconds > self.within_seconds:
                late = "never" if seconds is None else f"only after {seconds:.1f} s"
                self.wrong.append(f"after {name} ({outage.detail}) {part} was back {late}")
        if dead := site.dead():
            self.wrong.append(f"after {name} these processes had ended: {', '.join(dead)}")
        leases.check(site)
        time.sleep(SETTLE_SECONDS)

    def _not_back(self, since: float) -> list[str]:
        return [part.name for part in self.parts if part.again_after(since) is None]

    def _check_writes(self, site: Site, probes: Sequence[Probe]) -> None:
        for probe in probes:
            self.wrong += probe.trouble
            if isinstance(probe, Calls):
                self.wrong += [f"an answer that should not be: {one}" for one in probe.wrong[:5]]
                lost, doubled, refused = compare(
                    written(site, probe.into), probe.acknowledged, probe.refused
                )
                self._note(probe.into, len(probe.acknowledged), lost, doubled, refused)
            elif isinstance(probe, Worker):
                found = written(site, probe.into)
                lost, doubled, _ = compare(found, probe.acknowledged, [])
                self._note(probe.into, len(probe.acknowledged), lost, doubled, [])
                if len(probe.tokens) != 1:
                    self.wrong.append(f"the client held its run under {len(probe.tokens)} tokens")
        from django.db import connections

        from agentstate.store import audit

        connections.close_all()  # ours were ended with all others
        for one in audit.verify():
            self.wrong.append(f"{one.check}: {one.what}: {one.expected} was {one.found}")

    def _note(
        self, run: str, acknowledged: int, lost: list[int], doubled: list[int], refused: list[int]
    ) -> None:
        self.counts.update(
            acknowledged=acknowledged, lost=len(lost), doubled=len(doubled), against=len(refused)
        )
        found = {"lost": lost, "doubled": doubled, "refused, yet there": refused}
        for kind, numbers in found.items():
            if numbers:
                self.wrong.append(f"{run}: {kind}: {numbers[:10]}")

    # --- what is told -------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        if not self.outages:
            yield from self.wrong
            return
        yield "Seconds from the database's return until each part worked again"
        yield ""
        names = [outage.name for outage, _ in self.outages]
        yield f"  {'':<26}" + "".join(f"{name:>11}" for name in names) + "   slowest answer"
        for part in self.parts:
            took = [found.get(part.name) for _, found in self.outages]
            cells = "".join(f"{'never' if t is None else f'{t:.1f}':>11}" for t in took)
            slowest = f"{part.slowest_seconds:.1f} s" if part.slowest_seconds else ""
            said = ", ".join(f"{n} {what}" for what, n in part.said.most_common(4))
            yield f"  {part.name:<26}{cells}   {slowest:<8}{said}".rstrip()
        yield ""
        for outage, _ in self.outages:
            yield f"  {outage.name}: {outage.detail}"
        yield ""
        counts = self.counts
        yield (
            f"  {counts['acknowledged']:,} writes acknowledged, {counts['lost']} lost, "
            f"{counts['doubled']} doubled, {counts['against']} refused and yet there"
        )
        yield (
            f"  {counts['outlived']} leases outlived an outage and were still held, "
            f"{counts['ended']} had run out"
        )
        for text in self.wrong:
            yield f"  ✗ {text}"


def probes_of(site: Site, key: str, folder: Path, stopping: threading.Event) -> list[Probe]:
    from bench.outages.app import app

    web = Calls("web", stopping, url=site.url("web"), key=key, run=RUNS[0])
    whole = Calls("one process", stopping, url=site.url("whole"), key=key, run=RUNS[1])
    probes = [
        web,
        whole,
        Stream("a stream", stopping, url=site.url("streams"), key=key, calls=web),
        Stream("a stream, one process", stopping, url=site.url("whole"), key=key, calls=whole),
        Worker(stopping, url=site.url("web"), key=key, run=RUNS[2]),
        Grows("the feed", stopping, site=site, question=FEED),
        Grows("beat", stopping, site=site, question=BEAT),
        Marks("worker", stopping, app=app, folder=folder / "marks"),
    ]
    if site.redis:
        other = Celery("outages", broker=site.redis)
        probes.append(
            Marks("worker, over Redis", stopping, app=other, folder=folder / "marks-redis")
        )
    return probes


def written(site: Site, run: str) -> list[int]:
    with site.session() as session:
        return [n for (n,) in session.execute(WRITTEN, [run]).fetchall()]


def compare(
    stored: Sequence[int], acknowledged: Sequence[int], refused: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Numbers that were acknowledged and are not there; that are there more than once; that were
    refused and are there."""
    found = Counter(stored)
    lost = [n for n in acknowledged if not found[n]]
    doubled = [n for n, times in found.items() if times > 1]
    return lost, doubled, [n for n in refused if found[n]]
