"""A function for appends of any number of events; the one before it stays for the release that
still calls it."""

from django.db import migrations

from agentstate.store.migrations.sql import append_events as sql


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0027_append_plain")]

    operations = [migrations.RunSQL(sql.APPEND_EVENTS, sql.DROP_APPEND_EVENTS)]
