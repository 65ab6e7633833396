"""The command line: what can be said, and what the exit code says."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from agentstate_client import (
    AgentStateError,
    NotAllowed,
    NotFound,
    Refused,
    Unauthenticated,
    UnexpectedAnswer,
    Unreachable,
    Unsendable,
)
from agentstate_client.cli import commands, server
from agentstate_client.cli.asking import DEFAULT_URL, KEY, KEY_FILE, URL, Misuse
from agentstate_client.cli.showing import Screen, json_line, shown
from agentstate_client.version import VERSION

DONE, REFUSED, MISUSED, UNREACHABLE, NOT_FOUND, INTERRUPTED = 0, 1, 2, 3, 4, 130
STATUSES = ("pending", "running", "paused", "completed", "failed", "cancelled")
COMMANDS = ("runs", "tail", "leases", "reclaim", "spend", "feed", "receipt", "mcp")
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

EPILOG = f"""\
environment:
  {URL}           where the server is (else {DEFAULT_URL})
  {KEY}       the API key
  {KEY_FILE}  a file with it
  NO_COLOR                 no colours, also on a terminal

exit codes:
  0    done; also when whoever reads the output has seen enough
  1    the store refused, or you said no
  2    the command line is not right
  3    the store does not answer, or what answers is none
  4    there is no such thing
  130  stopped by Ctrl-C

