"""What people tried and were refused, for the audit; an older release goes on without.

A trigger refuses every UPDATE, and every DELETE but that of retention, which says so for its own
transaction alone. What was done (`operatoraction`) is let go by nothing.
"""

from django.db import migrations, models
from django.db.models import F, Q

from agentstate.store.migrations.sql import refused_actions as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0021_bulks")]

    operations = [
        migrations.CreateModel(
            name="RefusedAction",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("actor", models.TextField()),
                ("action", models.TextField()),
                ("object", models.TextField()),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="refused_actions",
                        to="agentstate.run",
                    ),
                ),
                ("outcome", models.TextField()),
                ("code", models.TextField()),
                ("reason", models.TextField(default="")),
                ("expected", models.JSONField(default=dict)),
                ("found", models.JSONField(default=dict)),
                ("request_id", models.TextField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(F("at").desc(), F("id").desc(), name="refused_action_newest"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(outcome__in=["refused", "forbidden"]),
                        name="refused_action_is_refused_or_forbidden",
                    )
                ],
            },
        ),
        migrations.RunSQL(sql.TRIGGERS, sql.DROP_TRIGGERS),
    ]
