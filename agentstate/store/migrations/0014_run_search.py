"""Runs are found by a part of their task, by how their key begins and by a tag, however many.

Made beside the writers, who go on meanwhile. An index whose making was interrupted is left invalid
by PostgreSQL; running this again takes it away first.
"""

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.contrib.postgres.operations import AddIndexConcurrently, TrigramExtension
from django.db import migrations, models
from django.db.models.functions import Upper

INDEXES = (
    GinIndex(
        OpClass(Upper("task"), name="gin_trgm_ops"),
        name="run_task_text",
        gin_pending_list_limit=1024,
    ),
    models.Index(OpClass(Upper("key"), name="text_pattern_ops"), name="run_key_text"),
    GinIndex(fields=["tags"], name="run_by_tag", fastupdate=False),
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0013_renewals")]

    operations = [
        TrigramExtension(),
        *(
            operation
            for index in INDEXES
            for operation in (
                migrations.RunSQL(
                    f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}", migrations.RunSQL.noop
                ),
                AddIndexConcurrently("run", index),
            )
        ),
        # Seldom words are told from frequent ones only by what is known of them.
        migrations.RunSQL(
            "ALTER INDEX run_task_text ALTER COLUMN 1 SET STATISTICS 1000",
            migrations.RunSQL.noop,
        ),
    ]
