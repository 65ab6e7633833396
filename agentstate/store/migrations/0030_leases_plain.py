"""Functions for leases that nothing stands against, and where what waits for a worker is found.

An older release goes on without. The indexes are partial: no renewal and no append changes what
they look at, so both stay HOT.
"""

from django.db import migrations, models
from django.db.models import F, Q

from agentstate.store.migrations.sql import leases_plain as sql
from agentstate.store.schema.operations import AtOnce, IndexBeside, has_function

WAITING = Q(token__isnull=True) & (
    Q(status="pending") | Q(status="running", last_token__isnull=False)
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0029_minute_fill")]

    operations = [
        IndexBeside(
            model_name="run",
            index=models.Index(
                F("created_at"), F("id"), condition=WAITING, name="run_waiting_oldest"
            ),
        ),
        IndexBeside(
            model_name="run",
            index=models.Index(
                F("task"), F("created_at"), F("id"), condition=WAITING, name="run_waiting_by_task"
            ),
        ),
        IndexBeside(
            model_name="lease",
            index=models.Index(
                fields=["unit"], condition=Q(token__isnull=False), name="lease_held"
            ),
        ),
        AtOnce(
            migrations.RunSQL(sql.RENEW_PLAIN, sql.DROP_RENEW_PLAIN),
            migrations.RunSQL(sql.LOOK_FOR_LAPSED, sql.DROP_LOOK_FOR_LAPSED),
            migrations.RunSQL(sql.CLAIM_PLAIN, sql.DROP_CLAIM_PLAIN),
            there=has_function("agentstate_claim_plain"),
        ),
    ]
