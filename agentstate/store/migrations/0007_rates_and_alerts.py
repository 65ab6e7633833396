"""Changes that were given up, per minute; a run's minutes by an index; alerts and their history."""

from django.db import migrations, models
from django.db.models import F, Q

from agentstate.store.schema.operations import AtOnce, IndexBeside, has_column, has_table


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0006_slots_brake_heartbeats")]

    operations = [
        AtOnce(
            migrations.AddField(
                "minute", "gave_up", models.BigIntegerField(default=0, db_default=0)
            ),
            there=has_column("agentstate_minute", "gave_up"),
        ),
        IndexBeside("minute", models.Index(fields=["run_key", "minute"], name="minute_of_run")),
        AtOnce(
            migrations.CreateModel(
                name="Alert",
                fields=[
                    ("rule", models.TextField(primary_key=True, serialize=False)),
                    ("state", models.TextField()),
                    ("value", models.FloatField(null=True)),
                    ("message", models.TextField(default="")),
                    ("facts", models.JSONField(default=dict)),
                    ("since", models.DateTimeField()),
                    ("changed_at", models.DateTimeField()),
                    ("held_at", models.DateTimeField()),
                    ("checked_at", models.DateTimeField()),
                    ("version", models.BigIntegerField(default=1)),
                    ("acknowledged_at", models.DateTimeField(null=True)),
                    ("acknowledged_by", models.TextField(null=True)),
                    ("acknowledged_why", models.TextField(null=True)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=Q(state__in=["ok", "warn", "alert", "no-data"]),
                            name="alert_state_is_known",
                        ),
                        models.CheckConstraint(
                            condition=Q(
                                acknowledged_at__isnull=True,
                                acknowledged_by__isnull=True,
                                acknowledged_why__isnull=True,
                            )
                            | Q(
                                acknowledged_at__isnull=False,
                                acknowledged_by__isnull=False,
                                acknowledged_why__isnull=False,
                                state__in=["warn", "alert"],
                            ),
                            name="alert_acknowledged_while_it_lasts",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="AlertChange",
                fields=[
                    ("id", models.BigAutoField(primary_key=True, serialize=False)),
                    ("rule", models.TextField()),
                    ("before", models.TextField()),
                    ("after", models.TextField()),
                    ("value", models.FloatField(null=True)),
                    ("message", models.TextField(default="")),
                    ("at", models.DateTimeField()),
                ],
                options={
                    "indexes": [
                        models.Index(F("at").desc(), F("id").desc(), name="alertchange_newest"),
                    ],
                },
            ),
            there=has_table("agentstate_alert"),
        ),
    ]
