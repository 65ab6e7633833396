"""A function for appends that nothing stands against; an older release goes on without."""

from django.db import migrations

from agentstate.store.migrations.sql import append_plain as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0026_retention_ages")]

    operations = [migrations.RunSQL(sql.APPEND_PLAIN, sql.DROP_APPEND_PLAIN)]
