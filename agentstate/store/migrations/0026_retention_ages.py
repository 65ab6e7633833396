"""How long things are kept, where an admin says otherwise than the code. An older release goes by
the ages of its code, which are the defaults."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0023_made_rules_and_quiet_hours")]

    operations = [
        migrations.CreateModel(
            name="RetentionAge",
            fields=[
                ("kind", models.TextField(primary_key=True, serialize=False)),
                ("days", models.IntegerField(null=True)),
                ("version", models.BigIntegerField()),
                ("whole_from", models.DateTimeField()),
                ("changed_at", models.DateTimeField()),
                ("changed_by", models.TextField()),
                ("changed_why", models.TextField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(days__isnull=True) | Q(days__gte=1),
                        name="retention_age_is_of_days",
                    ),
                ],
            },
        ),
    ]
