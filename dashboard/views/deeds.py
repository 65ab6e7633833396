"""What an operator may do to a run beside moving it: signal, brake, edit, keep. Each one asks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from agentstate.store.commands import SIGNALS, UNSEEN, BrakeRun, Command, Patch, SignalRun
from agentstate.store.errors import ExpectationFailed, HolderChanged, Invalid
from agentstate.store.models import Run
from dashboard import sentences, zones
from dashboard.access import allowed_actions
from dashboard.asking import Done, carry_out, form_context, read_reason
from dashboard.forms import whole
from dashboard.pages import ConsoleRequest, page
from dashboard.queries.contention import Hot, read_hot
from dashboard.queries.panels import read_panel
from dashboard.queries.story import Head
from dashboard.views import story

DAY_SECONDS = 86_400
# The store looks at it again under its lock: what the page compared could be over by then.
MOVED_ON = (ExpectationFailed, HolderChanged)
LOST = "The form has lost what you saw. Look at the facts and send it again."
# Of an instant that stays one in whichever time zone it is told.
YEARS = (1970, 9998)
NOTHING_CHANGED = "Nothing is different from how it is: change something first."


class Refusable(Exception):
    """What was typed cannot be made a command of; the text says what to mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """seen: how it is, for people. expected: the same, as the form carries it to the command, which
    is refused when it is not so any more. command: made of the form and the reason; raises
    Refusable and Invalid."""

    title: str
    seen: Callable[[Head], str]
    expected: Callable[[Head], Any]
    command: Callable[[ConsoleRequest, Head, str], Command[Any]]
    told: str


def _expected(request: ConsoleRequest) -> Any:
    """What the operator saw; UNSEEN for who did not look at the form. Raises Refusable."""
    told = request.POST.get("expected")
    if told is None and "seen" not in request.POST:
        return UNSEEN
    try:
        return json.loads(told or "")
    except (ValueError, RecursionError):
        raise Refusable(LOST) from None


def _signal(request: ConsoleRequest, head: Head, reason: str) -> Command[Any]:
    signal = request.POST.get("signal", "")
    if signal not in SIGNALS:
        raise Refusable("Choose what the holder is to be told.")
    return SignalRun(
        run=head.run.key, signal=signal, reason=reason, expected_token=_expected(request)
    )


def _brake(request: ConsoleRequest, head: Head, reason: str) -> Command[Any]:
    asked: dict[str, Any] = {
        "run": head.run.key,
        "reason": reason,
        "expected_until": _moment(_expected(request)),
    }
    if request.POST.get("lift") == "yes":
        return BrakeRun(per_second=None, **asked)
    per_second = whole(request.POST.get("per_second", "").strip())
    minutes = whole(request.POST.get("minutes", "").strip())
    if not per_second or not minutes:
        raise Refusable("Writes a second and minutes are whole numbers from 1 on.")
    return BrakeRun(per_second=per_second, seconds=minutes * 60, **asked)


def _moment(expected: Any) -> Any:
    if expected in (None, UNSEEN):
        return expected
    try:
        at = datetime.fromisoformat(expected)
    except (ValueError, TypeError):
        raise Refusable(LOST) from None
    if at.tzinfo is None or not YEARS[0] <= at.year <= YEARS[1]:
        raise Refusable(LOST)
    return at


def _edit(request: ConsoleRequest, head: Head, reason: str) -> Command[Any]:
    """Tags as a set, so that nobody's is lost; notes only if they are still what was seen."""
    run = head.run
    notes = request.POST.get("notes", "").replace("\r\n", "\n")
    seen = request.POST.get("seen", "").replace("\r\n", "\n")
    added = [tag for part in request.POST.get("tags", "").split(",") if (tag := part.strip())]
    removed = [tag for tag in request.POST.getlist("remove") if tag not in added]
    if notes == seen and not added and not removed:
        raise Refusable(NOTHING_CHANGED)
    return Patch(
        run=run.key,
        notes=None if notes == seen else notes,
        tags_add=tuple(added),
        tags_remove=tuple(removed),
        expect={} if notes == seen else {"notes": seen},
        reason=reason,
    )


def _keep(request: ConsoleRequest, head: Head, reason: str) -> Command[Any]:
    was = _keeping(head) if (seen := _expected(request)) is UNSEEN else seen
    match was:
        case {"hold": bool(), "retain_seconds": None | int(), **more} if not more:
            pass
        case _:
            raise Refusable(LOST)
    hold = request.POST.get("hold") == "yes"
    typed = request.POST.get("days", "").strip()
    days = whole(typed)
    if typed and days is None:
        raise Refusable("Days are a whole number from 0 on.")
    same = days is None or days * DAY_SECONDS == was["retain_seconds"]
    if hold == was["hold"] and same:
        raise Refusable(NOTHING_CHANGED)
    return Patch(
        run=head.run.key,
        hold=hold,
        retain_seconds=None if same or days is None else days * DAY_SECONDS,
        expect=was,
        reason=reason,
    )


def _holder(head: Head) -> str:
    lease = head.lease
    return f"{lease.owner} #{lease.token}" if lease and lease.token else "nobody"


def _token(head: Head) -> int | None:
    return head.lease.token if head.lease else None


def _braked(head: Head) -> str:
    run = head.run
    if not head.braked or run.brake_until is None:
        return "none"
    return f"{run.brake_per_second} a second until {zones.clock(run.brake_until, '%H:%M:%S')}"


