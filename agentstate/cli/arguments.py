"""Which commands there are, their options, and how their failures are told."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from agentstate import env, where
from agentstate.cli import (
    backups,
    benchmarks,
    bundles,
    checks,
    docs,
    doctor,
    drill,
    integrations,
    networks,
    outages,
    people,
    records,
    site,
    torture,
)
from agentstate.cli.output import CommandFailure, progress, shown

HOME = where.state_folder() if where.IS_INSTALLED else "var/"
ABOUT = f"""\
The durable state of agent runs, and the ops console over it.

Settings come from the environment: AGENTSTATE_HOME (where embedded data lives, default {HOME}),
DATABASE_URL (a PostgreSQL of yours instead of the embedded one), CELERY_BROKER_URL,
AGENTSTATE_PG_BIN (other PostgreSQL binaries to run embedded), AGENTSTATE_HOSTS, …
"""

# Their arguments go on as they are.
PASSED_ON: dict[str, Callable[[Sequence[str]], int]] = {
    "import": records.import_runs,
    "export": records.export_runs,
    "manage": records.manage,
    "celery": records.celery,
}
# What needs the tests, the trials and the tools of a checkout; a wheel has none of them.
OF_A_CHECKOUT: dict[str, Callable[[Sequence[str]], int]] = {
    "test": checks.test,
    "test-long": checks.test_long,
    "test-pg15": checks.test_pg15,
    "test-citus": checks.test_citus,
    "test-pooler": checks.test_pooler,
    "test-deep": checks.test_deep,
    "test-brokers": checks.test_brokers,
    "test-integrations": integrations.test_integrations,
}


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1 it failed, 2 asked wrongly, 130 Ctrl-C."""
    where.make_importable()
    # Both end a command as Ctrl-C does, so that what it started is ended too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, signal.default_int_handler)
    try:
        if argv and (unread := passed_on().get(argv[0])):
            return unread(argv[1:])
        options = parser().parse_args(argv)
        code: int = options.command(options)
    except KeyboardInterrupt:
        return 130
    except env.BadSetting as bad:
        progress(f"agentstate: {bad}")
        return 2
    except CommandFailure as failure:
        progress(f"agentstate: {failure}")
        return failure.code
    except BrokenPipeError:  # `./run export … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if told := in_one_line(error):
            progress(f"agentstate: {told}")
            return 1
        raise
    return code


def passed_on() -> dict[str, Callable[[Sequence[str]], int]]:
    """What reads its own arguments, in this copy of agentstate."""
    return PASSED_ON if where.IS_INSTALLED else PASSED_ON | OF_A_CHECKOUT


def in_one_line(error: Exception) -> str:
    """What to say of a failure of the machine or the database; nothing for a fault of ours."""
    from agentstate.embedded import EmbeddedFailure

    if isinstance(error, EmbeddedFailure):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    prepared = sys.modules.get("agentstate.prepare")  # not imported unless it was: it needs Django
    return prepared.fault_of_database(error) if prepared else ""


class Parser(argparse.ArgumentParser):
    """One that says what it does not understand without what a terminal would obey."""

    def error(self, message: str) -> NoReturn:
        super().error(shown(message))


def parser() -> argparse.ArgumentParser:
    """All commands, for `./run --help` as well."""
    top: argparse.ArgumentParser = Parser(
        prog=where.COMMAND, description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_demo(commands)
    add_serve(commands)
    add_user(commands)
    add_key(commands)
    add_keys(commands)
    add_setup_code(commands)
    add_prepare(commands)
    add_backup(commands)
    add_restore(commands)
    add_doctor(commands)
    add_bundle(commands)
    add_passed_on(commands)
    if not where.IS_INSTALLED:
        add_trials(commands)
        add_tests(commands)
    return top


def names() -> frozenset[str]:
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return frozenset(action.choices)
    return frozenset()


type Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_demo(commands: Commands) -> None:
    about = "everything at once, with simulated workers that crash, freeze and race"
    demo = commands.add_parser("demo", help=about, description=f"Start {about}.")
    add_address(demo)
    demo.add_argument("--seconds", type=whole(1, 86_400), metavar="N",
                      help="stop after N seconds, print a summary with all invariants derived "
                           "anew from the events, and exit non-zero if one is broken")  # fmt: skip
    demo.add_argument("--scenario", type=scenario_name, metavar="NAME",
                      help="what the day is like: day (the default), storm, calm, or a TOML "
                           "file")  # fmt: skip
    demo.add_argument("--workers", type=whole(1, 200), metavar="N",
                      help="simulated workers (default: as the scenario says, 6)")  # fmt: skip
    demo.add_argument("--speed", type=positive, metavar="X",
                      help="how fast they work; 2 is twice as fast (default 1)")  # fmt: skip
    demo.add_argument("--seed", type=whole(0, 2**31 - 1), metavar="N",
                      help="make the same decisions as another demo with this seed")  # fmt: skip
    demo.set_defaults(command=site.demo)


def add_serve(commands: Commands) -> None:
    about = "the console, the API and the background work"
    serve = commands.add_parser("serve", help=about, description=f"Start {about}.")
    add_address(serve)
    serve.set_defaults(command=site.serve)


def add_address(command: argparse.ArgumentParser) -> None:
    port = whole(0, 65_535)
    command.add_argument("--port", type=port, default=8000, metavar="N",
                         help="of console and API (default 8000; 0 takes a free one)")  # fmt: skip
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS",
                         help="the address to listen on (default 127.0.0.1: this machine only; "
                              "for another, also set AGENTSTATE_HOSTS)")  # fmt: skip


