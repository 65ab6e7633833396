from django.apps import AppConfig
from django.db.backends.signals import connection_created


class StoreConfig(AppConfig):
    name = "agentstate.store"
    label = "agentstate"
    verbose_name = "agentstate"

    def ready(self) -> None:
        from agentstate.store.spent import count_statements

        connection_created.connect(count_statements, dispatch_uid="agentstate.store.spent")
