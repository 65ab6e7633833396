"""`./run bundle`: everything about an incident as one file, and whether a file is whole."""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentstate.cli.database import load_settings, ready_database
from agentstate.cli.output import CommandFailure, progress, result

WRONG = 1


def bundle(options: argparse.Namespace) -> int:
    """Write a run's bundle to stdout, or look at a file, which needs no database."""
    if options.check is not None:
        return check(options.check)
    load_settings()
    with ready_database():
        write(options)
    return 0


def write(options: argparse.Namespace) -> None:
    """The lines to stdout; what the file is known by to stderr, where it is not in the file."""
    from agentstate.store.bundle import Wanted
    from agentstate.store.bundle import bundle as lines_of
    from agentstate.store.errors import Invalid, NotFound, RunExpired

    wanted = Wanted(
        run=options.run,
        by="system:run",
        since=options.since,
        until=options.until,
        payloads=not options.no_payloads,
    )
    last = ""
    try:
        lines = lines_of(wanted)
    except (NotFound, RunExpired, Invalid) as refused:
        raise CommandFailure(f"{refused.detail}. Nothing was written.") from None
    for last in lines:
        sys.stdout.write(last)
    sys.stdout.flush()
    progress(f"known by {last.rstrip()[-66:-2]}")


def check(path: Path) -> int:
    """Say how the file is: 0 when it is whole, else 1."""
    from agentstate.store.chain import Chain, Reader
    from agentstate.store.opened import Unreadable, check_line, read_header

    reader, header = Reader(), dict[str, Any]()
    try:
        for number, (raw, ended) in enumerate(lines_in(path), 1):
            check_line(raw, number)
            if reader.take(raw, ended=ended) and number == 1:
                header = read_header(raw)
    except Unreadable as wrong:
        raise CommandFailure(f"{path}: {wrong.told}") from None
    except OSError as wrong:
        raise CommandFailure(f"{path}: {wrong.strerror}") from None
    verdict = reader.verdict()
    if header:
        made = f"{header['made_at'].astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        result(f"run {header['run']!a}, made at {made} by {header['made_by']!a}")
    if verdict.whole:
        result(f"whole: {verdict.lines} lines, known by {verdict.hash}")
        return 0
    named = {Chain.MOVED: "reordered"}.get(verdict.state, str(verdict.state))
    result(f"{named} at line {verdict.line}: {verdict.why} ({verdict.lines} before it hold)")
    return WRONG


def lines_in(path: Path) -> Iterator[tuple[bytes, bool]]:
    """A file's lines, of any number; of one that is too long no more than says so."""
    from agentstate.store.opened import LINE_BYTES_MAX

    with path.open("rb") as file:
        while raw := file.readline(LINE_BYTES_MAX + 2):
            yield raw.removesuffix(b"\n"), raw.endswith(b"\n")


def moment(text: str) -> datetime:
    """A type for argparse: an instant, in UTC unless it names another offset."""
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: write it as 2026-03-02T12:40:00Z"
        ) from None
