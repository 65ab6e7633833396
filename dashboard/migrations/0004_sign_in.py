"""When a session began and was last used, wrong passwords that are counted, and the first-run code."""

from django.db import migrations, models

import dashboard.models


class Migration(migrations.Migration):
    blocks = "dashboard_session has a row for each person who is signed in: milliseconds"

    dependencies = [
        ("dashboard", "0003_sessions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Try",
            fields=[
                ("what", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("tries", models.IntegerField()),
                ("until", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="session",
            name="seen_at",
            field=models.DateTimeField(db_default=dashboard.models.DatabaseNow()),
        ),
        migrations.AddField(
            model_name="session",
            name="started_at",
            field=models.DateTimeField(db_default=dashboard.models.DatabaseNow()),
        ),
        migrations.CreateModel(
            name="SetupCode",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("digest", models.CharField(max_length=64)),
                ("made_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("id", 1)), name="setup_has_one_code")
                ],
            },
        ),
    ]
