"""What a request left behind can be found by its id."""

from django.db import migrations, models
from django.db.models import Q


def by_request(model: str, name: str) -> migrations.AddIndex:
    known = Q(request_id__isnull=False)
    index = models.Index(fields=["request_id"], condition=known, name=name)
    return migrations.AddIndex(model_name=model, index=index)


class Migration(migrations.Migration):
    dependencies = [("agentstate", "0004_retention")]

    operations = [
        migrations.AddField("idempotencyrecord", "request_id", models.TextField(null=True)),
        by_request("event", "event_by_request"),
        by_request("budgetentry", "entry_by_request"),
        by_request("operatoraction", "action_by_request"),
        by_request("refusal", "refusal_by_request"),
    ]
