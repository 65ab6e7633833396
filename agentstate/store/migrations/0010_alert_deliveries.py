"""Alerts that are snoozed and told; targets that are told of them, and each delivery."""

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.models import F, Q

import agentstate.store.fields


class Migration(migrations.Migration):
    blocks = "agentstate_alert has one row a rule: microseconds"

    dependencies = [
        ("agentstate", "0008_open_effects"),
    ]

    operations = [
        migrations.CreateModel(
            name="AlertTarget",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("kind", models.TextField()),
                ("address", models.TextField()),
                ("secret", models.TextField(null=True)),
                ("hint", models.TextField()),
                ("least", models.TextField()),
                (
                    "rules",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), default=list
                    ),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("off_at", models.DateTimeField(null=True)),
                ("off_why", models.TextField(null=True)),
                ("failures", models.IntegerField(default=0)),
                ("failing_since", models.DateTimeField(null=True)),
                ("delivered_at", models.DateTimeField(null=True)),
                ("version", models.BigIntegerField(default=1)),
                ("created_by", models.TextField()),
                ("created_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("target_id", models.UUIDField()),
                ("target", models.TextField()),
                ("rule", models.TextField()),
                ("what", models.TextField()),
                ("message", agentstate.store.fields.JSONTextField()),
                ("state", models.TextField()),
                ("attempts", models.IntegerField(default=0)),
                ("attempts_max", models.IntegerField()),
                ("next_at", models.DateTimeField()),
                ("claimed_until", models.DateTimeField(null=True)),
                ("tried_at", models.DateTimeField(null=True)),
                ("took_ms", models.BigIntegerField(null=True)),
                ("status", models.IntegerField(null=True)),
                ("answer", models.TextField(default="")),
                ("created_at", models.DateTimeField()),
                ("settled_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.AddField(
            model_name="alert",
            name="snoozed_by",
            field=models.TextField(null=True),
        ),
        migrations.AddField(
            model_name="alert",
            name="snoozed_until",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="alert",
            name="snoozed_why",
            field=models.TextField(null=True),
        ),
        migrations.AddField(
            model_name="alert",
            name="told_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="alert",
            name="told_state",
            field=models.TextField(null=True),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=Q(
                    Q(
                        ("snoozed_by__isnull", True),
                        ("snoozed_until__isnull", True),
                        ("snoozed_why__isnull", True),
                    ),
                    Q(
                        ("snoozed_by__isnull", False),
                        ("snoozed_until__isnull", False),
                        ("snoozed_why__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="alert_snoozed_until_by_and_why_together",
            ),
        ),
        migrations.AddConstraint(
            model_name="alerttarget",
            constraint=models.UniqueConstraint(fields=("name",), name="target_name_is_unique"),
        ),
        migrations.AddConstraint(
            model_name="alerttarget",
            constraint=models.CheckConstraint(
                condition=Q(
                    Q(("kind", "webhook"), ("secret__isnull", False)),
                    Q(("kind", "apprise"), ("secret__isnull", True)),
                    _connector="OR",
                ),
                name="target_that_signs_has_a_secret",
            ),
        ),
        migrations.AddConstraint(
            model_name="alerttarget",
            constraint=models.CheckConstraint(
                condition=Q(("least__in", ["warn", "alert"])), name="target_least_is_warn_or_alert"
            ),
        ),
        migrations.AddConstraint(
            model_name="alerttarget",
            constraint=models.CheckConstraint(
                condition=Q(
                    Q(("enabled", True), ("off_at__isnull", True), ("off_why__isnull", True)),
                    Q(("enabled", False), ("off_at__isnull", False), ("off_why__isnull", False)),
                    _connector="OR",
                ),
                name="target_off_says_when_and_why",
            ),
        ),
        migrations.AddConstraint(
            model_name="alerttarget",
            constraint=models.CheckConstraint(
                condition=Q(
                    Q(("failing_since__isnull", True), ("failures", 0)),
                    Q(("failing_since__isnull", False), ("failures__gt", 0)),
                    _connector="OR",
                ),
                name="target_failing_says_since_when",
            ),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(F("created_at").desc(), F("id").desc(), name="delivery_newest"),
        ),
        migrations.AddIndex(
            model_name="delivery",
            index=models.Index(
                condition=Q(("state", "waiting")),
                fields=["next_at"],
                name="delivery_waiting_by_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=Q(
                    Q(("settled_at__isnull", True), ("state", "waiting")),
                    Q(
                        ("claimed_until__isnull", True),
                        ("settled_at__isnull", False),
                        ("state__in", ["delivered", "failed", "dropped"]),
                    ),
                    _connector="OR",
                ),
                name="delivery_waits_or_is_settled",
            ),
        ),
        migrations.AddConstraint(
            model_name="delivery",
            constraint=models.CheckConstraint(
                condition=Q(("attempts__gte", 0), ("attempts__lte", F("attempts_max"))),
                name="delivery_tried_no_more_than_it_may",
            ),
        ),
    ]
