"""Who met whom, per minute; on each refusal, who was first and about what it was.

The columns of refusals may be empty, so that an older release goes on writing them.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0015_refusals_of_units")]

    operations = [
        migrations.AddField("Refusal", "met", models.TextField(null=True)),
        migrations.AddField("Refusal", "about", models.TextField(null=True)),
        migrations.CreateModel(
            name="Collision",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "minute",
                        "run_key",
                        "outcome",
                        "loser",
                        "winner",
                        "about",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("run_key", models.TextField()),
                ("outcome", models.TextField()),
                ("loser", models.TextField()),
                ("winner", models.TextField()),
                ("about", models.TextField()),
                ("count", models.BigIntegerField()),
                ("latency_ms", models.BigIntegerField(default=0, db_default=0)),
            ],
        ),
    ]
