"""`./run test-integrations`: the client with the frameworks that it has something for.

They are no dependencies of ours: their versions are in client/integrations/requirements.txt, and
they are installed in var/integrations, the first time and whenever that file has changed.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agentstate.cli.apart import python_of

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "client" / "integrations"
WANTED = TESTS / "requirements.txt"
FOLDER = ROOT / "var" / "integrations"


def test_integrations(arguments: Sequence[str]) -> int:
    """Run them; arguments go to pytest."""
    python = integrations_python()
    # The tests find the client where it lies, and the server's own Python in this checkout.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "client" / "src"), str(TESTS)]),
        "AGENTSTATE_CHECKOUT": str(ROOT),
    }
    # They wait about as long as they work. Each of the two has a server and brokers of its own.
    chosen = any(word.startswith(("-n", "--numprocesses")) for word in arguments)
    spread = [] if chosen else ["-n", "2", "--dist", "loadfile"]
    plugin = ["-p", "agentstate_client.testing.plugin"]
    command = [str(python), "-m", "pytest", *plugin, *spread, *arguments]
    return subprocess.run(command, cwd=TESTS, env=environment, check=False).returncode


def integrations_python() -> Path:
    """The Python of their environment, made if need be. Raises CommandFailure with pip's words."""
    return python_of(FOLDER, WANTED, "the frameworks")
