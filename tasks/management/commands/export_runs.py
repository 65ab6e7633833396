"""`./run export KEY…`: whole runs, to stdout or to files."""

from __future__ import annotations

import fcntl
import os
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
        try:
            out.mkdir(parents=True, exist_ok=True)
            with _alone_in(out) as folder:
                there = [str(file) for file in files.values() if file.exists()]
                if there:
                    raise CommandError(f"there already: {', '.join(there)}. Nothing was exported.")
                self._write_all(files, format)
                os.fsync(folder)
        except OSError as wrong:
            reason = f"{wrong.filename or out}: {wrong.strerror}"
            raise CommandError(f"{reason}. Nothing was exported.") from None
        for file in files.values():
            self.stdout.write(str(file))

    def _write_all(self, files: Mapping[str, Path], format: str) -> None:
        """Every file has its name once all are whole and on the disk: what was killed or had no
        room can be said again as it was. A draft that stayed is written over then."""
        drafts = {key: file.with_name(f"{file.name}.part") for key, file in files.items()}
        try:
            for key, lines in self._runs(list(files), format):
                with drafts[key].open("w", encoding="utf-8", newline="") as draft:
                    draft.writelines(lines)
                    draft.flush()
                    os.fsync(draft.fileno())
            for key, file in files.items():
                drafts[key].rename(file)
        finally:
            for path in drafts.values():
                with suppress(OSError):
                    path.unlink()


@contextmanager
def _alone_in(out: Path) -> Iterator[int]:
    """The folder, opened; a second export into it would write into the same drafts."""
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise CommandError(
            f"another export writes into {out} just now. Nothing was exported."
        ) from None
    finally:
        os.close(folder)
