"""Runs from files into the store and back: read and check everything, then write each file at once.

Nothing is written before every file has been read, rehearsed with the store's rules and found to
have free keys; the runs of one file go in as one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from django.db import connection, transaction

from agentstate.store import export as store_export
from agentstate.store import reads
from agentstate.store.callers import SCOPES, Caller
from agentstate.store.commands import OPERATIONS_PER_BATCH, Batch, ImportRun, RunCreated
from agentstate.store.errors import Refusal
from agentstate.store.execute import execute
from agentstate.store.models import Run
from agentstate.store.rules import names
from tasks.conversations import Written
from tasks.drafts import RunDraft, UnreadableFile
from tasks.formats import FORMATS, format_of
from tasks.histories import check_history, rehearsed

IMPORTER = Caller(kind="system", name="import", scopes=frozenset(SCOPES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A file whose runs have all been checked. left_out: what of it is not in them, how often."""

    name: str
    runs: tuple[ImportRun, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """Keys to use instead of those in the files: `key` for the only run, or a prefix for all."""

    key: str | None = None
    prefix: str = ""

    def of(self, key: str) -> str:
        return names.check_run_key("key", self.key or f"{self.prefix}{key}")


def read_file(path: Path, *, renaming: Renaming = Renaming(), format: str | None = None) -> RunFile:
    """The runs of a file, checked as far as the store's rules reach. Raises UnreadableFile.

    format: of `FORMATS`; None: by the file's name and what it begins with.
    """
    name = str(path)
    text = read_text(path)
    known = FORMATS[format] if format else format_of(text=text, suffix=path.suffix)
    assert known.read is not None
    found = tuple(known.read(text=text, name=name))
    if len(found) > OPERATIONS_PER_BATCH:
        reason = f"at most {OPERATIONS_PER_BATCH} runs in a file"
        raise UnreadableFile(name=name, place="file", reason=reason)
    left_out: Counter[str] = Counter()
    for run in found:
        left_out.update(run.left_out if isinstance(run, RunDraft) else {})
    runs = tuple(_renamed(run, renaming, name) for run in found)
    return RunFile(name=name, runs=runs, left_out=left_out)


def _renamed(run: RunDraft | ImportRun, renaming: Renaming, name: str) -> ImportRun:
    if isinstance(run, RunDraft):
        run = rehearsed(run, name=name)
    try:
        renamed = replace(run, key=renaming.of(run.key))
    except Refusal as wrong:
        raise UnreadableFile(name=name, place=f"run {run.key}", reason=wrong.detail) from None
    check_history(renamed, name=name)
    return renamed


def read_text(path: Path) -> str:
    """A file's UTF-8 text with its line ends as they are. Raises UnreadableFile."""
    name = str(path)
    try:
        raw = path.read_bytes()
    except OSError as wrong:
        raise UnreadableFile(name=name, place="file", reason=str(wrong.strerror)) from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as wrong:
        line = raw.count(b"\n", 0, wrong.start) + 1
        reason = f"not UTF-8 (byte 0x{raw[wrong.start]:02x})"
        raise UnreadableFile(name=name, place=f"line {line}", reason=reason) from None


def keys_in_the_way(files: Sequence[RunFile]) -> list[str]:
    """Keys that exist already, or that two files bring."""
    keys = [run.key for file in files for run in file.runs]
    stored = set(Run.objects.filter(key__in=keys).values_list("key", flat=True))
    return sorted(key for key in set(keys) if key in stored or keys.count(key) > 1)


def is_there(file: RunFile) -> bool:
    """Whether it was imported already: the store has each of its runs, with its task and at least
    its events. The runs of one file come in together, so what was killed left all or none."""
    rows = Run.objects.filter(key__in=[run.key for run in file.runs])
    stored = {key: (task, last) for key, task, last in rows.values_list("key", "task", "last_seq")}
    return bool(file.runs) and all(
        (known := stored.get(run.key)) is not None
        and known[0] == run.task
        and known[1] >= len(run.events)
        for run in file.runs
    )


def write_file(file: RunFile) -> tuple[RunCreated, ...]:
    """Import the runs of a file, all or none. Raises BatchRefused with each one that cannot."""
    done = execute(Batch(operations=file.runs), by=IMPORTER)
    return cast("tuple[RunCreated, ...]", done.results)


def export(keys: Sequence[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """Each run as its key and its lines, all as of one moment. Raises NotFound before the first."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield from [(key, store_export.export(key)) for key in keys]


def written(keys: Sequence[str], *, format: str) -> Iterator[tuple[str, Written]]:
    """Each run in a format of others, all as of one moment. Raises NotFound before the first."""
    write = FORMATS[format].write
    assert write is not None
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for view in [reads.run(key) for key in keys]:
            yield view.run.key, write(store_export.whole(view))


def files_of(paths: Iterable[Path], *, format: str | None = None) -> Iterator[Path]:
    """The files themselves, and of a folder the trajectories and JSON lines in it, by name; where
    the format is told, .json as well."""
    suffixes = [".traj", ".jsonl", *([".json"] if format else [])]
    for path in paths:
        if path.is_dir():
            found = [p for p in sorted(path.iterdir()) if p.suffix in suffixes]
            if not found:
                reason = "holds " + " and ".join(f"no {suffix}" for suffix in suffixes) + " file"
                raise UnreadableFile(name=str(path), place="folder", reason=reason)
            yield from found
        else:
            yield path
