"""What the tests of Celery have in common: a sender, what its tasks wrote down, an operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import CeleryWorker, until


class Sending:
    """Sends tasks of celery_app to a worker's queue, and knows what they did in a folder."""

    def __init__(self, worker: CeleryWorker, folder: Path, server: Any) -> None:
        import celery_app  # it reads its environment

        self.worker, self.folder, self.server = worker, folder, server
        self._app = celery_app

    def __call__(self, task: str, *more: Any, queue: str | None = None, **options: Any) -> Any:
        """Send celery_app.<task>(folder, *more); its AsyncResult."""
        return self.signature(task, *more).apply_async(queue=queue or self.worker.name, **options)

    def signature(self, task: str, *more: Any) -> Any:
        return getattr(self._app, task).s(str(self.folder), *more).set(queue=self.worker.name)

    def send_again(self, chained: Any, *more: Any) -> None:
        """The first message of report | after once more, as a broker gives it out twice."""
        follows = self.signature("after").set(task_id=chained.id)
        self("report", *more, task_id=chained.parent.id, chain=[follows])

    def hold(self, name: str) -> None:
        """Have the step of this name wait, whoever gets there."""
        (self.folder / f"hold-{name}").touch()

    def go(self, name: str) -> None:
        (self.folder / f"hold-{name}").unlink()

    @property
    def did(self) -> list[str]:
        """What tasks wrote down, without who is where."""
        return [line for line in self._lines() if not line.startswith("in ")]

    def who_is_in(self, name: str, *, times: int = 1) -> int:
        """Wait until so many have got to this step; the process of the last one."""

        def found() -> list[str]:
            lines = [line.split() for line in self._lines()]
            return [words[2] for words in lines if words[:2] == ["in", name]]

        until(lambda: len(found()) >= times, lambda: self.worker.text)
        return int(found()[-1])

    def _lines(self) -> list[str]:
        path = self.folder / "did"
        return path.read_text().splitlines() if path.exists() else []

    def run_of(self, sent: Any) -> Any:
        return self.server.client("looks").run(f"celery-{sent.id}").read()

    def events_of(self, sent: Any) -> list[tuple[int, str]]:
        run = self.server.client("looks").run(f"celery-{sent.id}")
        return [(event.seq, event.type) for event in run.events()]

    def says(self, words: str, *, times: int = 1) -> None:
        """Wait until the worker has logged this so often."""
        until(lambda: self.worker.text.count(words) >= times, lambda: self.worker.text)

    def asked_again(self, sent: Any) -> None:
        """Wait until a message has been put off."""
        self.says(f"celery-{sent.id} is asked for again")

    def succeeded(self, sent: Any, *, times: int) -> None:
        """Wait until so many deliveries have come to their end, replayed ones included."""
        self.says(f"[{sent.id}] succeeded in", times=times)

    def did_times(self, begin: str, times: int) -> None:
        """Wait until so many lines begin like this."""

        def found() -> int:
            return sum(line.startswith(begin) for line in self.did)

        until(lambda: found() >= times, lambda: self.worker.text)
