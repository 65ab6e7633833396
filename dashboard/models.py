"""What people keep of the console for themselves. Nothing about runs: that is the store's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.sessions.base_session import AbstractBaseSession, BaseSessionManager
from django.db import models
from django.db.models import Func, OuterRef, Q, QuerySet, Value

from dashboard import listing
from dashboard.listing import Listing

NAME_CHARS = 60


class SavedView(models.Model):
    """A list under a name: one person's own, or with owner NULL the whole team's.

    The filter is kept as it was typed, so `since:2h` goes on meaning the last two hours. Who
    replaces or deletes says which version they saw.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=NAME_CHARS)
    filter = models.TextField()
    columns = models.TextField(default="")
    version = models.IntegerField(default=1)
    changed_by = models.TextField()
    changed_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "name"], name="view_name_is_its_owners"),
            models.UniqueConstraint(
                fields=["name"], condition=Q(owner__isnull=True), name="view_name_is_the_teams"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def listing(self) -> Listing:
        return listing.read({"q": self.filter, "columns": self.columns})


class Preference(models.Model):
    """What a person chose once, for all browsers; empty: nothing, and then it is as for everybody.

    zone: that times are shown in; in_utc: UTC is looked at instead for now. opens: the page that
    stands at the console's first address. version counts changes on the page of settings.
    """

    person = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="console_preference",
    )
    default_view = models.ForeignKey(
        SavedView, null=True, on_delete=models.SET_NULL, related_name="default_of"
    )
    # An older release writes rows without them.
    zone = models.TextField(default="", db_default="")
    in_utc = models.BooleanField(default=False, db_default=False)
    theme = models.TextField(default="", db_default="")
    density = models.TextField(default="", db_default="")
    keys_off = models.BooleanField(default=False, db_default=False)
    opens = models.TextField(default="", db_default="")
    version = models.IntegerField(default=0, db_default=0)


class Look(models.Model):
    """When a person last looked at Now, and the time before: since then, things are new."""

    person = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="console_look",
    )
    looked_at = models.DateTimeField()
    before_at = models.DateTimeField(null=True)


class DatabaseNow(Func):
    """The one clock that decides."""

    function = "agentstate_now"
    output_field = models.DateTimeField()


class SessionsWithPeople(BaseSessionManager["Session"]):
    """Sessions as they are asked for: with the person and the names of their groups."""

    def get_queryset(self) -> QuerySet[Session]:
        groups = Group.objects.filter(user=OuterRef("user_id")).values("name")
        found: QuerySet[Session] = super().get_queryset().select_related("user__console_preference")
        return found.annotate(roles=ArraySubquery(groups))

    def going_on(self) -> QuerySet[Session]:
        """Those within both limits, each with whether its last use is to be noted again."""
        idle, absolute = session_limits()
        now = DatabaseNow()
        return self.filter(
            seen_at__gt=now - Value(idle), started_at__gt=now - Value(absolute)
        ).annotate(unmarked=Q(seen_at__lt=now - Value(SEEN_AGAIN)))


def session_limits() -> tuple[timedelta, timedelta]:
    """How long a session may rest, and how long it may be at all."""
    return (
        timedelta(seconds=settings.SESSION_IDLE_SECONDS),
        timedelta(seconds=settings.SESSION_COOKIE_AGE),
    )


# A use is noted to the minute, or better where that would be much of the limit.
SEEN_AGAIN = timedelta(seconds=min(60, settings.SESSION_IDLE_SECONDS // 10))


class Session(AbstractBaseSession):
    """A session at the console. Who is removed takes their sessions along.

    started_at, seen_at: when it began and was last used; by these, and not by Django's expire_date,
    it is decided whether it goes on.
    """

    started_at = models.DateTimeField(db_default=DatabaseNow())
    seen_at = models.DateTimeField(db_default=DatabaseNow())
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="sessions"
    )

    objects = SessionsWithPeople()  # type: ignore[misc]

    def save(self, *, force_update: bool = False, **named: Any) -> None:
        """What is kept in it and whose it is; when it began stays."""
        changed = ["session_data", "user"] if force_update else None
        super().save(force_update=force_update, update_fields=changed, **named)

    @classmethod
    def get_session_store_class(cls) -> Any:
        from dashboard.sessions import SessionStore

        return SessionStore


class Try(models.Model):
    """How often something secret was tried of late: of one name, or from one address.

    what: a digest, so that the table tells nobody's name. until: when counting begins anew.
    """

    what = models.CharField(max_length=64, primary_key=True)
    tries = models.IntegerField()
    until = models.DateTimeField()


class SetupCode(models.Model):
    """The one row that opens the first-run page: the digest of the code that the last start
    printed. Nobody can read the code from it."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    digest = models.CharField(max_length=64)
    made_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="setup_has_one_code")]
