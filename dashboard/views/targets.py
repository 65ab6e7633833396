"""Where alerts are told: targets, trying them, what was told and how it ended."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agentstate.outside.addresses import read_address
from agentstate.store import bounds, deliveries, targets
from agentstate.store.commands import ChangeTarget, DeleteTarget, ResendDelivery, TryTarget
from agentstate.store.deliveries import read_id
from agentstate.store.delivering import ADDRESS_CHARS, KINDS
from agentstate.store.errors import Invalid
from agentstate.store.targets import NewTarget, Target
from dashboard.access import allowed_actions
from dashboard.asking import Done, attempt, carry_out, form_context, read_reason
from dashboard.forms import form_circumstances, one_line, whole
from dashboard.pages import ConsoleRequest, is_partial, page, shared
from dashboard.queries import targets as queries
from dashboard.queries.clock import database_now
from dashboard.views import quiet

LOST = "The form has lost what you saw. Send it again."


@require_safe
@page
@shared
def show(request: ConsoleRequest) -> HttpResponseBase:
    """All targets, and the log; `before`: the delivery to go on from."""
    board = queries.read(before=request.GET.get("before") or None)
    context = {
        "damaged": board.log.damaged,
        "now": board.now,
        "board": board,
        "wants": {target.name: queries.wants(target) for target in board.targets},
        "actions": _actions(request),
    }
    parts = is_partial(request, "targets")
    return render(request, "targets/board.html" if parts else "targets/list.html", context)


@require_safe
@page
def show_one(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """One target and its log."""
    target = _find(name)
    return render(request, "targets/target.html", _of_one(request, target))


def _quiet(target: Target) -> dict[str, Any]:
    kept = quiet.kept_of(f"target:{target.name}").quiet
    return {
        "quiet_words": quiet.in_words(kept),
        "quiet_until": kept.until(database_now()) if kept else None,
    }


def _of_one(request: ConsoleRequest, target: Target) -> dict[str, Any]:
    before = request.GET.get("before") or None
    return form_context(request) | {
        "now": database_now(),
        "target": target,
        "wants": queries.wants(target),
        **_quiet(target),
        "log": (log := queries.read_log(target=target.name, before=before)),
        "damaged": log.damaged,
        "actions": _actions(request),
    }


@require_http_methods(["GET", "HEAD", "POST"])
@page
def make(request: ConsoleRequest) -> HttpResponseBase:
    """Ask for a target and make it. The secret of a webhook is on the page that answers, once."""
    if request.method != "POST":
        return ask_new(request)
    done = attempt(lambda: _made(request))
    if done.result is None:
        return ask_new(request, done=done)
    context = {"now": database_now(), "made": done.result, "actions": _actions(request)}
    return render(request, "targets/made.html", context)


def _made(request: ConsoleRequest) -> NewTarget:
    kind = request.POST.get("kind", "")
    address = read_address(kind, request.POST.get("address", "").strip())
    return targets.create_target(
        name=request.POST.get("name", "").strip(),
        kind=kind,
        address=address.text,
        hint=address.hint,
        least=request.POST.get("least", ""),
        rules=request.POST.getlist("rules"),
        person=_person(request),
        reason=one_line(request.POST.get("reason", "")),
        by=request.access.caller,
        under=form_circumstances(request),
    )


def _person(request: ConsoleRequest) -> str:
    """Raises Invalid for nobody that there is."""
    name = one_line(request.POST.get("person", ""))
    if name and not User.objects.filter(username=name).exists():
        raise Invalid("person", "Whose it is: nobody of this name may sign in here")
    return name


def ask_new(request: ConsoleRequest, *, done: Done[Any] | None = None) -> HttpResponseBase:
    """The form, with what was typed; the address, too, which only who typed it gets back."""
    context = form_context(request, done) | {
        "now": database_now(),
        "actions": _actions(request),
        "kinds": KINDS,
        "address_chars": ADDRESS_CHARS,
        "typed": {
            "name": request.POST.get("name", ""),
            "kind": request.POST.get("kind", "webhook"),
            "address": request.POST.get("address", ""),
        },
    }
    context |= _choices(request, least="warn", chosen=(), owner="")
    return render(request, "targets/new.html", context, status=done.status if done else 200)


def _choices(
    request: ConsoleRequest, *, least: str, chosen: tuple[str, ...], owner: str
) -> dict[str, Any]:
    """What a target is told, as it was chosen, or at first as it is."""
    again = request.method == "POST"
    return {
        "rules": bounds.rules().values(),
        "owner": request.POST.get("person", owner) if again else owner,
        "least": request.POST.get("least", least) if again else least,
        "least_words": queries.LEAST,
        "chosen": request.POST.getlist("rules") if again else list(chosen),
    }


@require_POST
@page
def test(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Send it a test. The log says how it ended."""
    _find(name)
    done = carry_out(request, lambda: TryTarget(name=name))
    if done.result is None:
        raise Http404
    told = f"{name}: a test is on its way. The log says what was answered."
    messages.success(request, told, extra_tags="check-circle")
    return redirect("target", name=name)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def change(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask what to change and why; then do it, if the target is still as it was seen."""
    target = _find(name)
    if request.method != "POST":
        return ask(request, target, "change")
    version, reason, error = _read(request)
    if version is None or error:
        return ask(request, target, "change", done=Done(error=error))
    done = carry_out(
        request,
        lambda: ChangeTarget(
            name=name,
            version=version,
            enabled=request.POST.get("enabled") == "yes",
            least=request.POST.get("least", ""),
            rules=tuple(sorted(set(request.POST.getlist("rules")))),
            person=_person(request),
            reason=reason,
        ),
    )
    if done.result is None:
        return ask(request, _find(name), "change", done=done)
    messages.success(request, f"{name}: saved.", extra_tags="check-circle")
    return redirect("target", name=name)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def rotate(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask why; then give it another secret, which is on the page that answers, once."""
    target = _find(name)
    if request.method != "POST":
        return ask(request, target, "rotate")
    version, reason, error = _read(request)
    if version is None or error:
        return ask(request, target, "rotate", done=Done(error=error))
    done = attempt(
        lambda: targets.rotate_secret(
            name=name,
            version=version,
            reason=reason,
            by=request.access.caller,
            under=form_circumstances(request),
        )
    )
    if done.result is None:
        return ask(request, _find(name), "rotate", done=done)
    context = {"now": database_now(), "target": _find(name), "fresh": done.result}
    return render(request, "targets/rotate.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def delete(request: ConsoleRequest, name: str) -> HttpResponseBase:
    """Ask why; then delete it, if it is still as it was seen."""
    target = _find(name)
    if request.method != "POST":
        return ask(request, target, "delete")
    version, reason, error = _read(request)
    if version is None or error:
        return ask(request, target, "delete", done=Done(error=error))
    done = carry_out(request, lambda: DeleteTarget(name=name, version=version, reason=reason))
    if done.result is None:
        return ask(request, _find(name), "delete", done=done)
    messages.success(request, f"{name}: deleted. Its log stays.", extra_tags="check-circle")
    return redirect("targets")


def _read(request: ConsoleRequest) -> tuple[int | None, str, str]:
    """What was seen, the reason, and what is wrong with these."""
    reason, error = read_reason(request)
    version = whole(request.POST.get("seen_version"))
    return version, reason, error or (LOST if version is None else "")


def ask(
    request: ConsoleRequest, target: Target, action: str, *, done: Done[Any] | None = None
) -> HttpResponseBase:
    """The page that asks. Refused, it shows the target as it is now; mended, as it was seen."""
    mending = done is not None and bool(done.error)
    seen = request.POST.get("seen_version", "") if mending else target.version
    enabled = request.POST.get("enabled") == "yes" if mending else target.enabled
    context = form_context(request, done) | {
        "now": database_now(),
        "target": target,
        "wants": queries.wants(target),
        "verdict": _actions(request)[action],
        "seen_version": seen,
        "enabled": enabled,
    }
    context |= _choices(request, least=target.least, chosen=target.rules, owner=target.person)
    status = done.status if done else 200
    return render(request, f"targets/{action}.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@page
def show_delivery(request: ConsoleRequest, delivery: str) -> HttpResponseBase:
    """One delivery with what was answered; a POST sends it again, with the same id."""
    found = deliveries.find(delivery)
    key = read_id(delivery)
    if found is None or key is None:
        raise Http404
    done: Done[Any] | None = None
    if request.method == "POST":
        done = carry_out(request, lambda: ResendDelivery(delivery=key))
        if done.result is not None:
            told = "It is on its way again. This page says what was answered."
            messages.success(request, told, extra_tags="check-circle")
            return redirect("delivery", delivery=delivery)
    context = form_context(request, done) | {
        "now": database_now(),
        "line": queries.read_line(found),
        "actions": _actions(request),
    }
    return render(request, "targets/delivery.html", context, status=done.status if done else 200)


def _find(name: str) -> Target:
    target = targets.find(name)
    if target is None:
        raise Http404
    return target


def _actions(request: ConsoleRequest) -> dict[str, Any]:
    return allowed_actions(request.access, {"kind": "target"})
