"""What people keep of the console for themselves. Nothing about runs: that is the store's."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.sessions.base_session import AbstractBaseSession, BaseSessionManager
from django.db import models
from django.db.models import OuterRef, Q, QuerySet

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

    @property
    def listing(self) -> Listing:
        return listing.read({"q": self.filter, "columns": self.columns})


class Preference(models.Model):
    """What a person chose once: the view that Runs opens with."""

    person = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        primary_key=True,
        on_delete=models.CASCADE,
        related_name="console_preference",
    )
    default_view = models.ForeignKey(
        SavedView, null=True, on_delete=models.SET_NULL, related_name="default_of"
    )


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


class SessionsWithPeople(BaseSessionManager["Session"]):
    """Sessions as they are asked for: with the person and the names of their groups."""

    def get_queryset(self) -> QuerySet[Session]:
        groups = Group.objects.filter(user=OuterRef("user_id")).values("name")
        found: QuerySet[Session] = super().get_queryset().select_related("user")
        return found.annotate(roles=ArraySubquery(groups))


class Session(AbstractBaseSession):
    """A session at the console. Who is removed takes their sessions along."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="sessions"
    )

    objects = SessionsWithPeople()  # type: ignore[misc]

    @classmethod
    def get_session_store_class(cls) -> Any:
        from dashboard.sessions import SessionStore

        return SessionStore
