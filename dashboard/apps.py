"""The console as a Django app."""

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"

    def ready(self) -> None:
        """Make the roles after every migrate, so that they are there in tests and on each site; and
        let writes end the copies that pages are made of."""
        from agentstate import store
        from agentstate.caching import note_write
        from dashboard.access import make_roles

        # Of auth, whose tables they are in; an app without models gets no such signal.
        post_migrate.connect(make_roles, sender=apps.get_app_config("auth"))
        # In each process that writes, also in Celery's: the copies may be in a cache of all.
        if note_write not in store.after_write:
            store.after_write.append(note_write)
