"""Slots of a hot shared budget, the brake on a hot run, and when each periodic job last ran."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

from agentstate.store.schema.operations import (
    AtOnce,
    CheckBeside,
    IndexBeside,
    has_column,
    has_table,
)


def slot_of(*, has_index: bool) -> models.ForeignKey:
    return models.ForeignKey(
        "agentstate.budget",
        null=True,
        on_delete=django.db.models.deletion.DO_NOTHING,
        db_constraint=False,
        db_index=has_index,
        related_name="slot_rows",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0005_receipts")]

    operations = [
        AtOnce(
            migrations.AddField("budget", "slots", models.IntegerField(default=1, db_default=1)),
            migrations.AddField("budget", "slot_of", slot_of(has_index=False)),
            migrations.AddField("budget", "slot", models.IntegerField(null=True)),
            there=has_column("agentstate_budget", "slot"),
        ),
        # The index that Django makes for a foreign key, but beside the writers.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                IndexBeside(
                    "budget",
                    models.Index(fields=["slot_of"], name="agentstate_budget_slot_of_id_e8448d35"),
                )
            ],
            state_operations=[migrations.AlterField("budget", "slot_of", slot_of(has_index=True))],
        ),
        CheckBeside(
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
        CheckBeside(
            "budget",
            models.CheckConstraint(
                condition=Q(slots=1)
                | Q(slots__gt=1, slots__lte=64, run__isnull=True, parent__isnull=True),
                name="budget_slots_from_1_to_64",
            ),
        ),
        AtOnce(
            migrations.AddField("reservation", "slot_id", models.UUIDField(null=True)),
            there=has_column("agentstate_reservation", "slot_id"),
        ),
        AtOnce(
            migrations.AddField("run", "paced_at", models.DateTimeField(null=True)),
            migrations.AddField("run", "brake_per_second", models.IntegerField(null=True)),
            migrations.AddField("run", "brake_until", models.DateTimeField(null=True)),
            there=has_column("agentstate_run", "brake_until"),
        ),
        CheckBeside(
            "run",
            models.CheckConstraint(
                condition=Q(brake_per_second__isnull=True, brake_until__isnull=True)
                | Q(brake_per_second__gte=1, brake_until__isnull=False),
                name="run_brake_has_a_rate_and_an_end",
            ),
        ),
        AtOnce(
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
            there=has_table("agentstate_heartbeat"),
        ),
    ]
