"""The charges that a budget refused are found without those of others.

Made beside the writers, who go on meanwhile. An index whose making was interrupted is left invalid
by PostgreSQL; running this again takes it away first.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q

INDEX = models.Index(
    F("budget"),
    F("at").desc(),
    F("id").desc(),
    condition=Q(code="budget-exhausted"),
    name="refusal_of_budget",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0018_seen_versions")]

    operations = [
        migrations.RunSQL(
            f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX.name}", migrations.RunSQL.noop
        ),
        AddIndexConcurrently("refusal", INDEX),
    ]
