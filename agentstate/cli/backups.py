"""`./run backup` and `./run restore`: the whole store in one file, and back."""

import argparse
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agentstate import where
from agentstate.cli.database import load_settings, running_server
from agentstate.cli.output import CommandFailure, progress, result

if TYPE_CHECKING:
    import psycopg

SUFFIX = ".dump"
LISTED_MOST = 30
NAMED_BY_TIME = re.compile(r"agentstate-\d{8}T\d{6}Z\.dump")
DRAFT_SECONDS = 24 * 3_600
# A row in any of these is somebody's: a store that was only made ready has none.
OF_SOMEBODY = (
    "agentstate_run", "agentstate_budget", "agentstate_apikey", "agentstate_operatoraction",
    "auth_user",
)  # fmt: skip
OTHERS = """
SELECT DISTINCT application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND application_name LIKE 'agentstate %' AND application_name <> 'agentstate command'
"""
# Ours by name: the tables of this release's apps and of older ones', the log's weeks among them.
DROP_OURS = """
DO $ours$
DECLARE found record;
BEGIN
    FOR found IN
        SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
            AND c.relname ~ {pattern} AND NOT c.relispartition
    LOOP
        EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', found.name);
    END LOOP;
    FOR found IN
        SELECT c.oid::regclass AS name FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'S'
            AND c.relname ~ '^agentstate_'
    LOOP
        EXECUTE format('DROP SEQUENCE IF EXISTS %s CASCADE', found.name);
    END LOOP;
    FOR found IN
        SELECT p.oid::regprocedure AS name FROM pg_proc p
        WHERE p.pronamespace = 'public'::regnamespace AND p.proname ~ '^agentstate_'
    LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', found.name);
    END LOOP;
END $ours$;
"""


def prepare(options: argparse.Namespace) -> int:
    """`./run prepare`: what ./run serve does before it serves."""
    load_settings()
    from agentstate.prepare import prepare

    with running_server():
        done = prepare(report=progress)
    result(f"PostgreSQL {done.server} is ready, {done.migrations} migrations were run")
    return 0


# --- backup -------------------------------------------------------------------------------------


