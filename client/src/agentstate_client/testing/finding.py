"""Where the server is, and with which Python it can run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

VARIABLE = "AGENTSTATE_CHECKOUT"
OLDEST_PYTHON = (3, 12)
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)(\s*;)?")


class ServerMissing(Exception):
    """There is no server to test with. The text says where it was looked for and what to do."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of agentstate, or a server that pip installed from a wheel. folder: that which
    holds the package `agentstate`: with `run` beside it, or site-packages.
    """

    folder: Path

    @property
    def package(self) -> Path:
        return self.folder / "agentstate"

    @property
    def is_whole(self) -> bool:
        """Whether the server is there, in a release that has a site for tests."""
        return (self.package / "ephemeral" / "__main__.py").is_file()

    @property
    def is_installed(self) -> bool:
        """From a wheel, which has the rest of the server inside of the package."""
        return (self.package / "parts").is_dir()

    def suits_this_process(self) -> bool:
        """Whether the server can run here: its very dependencies are installed, and nobody else
        uses Django, which a process can configure only once.
        """
        django = sys.modules.get("django.conf")
        taken = os.environ.get("DJANGO_SETTINGS_MODULE") or (
            django is not None and django.settings.configured
        )
        return not taken and sys.version_info >= OLDEST_PYTHON and self._has_dependencies()

    def _has_dependencies(self) -> bool:
        if self.is_installed:  # pip has seen to it
            return self.package.parent == _importable()
        pins = PIN.findall((self.folder / "requirements.lock").read_text("utf-8"))
        return bool(pins) and all(
            _installed(name) == version or (marker and _installed(name) is None)
            for name, version, marker in pins
        )

    def python(self) -> Path:
        """A Python with the server's dependencies. Raises ServerMissing."""
        own = self.folder / ".venv" / "bin" / "python"
        if own.exists():
            return own
        if sys.version_info >= OLDEST_PYTHON and self._has_dependencies():
            return Path(sys.executable)
        raise ServerMissing(
            f"the server in {self.folder} has no Python environment yet: run "
            f"`{self.folder / 'run'} --help` once, which makes one"
        )


def find_checkout(named: str | None = None) -> Checkout:
    """The checkout: the one that is named, else the first that is found. Raises ServerMissing."""
    if told := named or os.environ.get(VARIABLE, "").strip():
        checkout = Checkout(Path(os.path.abspath(Path(told).expanduser())))
        if not checkout.is_whole:
            raise ServerMissing(f"{checkout.folder} is not a checkout of agentstate")
        return checkout
    for folder in (_importable(), _around(), _installed_from()):
        if folder is not None and Checkout(folder).is_whole:
            return Checkout(folder)
    raise ServerMissing(
        "no agentstate server to test with. It is not on an index: check agentstate out, and name "
        f"the folder by the variable {VARIABLE}, or for pytest by agentstate_checkout in its "
        "configuration file"
    )


def _importable() -> Path | None:
    """The folder that holds the package, when this process could import it."""
    found = importlib.util.find_spec("agentstate")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return Path(places[0]).parent if places else None


def _around() -> Path | None:
    """The folder around client/src/agentstate_client/testing, when that is how this file lies."""
    parents = Path(__file__).resolve().parents
    return parents[4] if len(parents) > 4 else None


def _installed_from() -> Path | None:
    """The folder around the client, when pip installed that from a folder (PEP 610)."""
    try:
        noted = importlib.metadata.distribution("agentstate-client").read_text("direct_url.json")
        address = urlsplit(json.loads(noted or "{}").get("url", ""))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return Path(unquote(address.path)).parent if address.scheme == "file" else None


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
