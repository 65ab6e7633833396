"""Runs in and out as files, and Django's own commands, with the database running meanwhile."""

import os
import sys
from collections.abc import Sequence

from agentstate import where
from agentstate.cli.database import load_settings, ready_database, running_server


def import_runs(arguments: Sequence[str]) -> int:
    """`./run import FILE…`: the management command import_runs."""
    return _command("import_runs", "import", arguments)


def export_runs(arguments: Sequence[str]) -> int:
    """`./run export KEY…`: the management command export_runs."""
    return _command("export_runs", "export", arguments)


def _command(name: str, shown: str, arguments: Sequence[str]) -> int:
    load_settings()
    from django.core.management import get_commands, load_command_class

    command = load_command_class(str(get_commands()[name]), name)
    argv = [where.COMMAND, shown, *arguments]
    if asks_for_help(arguments):
        command.run_from_argv(argv)
    with ready_database():
        command.run_from_argv(argv)  # ends the process itself when it fails
    return 0


def manage(arguments: Sequence[str]) -> int:
    """`./run manage …`: any of Django's commands."""
    load_settings()
    from django.conf import settings
    from django.core.management import execute_from_command_line

    from agentstate import prepare

    argv = [f"{where.COMMAND} manage", *arguments]
    if not arguments or arguments[0] == "help" or asks_for_help(arguments):
        execute_from_command_line(argv)
        return 0
    with running_server():
        if settings.EMBEDDED:
            prepare.make_database()  # a first start may have been killed before it did
            add_database_tools()
        execute_from_command_line(argv)
    return 0


def celery(arguments: Sequence[str]) -> int:
    """`./run celery …`: Celery's own commands for the background work: worker, beat, inspect."""
    load_settings()
    from celery.__main__ import main

    # Not Celery's own search for an app, which looks into the folder where somebody stands first.
    sys.argv = [f"{where.COMMAND} celery", "-A", "tasks.app", *arguments]
    main()
    return 0


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help", "--version"} & set(arguments))


def add_database_tools() -> None:
    """psql and pg_dump of the embedded server's own version, for dbshell."""
    from django.conf import settings

    from agentstate.embedded import EmbeddedPostgres

    tools = EmbeddedPostgres(settings.AGENTSTATE_HOME / "postgres").binaries
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
