"""Rules that people made, whose a target is, and quiet hours. An older release goes on: it judges
no rule that it does not know, and sends what waits when its time has come."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    blocks = "agentstate_alertrule has at most one row a rule: microseconds"

    dependencies = [("agentstate", "0022_refused_actions")]

    operations = [
        migrations.AddField("AlertRule", "definition", models.JSONField(null=True)),
        migrations.AddConstraint(
            "AlertRule",
            models.CheckConstraint(
                condition=Q(definition__isnull=True) | Q(rule__startswith="own-", version__gte=1),
                name="alertrule_made_by_people_says_so",
            ),
        ),
        migrations.AddField("AlertTarget", "person", models.TextField(default="", db_default="")),
        migrations.AddField("Delivery", "held_until", models.DateTimeField(null=True)),
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
                        condition=Q(then__in=["send", "drop"]), name="quiet_then_is_send_or_drop"
                    ),
                ],
            },
        ),
    ]
