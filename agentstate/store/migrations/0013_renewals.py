"""When a term was last renewed, to be drawn; with defaults, so that an older release goes on."""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

from agentstate.store.schema.operations import AtOnce, has_column


def renewed_ms() -> ArrayField:
    return ArrayField(base_field=models.BigIntegerField(), db_default=[], default=list)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0011_alert_bounds")]

    operations = [
        AtOnce(
            migrations.AddField("Lease", "renewed_ms", renewed_ms()),
            there=has_column("agentstate_lease", "renewed_ms"),
        ),
        AtOnce(
            migrations.AddField("LeaseTerm", "renewed_ms", renewed_ms()),
            migrations.AddField("LeaseTerm", "ttl_seconds", models.IntegerField(null=True)),
            there=has_column("agentstate_leaseterm", "ttl_seconds"),
        ),
    ]
