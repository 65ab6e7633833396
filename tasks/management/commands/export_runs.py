"""`./run export KEY…`: whole runs as JSON lines, to stdout or to files."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agentstate.store.errors import NotFound
from tasks.transfer import export


class Command(BaseCommand):
    help = (
        "Write runs with their whole history as JSON lines, which `import` gives back byte for "
        "byte in the payloads. All of them as of one moment."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("keys", nargs="+", metavar="KEY")
        parser.add_argument(
            "--out",
            type=Path,
            metavar="FOLDER",
            help="a file KEY.jsonl for each run, instead of stdout; none is overwritten",
        )

    def handle(self, *, keys: list[str], out: Path | None, **_: Any) -> None:
        keys = list(dict.fromkeys(keys))
        try:
            if out is None:
                for _key, lines in export(keys):
                    for line in lines:
                        self.stdout.write(line, ending="")
            else:
                self._write_files(keys, out)
        except NotFound as unknown:
            raise CommandError(f"{unknown.detail}. Nothing was exported.") from None

    def _write_files(self, keys: list[str], out: Path) -> None:
        there = [str(_file(out, key)) for key in keys if _file(out, key).exists()]
        if there:
            raise CommandError(f"there already: {', '.join(there)}. Nothing was exported.")
        try:
            out.mkdir(parents=True, exist_ok=True)
            for key, lines in export(keys):
                part = _file(out, key).with_suffix(".part")
                with part.open("w", encoding="utf-8", newline="") as file:
                    file.writelines(lines)
                part.rename(_file(out, key))
                self.stdout.write(str(_file(out, key)))
        except OSError as wrong:
            raise CommandError(f"{wrong.filename}: {wrong.strerror}") from None


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.jsonl"
