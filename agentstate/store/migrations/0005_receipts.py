"""What a request left behind can be found by its id."""

from django.db import migrations, models
from django.db.models import Q

from agentstate.store.schema.operations import AtOnce, IndexBeside, has_column


def by_request(model: str, name: str) -> IndexBeside:
    known = Q(request_id__isnull=False)
    index = models.Index(fields=["request_id"], condition=known, name=name)
    return IndexBeside(model_name=model, index=index)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("agentstate", "0004_retention")]

    operations = [
        AtOnce(
            migrations.AddField("idempotencyrecord", "request_id", models.TextField(null=True)),
            there=has_column("agentstate_idempotencyrecord", "request_id"),
        ),
        by_request("event", "event_by_request"),
        by_request("budgetentry", "entry_by_request"),
        by_request("operatoraction", "action_by_request"),
        by_request("refusal", "refusal_by_request"),
    ]
