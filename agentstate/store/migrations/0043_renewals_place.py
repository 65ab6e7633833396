"""The function that renews leases, anew: it finds each at the end of its index, however much is dead.

An older release calls it as it did.
"""

from django.db import migrations

from agentstate.store.migrations.sql import leases_plain as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0042_lapsed_plans")]

    operations = [migrations.RunSQL(sql.REPLACE_RENEW_PLAIN, migrations.RunSQL.noop)]
