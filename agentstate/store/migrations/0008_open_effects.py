"""Effects that were begun and not ended, for the next holder of their run."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0007_rates_and_alerts")]

    operations = [
        migrations.CreateModel(
            name="OpenEffect",
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
                (
                    "run",
                    models.ForeignKey(
                        "agentstate.run",
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="open_effects",
                    ),
                ),
            ],
        ),
    ]
