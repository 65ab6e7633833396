"""The two ways in which the server runs: in this process, or in one of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import IO, Any, cast

from agentstate_client.testing.finding import Checkout

# A first start makes a PostgreSQL and its tables, perhaps on a busy machine.
START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 180.0, 60.0, 15.0
WORDS_CHARS = 2_000


class ServerFailure(Exception):
    """The server did not start, or did not do what it was asked. The text has its own words."""


class Way(ABC):
    """A server that runs, and what can be asked of it beside its API. Everything may raise
    ServerFailure.
    """

    url: str
    key: str

    def make_key(self, scopes: Sequence[str]) -> str:
        return str(self._do("make_key", scopes=list(scopes)))

    def empty(self) -> None:
        self._do("empty")

    def sweep(self) -> None:
        self._do("sweep")

    def now(self) -> datetime:
        return _moment(self._do("now"))

    def set_clock(self, at: datetime) -> None:
        self._do("set_clock", at=at)

    def advance_clock(self, seconds: float) -> None:
        self._do("advance_clock", seconds=seconds)

    def release_clock(self) -> None:
        self._do("release_clock")

    @abstractmethod
    def stop(self) -> None:
        """End it, and what it keeps."""

    @abstractmethod
    def _do(self, name: str, **given: Any) -> Any:
        """Have it do what has this name, and give what comes of it."""


class Here(Way):
    """In this process: the server's threads beside those of the test."""

    def __init__(self, checkout: Checkout) -> None:
        _import_from(checkout)
        self._site = importlib.import_module("agentstate.ephemeral.site").Site()
        address = self._do("start")
        self.url, self.key = address.url, address.key

    def stop(self) -> None:
        self._do("stop")

    def _do(self, name: str, **given: Any) -> Any:
        try:
            return getattr(self._site, name)(**given)
        except Exception as failure:
            raise ServerFailure(f"{type(failure).__name__}: {failure}") from failure


class Apart(Way):
    """In a process of its own, which ends with this one, whatever ends this one."""

    def __init__(self, checkout: Checkout) -> None:
        self._asking = threading.Lock()
        self._words = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115  until `stop`
        self._child = subprocess.Popen(  # noqa: S603  the checkout's own Python, and no shell
            [str(checkout.python()), "-m", "agentstate.ephemeral"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            bufsize=0,
            cwd=checkout.folder,
            env=_environment(checkout),
            start_new_session=True,  # Ctrl-C is for this process, which then ends the other
        )
        self._calls = cast("IO[bytes]", self._child.stdin)
        self._answers = cast("IO[bytes]", self._child.stdout)
        try:
            address = self._do("start")
        except BaseException:
            self.stop()
            raise
        self.url, self.key = str(address["url"]), str(address["key"])

    def stop(self) -> None:
        """It ends when its input does."""
        self._calls.close()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._answers.close()
        self._words.close()

    def _do(self, name: str, **given: Any) -> Any:
        call = json.dumps({"do": name, **given}, default=datetime.isoformat) + "\n"
        with self._asking:
            answer = self._answer(
                call.encode(), START_SECONDS if name == "start" else ANSWER_SECONDS
            )
        if "failed" in answer:
            raise ServerFailure(str(answer["failed"]))
        return answer.get("done")

    def _answer(self, call: bytes, seconds: float) -> dict[str, Any]:
        line = b""
        try:
            self._calls.write(call)
            if select.select([self._answers], [], [], seconds)[0]:
                line = self._answers.readline()
        except BaseException as failure:
            self._child.kill()  # else its answer would be taken for that to the next call
            if not isinstance(failure, (OSError, ValueError)):
                raise
        if not line:
            self._child.kill()
            raise ServerFailure(f"the test server has stopped: {self._last_words()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        if self._words.closed:
            return "it was told to"
        self._words.seek(0)
        said = self._words.read().decode(errors="replace").strip()
        return said[-WORDS_CHARS:] or "it said nothing"


def run_server(checkout: Checkout, *, where: str = "auto") -> Way:
    """Start the server. where: `here` (in this process), `apart`, or `auto`: here if that can be.

    Raises ServerMissing, ServerFailure.
    """
    if where == "here" or (where == "auto" and checkout.suits_this_process()):
        return Here(checkout)
    return Apart(checkout)


def _import_from(checkout: Checkout) -> None:
    """Make the package importable, and nothing else of the checkout: it also holds folders with
    names such as `tasks` and `tests`, which the project under test may have too.
    """
    if "agentstate" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "agentstate",
        checkout.package / "__init__.py",
        submodule_search_locations=[str(checkout.package)],
    )
    if spec is None or spec.loader is None:
        raise ServerFailure(f"{checkout.package} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["agentstate"] = module
    spec.loader.exec_module(module)


def _environment(checkout: Checkout) -> dict[str, str]:
    """The caller's, but for what is about another Python's modules."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    return kept | {"PYTHONPATH": str(checkout.folder), "PYTHONSAFEPATH": "1"}


def _moment(found: Any) -> datetime:
    return found if isinstance(found, datetime) else datetime.fromisoformat(str(found))
