"""What was refused on a unit that is no run's, found without reading what was refused elsewhere.

Made beside the writers. An index whose making was interrupted is left invalid by PostgreSQL; running
this again takes it away first.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q

NAME = "refusal_of_unit"


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0014_run_search")]

    operations = [
        migrations.RunSQL(f"DROP INDEX CONCURRENTLY IF EXISTS {NAME}", migrations.RunSQL.noop),
        AddIndexConcurrently(
            "refusal",
            models.Index(
                "unit",
                F("id").desc(),
                condition=Q(run__isnull=True, unit__isnull=False),
                name=NAME,
            ),
        ),
    ]