def _until(head: Head) -> str | None:
    until = head.run.brake_until
    return until.isoformat() if until and head.braked else None


def _keeping(head: Head) -> dict[str, Any]:
    return {"hold": head.run.hold, "retain_seconds": head.run.retain_seconds}


def _kept(head: Head) -> str:
    run = head.run
    span = "for ever" if run.retain_seconds is None else f"{run.retain_seconds} s after its end"
    return f"{span}{', held' if run.hold else ''}"


DEEDS = {
    "signal": Deed(
        title="Signal the holder of",
        seen=_holder,
        expected=_token,
        command=_signal,
        told="{key}: its holder is told at its next renewal.",
    ),
    "brake": Deed(
        title="Brake",
        seen=_braked,
        expected=_until,
        command=_brake,
        told="{key}: the brake is set as you asked.",
    ),
    "edit": Deed(
        title="Tags and notes of",
        seen=lambda head: head.run.notes,
        expected=lambda head: None,  # the notes themselves, as they were seen
        command=_edit,
        told="{key}: tags and notes are saved.",
    ),
    "keep": Deed(
        title="How long to keep",
        seen=_kept,
        expected=_keeping,
        command=_keep,
        told="{key}: kept as you asked.",
    ),
}


@require_http_methods(["GET", "HEAD", "POST"])
@page
def act(request: ConsoleRequest, key: str, action: str) -> HttpResponseBase:
    """Ask with the facts, then give one command that says what the operator saw."""
    head = story.read_head(key)
    if head is None:
        raise Http404
    if request.method != "POST":
        return ask(request, head, action)
    reason, error = read_reason(request)
    if error:
        return ask(request, head, action, done=Done(error=error))
    deed = DEEDS[action]
    try:
        command = deed.command(request, head, reason)
    except (Refusable, Invalid) as wrong:
        rule = wrong.rule if isinstance(wrong, Invalid) else str(wrong)
        return ask(request, head, action, done=Done(error=rule))
    done = carry_out(request, lambda: command)
    if done.result is None:
        head = story.read_head(key) or head
        saw = request.POST.get("seen") if isinstance(done.refused, MOVED_ON) else None
        return ask(request, head, action, done=None if saw is not None else done, saw=saw)
    messages.success(request, deed.told.format(key=key), extra_tags="check-circle")
    return redirect("run", key=key)


def ask(
    request: ConsoleRequest,
    head: Head,
    action: str,
    *,
    done: Done[Any] | None = None,
    saw: str | None = None,
) -> HttpResponseBase:
    """The page that asks. saw: what the operator had seen, and is so no more."""
    run, deed = head.run, DEEDS[action]
    thing = {"kind": "run", "status": run.status, "held": head.held, "live": head.live}
    # What the form carries: as it was while only its own fields are mended, else as it is now.
    again = request.POST if done and done.error and done.error != LOST else {}
    refused_now = saw is not None or (done is not None and done.refused is not None)
    context = story.here(request, head) | form_context(request, done)
    context |= {
        "action": action,
        "title": deed.title,
        "verdict": allowed_actions(request.access, thing)[action],
        "sentence": sentences.waiting_for(run, head.lease, head.now),
        "lease_state": sentences.lease_state(head.lease, head.now),
        "saw": saw,
        "is_so": deed.seen(head),
        "seen": told if (told := again.get("seen")) is not None else deed.seen(head),
        "expected": again.get("expected") or json.dumps(deed.expected(head)),
        "choices": SIGNALS,
        "typed": typed(request, run, keep=not refused_now),
        "braked": _braked(head),
        "foreseen": read_panel(lambda: _foreseen(request, head)) if action == "brake" else None,
        "retain_span": timedelta(seconds=run.retain_seconds) if run.retain_seconds else None,
    }
    if saw is not None:  # what was sent is not to be taken for what is sent next
        context["form_key"] = uuid.uuid4().hex
    status = 409 if saw is not None else done.status if done else 200
    return render(request, f"story/ask_{action}.html", context, status=status)


def typed(request: ConsoleRequest, run: Run, *, keep: bool) -> dict[str, Any]:
    """What the fields hold: as they were typed, or at first as it is."""
    days = run.retain_seconds // DAY_SECONDS if run.retain_seconds is not None else ""
    if request.method == "POST":
        return {
            "signal": request.POST.get("signal", ""),
            "per_second": request.POST.get("per_second", ""),
            "minutes": request.POST.get("minutes", ""),
            "notes": request.POST.get("notes", ""),
            "tags": request.POST.get("tags", ""),
            "remove": request.POST.getlist("remove"),
            "hold": request.POST.get("hold") == "yes" if keep else run.hold,
            "days": request.POST.get("days", "") if keep else days,
        }
    return {
        "notes": run.notes,
        "hold": run.hold,
        "days": days,
        "minutes": "10",
        "per_second": whole(request.GET.get("per_second", "")) or "",
    }


def _foreseen(request: ConsoleRequest, head: Head) -> Hot | None:
    """What the brake that is asked for, or one that fits, would have done to the last hour."""
    asked = request.POST if request.method == "POST" else request.GET
    return read_hot(
        head.run.key, now=head.now, per_second=whole(asked.get("per_second", "").strip())
    )
