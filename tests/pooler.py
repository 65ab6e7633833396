"""PgBouncer as deploy/ has it, before a PostgreSQL of its own: for `./run test-pooler`."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentstate.embedded import FORGETFUL, PORT, EmbeddedPostgres
from tests.bootstrap.layout import DEPLOY, accepts, free_port, patiently, program

# Here a session is nobody's own, and these need one: they set something in it for good, cut it or
# ask what is set, which process answers, what was prepared, or which one waits for which.
_OF_SESSIONS: dict[str, tuple[str, ...]] = {
    "tests/api/test_examples.py": ("test_every_example_is_what_the_server_answers",),
    "tests/api/test_health.py": (
        "test_a_database_that_can_only_be_read_is_503_for_whoever_writes",
    ),
    "tests/api/test_load.py": (
        "test_an_export_to_a_slow_reader_is_whole_all_the_same",
        "test_clients_that_send_or_read_slowly_hold_no_connection_to_the_database",
    ),
    "tests/api/test_problems.py": (
        "test_a_database_that_can_only_be_read_is_read_and_a_write_is_503",
    ),
    "tests/api/test_writes.py": (
        "test_a_request_whose_first_try_still_runs_is_told_to_come_again",
    ),
    "tests/bootstrap/test_doctor.py": (
        "test_no_pooler_is_no_pooler",
        "test_readiness_tells_why_the_database_cannot_be_written",
        "test_why_it_cannot_be_reached_and_what_to_do[parts3-make the role]",
    ),
    "tests/cases/test_limits.py": ("test_a_session_that_stands_still_in_a_transaction_is_ended",),
    "tests/dashboard/test_contention_locks.py": (
        "test_a_long_outside_lock_is_the_cause_with_who_waits_and_how_it_ends",
        "test_who_waits_behind_others_is_told_under_whom_all_wait_for",
    ),
    "tests/faults/test_stepped_pairs.py": (),
    "tests/faults/test_stepped_sweeps.py": (),
    "tests/live/test_ends.py": ("test_fifty_waiting_streams_hold_nothing",),
    "tests/store/test_connections.py": (),
    "tests/store/test_flights.py": (
        "test_a_single_statement_whose_name_is_gone_is_asked_without",
        "test_a_statement_is_prepared_once_for_a_connection",
        "test_one_that_is_gone_is_not_tried_by_its_name_again",
    ),
    "tests/store/test_reach.py": ("test_no_read_of_the_api_reads_more_rows_than_it_tells",),
}
NOT_BEHIND_A_POOLER = tuple(
    f"{path}::{name}" if name else path
    for path, names in _OF_SESSIONS.items()
    for name in names or ("",)
)


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """What a site behind it has in its environment, while the block lasts."""
    server = EmbeddedPostgres(folder / "postgres", settings=FORGETFUL)
    with server.held():
        port, file = free_port(), folder / "pgbouncer.ini"
        file.write_text(_configuration(server, port))
        # It refuses to be root; and who runs the server may enter the socket's folder.
        owner = pwd.getpwuid(server.data.stat().st_uid).pw_name
        as_owner = ["-u", owner] if os.geteuid() == 0 else []
        with (folder / "pgbouncer.log").open("wb") as log:
            pooler = subprocess.Popen(
                [program("pgbouncer", "pgbouncer"), *as_owner, str(file)], stdout=log, stderr=log
            )
        try:
            patiently(lambda: accepts(port) or pooler.poll() is not None)
            assert pooler.poll() is None, (folder / "pgbouncer.log").read_text()
            yield {
                "DATABASE_URL": f"postgresql://agentstate@127.0.0.1:{port}/postgres",
                "DATABASE_SESSION_URL": f"host={server.socket} port={PORT} user=agentstate"
                " dbname=postgres",
            }
        finally:
            pooler.terminate()
            pooler.wait(30)


def _configuration(server: EmbeddedPostgres, port: int) -> str:
    """The file of deploy/, but for where things are and that any database is behind it: each
    process of the tests makes one of its own."""
    text = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text()
    text = re.sub(r"agentstate = [^\n]*", f"* = user=agentstate host={server.socket} port={PORT}",
                  text, count=1)  # fmt: skip
    text = text.replace("listen_port = 6432", f"listen_port = {port}\nunix_socket_dir =")
    return text.replace("auth_type = scram-sha-256", "auth_type = any")