def sentence(about: str) -> str:
    """With a capital at its beginning; names keep theirs."""
    return about[:1].upper() + about[1:]


def add_user(commands: Commands) -> None:
    about = "make a person who may log in to the console, or change one"
    user = commands.add_parser(
        "user", help=about,
        description=f"{sentence(about)}. Asks for the password on a terminal; elsewhere, or "
        "with --generate, it makes one and prints it.",
    )  # fmt: skip
    user.add_argument("--name", required=True, type=words, help="the name to log in with")
    user.add_argument("--role", required=True, choices=people.ROLES,
                      help="viewer looks, operator steps in, senior also takes live leases and "
                           "changes caps, admin also makes keys")  # fmt: skip
    user.add_argument("--generate", action="store_true", help="make up the password")
    user.add_argument("--reset", action="store_true",
                      help="there is such a person: give them this role and a new password, and"
                           " end their sessions")  # fmt: skip
    user.add_argument("--drop-second-step", action="store_true",
                      help="with --reset: forget their authenticator app and keys")  # fmt: skip
    user.set_defaults(command=people.user)


def add_key(commands: Commands) -> None:
    about = "make an API key and print it, this once"
    key = commands.add_parser("key", help=about, description=f"{sentence(about)}.")
    key.add_argument("--name", required=True, type=words,
                     help="whose it is, say the fleet's or the host's")  # fmt: skip
    key.add_argument("--scope", action="append", required=True, choices=people.SCOPES,
                     help="what it may do; repeat it for each (none implies another)")  # fmt: skip
    key.add_argument("--days", type=whole(1, 36_500), metavar="N",
                     help="how long it is valid; without: until it is revoked")  # fmt: skip
    key.set_defaults(command=people.key)


def add_setup_code(commands: Commands) -> None:
    about = "a new code for the page that makes the first admin, while there is none"
    code = commands.add_parser("setup-code", help=about, description=f"{sentence(about)}.")
    code.set_defaults(command=people.setup_code)


def add_keys(commands: Commands) -> None:
    about = "list the API keys, or revoke one"
    keys = commands.add_parser("keys", help=about, description=f"{sentence(about)}.")
    keys.add_argument("--revoke", type=words, metavar="NAME",
                      help="end this one: at once, and for good")  # fmt: skip
    keys.add_argument("--reason", type=words, default="",
                      help="why; it stands in the audit trail")  # fmt: skip
    keys.set_defaults(command=people.keys)


def add_prepare(commands: Commands) -> None:
    about = "make the database ready for this release: schema, queues, room for events"
    ready = commands.add_parser(
        "prepare", help=about,
        description=f"{sentence(about)}. Before the processes of a new release start; "
        f"{where.COMMAND} serve does it itself. Any number of times, from any number of machines.",
    )  # fmt: skip
    ready.set_defaults(command=backups.prepare)


def add_backup(commands: Commands) -> None:
    about = "write the whole store to a file, while everybody works on"
    made = commands.add_parser(
        "backup", help=about,
        description=f"{sentence(about)}: one moment of it, for {where.COMMAND} restore (and for "
        "pg_restore). Prints the file's name. docs/operations.md says what else to keep.",
    )  # fmt: skip
    made.add_argument(
        "to", type=Path, metavar="FILE|FOLDER",
        help="a file that is not there yet, or a folder: one named by the time",
    )  # fmt: skip
    made.add_argument("--keep", type=whole(1, 100_000), metavar="N",
                      help="with a folder: when this one is whole, remove all but the newest N "
                           "that were named so")  # fmt: skip
    made.set_defaults(command=backups.backup)


