from django.apps import AppConfig


class StoreConfig(AppConfig):
    name = "agentstate.store"
    label = "agentstate"
    verbose_name = "agentstate"
