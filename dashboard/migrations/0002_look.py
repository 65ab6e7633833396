"""When a person last looked at the console, to tell what is new."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("dashboard", "0001_saved_views"),
    ]

    operations = [
        migrations.CreateModel(
            name="Look",
            fields=[
                (
                    "person",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="console_look",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("looked_at", models.DateTimeField()),
                ("before_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
