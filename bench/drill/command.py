"""`./run drill`: stages incidents, on a scratch site or a given one, and tells the times."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentstate.cli.output import CommandFailure, progress, result
from agentstate.cli.site import INTERRUPTED, running_site
from agentstate.where import BASE as ROOT
from bench.drill.ground import Ground, NotDone
from bench.drill.incidents import INCIDENTS, START_SECONDS, Course
from bench.torture.trial import move_in, scratch

SCOPES = ("read", "payloads", "write", "operate", "override")


def drill(options: argparse.Namespace) -> int:
    """Each incident in turn. 0: all were shown, told and resolved in time."""
    chosen = options.incidents or [
        name for name in INCIDENTS if not (options.url and name == "silent-sweeper")
    ]
    place = given_site(options.url) if options.url else scratch_site()
    courses: list[Course] = []
    try:
        with place as ground:
            ground.log_in()
            for name in chosen:
                progress(f"{name} …")
                courses.append(held(name, ground))
    except NotDone as failure:
        raise CommandFailure(str(failure)) from None
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        for line in lines(courses):
            result(line)
    return 0 if all(course.passed for course in courses) else 1


def held(name: str, ground: Ground) -> Course:
    try:
        return INCIDENTS[name](ground)
    except NotDone as failure:
        return Course(name, trouble=[str(failure)])


def lines(courses: list[Course]) -> Iterator[str]:
    """A table, and a line for each thing that was not as it should be."""
    if not courses:
        return
    yield ""
    yield f"  {'incident':<16}{'console':>10}{'alert':>10}{'resolved':>10}   by"
    for one in courses:
        seen = (one.shown_after, one.told_after, one.resolved_after)
        alert = "before" if one.before else seconds(seen[1])
        yield (
            f"  {one.incident:<16}{seconds(seen[0]):>10}{alert:>10}{seconds(seen[2]):>10}"
            f"   {one.resolved_by}"
        )
    yield "  (after it was staged; before: its alert was on already)"
    for one in courses:
        for trouble in one.trouble:
            yield f"  {one.incident}: {trouble}"


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


@contextmanager
def given_site(url: str) -> Iterator[Ground]:
    """A site that runs already; who we are is in the environment."""
    names = ("AGENTSTATE_KEY", "AGENTSTATE_USER", "AGENTSTATE_PASSWORD")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise CommandFailure(
            f"{', '.join(missing)} not set: a key with the scopes {', '.join(SCOPES)}, and the"
            " name and password of a person who may look",
        )
    key, user, password = (os.environ[name] for name in names)
    ground = Ground(url=url.rstrip("/"), key=key, name=user, password=password)
    try:
        yield ground
    finally:
        ground.close()


@contextmanager
def scratch_site() -> Iterator[Ground]:
    """A site of its own below AGENTSTATE_HOME, gone afterwards."""
    folder = new_folder("drill")
    move_in(folder)
    with scratch(folder), running_site(argparse.Namespace(host="127.0.0.1", port=0)) as site:
        from django.db import connections

        from agentstate.cli import people

        password = people.make_password()
        people.save_user(name="drill", role="senior", password=password)
        key = people.make_key(name="drill", scopes=SCOPES)
        connections.close_all()
        ground = Ground(
            url=site.url, key=key, name="drill", password=password, background=site.background,
            interrupted=lambda: bool(site.supervisor.signals),
        )  # fmt: skip
        begun = ground.wait(lambda: is_watched(ground), within_seconds=3 * START_SECONDS)
        if begun is None:
            raise NotDone("Celery does not evaluate alerts here")
        try:
            yield ground
        finally:
            ground.close()
    shutil.rmtree(folder, ignore_errors=True)


def is_watched(ground: Ground) -> bool:
    """Whether alerts have been judged for the first time."""
    found = ground.ask("GET", "alerts")
    return found["checked_at"] is not None and not found["silent"]


def new_folder(kind: str) -> Path:
    """Below AGENTSTATE_HOME, as everything that this program writes."""
    home = os.environ.get("AGENTSTATE_HOME", "").strip()
    base = Path(home).expanduser().absolute() if home else ROOT / "var"
    folder = base / kind / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True)
    return folder
