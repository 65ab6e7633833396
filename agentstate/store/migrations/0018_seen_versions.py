"""When each version of the site and of its workers was first seen; an older release goes on without."""

from django.db import migrations, models
from django.db.models import F


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0016_collisions")]

    operations = [
        migrations.CreateModel(
            name="SeenVersion",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "what",
                        "version",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("what", models.TextField()),
                ("version", models.TextField()),
                ("first_seen_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
            ],
        ),
        migrations.AddIndex(
            "SeenVersion", models.Index(F("first_seen_at").desc(), name="seenversion_newest")
        ),
    ]
