"""Signals to workers, what they tell of themselves, counts per minute, and how long runs are kept."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import agentstate.store.fields
from agentstate.store.schema.operations import AtOnce, IndexBeside, has_column, has_table


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("agentstate", "0002_reservations"),
    ]

    operations = [
        AtOnce(
            migrations.CreateModel(
                name="FeedConsumer",
                fields=[
                    ("name", models.TextField(primary_key=True, serialize=False)),
                    ("position", models.BigIntegerField(default=0)),
                    ("principal", models.TextField()),
                    ("at", models.DateTimeField()),
                ],
            ),
            migrations.CreateModel(
                name="Minute",
                fields=[
                    (
                        "pk",
                        models.CompositePrimaryKey(
                            "minute",
                            "run_key",
                            "operation",
                            "worker",
                            "outcome",
                            blank=True,
                            editable=False,
                            primary_key=True,
                            serialize=False,
                        ),
                    ),
                    ("minute", models.DateTimeField()),
                    ("run_key", models.TextField()),
                    ("operation", models.TextField()),
                    ("worker", models.TextField()),
                    ("outcome", models.TextField()),
                    ("count", models.BigIntegerField()),
                    ("events", models.BigIntegerField(default=0)),
                    ("latency_ms", models.BigIntegerField(default=0)),
                    (
                        "attempts",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.BigIntegerField()
                        ),
                    ),
                    (
                        "latency",
                        django.contrib.postgres.fields.ArrayField(
                            base_field=models.BigIntegerField()
                        ),
                    ),
                ],
            ),
            migrations.CreateModel(
                name="Telemetry",
                fields=[
                    (
                        "run",
                        models.OneToOneField(
                            db_constraint=False,
                            on_delete=django.db.models.deletion.DO_NOTHING,
                            primary_key=True,
                            related_name="telemetry",
                            serialize=False,
                            to="agentstate.run",
                        ),
                    ),
                    ("host", models.TextField(null=True)),
                    ("model", models.TextField(null=True)),
                    ("progress", agentstate.store.fields.JSONTextField(null=True)),
                    ("worker_time", models.DateTimeField(null=True)),
                    ("skew_ms", models.BigIntegerField(null=True)),
                    ("token", models.BigIntegerField(null=True)),
                    ("at", models.DateTimeField()),
                ],
            ),
            migrations.CreateModel(
                name="Worker",
                fields=[
                    ("name", models.TextField(primary_key=True, serialize=False)),
                    ("version", models.TextField(null=True)),
                    ("host", models.TextField(null=True)),
                    ("slots", models.IntegerField(null=True)),
                    ("worker_time", models.DateTimeField(null=True)),
                    ("skew_ms", models.BigIntegerField(null=True)),
                    ("principal", models.TextField()),
                    ("first_seen_at", models.DateTimeField()),
                    ("seen_at", models.DateTimeField()),
                    ("drain_at", models.DateTimeField(null=True)),
                    ("drain_by", models.TextField(null=True)),
                    ("drain_reason", models.TextField(null=True)),
                ],
            ),
            there=has_table("agentstate_worker"),
        ),
        AtOnce(
            migrations.AddField(
                model_name="lease",
                name="signals",
                field=agentstate.store.fields.JSONTextField(null=True),
            ),
            there=has_column("agentstate_lease", "signals"),
        ),
        AtOnce(
            migrations.AddField(
                model_name="run",
                name="expires_at",
                field=models.DateTimeField(null=True),
            ),
            migrations.AddField(
                model_name="run",
                name="hold",
                field=models.BooleanField(default=False),
            ),
            there=has_column("agentstate_run", "hold"),
        ),
        IndexBeside(
            model_name="run",
            index=models.Index(
                condition=models.Q(("expires_at__isnull", False)),
                fields=["expires_at"],
                name="run_by_expiry",
            ),
        ),
        IndexBeside(
            model_name="run",
            index=models.Index(
                condition=models.Q(("deadline_at__isnull", False), ("ended_at__isnull", True)),
                fields=["deadline_at"],
                name="run_by_deadline",
            ),
        ),
    ]
