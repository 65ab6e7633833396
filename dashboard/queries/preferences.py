"""What a person chose for themselves: read with the session, written by the page of settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction

from dashboard import zones
from dashboard.models import Preference

THEMES = ("system", "light", "dark")
DENSITIES = ("comfortable", "compact")
# Pages that may stand at the first address; "" is Now.
OPENS = {
    "": "Now",
    "runs": "Runs",
    "leases": "Leases",
    "workers": "Workers",
    "contention": "Contention",
    "budgets": "Budgets",
    "bulks": "Bulk",
    "alerts": "Alerts",
    "audit": "Audit",
    "system": "System",
}

type Person = AbstractBaseUser | AnonymousUser


class Moved(Exception):
    """The settings were changed elsewhere since they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What counts for a person. theme "": what the browser's cookie says."""

    zone: str = zones.UTC_NAME
    in_utc: bool = False
    theme: str = ""
    density: str = DENSITIES[0]
    keys_off: bool = False
    opens: str = ""
    default_view: int | None = None
    version: int = 0

    @property
    def shown(self) -> tzinfo:
        """The zone of this person's pages. One that this machine does not know is UTC."""
        return UTC if self.in_utc else zones.find(self.zone) or UTC


NOTHING = Chosen()


def chosen_by(person: Person) -> Chosen:
    """What the person chose; without a statement when the person was read with the session.

    What an older or a newer release wrote and this one does not know counts as not chosen.
    """
    try:
        kept: Preference = person.console_preference  # type: ignore[union-attr]
    except (ObjectDoesNotExist, AttributeError):
        return NOTHING
    return _chosen(kept)


def _chosen(kept: Preference) -> Chosen:
    return Chosen(
        zone=kept.zone if zones.find(kept.zone) else zones.UTC_NAME,
        in_utc=kept.in_utc,
        theme=kept.theme if kept.theme in THEMES else "",
        density=kept.density if kept.density in DENSITIES else DENSITIES[0],
        keys_off=kept.keys_off,
        opens=kept.opens if kept.opens in OPENS else "",
        default_view=kept.default_view_id,
        version=kept.version,
    )


def chosen_anew(person: Person) -> Chosen:
    """The same, as it is now and not as it was when the request began."""
    kept = Preference.objects.filter(person_id=person.pk).first()
    return NOTHING if kept is None else _chosen(kept)


def change(person: Person, *, seen: int | None = None, **chosen: Any) -> None:
    """Keep what was chosen. seen: the version that the whole page of settings was made of; one
    thing alone (a theme, a zone) needs none. Raises Moved.
    """
    with transaction.atomic():
        Preference.objects.get_or_create(person_id=person.pk)
        kept = Preference.objects.select_for_update().get(person_id=person.pk)
        if seen is not None and kept.version != seen:
            raise Moved
        for name, value in chosen.items():
            setattr(kept, name, value)
        kept.version += 1
        kept.save(update_fields=[*chosen, "version"])
