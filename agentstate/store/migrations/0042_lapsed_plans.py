"""The function that looks for lapsed leases, anew: it reads those that are held and no others.

An older release calls it as it did.
"""

from django.db import migrations

from agentstate.store.migrations.sql import leases_plain as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0041_append_plans")]

    operations = [migrations.RunSQL(sql.REPLACE_LOOK_FOR_LAPSED, migrations.RunSQL.noop)]
