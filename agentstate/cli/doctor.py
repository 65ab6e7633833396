"""`./run doctor`: look at everything that a site stands on, and say what is wrong."""

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

from agentstate import env, where
from agentstate.cli.database import load_settings, running_server
from agentstate.cli.output import CommandFailure, progress, result
from agentstate.doctor.findings import Finding, Level, problem

SIGNS = {Level.PROBLEM: "✗", Level.WARNING: "!"}
WEB_SECONDS = 5
NO_STORE = problem(
    "migrations",
    "there is no store in this database yet",
    f"{where.COMMAND} prepare makes it",
)


def doctor(options: argparse.Namespace) -> int:
    """Exit code 0: nothing that has to be mended; 1: something is broken, or will be."""
    findings = []
    for found in look(options.url):
        findings.append(found)
        result(f"{SIGNS[found.level]} {found.about}: {found.what}\n    → {found.mend}")
    problems = sum(found.level is Level.PROBLEM for found in findings)
    warnings = len(findings) - problems
    if not findings:
        result("✓ nothing is wrong")
    else:
        progress(f"{problems} to be mended, {warnings} to be looked at")
    return 1 if problems else 0


def look(url: str | None) -> Iterator[Finding]:
    """Everything, as far as one thing lets us look at the next."""
    try:
        load_settings()
    except env.BadSetting as bad:
        yield problem("settings", str(bad), f"change {bad.name}, or unset it (docs/settings.md)")
        return
    except CommandFailure as failure:
        yield problem("files", str(failure), "chown the folder to who runs this, or set another")
        return
    from django.conf import settings

    from agentstate.doctor import machine, together
    from agentstate.embedded import EmbeddedFailure

    yield from together.look(settings)
    yield from machine.look(settings.AGENTSTATE_HOME, embedded=settings.EMBEDDED)
    try:
        with running_server():
            yield from look_at_database()
    except EmbeddedFailure as failure:
        yield problem("database", str(failure), "mend what it says, and look again")
    if url:
        yield from look_at_web(url)


def look_at_database() -> Iterator[Finding]:
    from django.conf import settings

    from agentstate.doctor import database

    facts = database.ask(settings.SESSION_PARTS)
    if isinstance(facts, Finding):
        is_new = settings.EMBEDDED and "does not exist" in facts.what
        yield NO_STORE if is_new else facts
        return
    yield from database.judge(facts)
    usual = sessions = database.mode_of(settings.SESSION_PARTS)
    if settings.SESSION_URL:
        usual_facts = database.ask(settings.DATABASE_PARTS)
        if isinstance(usual_facts, Finding):
            yield usual_facts
            return
        usual = database.mode_of(settings.DATABASE_PARTS)
    yield from database.judge_modes(
        usual=usual,
        sessions=sessions,
        has_session_url=bool(settings.SESSION_URL),
        prepares=settings.PREPARED_STATEMENTS,
    )
    if facts.has_schema:
        yield from look_at_store()
    else:
        yield NO_STORE


def look_at_store() -> Iterator[Finding]:
    from django.conf import settings

    from agentstate import checkups
    from agentstate.doctor import background, database, distribution
    from agentstate.store import partitions, reads

    yield from database.judge_room(database.has_room())
    missing = checkups.missing_migrations()
    yield from background.judge_migrations(missing)
    if missing:
        return
    in_database = settings.CELERY_BROKER_URL.startswith("pgmq")
    yield from background.judge_broker(checkups.broker(), embedded=in_database)
    yield from background.judge_jobs(reads.heartbeats())
    yield from database.judge_weeks(partitions.weeks_ahead())
    yield from distribution.look()


def look_at_web(url: str) -> Iterator[Finding]:
    """Whether the site at this address says that it is ready."""
    about = f"{url.rstrip('/')}/health/ready"
    try:
        with urllib.request.urlopen(about, timeout=WEB_SECONDS) as answer:  # noqa: S310  the caller's own
            found = json.load(answer)
    except urllib.error.HTTPError as refused:
        told = refused.read(2_000).decode(errors="replace")
        if refused.code == 400:
            mend = "add the host of this address to AGENTSTATE_HOSTS"
        else:
            mend = "mend what its checks name; its log has more"
        yield problem("web", f"{about} says {refused.code}: {' '.join(told.split())[:300]}", mend)
    except (OSError, ValueError) as failed:
        yield problem(
            "web",
            f"{about} does not answer: {failed}",
            "start web, and see that the proxy reaches it",
        )
    else:
        if not isinstance(found, dict) or found.get("status") != "ready":
            yield problem("web", f"{about} answers as something else does", "give another address")
