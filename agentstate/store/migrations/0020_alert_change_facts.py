"""What a change of an alert was about, so that it can be looked at as it was then; with a default,
so that an older release goes on."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0019_refused_charges")]

    operations = [
        migrations.AddField("AlertChange", "facts", models.JSONField(db_default={}, default=dict)),
    ]
