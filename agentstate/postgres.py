"""Where the database is: the embedded server's socket, or what DATABASE_URL says.

The same facts go to three readers: Django's DATABASES, Celery's broker (pgmq), and plain psycopg.
"""

import getpass
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from agentstate import embedded, env

OLDEST = 150_000  # of server_version; 15 is the oldest release that the test suite runs on
NAMES = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
CONNECT_TIMEOUT_SECONDS = 5
# No command of ours leaves the database waiting for longer than a moment. A process that stands
# still in the middle of one keeps its locks, and dead rows of all tables, until its session is
# ended.
IDLE_TRANSACTION_SECONDS = 60

# A connection whose other end says nothing any more, not even that it got what was sent, is over:
# one in use after tcp_user_timeout, one that rests after keepalives_idle and as long again. By
# default the kernel waits a quarter of an hour for the one and two hours for the other. Shorter:
# a network that loses packets for a moment costs connections. Over a Unix socket without meaning;
# what DATABASE_URL says goes before it. Why: docs/decisions/0041-outages.md.
TCP: dict[str, str] = {
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "6000",
}
# The same for the server's end, where a session whose client is gone keeps its locks. There it is
# a setting of the session.
SERVER_TCP: dict[str, str] = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "6000",
}


def parse(url: str, *, name: str = "DATABASE_URL") -> dict[str, str]:
    """The parts of a DATABASE_URL: libpq's names (host, port, user, dbname, sslmode, …).

    name: of the variable, for whoever has to mend it.
    """
    rule = "postgresql://user:password@host:port/name, or libpq's key=value form"
    try:
        parts = {part: str(value) for part, value in conninfo_to_dict(url).items() if value}
    except ProgrammingError:
        raise env.BadSetting(name, url, rule, secret=True) from None
    ports = parts.get("port", "5432").split(",")  # one for each of several hosts
    if not all(port.isascii() and port.isdigit() for port in ports):
        raise env.BadSetting(name, url, rule, secret=True)
    if "dbname" not in parts:
        raise env.BadSetting(name, url, rule + ", with a database name", secret=True)
    return parts


def embedded_parts(socket_folder: str) -> dict[str, str]:
    """The same for the embedded server, which trusts whoever can enter its socket's folder.

    With its port, a part of the socket's name: libpq would take another from PGPORT.
    """
    return {
        "host": socket_folder,
        "port": str(embedded.PORT),
        "user": "agentstate",
        "dbname": "agentstate",
    }


def django_entry(
    parts: dict[str, str], *, application_name: str, pooled: bool = False
) -> dict[str, Any]:
    """An entry of Django's DATABASES. Connections last for a minute and are tried before use.

    pooled: each transaction may have another session, so there are no cursors on the server, and
    nothing is set for a session; idle transactions are the pooler's to end.
    """
    options: dict[str, Any] = TCP | {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "application_name": application_name,
    }
    options |= {name: value for name, value in parts.items() if name not in NAMES}
    if not pooled:
        limit = f"-c idle_in_transaction_session_timeout={IDLE_TRANSACTION_SECONDS}s"
        # What the address says comes later, and counts.
        options["options"] = f"{limit} {options.get('options', '')}".rstrip()
    entry = {django: parts.get(libpq, "") for libpq, django in NAMES.items()}
    return entry | {
        "ENGINE": "agentstate.django_postgres",
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,
        "DISABLE_SERVER_SIDE_CURSORS": pooled,
    }


def conninfo(parts: dict[str, str], **changes: Any) -> str:
    """One string for psycopg. changes: parts to set or, with None, to leave out."""
    merged = TCP | {"connect_timeout": CONNECT_TIMEOUT_SECONDS} | parts | changes
    return make_conninfo(**{name: value for name, value in merged.items() if value is not None})


def broker_conninfo(parts: dict[str, str]) -> str:
    """What the pgmq broker gets as `conn_string`.

    It takes the string apart, keeps five parts, and puts them together again without quoting. So
    each value is quoted here already, and what is beyond the five (sslmode, …) rides behind the
    password. Nothing may be left out: it would put its own defaults in place of libpq's.
    """
    told = TCP | {"connect_timeout": str(CONNECT_TIMEOUT_SECONDS)} | parts
    extras = [f"{name}={_quoted(value)}" for name, value in told.items() if name not in NAMES]
    return make_conninfo(
        host=_quoted(parts.get("host", "")),
        port=_quoted(parts.get("port", "5432")),
        dbname=_quoted(parts["dbname"]),
        user=_quoted(parts.get("user") or getpass.getuser()),
        password=" ".join([_quoted(parts.get("password", "")), *extras]),
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