def add_restore(commands: Commands) -> None:
    about = "put a backup in the place of the store, and make it safe to go on with"
    back = commands.add_parser(
        "restore", help=about,
        description="Load a backup, all of it or nothing, then end every lease in it, set tokens "
        "and feed positions ahead of all that was ever given out, and end all sessions. Nobody "
        "can write until that is done. Stop every process of agentstate first.",
    )  # fmt: skip
    which = back.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help=f"made by {where.COMMAND} backup"
    )
    which.add_argument("--already", action="store_true",
                       help="the database was brought back by other means (a base backup, a "
                            "provider's snapshot): only make it safe")  # fmt: skip
    which.add_argument("--finish", action="store_true",
                       help="go on with one that was stopped in between")  # fmt: skip
    back.add_argument("--replace", action="store_true",
                      help="there is something in the database: overwrite it")  # fmt: skip
    back.add_argument("--end-keys", action="store_true",
                      help="revoke every API key of the backup: one may have leaked since, "
                           "or you cannot tell which were revoked")  # fmt: skip
    back.add_argument("--reason", type=words, default="",
                      help="why; it stands in the audit trail")  # fmt: skip
    back.set_defaults(command=backups.restore)


def add_doctor(commands: Commands) -> None:
    about = "say what is wrong with this set-up, and how to mend it"
    look = commands.add_parser(
        "doctor", help=about,
        description=f"{sentence(about)}: settings, files, disk, database, pooler, migrations, "
        "broker, workers. Changes nothing. Exits with 0 when nothing has to be mended, else 1.",
    )  # fmt: skip
    look.add_argument("--url", metavar="URL", help="also ask the site at this address")
    look.set_defaults(command=doctor.doctor)


def add_bundle(commands: Commands) -> None:
    about = "write everything about an incident to stdout, or check such a file"
    made = commands.add_parser(
        "bundle", help=about,
        description="Write a run's events, terms, ledger, refusals, operators' actions, alerts and "
        "settings as JSON lines with a hash chain. With --check say whether a file is whole, "
        "trimmed, reordered or changed; exits non-zero when it is not whole.",
    )  # fmt: skip
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("run", nargs="?", type=words, metavar="RUN", help="the run's key")
    which.add_argument("--check", type=Path, metavar="FILE", help="only look at this file")
    made.add_argument("--since", type=bundles.moment, metavar="TIME",
                      help="what happened from then on (default: the run's beginning)")  # fmt: skip
    made.add_argument("--until", type=bundles.moment, metavar="TIME",
                      help="what had happened by then (default: now)")  # fmt: skip
    made.add_argument("--no-payloads", action="store_true",
                      help="a digest in the place of each payload")  # fmt: skip
    made.set_defaults(command=bundles.bundle)


def add_trials(commands: Commands) -> None:
    add_torture(commands)
    add_networks(commands)
    add_outages(commands)
    add_fuzz(commands)
    add_drill(commands)
    add_bench(commands)
    add_docs(commands)


def add_torture(commands: Commands) -> None:
    about = "prove it: kill, freeze and cut a site of its own, and check every call"
    trial = commands.add_parser(
        "torture", help=about,
        description="On a scratch site that is removed afterwards, clients work while processes "
        "are killed and frozen, connections cut and clocks stepped. Then every call is held "
        "against what is stored. Exits non-zero when a promise was broken.",
    )  # fmt: skip
    trial.add_argument("--minutes", type=positive, default=3.0, metavar="M",
                       help="how long there are faults (default 3)")  # fmt: skip
    trial.add_argument("--seed", type=whole(0, 2**31 - 1), metavar="N",
                       help="the same faults as another trial with this seed")  # fmt: skip
    trial.add_argument("--pause-seconds", type=positive, default=1.5, metavar="N",
                       help="between two faults, on average, once all is served again "
                            "(default 1.5); longer: fewer faults, more calls")  # fmt: skip
    trial.add_argument("--stop-seconds", type=positive, default=10.0, metavar="N",
                       help="how long after the end of a fault every hot run has to be served "
                            "again (default 10); more on a machine that is busy with other "
                            "things")  # fmt: skip
    trial.add_argument("--check", type=Path, metavar="FOLDER",
                       help="only check the histories of a trial that was kept")  # fmt: skip
    trial.set_defaults(command=torture.torture)


