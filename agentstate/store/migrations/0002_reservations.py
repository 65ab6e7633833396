"""Tokens that are reserved before they are spent, until they are settled or run out."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agentstate", "0001_first_schema"),
    ]

    operations = [
        migrations.CreateModel(
            name="Reservation",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "budget_id",
                        "n",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("n", models.BigIntegerField()),
                ("reservation_id", models.TextField()),
                ("amount", models.BigIntegerField()),
                ("actual", models.BigIntegerField(null=True)),
                ("state", models.TextField()),
                ("token", models.BigIntegerField(null=True)),
                ("actor", models.TextField()),
                ("expires_at", models.DateTimeField()),
                ("created_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(null=True)),
                (
                    "budget",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="holds",
                        to="agentstate.budget",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="holds",
                        to="agentstate.run",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "held")),
                        fields=["expires_at"],
                        name="reservation_held_by_expiry",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("budget", "reservation_id"),
                        name="reservation_id_is_unique_in_its_budget",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["held", "committed", "released", "dropped", "late"])
                        ),
                        name="reservation_state_is_known",
                    ),
                ],
            },
        ),
    ]
