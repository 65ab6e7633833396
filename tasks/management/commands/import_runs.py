"""`./run import FILE…`: bring runs in from files of several formats."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentstate.store.errors import BatchRefused
from tasks.drafts import UnreadableFile
from tasks.formats import readable, tell_left_out
from tasks.transfer import (
    Renaming,
    RunFile,
    files_of,
    is_there,
    keys_in_the_way,
    read_file,
    write_file,
)

SHOWN = 20  # of the keys that are in the way


class Command(BaseCommand):
    help = (
        "Bring runs in from files: JSON lines of our own, trajectories of SWE-agent (.traj) and in "
        "ATIF, logs of chat messages; a folder means all .traj and .jsonl in it. Every file is "
        "read and checked before anything is written. docs/formats.md has the formats."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("paths", nargs="+", type=Path, metavar="FILE")
        parser.add_argument(
            "--format",
            choices=readable(),
            help="which it is; left out: found by its name and what it begins with",
        )
        named = parser.add_mutually_exclusive_group()
        named.add_argument("--as", dest="key", metavar="KEY", help="the key of the only run")
        named.add_argument(
            "--rename", dest="prefix", default="", metavar="PREFIX", help="goes before every key"
        )
        parser.add_argument(
            "--missing",
            action="store_true",
            help="pass over files that were imported already, as when it was stopped in between",
        )
        parser.add_argument(
            "--check", action="store_true", help="read and check only; write nothing"
        )

    def handle(
        self,
        *,
        paths: list[Path],
        key: str | None,
        prefix: str,
        check: bool,
        missing: bool = False,
        format: str | None = None,
        **_: Any,
    ) -> None:
        try:
            renaming = Renaming(key=key, prefix=prefix)
            found = files_of(paths, format=format)
            files = [read_file(path, renaming=renaming, format=format) for path in found]
        except UnreadableFile as wrong:
            raise CommandError(f"{wrong}\nNothing was imported.") from None
        runs = sum(len(file.runs) for file in files)
        if key is not None and runs > 1:
            raise CommandError(f"--as names one run, the files hold {runs}. Nothing was imported.")
        there = [file for file in files if missing and is_there(file)]
        files = [file for file in files if file not in there]
        if taken := keys_in_the_way(files):
            more = f" and {len(taken) - SHOWN} more" if len(taken) > SHOWN else ""
            raise CommandError(
                f"there is a run with this key already: {', '.join(taken[:SHOWN])}{more}. Nothing"
                " was imported; --missing passes over files that were imported before, --as KEY or"
                " --rename PREFIX gives other keys."
            )
        for file in there:
            self.stdout.write(f"{file.name}  was imported already")
        for file in files:
            tell_left_out(self.stderr, file.name, file.left_out)
        if check:
            runs = sum(len(file.runs) for file in files)
            self.stdout.write(f"{runs} runs in {len(files)} files can be imported.")
            return
        for file in files:
            self._write(file)

    def _write(self, file: RunFile) -> None:
        try:
            made = write_file(file)
        except BatchRefused as refused:
            told = refused.facts["operations"]
            lines = [
                f"{file.name}: run {file.runs[one['index']].key}: {one['detail']}" for one in told
            ]
            raise CommandError("\n".join([*lines, "Nothing of this file was imported."])) from None
        for run in made:
            self.stdout.write(f"{run.run}  {run.status}  {run.last_seq} events  from {file.name}")
