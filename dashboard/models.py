"""What people keep of the console for themselves. Nothing about runs: that is the store's."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

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
