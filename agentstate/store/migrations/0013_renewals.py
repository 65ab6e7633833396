"""When a term was last renewed, to be drawn; with defaults, so that an older release goes on."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0011_alert_bounds")]

    operations = [
        migrations.AddField(
            "Lease",
            "renewed_ms",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), db_default=[], default=list
            ),
        ),
        migrations.AddField(
            "LeaseTerm",
            "renewed_ms",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(), db_default=[], default=list
            ),
        ),
        migrations.AddField("LeaseTerm", "ttl_seconds", models.IntegerField(null=True)),
    ]
