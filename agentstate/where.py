"""Where this copy of agentstate lies: in a checkout, or in a wheel that was installed.

A checkout has the console (`dashboard`), the background work (`tasks`) and the templates beside
this package. Others have packages of these names, too, so the wheel has them inside of it, in
`parts/`, and only the processes of a site look there.
Why: docs/decisions/0056-wheels.md.
"""

import os
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PARTS = PACKAGE / "parts"
IS_INSTALLED = PARTS.is_dir()
# The folder that holds `dashboard`, `tasks` and `templates`.
BASE = PARTS if IS_INSTALLED else PACKAGE.parent
# What a person types to run a command.
COMMAND = "agentstate" if IS_INSTALLED else "./run"


def search_path() -> list[str]:
    """What a child process of a site has to find, in this order: the client among it, which a
    checkout has as a folder and a wheel requires as a package."""
    if IS_INSTALLED:
        return [str(PARTS), str(PACKAGE.parent)]
    return [str(BASE), str(BASE / "client" / "src")]


def make_importable() -> None:
    """Have this process find the console and the background work, before others of their names."""
    if str(BASE) not in sys.path:
        sys.path.insert(0, str(BASE))


def state_folder() -> Path:
    """Where a site keeps its embedded data, secret key and logs when AGENTSTATE_HOME says nothing.

    A checkout: its var/. A wheel: the platform's folder for what a program keeps, never the
    folder that it was installed in, which the next release replaces.
    """
    if not IS_INSTALLED:
        return BASE / "var"
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "agentstate"
    named = os.environ.get("XDG_STATE_HOME", "")
    # The specification has it that a relative path is no path.
    kept = Path(named) if os.path.isabs(named) else home / ".local" / "state"
    return kept / "agentstate"
