"""The database for the length of a command: the embedded server if need be, ready for use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentstate import where
from agentstate.cli.output import CommandFailure, progress
from agentstate.embedded import EmbeddedPostgres


def load_settings() -> None:
    """Read the settings and start Django. Raises BadSetting for a variable that breaks its rule.

    AGENTSTATE_HOME is made absolute first, since children run in another folder than the caller.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    # Children that are not started by ./run find the same modules, the client among them, and no
    # others of their names in the folder where somebody stands.
    os.environ["PYTHONPATH"] = os.pathsep.join(where.search_path())
    os.environ["PYTHONSAFEPATH"] = "1"
    where.make_importable()
    if home := os.environ.get("AGENTSTATE_HOME", "").strip():
        os.environ["AGENTSTATE_HOME"] = str(Path(home).expanduser().absolute())
    import django

    try:
        django.setup()
    except OSError as error:
        raise CommandFailure(f"AGENTSTATE_HOME: {error.filename}: {error.strerror}") from error
    use_sessions()


def use_sessions() -> None:
    """Go past a pooler: commands migrate, lock and restore in sessions of their own."""
    from django.conf import settings

    from agentstate import postgres

    if settings.SESSION_PARTS != settings.DATABASE_PARTS:
        settings.DATABASES["default"].update(
            postgres.django_entry(settings.SESSION_PARTS, application_name="agentstate command")
        )


@contextmanager
def running_server() -> Iterator[EmbeddedPostgres | None]:
    """Have the embedded server run and yield it; nothing when DATABASE_URL names another."""
    from django.conf import settings
    from django.db import connections

    if not settings.EMBEDDED:
        yield None
        return
    server = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres")
    if not server.is_listening():
        is_new = not (server.data / "PG_VERSION").exists()
        progress(f"PostgreSQL {'is set up' if is_new else 'starts'} in {server.base} …")
    with server.held():
        try:
            yield server
        finally:
            connections.close_all()


@contextmanager
def ready_database() -> Iterator[None]:
    """The server, with a schema that fits this release."""
    from agentstate.prepare import prepare

    with running_server():
        prepare(report=progress)
        yield