def backup(options: argparse.Namespace) -> int:
    """`./run backup FILE|DIR`: one moment of the store, while everybody works on."""
    load_settings()
    from django.conf import settings

    from agentstate import pg_tools, prepare

    if options.keep is not None and not options.to.is_dir():
        raise CommandFailure("--keep goes with a folder, in which the older ones are")
    began = time.monotonic()
    with running_server(), told_failures():
        with prepare.connect(settings.SESSION_PARTS) as session:
            refuse_what_is_no_store(session)
            refuse_distributed(session)
            tools = pg_tools.find(session.info.server_version)
        file = file_of(options.to)
        draft = draft_of(file)
        try:
            pg_tools.dump(tools, settings.SESSION_PARTS, draft)
            pg_tools.read_contents(tools, draft)
            made_lasting(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    size = file.stat().st_size
    progress(f"{size / 2**20:.1f} MiB in {time.monotonic() - began:.1f} s")
    if not os.environ.get("AGENTSTATE_SECRET_KEY", "").strip():
        progress(f"keep beside it: {settings.AGENTSTATE_HOME / 'secret-key'} opens what is sealed")
    result(str(file))
    if options.keep is not None:
        drop_older(options.to, keep=options.keep)
    return 0


def drop_older(folder: Path, *, keep: int) -> None:
    """Remove our own backups of a folder but the newest `keep`, by the time in their names.

    Only once there is a new one that is whole: a backup that fails night after night takes none of
    those away that did not. Drafts of a backup that was killed go when they are a day old.
    """
    kept = sorted(path for path in folder.iterdir() if NAMED_BY_TIME.fullmatch(path.name))
    for old in kept[:-keep]:
        old.unlink()
        progress(f"removed {old.name}")
    for draft in folder.glob(f".agentstate-*{SUFFIX}.*"):
        if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
            draft.unlink()
            progress(f"removed {draft.name}, which was never finished")


def file_of(wanted: Path) -> Path:
    """The file itself, or one named by the time in a folder. Raises CommandFailure."""
    if wanted.is_dir():
        return wanted / f"agentstate-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"
    if wanted.exists():
        raise CommandFailure(f"{wanted} is there already: name another file, or a folder")
    if not wanted.parent.is_dir():
        raise CommandFailure(f"{wanted.parent} is no folder")
    return wanted


def draft_of(file: Path) -> Path:
    """An empty file beside it, for its owner alone: it will hold what agents sent, and whose keys
    there are. Its name is new each time: in a container the process id is not, and one that was
    killed left its draft."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return draft


def made_lasting(draft: Path, file: Path) -> None:
    """On the disk before it has its name: whoever sees the name has all of it."""
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    draft.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def refuse_what_is_no_store(session: "psycopg.Connection") -> None:
    row = session.execute("SELECT to_regclass('agentstate_run')").fetchone()
    if row == (None,):
        raise CommandFailure("there is no store in this database")


def refuse_distributed(session: "psycopg.Connection") -> None:
    """pg_dump of a coordinator has not one event in it, and says nothing of that."""
    from agentstate.store import distribution

    with session.cursor() as cursor:
        if distribution.look(cursor):
            raise CommandFailure(
                "this store is distributed: its log is on other servers, which pg_dump does not "
                "reach. Back up and restore all of them by PostgreSQL's own means (docs/scale.md)"
            )


# --- restore ------------------------------------------------------------------------------------


def restore(options: argparse.Namespace) -> int:
    """`./run restore FILE`: the store as it was; and what must not be as it was, made safe."""
    load_settings()
    from django.conf import settings

    from agentstate import prepare
    from agentstate.cli.site import only_start
    from agentstate.store import restoring

    if options.file is not None and not options.file.is_file():
        raise CommandFailure(f"there is no file {options.file}")
    if options.finish and options.end_keys:
        raise CommandFailure(
            f"--end-keys is said when a restore begins; for now: {where.COMMAND} keys --revoke"
        )
    with only_start(settings.AGENTSTATE_HOME), running_server(), told_failures():
        if options.file is not None:
            load_file(
                options.file,
                replace=options.replace,
                reason=options.reason,
                end_keys=options.end_keys,
            )
        elif options.already:
            refuse_others_of_ours()
            begun = restoring.Begun(
                source="other means", reason=options.reason, end_keys=options.end_keys
            )
            restoring.close_gate(begun)
        elif restoring.begun() is None:
            raise CommandFailure("there is no restore that was begun and not finished")
        done = prepare.prepare(report=progress).restored
        if done is None:
            raise CommandFailure("the restore was finished by another start")
        tell(done)
    return 0


def load_file(file: Path, *, replace: bool, reason: str, end_keys: bool) -> None:
    """Put the backup in the place of what is there. Raises CommandFailure, with all as it was.

    end_keys: no key of the backup stays valid. Those that were revoked in the store that is
    overwritten, and people who could not sign in to it any more, never come back.
    """
    from django.conf import settings

    from agentstate import pg_tools, prepare
    from agentstate.store import restoring

    if settings.EMBEDDED:
        prepare.make_database()
    began = time.monotonic()
    with prepare.connect(settings.SESSION_PARTS) as session:
        prepare.refuse_old(session)
        version = session.info.server_version
        tools = pg_tools.find(version, reading=file)
        contents = pg_tools.read_contents(tools, file)
        if not any(" TABLE DATA public agentstate_run " in line for line in contents):
            raise CommandFailure(f"{file} is a backup of something else")
        refuse_others(session)
        refuse_distributed(session)
        there = of_somebody(session)
        if there and not replace:
            raise CommandFailure(
                f"this database has something in it ({there}), and a restore would put the backup "
                "in its place. Say --replace if that is meant; take a backup of it first"
            )
        floors = floors_of(session)
        over, off = keys_over(session), people_off(session)
    progress(f"{file.name} is loaded …")
    begun = restoring.Begun(
        source=file.name, reason=reason, feed_floor=floors[0], token_floor=floors[1],
        keys_over=over, people_off=off, end_keys=end_keys,
    )  # fmt: skip
    pg_tools.load(
        tools, settings.SESSION_PARTS, file, version=version,
        before=DROP_OURS.format(pattern=our_tables()),
        after=f"SET LOCAL search_path = public;\n{restoring.closing_sql(begun)}",
    )  # fmt: skip
    progress(f"loaded in {time.monotonic() - began:.1f} s")


def refuse_others_of_ours() -> None:
    from django.conf import settings

    from agentstate import prepare

    with prepare.connect(settings.SESSION_PARTS) as session:
        refuse_what_is_no_store(session)
        refuse_others(session)


def refuse_others(session: "psycopg.Connection") -> None:
    """Raises CommandFailure while processes of ours are connected: they remember too much."""
    names = sorted(
        str(name).removeprefix("agentstate ") for (name,) in session.execute(OTHERS).fetchall()
        if name != "agentstate prepare"
    )  # fmt: skip
    if names:
        raise CommandFailure(
            f"processes of agentstate are connected ({', '.join(names)}): stop them first, on "
            "every machine"
        )


def of_somebody(session: "psycopg.Connection") -> str:
    """What is in the store, in words; nothing when it is empty."""
    from psycopg import sql

    found = []
    for table in OF_SOMEBODY:
        if session.execute("SELECT to_regclass(%s)", [table]).fetchone() == (None,):
            continue
        count = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT 1000) AS found")
        row = session.execute(count.format(sql.Identifier(table))).fetchone()
        if row and row[0]:
            number = "1,000 or more" if row[0] == 1000 else str(row[0])
            found.append(f"{number} in {table}")
    return ", ".join(found)


def floors_of(session: "psycopg.Connection") -> tuple[int, int]:
    """How far what is overwritten had come; zeros when there is nothing."""
    from agentstate.store import restoring

    row = session.execute(
        "SELECT to_regclass('agentstate_feedhead'), to_regclass('agentstate_fence')"
    ).fetchone()
    if row is None or None in row:
        return 0, 0
    position, token = session.execute(restoring.FLOORS).fetchone() or (0, 0)
    return int(position), int(token)


def keys_over(session: "psycopg.Connection") -> list[str]:
    """The ids of what was revoked in the store that is overwritten."""
    if session.execute("SELECT to_regclass('agentstate_apikey')").fetchone() == (None,):
        return []
    asked = "SELECT id::text FROM agentstate_apikey WHERE revoked_at IS NOT NULL ORDER BY 1"
    return [found for (found,) in session.execute(asked).fetchall()]


def people_off(session: "psycopg.Connection") -> list[tuple[str, str]]:
    """Who could not sign in any more to the store that is overwritten: name, time of making."""
    if session.execute("SELECT to_regclass('auth_user')").fetchone() == (None,):
        return []
    asked = "SELECT username, date_joined FROM auth_user WHERE NOT is_active ORDER BY 1"
    return [(name, made.isoformat()) for name, made in session.execute(asked).fetchall()]


def our_tables() -> str:
    """A pattern, as a literal of SQL: tables of the installed apps, by their prefix."""
    from django.apps import apps

    labels = {config.label for config in apps.get_app_configs() if config.models_module}
    prefixes = {re.escape(table.split("_")[0]) for table in _table_names()} | labels | {"django"}
    return f"'^({'|'.join(sorted(prefixes))})_'"


def _table_names() -> list[str]:
    from django.db import connection

    return connection.introspection.django_table_names()


def tell(done: object) -> None:
    from agentstate.store.restoring import Restored

    assert isinstance(done, Restored)
    result(
        f"restored from {done.source}: {done.leases_ended} leases are ended, tokens go on behind "
        f"{done.token_begins}, the feed behind {done.feed_begins}"
    )
    for number, what in (
        (done.keys_ended, "API keys of the backup are revoked"),
        (done.people_off, "people of the backup may not sign in"),
    ):
        if number:
            progress(f"{number} {what}, as it was when it was overwritten, or as you said")
    progress(
        "Everybody signs in anew, by the password of the backup. "
        f"{where.COMMAND} manage verify derives "
        "everything anew. What was revoked or switched off since the backup, where nothing could "
        "be read of that, is valid again; look through these:"
    )
    tell_who_may_come_in()


def tell_who_may_come_in() -> None:
    """Keys that are valid and people who may sign in, whoever was there last before others."""
    from django.contrib.auth.models import User

    from agentstate.store.keys import every_key

    keys = [(f"key {one.name} ({','.join(one.scopes)})", one.last_used_at)
            for one in every_key() if one.valid]  # fmt: skip
    people = [(f"{one.username} ({', '.join(g.name for g in one.groups.all()) or 'no role'})",
               one.last_login) for one in User.objects.filter(is_active=True)]  # fmt: skip
    for some, never, how_to_end in (
        (keys, "never used", f"{where.COMMAND} keys --revoke NAME"),
        (people, "never signed in", "Admin → People"),
    ):
        some.sort(key=lambda one: one[1].timestamp() if one[1] else 0.0, reverse=True)
        for name, at in some[:LISTED_MOST]:
            progress(f"  {name}, {f'last there {at:%Y-%m-%d %H:%M} UTC' if at else never}")
        if len(some) > LISTED_MOST:
            progress(f"  and {len(some) - LISTED_MOST} more ({how_to_end})")


@contextmanager
def told_failures() -> Iterator[None]:
    from agentstate.pg_tools import ToolFailure

    try:
        yield
    except ToolFailure as failure:
        raise CommandFailure(str(failure)) from None
