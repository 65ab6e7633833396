"""Slots of a hot shared budget, the brake on a hot run, and when each periodic job last ran."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0005_receipts")]

    operations = [
        migrations.AddField("budget", "slots", models.IntegerField(default=1, db_default=1)),
        migrations.AddField(
            "budget",
            "slot_of",
            models.ForeignKey(
                "agentstate.budget",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                db_constraint=False,
                related_name="slot_rows",
            ),
        ),
        migrations.AddField("budget", "slot", models.IntegerField(null=True)),
        migrations.AddConstraint(
            "budget",
            models.CheckConstraint(
                condition=Q(slot_of__isnull=True, slot__isnull=True)
                | Q(
                    slot_of__isnull=False,
                    slot__isnull=False,
                    run__isnull=True,
                    parent__isnull=True,
                ),
                name="budget_slot_of_a_shared_one",
            ),
        ),
        migrations.AddConstraint(
            "budget",
            models.CheckConstraint(
                condition=Q(slots=1)
                | Q(slots__gt=1, slots__lte=64, run__isnull=True, parent__isnull=True),
                name="budget_slots_from_1_to_64",
            ),
        ),
        migrations.AddField("reservation", "slot_id", models.UUIDField(null=True)),
        migrations.AddField("run", "paced_at", models.DateTimeField(null=True)),
        migrations.AddField("run", "brake_per_second", models.IntegerField(null=True)),
        migrations.AddField("run", "brake_until", models.DateTimeField(null=True)),
        migrations.AddConstraint(
            "run",
            models.CheckConstraint(
                condition=Q(brake_per_second__isnull=True, brake_until__isnull=True)
                | Q(brake_per_second__gte=1, brake_until__isnull=False),
                name="run_brake_has_a_rate_and_an_end",
            ),
        ),
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("every_seconds", models.IntegerField()),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("took_ms", models.BigIntegerField(null=True)),
                ("did", models.BigIntegerField(default=0)),
                ("behind", models.BigIntegerField(null=True)),
                ("passes", models.BigIntegerField(default=0)),
                ("failed", models.TextField(null=True)),
                ("host", models.TextField(default="")),
            ],
        ),
    ]