def add_networks(commands: Commands) -> None:
    about = "put database, web, jobs and agents on hosts of their own, and cut what is between"
    apart = commands.add_parser(
        "networks", help=about,
        description="On a scratch site that is removed afterwards, each part is in a network "
        "namespace of its own. While clients work packets between them are cut off, delayed and "
        "lost, pair by pair. Then every call is held against what is stored. About three "
        "minutes; needs root, iproute2 and a kernel with TUN. Exits non-zero when a promise was "
        "broken.",
    )  # fmt: skip
    apart.add_argument("--seed", type=whole(0, 2**31 - 1), metavar="N",
                       help="the same order of faults as another trial with this seed")  # fmt: skip
    apart.add_argument("--within-seconds", type=positive, default=15.0, metavar="N",
                       help="how long after the end of a fault everything has to work again "
                            "(default 15); more on a machine that is busy with other "
                            "things")  # fmt: skip
    apart.set_defaults(command=networks.networks)


OUTAGES = ("restarted", "crashed", "away", "starting", "recovery", "ended", "silent")


def add_outages(commands: Commands) -> None:
    about = "take the database away in each way there is, and time until every part works again"
    held = commands.add_parser(
        "outages", help=about,
        description="On a scratch site that is removed afterwards, with every process that deploy/ "
        "starts, PostgreSQL is restarted, killed, away, in recovery; its connections are ended or "
        "fall silent. Prints how many seconds each part took. Exits non-zero when one took longer "
        "than it may, ended, or anything was lost or doubled.",
    )  # fmt: skip
    held.add_argument("outages", nargs="*", choices=OUTAGES, metavar="OUTAGE",
                      help=f"one or more of {', '.join(OUTAGES)} (default all)")  # fmt: skip
    held.add_argument("--away-seconds", type=positive, default=60.0, metavar="N",
                      help="how long the database is away in `away` (default 60)")  # fmt: skip
    held.add_argument("--within-seconds", type=positive, default=15.0, metavar="N",
                      help="how long after its return a part may take (default 15); more on a "
                           "machine that is busy with other things")  # fmt: skip
    held.set_defaults(command=outages.outages)


INCIDENTS = ("dead-holder", "frozen-holder", "hot-run", "dry-budget", "silent-sweeper")


def add_drill(commands: Commands) -> None:
    about = "stage an incident, and time until the console and the alert showed it"
    staged = commands.add_parser(
        "drill", help=about,
        description="On a scratch site that is removed afterwards, or on that of --url, a holder "
        "dies or freezes, a run gets hot, a budget runs dry, the sweepers fall silent. Prints how "
        "long it took until the console and an alert showed it and until it was resolved. Exits "
        "non-zero when one of them did not come.",
    )  # fmt: skip
    staged.add_argument("incidents", nargs="*", choices=INCIDENTS, metavar="INCIDENT",
                        help=f"one or more of {', '.join(INCIDENTS)} (default all)")  # fmt: skip
    staged.add_argument("--url", metavar="URL",
                        help="a site that runs: who we are is in AGENTSTATE_KEY, AGENTSTATE_USER "
                             "and AGENTSTATE_PASSWORD")  # fmt: skip
    staged.set_defaults(command=drill.drill)


def add_bench(commands: Commands) -> None:
    about = "measure this machine: the store, the API and peers, against PostgreSQL's own INSERT"
    asked = commands.add_parser(
        "bench", help=about,
        description="On scratch sites that are removed afterwards. Contenders take turns, so only "
        "the ratios within one run mean anything; the machine should have nothing else to do. "
        "Prints tables, keeps them in bench/results and writes docs/benchmarks.md.",
    )  # fmt: skip
    asked.add_argument("names", nargs="*", metavar="NAME",
                       help="which (default all); `flames` makes pictures of paths")  # fmt: skip
    asked.add_argument("--quick", action="store_true",
                       help="one round of short turns: does it work, not how fast")  # fmt: skip
    asked.add_argument("--rounds", type=whole(1, 100), default=5, metavar="N",
                       help="how often each contender has its turn (default 5)")  # fmt: skip
    asked.add_argument("--home", type=Path, metavar="FOLDER",
                       help="large stores stay here for the next time")  # fmt: skip
    asked.add_argument("--list", action="store_true", help="which there are")
    asked.add_argument("--render", action="store_true",
                       help="measure nothing; write the page anew from what is kept")  # fmt: skip
    asked.set_defaults(command=benchmarks.bench)