Where the server is installed as well, its commands are here, too: demo, serve, key, user, doctor
and others (`agentstate serve --help`; `python -m agentstate --help` lists them).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; its exit code. The entry point of `agentstate`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in COMMANDS:
        handed = server.hand_over(words)
        if handed is not None:
            return handed
        if server.is_missing(words):
            _say(f"agentstate: {words[0]} is a command of the server: pip install agentstate")
            return MISUSED
    options = parser().parse_args(words)
    try:
        with _warnings_on_stderr():
            code: int = options.command(options, Screen(json=options.json))
            sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`
        _leave_output_alone()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Misuse as wrong:
        _say(f"agentstate: {shown(str(wrong))}")
        return MISUSED
    except AgentStateError as failure:
        return _tell(failure, json=options.json)
    return code


class Parser(argparse.ArgumentParser):
    """One that says what it does not understand without what a terminal would obey."""

    def error(self, message: str) -> NoReturn:
        super().error(shown(message))


def parser() -> argparse.ArgumentParser:
    shared = _shared()
    top: argparse.ArgumentParser = Parser(
        prog="agentstate",
        description="What the runs of AI agents do, who holds what, and what was spent.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_shared(is_top=True)],
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"agentstate-client {VERSION}")
    add = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Any, about: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = add.add_parser(
            name, help=about, description=about, parents=[shared], allow_abbrev=False
        )
        made.set_defaults(command=run)
        return made

    _add_runs(command("runs", commands.runs, "list runs, newest first"))
    _add_tail(command("tail", commands.tail, "show a run's last events, and those to come"))
    _add_leases(command("leases", commands.leases, "list units and who holds them"))
    _add_reclaim(command("reclaim", commands.reclaim, "take a unit from its holder, for good"))
    _add_spend(command("spend", commands.spend, "show budgets: cap, spent, reserved, left"))
    _add_feed(command("feed", commands.feed, "show what happens to all runs, as it happens"))
    _add_receipt(command("receipt", commands.receipt, "show what became of a request"))
    command("mcp", commands.mcp, "be an MCP server on stdin and stdout, for an assistant")
    return top


def _shared(*, is_top: bool = False) -> argparse.ArgumentParser:
    """Options that may stand before the command or after it."""
    made = argparse.ArgumentParser(add_help=False)

    def add(*names: str, default: Any = None, **given: Any) -> None:
        made.add_argument(*names, default=default if is_top else argparse.SUPPRESS, **given)

    add("--url", metavar="URL", help=f"where the server is; else {URL}, else {DEFAULT_URL}")
    add("--key-file", metavar="FILE", help=f"a file with the API key, - for stdin; else {KEY}")
    add("--json", action="store_true", default=False, help="one JSON document a line")
    return made


def _add_runs(made: argparse.ArgumentParser) -> None:
    made.add_argument("--status", action="append", choices=STATUSES, default=[], help="repeatable")
    made.add_argument("--task", help="exactly this task")
    made.add_argument("--tag")
    made.add_argument("--owner", help="the worker that holds it")
    made.add_argument("--parent", metavar="RUN")
    made.add_argument("--search", metavar="TEXT", help="part of the key or of the task")
    made.add_argument("--overdue", action="store_true", help="past their deadline")
    made.add_argument("--since", type=_moment, metavar="AGE", help="changed since: 90s, 2h, 3d, "
                      "or a time such as 2026-03-02T12:00Z")  # fmt: skip
    made.add_argument("--oldest", action="store_true", help="oldest first")
    _add_limit(made)


def _add_tail(made: argparse.ArgumentParser) -> None:
    made.add_argument("run", metavar="RUN")
    made.add_argument("-n", "--lines", type=_whole, default=10, metavar="N",
                      help="begin so many events before the last one (10)")  # fmt: skip
    made.add_argument(
        "--after", type=_whole, metavar="SEQ", help="begin behind this number; 0: all"
    )
    made.add_argument("--no-follow", action="store_true", help="end with what is there now")


def _add_leases(made: argparse.ArgumentParser) -> None:
    made.add_argument("--state", choices=("live", "lapsed", "free"))
    made.add_argument("--owner", help="the worker that holds them")
    _add_limit(made)


def _add_reclaim(made: argparse.ArgumentParser) -> None:
    made.add_argument("unit", metavar="UNIT", help="such as run:42")
    made.add_argument("--reason", help="kept beside what is done; asked for on a terminal")
    made.add_argument("--yes", action="store_true", help="do not ask; needs --reason")
    made.add_argument("--force", action="store_true", help="also from a holder whose lease is live")
    made.add_argument("--hold-off", type=_whole, metavar="SECONDS",
                      help="keep that worker from taking it again for so long")  # fmt: skip


def _add_spend(made: argparse.ArgumentParser) -> None:
    made.add_argument("run", nargs="?", metavar="RUN", help="the budgets of this run")
    made.add_argument("--shared", action="store_true", help="those that many runs share")
    made.add_argument("--ledger", metavar="BUDGET", help="every line of this one's ledger")
    _add_limit(made)


def _add_feed(made: argparse.ArgumentParser) -> None:
    made.add_argument("--consumer", metavar="NAME", help="go on where this consumer was, and note "
                      "how far it has come")  # fmt: skip
    made.add_argument("--after", type=_whole, metavar="POSITION",
                      help="begin behind it; 0: with all that is kept")  # fmt: skip
    made.add_argument("--type", action="append", default=[], metavar="TYPE",
                      help="such as run.completed or run.*; repeatable")  # fmt: skip
    made.add_argument("--no-follow", action="store_true", help="end with what is there now")


def _add_receipt(made: argparse.ArgumentParser) -> None:
    made.add_argument("key", nargs="?", metavar="KEY", help="the Idempotency-Key that was sent")
    made.add_argument("--request-id", metavar="ID", help="or the X-Request-Id")


def _add_limit(made: argparse.ArgumentParser) -> None:
    made.add_argument("--limit", type=_whole, default=50, metavar="N", help="so many (50); 0: all")


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number")
    return int(text)


def _moment(text: str) -> timedelta | datetime:
    """An age, or an instant; without a zone it is UTC, as everything that is shown."""
    if age := re.fullmatch(r"([0-9]{1,7})([smhdw])", text):
        return timedelta(seconds=int(age[1]) * UNITS[age[2]])
    with suppress(ValueError):
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    raise argparse.ArgumentTypeError(f"{shown(text)} is neither an age (90s, 2h) nor a time")


def _tell(failure: AgentStateError, *, json: bool) -> int:
    """Say on stderr what went wrong, and what that means for the exit code."""
    if json and isinstance(failure, Refused):
        _say(json_line(failure.problem.document))
    else:
        _say(f"agentstate: {shown(str(failure))}")
        if isinstance(failure, (Unauthenticated, NotAllowed)):
            _say(f"agentstate: see {KEY}, --key-file and the scopes of the key")
    if isinstance(failure, NotFound):
        return NOT_FOUND
    if isinstance(failure, Unsendable):
        return MISUSED
    return UNREACHABLE if isinstance(failure, (Unreachable, UnexpectedAnswer)) else REFUSED


def _say(text: str) -> None:
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr)  # noqa: T201


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """What the client logs while it asks again."""
    handler, logger = logging.StreamHandler(), logging.getLogger("agentstate_client")
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine("agentstate: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _leave_output_alone() -> None:
    """Nobody reads it: what is buffered is dropped, so that the end says nothing about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
