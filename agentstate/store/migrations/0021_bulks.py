"""One action on many runs, worked off in the background, with an outcome for each."""

import django.contrib.postgres.fields
import django.db.models.expressions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agentstate", "0020_alert_change_facts"),
    ]

    operations = [
        migrations.CreateModel(
            name="BulkAction",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("kind", models.TextField()),
                ("filter", models.TextField(null=True)),
                ("seen_at", models.DateTimeField()),
                ("shown", models.IntegerField()),
                ("is_all", models.BooleanField(default=True)),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), default=list
                    ),
                ),
                ("hold_off_seconds", models.IntegerField(default=0)),
                ("reason", models.TextField()),
                ("created_by", models.TextField()),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), default=list
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("state", models.TextField()),
                ("cursor_at", models.DateTimeField(null=True)),
                ("cursor_id", models.UUIDField(null=True)),
                ("found", models.IntegerField(db_default=0, default=0)),
                ("todo", models.IntegerField(db_default=0, default=0)),
                ("cut", models.BooleanField(db_default=False, default=False)),
                ("done", models.IntegerField(db_default=0, default=0)),
                ("skipped", models.IntegerField(db_default=0, default=0)),
                ("refused", models.IntegerField(db_default=0, default=0)),
                ("claim", models.BigIntegerField(db_default=0, default=0)),
                ("claimed_until", models.DateTimeField(null=True)),
                ("worked_at", models.DateTimeField(null=True)),
                ("begun_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("stopped_by", models.TextField(null=True)),
                ("stopped_why", models.TextField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["collecting", "working"])),
                        fields=["created_at"],
                        name="bulk_at_work",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", True), ("state__in", ["collecting", "working"])
                            ),
                            models.Q(
                                ("ended_at__isnull", False), ("state__in", ["done", "stopped"])
                            ),
                            _connector="OR",
                        ),
                        name="bulk_is_at_work_or_has_ended",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state", "stopped"),
                                ("stopped_by__isnull", False),
                                ("stopped_why__isnull", False),
                            ),
                            models.Q(
                                ("state__in", ["collecting", "working", "done"]),
                                ("stopped_by__isnull", True),
                                ("stopped_why__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="bulk_stopped_says_by_whom_and_why",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("cursor_at__isnull", True), ("cursor_id__isnull", True)),
                            models.Q(("cursor_at__isnull", False), ("cursor_id__isnull", False)),
                            _connector="OR",
                        ),
                        name="bulk_cursor_is_a_run",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "found__gte",
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        models.F("done"), "+", models.F("skipped")
                                    ),
                                    "+",
                                    models.F("refused"),
                                ),
                            )
                        ),
                        name="bulk_settles_what_it_found",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "bulk_id",
                        "n",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("bulk_id", models.UUIDField()),
                ("n", models.IntegerField()),
                ("run_id", models.UUIDField()),
                ("run_key", models.TextField()),
                ("seen", models.JSONField(default=dict)),
                ("outcome", models.TextField()),
                ("why", models.TextField(db_default="", default="")),
                ("tries", models.IntegerField(db_default=0, default=0)),
                ("found_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("outcome", "waiting")),
                        fields=["bulk_id", "tries", "n"],
                        name="bulkitem_waiting",
                    ),
                    models.Index(fields=["found_at"], name="bulkitem_by_age"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("bulk_id", "run_id"), name="bulk_has_a_run_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("outcome", "waiting"), ("settled_at__isnull", True)),
                            models.Q(
                                ("outcome__in", ["done", "skipped", "refused"]),
                                ("settled_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="bulkitem_waits_or_is_settled",
                    ),
                ],
            },
        ),
    ]
