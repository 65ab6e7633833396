"""Rules that people made, whose a target is, and quiet hours. An older release goes on: it judges
no rule that it does not know, and sends what waits when its time has come."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import Q

from agentstate.store.schema.operations import AtOnce, CheckBeside, has_column, has_table


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0022_refused_actions")]

    operations = [
        AtOnce(
            migrations.AddField("AlertRule", "definition", models.JSONField(null=True)),
            there=has_column("agentstate_alertrule", "definition"),
        ),
        CheckBeside(
            "AlertRule",
            models.CheckConstraint(
                condition=Q(definition__isnull=True) | Q(rule__startswith="own-", version__gte=1),
                name="alertrule_made_by_people_says_so",
            ),
        ),
        AtOnce(
            migrations.AddField(
                "AlertTarget", "person", models.TextField(default="", db_default="")
            ),
            there=has_column("agentstate_alerttarget", "person"),
        ),
        AtOnce(
            migrations.AddField("Delivery", "held_until", models.DateTimeField(null=True)),
            there=has_column("agentstate_delivery", "held_until"),
        ),
        AtOnce(
            migrations.CreateModel(
                name="AlertQuiet",
                fields=[
                    ("whose", models.TextField(primary_key=True, serialize=False)),
                    ("zone", models.TextField()),
                    ("begins", models.IntegerField()),
                    ("ends", models.IntegerField()),
                    ("days", ArrayField(models.IntegerField(), default=list)),
                    ("critical", models.BooleanField()),
                    ("then", models.TextField()),
                    ("version", models.BigIntegerField()),
                    ("changed_at", models.DateTimeField()),
                    ("changed_by", models.TextField()),
                ],
                options={
                    "constraints": [
                        models.CheckConstraint(
                            condition=Q(begins__gte=0, begins__lt=1440, ends__gte=0, ends__lt=1440),
                            name="quiet_hours_are_of_a_day",
                        ),
                        models.CheckConstraint(
                            condition=Q(then__in=["send", "drop"]),
                            name="quiet_then_is_send_or_drop",
                        ),
                    ],
                },
            ),
            there=has_table("agentstate_alertquiet"),
        ),
    ]