def add_docs(commands: Commands) -> None:
    about = "build the pages of docs/ as a site that needs no network, and follow every link"
    site_of_pages = commands.add_parser(
        "docs", help=about,
        description=f"{sentence(about)}. The builder is installed in var/docs the first time. "
        "Exits non-zero when a link leads nowhere or a page loads something from elsewhere.",
    )  # fmt: skip
    site_of_pages.add_argument("--serve", action="store_true", help="then show it until Ctrl-C")
    site_of_pages.add_argument("--port", type=whole(0, 65_535), default=8200, metavar="N",
                               help="where (default 8200; 0: any)")  # fmt: skip
    site_of_pages.set_defaults(command=docs.docs)


def add_fuzz(commands: Commands) -> None:
    about = "try the API with input that is made from its own OpenAPI, by the ten thousand"
    trial = commands.add_parser(
        "test-api-fuzz", help=about,
        description="On a scratch site that is removed afterwards, schemathesis sends what fits "
        "OpenAPI and what does not, and goes from call to call along its links. Exits non-zero "
        "when an answer is not as described.",
    )  # fmt: skip
    trial.add_argument("--examples", type=whole(1, 100_000), default=160, metavar="N",
                       help="made for each call, and sequences of calls (default 160: some "
                            "20,000 cases in all)")  # fmt: skip
    trial.add_argument("--seed", type=whole(0, 2**31 - 1), metavar="N",
                       help="the same input as another run with this seed")  # fmt: skip
    trial.add_argument(
        "--shrink",
        action="store_true",
        help="look for the shortest input that fails: better to read, slower",
    )
    trial.set_defaults(command=checks.test_api_fuzz)


def add_passed_on(commands: Commands) -> None:
    """Named here for the list only: main() hands them their arguments unread."""
    commands.add_parser("import", help="read runs from files: agent trajectories, JSON lines")
    commands.add_parser("export", help="write runs as JSON lines, which import reads")
    commands.add_parser("manage", help="Django's commands, with the database running")
    commands.add_parser("celery", help="Celery's commands for the background work: worker, beat")


def add_tests(commands: Commands) -> None:
    """What a developer runs; the tests' arguments are handed on unread, as above."""
    commands.add_parser("test", help="the tests (arguments go to pytest)")
    commands.add_parser("test-long", help="the tests that take minutes")
    commands.add_parser("test-pg15", help="the tests on PostgreSQL 15, the oldest supported")
    commands.add_parser("test-citus", help="the tests of a store that is distributed on Citus")
    commands.add_parser("test-pooler", help="the usual tests behind PgBouncer")
    commands.add_parser("test-deep", help="drills, made input and long stories")
    commands.add_parser("test-brokers", help="the tests of Celery on pgmq, RabbitMQ and Redis")
    commands.add_parser(
        "test-integrations", help="the client with LangGraph and others, in an environment apart"
    )
    check = commands.add_parser(
        "check", help="format, lint, types, import layers, migrations, tests"
    )
    check.add_argument("--no-tests", action="store_true", help="all but the tests")
    check.add_argument("--only", action="append", choices=checks.CHECKS, metavar="NAME",
                       help=f"only this one, repeatable: {', '.join(checks.CHECKS)}")  # fmt: skip
    check.set_defaults(command=checks.check)
    lock = commands.add_parser(
        "lock", help="make the lock files anew from pyproject.toml (needs uv)"
    )
    lock.add_argument("--upgrade", action="store_true", help="take newer versions where allowed")
    lock.set_defaults(command=checks.lock)
    about = "build both wheels and both source archives"
    made = commands.add_parser("wheels", help=about, description=f"{sentence(about)}.")
    made.add_argument("to", nargs="?", type=Path, default=Path("dist"), metavar="FOLDER",
                      help="where they are put (default dist/)")  # fmt: skip
    made.set_defaults(command=checks.wheels)


def words(text: str) -> str:
    """A type for argparse: a text. What the shell hands over may be any octets."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("these octets are no UTF-8") from None
    return text


def whole(at_least: int, at_most: int) -> Callable[[str], int]:
    """A type for argparse: a whole number within bounds."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and at_least <= int(text) <= at_most):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {at_least} to {at_most}"
            )
        return int(text)

    return read


def scenario_name(text: str) -> str:
    """A type for argparse: a name as it is, a file as an absolute path; both looked at now."""
    from tasks.simulate import scenario

    name = text if text in scenario.names() else str(Path(text).absolute())
    try:
        scenario.read(name)
    except scenario.BadScenario as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return name


def positive(text: str) -> float:
    """A type for argparse: a number above 0, at most 1000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, at most 1000")
    return value
