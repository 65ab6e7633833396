"""The first schema. The event table is partitioned: its SQL is ours (sql/first_schema.py)."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields
import django.contrib.postgres.fields.ranges
import django.db.models.deletion
import django.db.models.expressions
from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations, models

import agentstate.store.fields
from agentstate.store.migrations.sql import first_schema as sql


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        BtreeGistExtension(),
        migrations.CreateModel(
            name="Feed",
            fields=[
                ("position", models.BigIntegerField(primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("run_key", models.TextField()),
                ("first_seq", models.BigIntegerField()),
                ("last_seq", models.BigIntegerField()),
                ("version", models.BigIntegerField()),
                ("types", django.contrib.postgres.fields.ArrayField(base_field=models.TextField())),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("gid", models.BigAutoField(primary_key=True, serialize=False)),
                ("run_id", models.UUIDField()),
                ("run_key", models.TextField()),
                ("first_seq", models.BigIntegerField()),
                ("last_seq", models.BigIntegerField()),
                ("version", models.BigIntegerField()),
                ("types", django.contrib.postgres.fields.ArrayField(base_field=models.TextField())),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.TextField()),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(base_field=models.TextField()),
                ),
                ("salt", models.BinaryField()),
                ("digest", models.BinaryField()),
                ("hint", models.TextField()),
                ("created_by", models.TextField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("revoked_at", models.DateTimeField(null=True)),
                ("last_used_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("name",), name="key_name_is_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="FeedHead",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("position", models.BigIntegerField(default=0)),
                ("moved_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="feed_has_one_head")
                ],
            },
        ),
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "principal",
                        "key",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("principal", models.TextField()),
                ("key", models.TextField()),
                ("fingerprint", models.BinaryField()),
                ("kind", models.TextField()),
                ("answer", agentstate.store.fields.JSONTextField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("replays", models.IntegerField(default=0)),
            ],
            options={
                "indexes": [models.Index(fields=["expires_at"], name="idempotency_by_expiry")],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("key", models.TextField()),
                ("task", models.TextField()),
                ("status", models.TextField()),
                ("version", models.BigIntegerField()),
                ("last_seq", models.BigIntegerField()),
                ("counters", models.JSONField(default=dict)),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), default=list
                    ),
                ),
                ("notes", models.TextField(default="")),
                ("attrs", agentstate.store.fields.JSONTextField(default="{}")),
                ("result", agentstate.store.fields.JSONTextField(null=True)),
                ("owner", models.TextField(null=True)),
                ("token", models.BigIntegerField(null=True)),
                ("holder", models.TextField(null=True)),
                ("last_token", models.BigIntegerField(null=True)),
                ("ended_token", models.BigIntegerField(null=True)),
                ("attempt", models.IntegerField(default=0)),
                ("max_attempts", models.IntegerField(default=5)),
                ("deadline_at", models.DateTimeField(null=True)),
                ("deadline_policy", models.TextField(default="report")),
                ("retain_seconds", models.BigIntegerField(null=True)),
                ("created_by", models.TextField(default="")),
                ("created_at", models.DateTimeField()),
                ("updated_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="children",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(sql.EVENT, sql.DROP_EVENT)],
            state_operations=[
                migrations.CreateModel(
                    name="Event",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "run_id",
                                "seq",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("seq", models.BigIntegerField()),
                        ("version", models.BigIntegerField()),
                        ("type", models.TextField()),
                        ("origin", models.TextField()),
                        ("data", agentstate.store.fields.JSONTextField()),
                        ("event_id", models.TextField(null=True)),
                        ("token", models.BigIntegerField(null=True)),
                        ("add", agentstate.store.fields.JSONTextField(null=True)),
                        ("actor", models.TextField()),
                        ("request_id", models.TextField(null=True)),
                        ("at", models.DateTimeField()),
                        (
                            "run",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="events",
                                to="agentstate.run",
                            ),
                        ),
                    ],
                ),
                migrations.AddConstraint(
                    model_name="event",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("event_id__isnull", False)),
                        fields=("run", "event_id"),
                        name="event_id_is_unique_in_its_run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Refusal",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("code", models.TextField()),
                ("operation", models.TextField()),
                ("unit", models.TextField(null=True)),
                ("budget", models.TextField(null=True)),
                ("actor", models.TextField()),
                ("worker", models.TextField(null=True)),
                ("token_sent", models.BigIntegerField(null=True)),
                ("token_current", models.BigIntegerField(null=True)),
                ("wanted", models.JSONField(default=dict)),
                ("found", models.JSONField(default=dict)),
                ("request_id", models.TextField(null=True)),
                ("attempt", models.IntegerField(default=1)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="refusals",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="OperatorAction",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("actor", models.TextField()),
                ("action", models.TextField()),
                ("object", models.TextField()),
                ("reason", models.TextField(default="")),
                ("before", models.JSONField(default=dict)),
                ("after", models.JSONField(default=dict)),
                ("expected", models.JSONField(default=dict)),
                ("request_id", models.TextField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="actions",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="LeaseTerm",
            fields=[
                ("token", models.BigIntegerField(primary_key=True, serialize=False)),
                ("unit", models.TextField()),
                ("owner", models.TextField()),
                ("holder", models.TextField()),
                ("held", django.contrib.postgres.fields.ranges.DateTimeRangeField()),
                ("renewals", models.IntegerField(default=0)),
                ("ended", models.TextField(null=True)),
                ("ended_by", models.TextField(null=True)),
                ("reason", models.TextField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="terms",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Lease",
            fields=[
                ("unit", models.TextField(primary_key=True, serialize=False)),
                ("owner", models.TextField(null=True)),
                ("holder", models.TextField(null=True)),
                ("token", models.BigIntegerField(null=True)),
                ("ttl_seconds", models.IntegerField(default=60)),
                ("acquired_at", models.DateTimeField(null=True)),
                ("renewed_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("renewals", models.IntegerField(default=0)),
                ("progress", agentstate.store.fields.JSONTextField(null=True)),
                ("noted_token", models.BigIntegerField(null=True)),
                ("term_ended_at", models.DateTimeField(null=True)),
                ("hold_off_owner", models.TextField(null=True)),
                ("hold_off_until", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="leases",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("unit", models.TextField()),
                ("cap", models.BigIntegerField()),
                ("reserved", models.BigIntegerField(default=0)),
                ("spent", models.BigIntegerField(default=0)),
                ("overdrawn", models.BooleanField(default=False)),
                ("version", models.BigIntegerField(default=1)),
                ("entries", models.BigIntegerField(default=0)),
                ("depth", models.IntegerField(default=0)),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="children",
                        to="agentstate.budget",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="budgets",
                        to="agentstate.run",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="BudgetEntry",
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
                ("kind", models.TextField()),
                ("amount", models.BigIntegerField()),
                ("spent", models.BigIntegerField(default=0)),
                ("reserved", models.BigIntegerField(default=0)),
                ("cap", models.BigIntegerField(null=True)),
                ("entry_id", models.TextField(null=True)),
                ("run_id", models.UUIDField(null=True)),
                ("token", models.BigIntegerField(null=True)),
                ("note", models.TextField(default="")),
                ("overdrawn", models.BooleanField(default=False)),
                ("actor", models.TextField()),
                ("request_id", models.TextField(null=True)),
                ("at", models.DateTimeField()),
                (
                    "budget",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="ledger",
                        to="agentstate.budget",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("entry_id__isnull", False), ("kind", "spend")),
                        fields=("budget", "run_id", "entry_id"),
                        name="charge_id_is_unique_in_its_run",
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.F("status"),
                models.OrderBy(models.F("created_at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="run_by_status_newest",
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                models.OrderBy(models.F("created_at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="run_newest",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.UniqueConstraint(fields=("key",), name="run_key_is_unique"),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(("last_seq__gte", 1), ("version__gte", 1)),
                name="run_version_and_seq_from_1",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("holder__isnull", True), ("owner__isnull", True), ("token__isnull", True)
                    ),
                    models.Q(
                        ("holder__isnull", False),
                        ("owner__isnull", False),
                        ("token__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="run_owner_and_token_together",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("token__isnull", True), ("token", models.F("last_token")), _connector="OR"
                ),
                name="run_token_is_the_last_one",
            ),
        ),
        migrations.AddConstraint(
            model_name="run",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status__in", ["completed", "failed", "cancelled"]), _negated=True),
                    models.Q(("ended_at__isnull", False), ("token__isnull", True)),
                    _connector="OR",
                ),
                name="run_ended_has_no_holder",
            ),
        ),
        migrations.AddIndex(
            model_name="refusal",
            index=models.Index(
                models.OrderBy(models.F("at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="refusal_newest",
            ),
        ),
        migrations.AddIndex(
            model_name="refusal",
            index=models.Index(
                models.F("run"),
                models.OrderBy(models.F("id"), descending=True),
                name="refusal_of_run",
            ),
        ),
        migrations.AddIndex(
            model_name="operatoraction",
            index=models.Index(
                models.OrderBy(models.F("at"), descending=True),
                models.OrderBy(models.F("id"), descending=True),
                name="action_newest",
            ),
        ),
        migrations.AddConstraint(
            model_name="leaseterm",
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(
                expressions=[("unit", "="), ("held", "&&")], name="lease_terms_never_overlap"
            ),
        ),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("expires_at__isnull", True),
                        ("holder__isnull", True),
                        ("owner__isnull", True),
                        ("token__isnull", True),
                    ),
                    models.Q(
                        ("expires_at__isnull", False),
                        ("holder__isnull", False),
                        ("owner__isnull", False),
                        ("token__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="lease_held_or_free",
            ),
        ),
        migrations.AddConstraint(
            model_name="lease",
            constraint=models.CheckConstraint(
                condition=models.Q(("ttl_seconds__gte", 1), ("ttl_seconds__lte", 86400)),
                name="lease_ttl_from_1_second_to_a_day",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.UniqueConstraint(
                fields=("run", "name"), name="budget_name_is_unique", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "cap__gte",
                        django.db.models.expressions.CombinedExpression(
                            models.F("spent"), "+", models.F("reserved")
                        ),
                    ),
                    ("overdrawn", True),
                    _connector="OR",
                ),
                name="budget_within_cap_or_overdrawn",
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("cap__gte", 0), ("reserved__gte", 0), ("spent__gte", 0)),
                name="budget_never_negative",
            ),
        ),
        migrations.RunSQL(sql.FUNCTIONS, sql.DROP_FUNCTIONS),
        migrations.RunSQL(sql.TRIGGERS, sql.DROP_TRIGGERS),
        migrations.RunSQL(sql.STORAGE, migrations.RunSQL.noop),
    ]
