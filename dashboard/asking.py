"""Pages that ask before they act: one command, and what to show when the store says no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentstate import store
from agentstate.store.commands import Command, Result
from agentstate.store.errors import Invalid, NotAllowed, Refusal
from dashboard.forms import form_circumstances, key_again, one_line
from dashboard.pages import ConsoleRequest, denied

NO_REASON = "Say why: it is kept with the action."
REASON_CHARS = 500
LONG_REASON = f"At most {REASON_CHARS} characters."


@dataclass(frozen=True, slots=True, kw_only=True)
class Done[R]:
    """result: what was done. Else refused: what the store said, or error: what to mend.

    beside: the page tells the error beside the field that it is about.
    """

    result: R | None = None
    refused: Refusal | None = None
    error: str = ""
    beside: bool = False

    @property
    def status(self) -> int:
        """Of the page that says so."""
        return 422 if self.error else 409 if self.refused else 200


def carry_out[R: Result](request: ConsoleRequest, command: Callable[[], Command[R]]) -> Done[R]:
    """Give the command in the person's name, once per form. Raises PermissionDenied.

    command: makes it of what was typed; what it says to that, as Invalid, is what to mend.
    """
    by, under = request.access.caller, form_circumstances(request)
    return attempt(lambda: store.execute(command(), by=by, under=under))


def attempt[R](act: Callable[[], R]) -> Done[R]:
    """Do what gives a command itself. Raises PermissionDenied."""
    try:
        done = act()
    except NotAllowed as refused:
        raise denied(refused) from None
    except Invalid as refused:
        return Done(error=refused.rule)
    except Refusal as refused:
        return Done(refused=refused)
    return Done(result=done)


def read_reason(request: ConsoleRequest) -> tuple[str, str]:
    """The reason as it was typed, on one line, and what is wrong with it, if anything."""
    reason = one_line(request.POST.get("reason", ""))
    if len(reason) > REASON_CHARS:
        return reason, LONG_REASON
    return reason, "" if reason else NO_REASON


def form_context(request: ConsoleRequest, done: Done[Any] | None = None) -> dict[str, Any]:
    """What the form shows again: its key (a new one once it was refused), its reason, and what is
    wrong: `error` with the reason, `mend` with the form, as a sentence above it."""
    wrong = done.error if done and not done.beside else ""
    of_reason = wrong in (NO_REASON, LONG_REASON)
    return {
        "form_key": key_again(request, done.refused if done else None),
        "reason": request.POST.get("reason", ""),
        "refused": done.refused if done else None,
        "error": wrong if of_reason else "",
        "mend": "" if of_reason else sentence(wrong),
    }


def sentence(text: str) -> str:
    """A rule as people read it: with a capital, and a stop at its end."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}" if text else ""
