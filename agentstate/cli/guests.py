"""Who may come in while `./run demo` runs, and no longer: its operator and its fleet's key."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentstate.cli import people


@contextmanager
def guests() -> Iterator[tuple[str, str, str | None]]:
    """The demo's operator with a new password, a key that ends with the demo, and the code for the
    first admin, if there is none."""
    from django.db import connections

    from dashboard import first_run

    password = people.make_password()
    people.save_user(name="operator", role="operator", password=password)
    name = f"demo-{secrets.token_hex(4)}"
    _noted().write_text(f"{name}\n")  # before there is one: a kill may come at any moment
    key = people.make_key(name=name, scopes=("read", "payloads", "write"))
    code = first_run.make_code()
    connections.close_all()
    try:
        yield password, key, code
    finally:
        if people.end_key(name=name, reason="the demo ended"):
            _noted().unlink(missing_ok=True)


def end_keys_of_killed() -> None:
    """End the key of a demo of this home that was killed. For who has the home to itself."""
    from django.db import connections

    from agentstate.store.keys import every_key

    noted = _noted()
    if not noted.exists():
        return
    names = noted.read_text(errors="replace").split()
    ended = [
        people.end_key(name=one.name, reason="the demo was killed")
        for one in every_key()
        if one.valid and one.name in names
    ]
    connections.close_all()
    if all(ended):
        noted.unlink(missing_ok=True)


def _noted() -> Path:
    """Where the name of the key is. Not its text."""
    from django.conf import settings

    return Path(settings.AGENTSTATE_HOME) / "demo-key"
