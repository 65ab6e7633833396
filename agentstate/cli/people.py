"""Who may come in: people with a role at the console, programs with a key at the API."""

import argparse
import getpass
import secrets
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from agentstate.cli.database import load_settings, ready_database
from agentstate.cli.output import CommandFailure, progress, result

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ROLES = ("viewer", "operator", "senior", "admin")
SCOPES = ("read", "payloads", "write", "propose", "operate", "override", "admin")
PASSWORD_BYTES = 9  # twelve letters


def user(options: argparse.Namespace) -> int:
    """`./run user`: make a person, or with --reset change one."""
    load_settings()
    is_made_up = options.generate or not sys.stdin.isatty()
    with ready_database():
        refuse_unless_meant(options)
        name = name_of(options.name)
        password = make_password() if is_made_up else ask_password(name)
        is_new = save_user(
            name=name,
            role=options.role,
            password=password,
            drop_second_step=options.drop_second_step,
        )
    progress(f"{'made' if is_new else 'changed'} {name}, {options.role}")
    if is_made_up:
        result(password)
    return 0


def refuse_unless_meant(options: argparse.Namespace) -> None:
    """Raises CommandFailure when somebody has the name, and nobody said that this is known."""
    from django.contrib.auth.models import User

    there = "\0" not in options.name and User.objects.filter(username=options.name).exists()
    if there and not options.reset:
        raise CommandFailure(
            f"there is a person {options.name} already. --reset gives them the role {options.role}"
            " and a new password, and ends their sessions"
        )


def name_of(typed: str) -> str:
    """Of whoever has it, or as somebody new has it. Raises CommandFailure for none."""
    from django.contrib.auth.models import User
    from django.core.exceptions import ValidationError

    from dashboard.usernames import new_name

    if typed.isprintable() and User.objects.filter(username=typed).exists():
        return typed
    try:
        return new_name(typed)
    except ValidationError as refused:
        raise CommandFailure(f"the name {typed!r}: {' '.join(refused.messages)}") from None


def setup_code(options: argparse.Namespace) -> int:
    """`./run setup-code`: print a code for the first admin; the one before it is over."""
    load_settings()
    with ready_database():
        from dashboard import first_run

        code = first_run.make_code()
    if code is None:
        raise CommandFailure("there is an admin: the first-run page is closed")
    result(code)
    return 0


def make_password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)


def ask_password(name: str) -> str:
    """Ask twice on the terminal, until Django's rules are content."""
    from django.contrib.auth.models import User
    from django.contrib.auth.password_validation import validate_password
    from django.core.exceptions import ValidationError

    while True:
        password = getpass.getpass("Password: ")
        if password != getpass.getpass("Again: "):
            progress("The two differ.")
            continue
        try:
            validate_password(password, User(username=name))
        except ValidationError as refused:
            progress("\n".join(refused.messages))
            continue
        return password


def save_user(*, name: str, role: str, password: str, drop_second_step: bool = False) -> bool:
    """Make the person, or set role and password of the one there is. True when new.

    drop_second_step: forget app, keys and codes as well, for who has lost them. It is in the audit
    or not done.
    """
    from django.contrib.auth.models import Group, User
    from django.db import transaction

    from agentstate import store
    from agentstate.store.callers import COMMAND_LINE
    from dashboard.sessions import end_sessions

    with transaction.atomic():
        person, is_new = User.objects.get_or_create(username=name_of(name))
        was = {} if is_new else facts(person)
        person.is_active = True
        person.set_password(password)
        person.save()
        end_sessions(person)
        person.groups.set([Group.objects.get_or_create(name=role)[0]])  # a role is a group's name
        store.record_action(
            by=COMMAND_LINE,
            action="person.created" if is_new else "person.changed",
            thing=name,
            reason="" if is_new else "a new password, and the end of their sessions",
            before=was,
            after=facts(person),
        )
        for kind in forget_second_step(person) if drop_second_step else ():
            store.record_action(
                by=COMMAND_LINE,
                action="person.second-step-removed",
                thing=name,
                after={"kind": kind},
            )
    return is_new


def facts(person: "User") -> dict[str, object]:
    """What the audit tells of a person: never a password."""
    held = sorted(group.name for group in person.groups.all() if group.name in ROLES)
    return {"role": ",".join(held), "active": person.is_active}


def forget_second_step(person: "User") -> list[str]:
    """The kinds of what there was."""
    from allauth.mfa.models import Authenticator

    found = Authenticator.objects.filter(user=person).order_by("id")
    kinds = list(found.values_list("type", flat=True))
    found.delete()
    return kinds


def key(options: argparse.Namespace) -> int:
    """`./run key`: make a key; only its hash is kept, so it can be printed this once only."""
    load_settings()
    scopes = tuple(dict.fromkeys(options.scope))
    with ready_database():
        made = make_key(name=options.name, scopes=scopes, days=options.days)
    progress(f"key {options.name}: {', '.join(dict.fromkeys(options.scope))}. Not shown again:")
    result(made)
    return 0


def make_key(*, name: str, scopes: tuple[str, ...], days: int | None = None) -> str:
    """The new key's text. days: how long it is valid; None: until it is revoked.

    Raises CommandFailure when the store refuses, say for its name.
    """
    from agentstate.store import reads
    from agentstate.store.callers import COMMAND_LINE
    from agentstate.store.errors import Refusal
    from agentstate.store.keys import create_key

    expires_at = None if days is None else reads.now() + timedelta(days=days)
    try:
        made = create_key(name=name, scopes=scopes, by=COMMAND_LINE, expires_at=expires_at)
        return made.text
    except Refusal as refusal:
        raise CommandFailure(f"key {name!r}: {refusal.detail}") from None


def keys(options: argparse.Namespace) -> int:
    """`./run keys`: which there are; with --revoke, end one."""
    load_settings()
    with ready_database():
        if options.revoke is None:
            list_keys()
        else:
            revoke(name=options.revoke, reason=options.reason)
    return 0


def list_keys() -> None:
    from agentstate.store.keys import every_key

    for one in every_key():
        times = {
            "made": one.created_at,
            "last used": one.last_used_at,
            "ends": one.expires_at,
            "revoked": one.revoked_at,
        }
        told = [f"{word} {at:%Y-%m-%d %H:%M}" for word, at in times.items() if at is not None]
        state = "valid" if one.valid else "over"
        result(f"{one.name}  {state}  {','.join(one.scopes)}  …{one.hint}  {', '.join(told)} UTC")


def revoke(*, name: str, reason: str) -> None:
    """Raises CommandFailure when there is no such key."""
    from agentstate.store.callers import COMMAND_LINE
    from agentstate.store.errors import Refusal
    from agentstate.store.keys import revoke_key

    try:
        revoke_key(name=name, by=COMMAND_LINE, reason=reason)
    except Refusal as refusal:
        raise CommandFailure(f"key {name!r}: {refusal.detail}") from None
    progress(f"key {name} is revoked: its next call is refused, its streams end within 2 s")


def end_key(*, name: str, reason: str) -> bool:
    """Revoke a key. A database that is gone costs a line only, and False: this is on the way
    out."""
    from django.db import DatabaseError

    from agentstate.store.callers import COMMAND_LINE
    from agentstate.store.errors import Refusal
    from agentstate.store.keys import revoke_key

    try:
        revoke_key(name=name, by=COMMAND_LINE, reason=reason)
    except (DatabaseError, Refusal) as error:
        progress(f"key {name} is still valid: {' '.join(str(error).split())}")
        return False
    return True
