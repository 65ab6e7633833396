"""The product's settings, with a home of the tests' own and nothing else changed that matters."""

import os
from pathlib import Path

# Read by agentstate.settings, so set before it is imported. `./run test-pg15` sets its own.
os.environ.setdefault("AGENTSTATE_PROCESS", "test")
os.environ["AGENTSTATE_HOME"] = os.environ.get("AGENTSTATE_TEST_HOME") or str(
    Path(__file__).resolve().parent.parent / "var" / "test"
)

from agentstate.settings import *  # noqa: F403
from agentstate.settings import DATABASES

# A name of this process alone, so that several runs share a server. pytest-django adds xdist's
# worker to it, and conftest.py drops what a killed run left.
TEST_DATABASE = f"test_agentstate_p{os.getpid()}"
DATABASES["default"]["TEST"] = {"NAME": TEST_DATABASE}

# A test that is rolled back is one long transaction, and a busy machine may stand still.
DATABASES["default"]["OPTIONS"].pop("options", None)

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one takes 0.3 s
AGENTSTATE_SHARED_ANSWERS = False  # time goes by in tests without a second of it
# Tests step the clock by days; those that are about sessions set their own limits.
SESSION_IDLE_SECONDS = SESSION_COOKIE_AGE = 3_650 * 86_400
