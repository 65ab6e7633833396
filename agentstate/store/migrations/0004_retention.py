"""The ledger's trigger lets the rows of expired runs go."""

from django.db import migrations

from agentstate.store.migrations.sql import retention as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0003_signals_telemetry_retention")]

    operations = [migrations.RunSQL(sql.LET_GO, sql.NEVER_LET_GO)]
