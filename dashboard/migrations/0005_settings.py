"""What a person may choose: zone, theme, density, keys, and the first page."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0004_sign_in")]

    operations = [
        migrations.AddField("preference", "zone", models.TextField(default="", db_default="")),
        migrations.AddField(
            "preference", "in_utc", models.BooleanField(default=False, db_default=False)
        ),
        migrations.AddField("preference", "theme", models.TextField(default="", db_default="")),
        migrations.AddField("preference", "density", models.TextField(default="", db_default="")),
        migrations.AddField(
            "preference", "keys_off", models.BooleanField(default=False, db_default=False)
        ),
        migrations.AddField("preference", "opens", models.TextField(default="", db_default="")),
        migrations.AddField("preference", "version", models.IntegerField(default=0, db_default=0)),
    ]
