"""Bounds of rules that an operator gave, the figures of the last days, and what new rules look at."""

from django.db import migrations, models
from django.db.models import F, Func, Q

from agentstate.store.schema.operations import AtOnce, IndexBeside, has_table


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0010_alert_deliveries")]

    operations = [
        AtOnce(
            migrations.CreateModel(
                name="AlertRule",
                fields=[
                    ("rule", models.TextField(primary_key=True, serialize=False)),
                    ("warn", models.FloatField(null=True)),
                    ("alert", models.FloatField(null=True)),
                    ("version", models.BigIntegerField(default=0)),
                    ("changed_at", models.DateTimeField(null=True)),
                    ("changed_by", models.TextField(null=True)),
                    ("changed_why", models.TextField(null=True)),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=Q(
                                version=0,
                                changed_at__isnull=True,
                                changed_by__isnull=True,
                                changed_why__isnull=True,
                            )
                            | Q(
                                version__gte=1,
                                changed_at__isnull=False,
                                changed_by__isnull=False,
                                changed_why__isnull=False,
                            ),
                            name="alertrule_changed_says_when_by_whom_and_why",
                        ),
                    ],
                },
            ),
            migrations.CreateModel(
                name="AlertFigure",
                fields=[
                    (
                        "pk",
                        models.CompositePrimaryKey(
                            "rule",
                            "minute",
                            blank=True,
                            editable=False,
                            primary_key=True,
                            serialize=False,
                        ),
                    ),
                    ("rule", models.TextField()),
                    ("minute", models.DateTimeField()),
                    ("value", models.FloatField(null=True)),
                ],
                options={
                    "indexes": [models.Index(fields=["minute"], name="alertfigure_by_minute")],
                },
            ),
            there=has_table("agentstate_alertrule"),
        ),
        IndexBeside(
            "run",
            models.Index(
                fields=["ended_at"], condition=Q(status="failed"), name="run_failed_by_end"
            ),
        ),
        IndexBeside(
            "leaseterm",
            models.Index(
                Func(F("held"), function="upper", output_field=models.DateTimeField()),
                condition=Q(ended="lapsed"),
                name="term_lapsed_by_end",
            ),
        ),
    ]
