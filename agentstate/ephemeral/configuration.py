"""Django's settings for a site of tests, made in a process that may have other plans.

The product's settings are read as if the environment said nothing: a DATABASE_URL that is meant for
the caller's own project must not lead here, where every test empties the database.
"""

from __future__ import annotations

import importlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from agentstate import postgres
from agentstate.embedded import PORT, EmbeddedFailure

HERE = Path(__file__).resolve().parent
# What the user's tests may have a module of the same name for, and what needs these.
LEFT_OUT = ("dashboard", "tasks", "unfold", "django.contrib.admin", "allauth")
# Not ours to read, or read later than the settings are; AGENTSTATE_PG_BIN is meant for us.
OURS = ("AGENTSTATE_", "CELERY_", "DATABASE_URL", "DATABASE_SESSION_URL", "DJANGO_")
KEPT = {"AGENTSTATE_PG_BIN"}


class Unfit(Exception):
    """This process cannot have such a site. The text is for a person, with what to do."""


def configure(home: Path, *, database: str) -> None:
    """Configure Django in this process, without a trace in its environment or its logging.

    home: for the server and its data. database: a name that nobody else has. Raises Unfit where
    Django is configured already.
    """
    from django.conf import settings

    if settings.configured:
        raise Unfit("Django is configured in this process already, with other settings")
    with only_environment(
        AGENTSTATE_HOME=str(home),
        AGENTSTATE_SECRET_KEY=secrets.token_urlsafe(50),
        AGENTSTATE_PROCESS="test",
    ):
        product = importlib.import_module("agentstate.settings")
        settings.configure(**settings_of(product, database))
        importlib.import_module("agentstate.asgi")  # calls django.setup


def settings_of(product: Any, database: str) -> dict[str, Any]:
    """The product's settings, but for what is not there."""
    found = {name: getattr(product, name) for name in dir(product) if name.isupper()}
    # The port is in the socket's name: PGPORT, for another server, must not change it.
    parts = found["DATABASE_PARTS"] | {"dbname": database, "port": str(PORT)}
    return found | {
        "INSTALLED_APPS": [app for app in found["INSTALLED_APPS"] if not app.startswith(LEFT_OUT)],
        "CONSOLE_MIDDLEWARE": [
            one for one in found["CONSOLE_MIDDLEWARE"] if not one.startswith(LEFT_OUT)
        ],
        "ROOT_URLCONF": "agentstate.ephemeral.urls",
        # The console's own are left out with it; nobody logs in here.
        "AUTHENTICATION_BACKENDS": ["django.contrib.auth.backends.ModelBackend"],
        "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
        "DATABASE_PARTS": parts,
        "SESSION_PARTS": parts,
        "DATABASES": {"default": postgres.django_entry(parts, application_name="agentstate test")},
        "LOGGING_CONFIG": None,  # whose process it is decides what is logged, and where
        "DEBUG": False,
    }


@contextmanager
def only_environment(**variables: str) -> Iterator[None]:
    """Within the block, the environment says of us what is given here, and nothing else."""
    before = dict(os.environ)
    hidden = [name for name in before if name.startswith(OURS) and name not in KEPT]
    try:
        for name in hidden:
            del os.environ[name]
        os.environ.update(variables)
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def home() -> Path:
    """The folder of this user's and this release's test servers; all their processes share one.

    What is in it can be thrown away whenever no test runs. Raises EmbeddedFailure when somebody
    else has made it.
    """
    uid = os.geteuid()
    # Another PostgreSQL cannot read what one has made.
    made_by = f"{HERE}\0{os.environ.get('AGENTSTATE_PG_BIN', '')}"
    tag = sha256(made_by.encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"agentstate-tests-{uid}-{tag}"
    # Root's PostgreSQL runs as another user, who has to pass through.
    folder.mkdir(mode=0o711 if uid == 0 else 0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise EmbeddedFailure(f"{folder} belongs to somebody else: remove it, or set TMPDIR")
    return folder
