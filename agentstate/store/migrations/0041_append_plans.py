"""The function for appends, anew: its plan is made once and by the runs' key, whatever ANALYZE found.

An older release calls it as it did. On a store that is distributed `distribute` has to be run again.
"""

from django.db import migrations

from agentstate.store.migrations.sql import append_events as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0040_restores")]

    operations = [migrations.RunSQL(sql.REPLACE_APPEND_EVENTS, migrations.RunSQL.noop)]
