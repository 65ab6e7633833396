"""When the store was restored from a backup, and what was left out then. An older release goes on
without: it tells a reader who stands in between that nothing is new, and counts its lag too high."""

from django.db import migrations, models
from django.db.models import F, Q

from agentstate.store.migrations.sql import restores as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0030_leases_plain")]

    operations = [
        migrations.CreateModel(
            name="Restore",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("source", models.TextField()),
                ("reason", models.TextField(default="")),
                ("feed_after", models.BigIntegerField()),
                ("feed_begins", models.BigIntegerField()),
                ("token_after", models.BigIntegerField()),
                ("token_begins", models.BigIntegerField()),
                ("leases_ended", models.BigIntegerField(default=0)),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(feed_begins__gt=F("feed_after"))
                        & Q(token_begins__gt=F("token_after")),
                        name="restore_only_goes_ahead",
                    ),
                ],
            },
        ),
        migrations.RunSQL(sql.FEED_LAG, sql.DROP_FEED_LAG),
    ]
