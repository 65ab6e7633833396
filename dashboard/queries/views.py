"""Lists under a name: read for everybody who may see them, written by their owners.

What is done to one of the team's is in the audit, in the same transaction; one's own is nobody
else's business.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction
from django.db.models import F, Q

from agentstate import store
from agentstate.store.callers import Caller, Circumstances
from dashboard.listing import USUAL, Listing
from dashboard.models import Preference, SavedView

# Of one person, and of the team: what a menu can show.
VIEWS_MAX = 50

type Person = AbstractBaseUser | AnonymousUser


class NameTaken(Exception):
    """There is a view of this name already."""


class TooMany(Exception):
    """There are as many as a menu can show."""


class Moved(Exception):
    """Somebody else changed or deleted it since it was read."""


def visible_to(person: Person) -> list[SavedView]:
    """The person's own ones, then the team's, each by name."""
    seen = SavedView.objects.filter(Q(owner=person.pk) | Q(owner__isnull=True))
    return list(seen.order_by(F("owner").asc(nulls_last=True), "name"))


def default_of(person: Person) -> SavedView | None:
    """The view that Runs opens with. One that the person no longer sees is none."""
    seen = Q(owner=person.pk) | Q(owner__isnull=True)
    return SavedView.objects.filter(seen, default_of__person=person.pk).first()


def save(
    *,
    name: str,
    shown: Listing,
    owner: int | None,
    by: Caller,
    under: Circumstances,
    now: datetime,
) -> SavedView:
    """Keep a list under a new name. owner None: the team's. Raises NameTaken, TooMany."""
    if SavedView.objects.filter(owner=owner).count() >= VIEWS_MAX:
        raise TooMany
    kept = _kept(shown)
    view = SavedView(owner_id=owner, name=name, changed_by=by.name, changed_at=now, **kept)
    with transaction.atomic():
        try:
            with transaction.atomic():
                view.save(force_insert=True)
        except IntegrityError:
            raise NameTaken from None
        _tell("view.created", view, by, under, after=kept)
    return view


def replace(
    view: SavedView,
    *,
    shown: Listing,
    seen: int,
    by: Caller,
    under: Circumstances,
    now: datetime,
) -> None:
    """Put another list under its name. seen: the version that whoever asks has read. Raises
    Moved."""
    kept = _kept(shown)
    with transaction.atomic():
        was = _locked(view, seen)
        SavedView.objects.filter(pk=view.pk).update(
            version=F("version") + 1, changed_by=by.name, changed_at=now, **kept
        )
        _tell("view.changed", view, by, under, before=was, after=kept)


def delete(view: SavedView, *, seen: int, by: Caller, under: Circumstances) -> None:
    """Raises Moved."""
    with transaction.atomic():
        was = _locked(view, seen)
        SavedView.objects.filter(pk=view.pk).delete()
        _tell("view.deleted", view, by, under, before=was)


def _locked(view: SavedView, seen: int) -> dict[str, str]:
    """What it shows, which nobody else changes from here on. Raises Moved."""
    found = SavedView.objects.select_for_update().filter(pk=view.pk, version=seen).first()
    if found is None:
        raise Moved
    return {"filter": found.filter, "columns": found.columns}


def _tell(action: str, view: SavedView, by: Caller, under: Circumstances, **facts: Any) -> None:
    if view.owner_id is None:
        store.record_action(by=by, action=action, thing=view.name, under=under, **facts)


def open_with(person: Person, view: SavedView | None) -> None:
    """Choose the view that Runs opens with, or none."""
    Preference.objects.update_or_create(person_id=person.pk, defaults={"default_view": view})


def _kept(shown: Listing) -> dict[str, str]:
    columns = "" if shown.columns == USUAL else shown.columns_text
    return {"filter": shown.wanted.text, "columns": columns}
