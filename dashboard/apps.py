from django.apps import AppConfig
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        """Make the roles after every migrate, so that they are there in tests and on each site."""
        from dashboard.access import make_roles

        post_migrate.connect(make_roles, sender=self)
