"""`manage.py summary --since …`: what happened, and whether every invariant holds."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand

from tasks.summary import lines, summarize


class Command(BaseCommand):
    help = (
        "Count what happened since a moment, and derive every invariant anew from the events and "
        "the ledger. Exits with 1 when one is broken."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--since",
            required=True,
            type=moment,
            metavar="TIME",
            help="RFC 3339 with its offset, such as 2026-03-04T05:06:07Z, by the database's clock",
        )

    def handle(self, *, since: datetime, **_: Any) -> None:
        summary = summarize(since=since)
        self.stdout.write(f"\nSince {since:%Y-%m-%d %H:%M:%S} UTC\n")
        for line in lines(summary):
            self.stdout.write(line)
        if summary.differences:
            self.stderr.write(f"{len(summary.differences)} differences: an invariant is broken.")
            sys.exit(1)


def moment(text: str) -> datetime:
    """An instant, not just a time of day somewhere."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ArgumentTypeError(f"{text!r} has no offset; Z is UTC")
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is no RFC 3339 time") from None
