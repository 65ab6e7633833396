"""`./run export KEY…`: whole runs, to stdout or to files."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentstate.store.errors import NotFound
from agentstate.store.rules.names import check_run_key, legal
from tasks.drafts import printable
from tasks.formats import FORMATS, OWN, tell_left_out
from tasks.transfer import export, written


class Command(BaseCommand):
    help = (
        "Write runs with their whole history as JSON lines, which `import` gives back byte for "
        "byte in the payloads, or in a format of others: then what it cannot hold is told on "
        "stderr. All of them as of one moment."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("keys", nargs="+", metavar="KEY")
        about = "; ".join(f"{name}: {one.about}" for name, one in FORMATS.items())
        parser.add_argument("--format", choices=list(FORMATS), default=OWN, help=about)
        parser.add_argument(
            "--out",
            type=Path,
            metavar="FOLDER",
            help="a file KEY.jsonl (or as its format ends) for each run, instead of stdout; none"
            " is overwritten",
        )

    def handle(self, *, keys: list[str], out: Path | None, format: str = OWN, **_: Any) -> None:
        keys = list(dict.fromkeys(keys))
        for key in keys:
            if legal(check_run_key, key) is None:
                raise CommandError(f"no run {printable(key)}. Nothing was exported.")
        if out is None and format != OWN and len(keys) > 1:
            raise CommandError(
                f"--format {format} makes a document for each run: name one, or give --out FOLDER."
                " Nothing was exported."
            )
        try:
            if out is None:
                for _key, lines in self._runs(keys, format):
                    for line in lines:
                        self.stdout.write(line, ending="")
            else:
                self._write_files(keys, out, format)
        except NotFound as unknown:
            raise CommandError(f"{unknown.detail}. Nothing was exported.") from None

    def _runs(self, keys: list[str], format: str) -> Iterator[tuple[str, Iterable[str]]]:
        if format == OWN:
            yield from export(keys)
            return
        for key, document in written(keys, format=format):
            tell_left_out(self.stderr, key, document.left_out)
            yield key, (document.text,)

    def _write_files(self, keys: list[str], out: Path, format: str) -> None:
        files = {key: out / f"{key}{FORMATS[format].suffix}" for key in keys}
        there = [str(file) for file in files.values() if file.exists()]
        if there:
            raise CommandError(f"there already: {', '.join(there)}. Nothing was exported.")
        try:
            out.mkdir(parents=True, exist_ok=True)
            for key, lines in self._runs(keys, format):
                part = files[key].with_name(f"{files[key].name}.part")
                with part.open("w", encoding="utf-8", newline="") as file:
                    file.writelines(lines)
                part.rename(files[key])
                self.stdout.write(str(files[key]))
        except OSError as wrong:
            raise CommandError(f"{wrong.filename}: {wrong.strerror}") from None
